"""The engine through the bindings: ownership of batches, the GIL, signals, exit, fork."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from core_tables import batches_of, counting, engine_over, file_table, int64, memory_table
from paths import SUPPORT
from waiting import assert_takes_less, wait_for

import fastload
from fastload import _core

Run = Callable[..., "subprocess.CompletedProcess[str]"]
HERE = str(SUPPORT)
INT64 = np.dtype(np.int64)


def pushed(engine_workers: int = 1) -> tuple[_core.PushedOrder, _core.Engine]:
    order = _core.PushedOrder()
    table = memory_table(np.arange(100, dtype=np.int64))
    return order, engine_over(table, [(INT64, ())], order, engine_workers)


@pytest.mark.parametrize("workers", [0, 1, 2, 7])
def test_batches_equal_fancy_indexing_for_any_number_of_workers(workers: int) -> None:
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (300, 4, 5, 3), np.uint8)
    labels, flags = random.integers(0, 9, 300), random.integers(0, 2, 300).astype(bool)
    weights = random.random((300, 0), np.float32)
    table = memory_table(images, labels, flags, weights)
    fields = [(a.dtype, a.shape[1:]) for a in (images, labels, flags, weights)]
    plan = _core.EpochPlan(rows=300, batch=64, seed=4)
    engine = engine_over(table, fields, plan, workers, depth=3)
    for k, batch in enumerate(batches_of(engine)):
        indices = plan.indices(k)
        for got, source in zip(batch, (images, labels, flags, weights)):
            assert (got.dtype, got.shape) == (source.dtype, (len(indices), *source.shape[1:]))
            np.testing.assert_array_equal(got, source[indices])
    assert k == 4
    assert engine.next() is None
    stats = engine.stats()
    assert (stats["batches"], stats["samples"], stats["ready"]) == (5, 300, 0)
    assert stats["bytes"] == 300 * (60 + 8 + 1)


def test_a_batch_is_the_users_for_ever() -> None:
    table, fields, plan = counting(4000, 10)
    engine = engine_over(table, fields, plan, workers=2, depth=4)
    kept = []
    for batch in batches_of(engine):
        array = batch[0]
        assert array.flags.writeable
        assert array.flags.c_contiguous
        assert array.flags.aligned
        array *= -1
        kept.append(array[2:][::2])  # a view keeps the bytes as well
    del engine, table, batch, array
    gc.collect()
    for k, view in enumerate(kept):
        np.testing.assert_array_equal(view, -np.arange(10 * k + 2, 10 * k + 10, 2))


def test_slots_are_used_again_and_never_while_somebody_looks() -> None:
    table, fields, _ = counting(1000, 10)
    pool = _core.SlotPool()
    for epoch in range(6):
        plan = _core.EpochPlan(rows=1000, batch=10, epoch=epoch)
        engine = _core.Engine(table, pool, fields, plan, 2, 4)
        held: list[tuple[np.ndarray, np.ndarray]] = []
        for k, batch in enumerate(batches_of(engine)):
            held = [*held[-1:], (batch[0], plan.indices(k))]
            for array, indices in held:
                np.testing.assert_array_equal(array, indices)
        del engine, held, batch, array
    assert pool.allocation_count <= 10
    assert pool.used_bytes == 0
    assert 0 < pool.free_bytes <= 10 * 256


def test_arrays_may_die_on_any_thread_and_after_everything_else() -> None:
    table, fields, plan = counting(1000, 10)
    pool = _core.SlotPool()
    engine = _core.Engine(table, pool, fields, plan, 1, 4)
    kept = list(batches_of(engine))
    del engine, table
    threads = [threading.Thread(target=kept[i::4].clear) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept.clear()
    assert pool.used_bytes == 0


def test_empty_and_uneven_batches() -> None:
    order, engine = pushed()
    sizes = [3, 0, 0, 7, 1, 0]
    for size in sizes:
        order.push(np.full(size, size, np.int64))
    order.finish()
    got = [batch[0] for batch in batches_of(engine)]
    assert [array.tolist() for array in got] == [[size] * size for size in sizes]


def test_an_error_comes_at_its_turn_with_its_class_and_the_run_goes_on() -> None:
    order, engine = pushed(2)
    for indices in ([1, 2], [3, 100], [4], [-1], [5]):
        order.push(int64(*indices))
    order.finish()
    assert engine.next()[0].tolist() == [1, 2]
    with pytest.raises(IndexError, match=r"index 100 .* 100 samples"):
        engine.next()
    assert engine.next()[0].tolist() == [4]
    with pytest.raises(IndexError, match="index -1 "):
        engine.next()
    assert engine.next()[0].tolist() == [5]
    assert engine.next() is None
    assert engine.next() is None


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_cut_short_raises_in_next_and_the_process_lives(
    tmp_path: Path, io: str, workers: int
) -> None:
    path = tmp_path / "rows.bin"
    data = np.random.default_rng(0).integers(0, 256, (64, 4096), np.uint8)
    data.tofile(path)
    table = file_table([path], 64, 4096, io)
    for _ in range(3):
        data.tofile(path)
        plan = _core.EpochPlan(rows=64, batch=4, order="sequential")
        engine = engine_over(table, [(np.dtype(np.uint8), (4096,))], plan, workers, depth=1)
        assert engine.next() is not None
        os.truncate(path, 32 * 4096)
        outcomes = []
        while True:
            try:
                batch = engine.next()
            except OSError as error:
                outcomes.append(f"{error.filename}: {error}")
                continue
            if batch is None:
                break
            outcomes.append("")
        assert len(outcomes) == 15
        assert all(f"{path}: " in text and "'x' of sample" in text for text in outcomes[-7:])
        assert "sample 60" in outcomes[-1]


def test_is_ready_says_whether_next_has_something_to_wait_for() -> None:
    order, engine = pushed()
    assert not engine.is_ready()
    order.push(int64(3, 4))
    wait_for(engine.is_ready)
    order.push(int64(100))
    order.finish()
    assert engine.next()[0].tolist() == [3, 4]
    wait_for(engine.is_ready)  # for the error
    with pytest.raises(IndexError):
        engine.next()
    assert engine.is_ready()  # for the end
    assert engine.next() is None
    order, engine = pushed()
    engine.stop()
    assert engine.is_ready()
    order, engine = pushed(engine_workers=0)
    order.push(int64(1))
    assert not engine.is_ready()  # next() does the work


def test_timeout_says_what_it_waited_for() -> None:
    order, engine = pushed()

    def times_out() -> float:
        start = time.monotonic()
        with pytest.raises(TimeoutError, match="waiting for indices"):
            engine.next(0.1)
        took = time.monotonic() - start
        assert took > 0.09
        return took

    assert_takes_less(1, times_out)
    order.push(int64(7))
    assert engine.next(60.0)[0].tolist() == [7]


@pytest.mark.parametrize("workers", [0, 2])
def test_stop_wakes_a_waiting_thread_at_once_and_is_idempotent(workers: int) -> None:
    def stops() -> float:
        _, engine = pushed(workers)
        caught: list[type[BaseException]] = []

        def wait(engine: _core.Engine = engine, caught: list[type] = caught) -> None:
            try:
                engine.next()
            except BaseException:
                caught.append(sys.exc_info()[0])

        threads = [threading.Thread(target=wait) for _ in range(2)]
        for thread in threads:
            thread.start()
        time.sleep(0.05)
        start = time.monotonic()
        engine.stop()
        for thread in threads:
            thread.join()
        took = time.monotonic() - start
        assert caught == [fastload.StoppedError] * 2
        engine.stop()
        with pytest.raises(fastload.StoppedError):
            engine.next()
        return took

    assert_takes_less(0.2, stops)


def test_waiting_in_next_leaves_the_gil_to_others() -> None:
    order, engine = pushed()
    done = threading.Event()

    def consume() -> None:
        engine.next()
        done.set()

    thread = threading.Thread(target=consume)
    thread.start()

    def count() -> None:
        for _ in range(20_000):
            time.monotonic()

    assert_takes_less(0.2, count)
    order.push(int64(1))
    assert done.wait(60)
    thread.join()


def test_a_ready_batch_is_handed_over_without_giving_the_gil_away() -> None:
    table, fields, plan = counting(60_000, 20)
    engine = engine_over(table, fields, plan, workers=1, depth=4000)
    while engine.stats()["ready"] < 3000:
        time.sleep(0.01)
    stop, turns = threading.Event(), [0]

    def spin() -> None:
        while not stop.is_set():
            turns[0] += 1
            time.sleep(0)  # gives the GIL away

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e3)  # nobody is told to give it away
    spinner = threading.Thread(target=spin)
    try:
        spinner.start()
        wait_for(lambda: turns[0])
        before = turns[0]
        for _ in range(2000):
            engine.next()
        after = turns[0]
    finally:
        sys.setswitchinterval(interval)
        stop.set()
        spinner.join()
    assert after == before


def interrupted(engine: _core.Engine) -> float:
    """The seconds from a Ctrl-C to the KeyboardInterrupt in `next`."""
    sent: list[float] = []

    def interrupt() -> None:
        time.sleep(0.1)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    with pytest.raises(KeyboardInterrupt):
        thread.start()
        engine.next()
    took = time.monotonic() - sent[0]
    thread.join()
    return took


@pytest.mark.parametrize("workers", [0, 2])
def test_ctrl_c_in_next_is_a_keyboard_interrupt_within_200_ms(workers: int) -> None:
    _, engine = pushed(workers)
    assert_takes_less(0.2, lambda: interrupted(engine))


def test_ctrl_c_reaches_the_main_thread_while_another_thread_waits_first() -> None:
    order, engine = pushed()
    other = threading.Thread(target=engine.next)
    other.start()
    time.sleep(0.05)
    assert_takes_less(0.4, lambda: interrupted(engine))
    order.push(int64(1))
    other.join()


def test_arguments_are_checked() -> None:
    table, fields, plan = counting(10, 2)
    pool = _core.SlotPool()
    for workers, depth in [(-1, 2), (1, 0), (1, -1), (1, 2**62)]:
        with pytest.raises(ValueError):
            _core.Engine(table, pool, fields, plan, workers, depth)
    wrong_fields = [
        [],
        [(INT64, ()), (INT64, ())],
        [(np.dtype(np.int32), ())],
        [(INT64, (2,))],
        [(np.dtype(np.int8), (-1, -8))],
        [(np.dtype(object), ())],
    ]
    for wrong in wrong_fields:
        with pytest.raises(ValueError):
            _core.Engine(table, pool, wrong, plan, 1, 2)
    with pytest.raises(OverflowError):
        _core.Engine(table, pool, [(INT64, (2**32, 2**32))], plan, 1, 2)


def test_many_engines_live_at_once_on_one_pool() -> None:
    table, fields, _ = counting(500, 10)
    pool = _core.SlotPool()
    plans = [_core.EpochPlan(rows=500, batch=10, seed=s) for s in range(12)]
    engines = [_core.Engine(table, pool, fields, plan, 1, 3) for plan in plans]
    for k in range(50):
        for engine, plan in zip(engines, plans):
            np.testing.assert_array_equal(engine.next()[0], plan.indices(k))
    assert [engine.next() for engine in engines] == [None] * 12


def test_workers_fill_the_depth_after_a_consumer_that_helped_has_left() -> None:
    """One worker rests while a consumer comes right back; batches are made when it has left."""
    table, fields, _ = counting(1000, 10)
    batches, taken, depth = 6000, 3000, 32
    order = _core.ArrayOrder(np.arange(10 * batches) % 1000, 10, False)
    engine = engine_over(table, fields, order, os.cpu_count() or 1, depth)
    for k in range(taken):
        assert engine.next()[0][0] == 10 * k % 1000
    # Idle workers are woken once an eighth of the depth is missing.
    wait_for(lambda: engine.stats()["ready"] > depth - depth // 8)
    for k in range(taken, batches):
        assert engine.next()[0][0] == 10 * k % 1000
    assert engine.next() is None
