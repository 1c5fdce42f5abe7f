"""What a prefetcher loads and submits when, and what becomes of batches that cannot be copied."""

from __future__ import annotations

import os
import signal
import threading
import weakref
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from lazy_device import LazyDevice

from fastload import ArrayDataset, CudaError, FastLoader, StoppedError
from fastload.batch.parts import Leaf
from fastload.device.prefetcher import Prefetcher
from fastload.device.torch_copier import StaticBuffers, StreamCopier

META = torch.device("meta")


def test_a_late_batch_does_not_hold_up_the_one_before_it() -> None:
    late = RuntimeError("DataLoader timed out after 1 seconds")
    turns: list[Any] = [torch.ones(1), late, late, torch.zeros(1)]

    def load() -> tuple[Any, None]:
        turn = turns.pop(0)
        if isinstance(turn, Exception):
            raise turn
        return turn, None

    prefetcher = Prefetcher(META, StreamCopier(LazyDevice()))
    prefetcher.next(load, load)
    with pytest.raises(RuntimeError, match="timed out"):
        prefetcher.next(load, load)
    turns.append(torch.ones(2))
    assert prefetcher.next(load, load)[0].shape == (1,)


def test_a_forked_child_does_not_wait_for_a_thread_that_it_has_not() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def load() -> tuple[Any, None]:
        begun.set()
        go_on.wait(60)
        return torch.ones(1), None

    prefetcher = Prefetcher(META, StreamCopier(LazyDevice()))
    loading = threading.Thread(target=prefetcher.next, args=(load, lambda: None))
    loading.start()
    assert begun.wait(60)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(120)
            prefetcher.next(load, lambda: None)
        except StoppedError:
            code = 0
        finally:
            os._exit(code)
    go_on.set()
    loading.join()
    assert os.waitpid(child, 0)[1] == 0


def test_nobody_waits_for_the_batch_after_the_next() -> None:
    ready: list[Any] = [None, torch.ones(2), None]
    due = [torch.ones(1), torch.ones(3)]

    def load() -> tuple[Any, None]:
        return due.pop(0), None

    def load_ready() -> tuple[Any, None] | None:
        batch = ready.pop(0)
        return None if batch is None else (batch, None)

    device = LazyDevice()
    prefetcher = Prefetcher(META, StreamCopier(device))
    copies = []
    for length in (1, 3, 2):
        assert prefetcher.next(load, load_ready)[0].shape == (length,)
        copies.append(device.copies)
    assert copies == [1, 3, 3]


def test_a_host_that_is_far_ahead_waits_for_the_device() -> None:
    device = LazyDevice()
    batches = [torch.tensor(number) for number in range(20)]
    sources = list(map(weakref.ref, batches))
    prefetcher = Prefetcher(META, StreamCopier(device))

    def load() -> tuple[Any, None]:
        return batches.pop(0), None

    for _ in range(18):
        prefetcher.next(load, load)
        alive = sum(source() is not None for source in sources) - len(batches)
        assert alive <= 6, "handed out and not done, or coming"
    assert device.waits == 18 - 5


class Captured(StreamCopier):
    """A copier on whose consumer's stream a graph may be captured."""

    captures = False

    def submit(self, leaves: Sequence[Leaf], first: Any = None) -> Any:
        if self.captures:
            raise CudaError("captured")
        copies = super().submit(leaves, first)
        deliver = copies.deliver

        def guarded() -> list[torch.Tensor]:
            if self.captures:
                raise CudaError("captured")
            return deliver()

        copies.deliver = guarded  # type: ignore[method-assign]
        return copies


def test_nothing_is_lost_while_a_graph_is_captured() -> None:
    def load() -> tuple[Any, int]:
        if not numbers:
            raise StopIteration
        number = numbers.pop(0)
        return torch.tensor(number), number

    for pattern in range(32):
        device = LazyDevice(pattern)
        copier = Captured(device)
        prefetcher = Prefetcher(META, copier)
        numbers, got, seen = list(range(6)), [], []
        for step in range(20):
            copier.captures = bool(pattern >> (step % 5) & 1) and step < 6
            if copier.captures:
                with pytest.raises(CudaError):
                    prefetcher.next(load, load)
                continue
            try:
                batch, beside = prefetcher.next(load, load)
            except StopIteration:
                break
            device.read(batch, got)
            seen.append(beside)
        device.finish()
        assert got == seen == list(range(6))


def test_an_error_before_a_capture_has_its_turn() -> None:
    turns: list[Any] = [torch.ones(1), KeyError("two"), torch.ones(3)]

    def load() -> tuple[Any, None]:
        turn = turns.pop(0)
        if isinstance(turn, Exception):
            raise turn
        return turn, None

    copier = Captured(LazyDevice())
    prefetcher = Prefetcher(META, copier)
    prefetcher.next(load, load)
    copier.captures = True
    with pytest.raises(KeyError):
        prefetcher.next(load, load)
    with pytest.raises(CudaError):
        prefetcher.next(load, load)
    copier.captures = False
    assert prefetcher.next(load, lambda: None)[0].shape == (3,)


class Unique(list[Any]):
    """A container of which there are no copies."""

    def __copy__(self) -> Unique:
        raise KeyError("two")


def test_a_batch_that_cannot_be_taken_apart_has_its_turn() -> None:
    turns: list[Any] = [torch.ones(1), Unique([torch.ones(2)]), torch.ones(3)]

    def load() -> tuple[Any, None]:
        return turns.pop(0), None

    prefetcher = Prefetcher(META, StreamCopier(LazyDevice()))
    assert prefetcher.next(load, load)[0].shape == (1,)
    with pytest.raises(KeyError):
        prefetcher.next(load, load)
    assert prefetcher.next(load, lambda: None)[0].shape == (3,)


def test_threads_take_turns() -> None:
    inside, got, lock = [0], [], threading.Lock()
    numbers = iter(range(400))

    def load() -> tuple[Any, int]:
        inside[0] += 1
        assert inside[0] == 1
        number = next(numbers)
        inside[0] -= 1
        return torch.tensor(number), number

    prefetcher = Prefetcher(META, StreamCopier(LazyDevice(0)))

    def work() -> None:
        for _ in range(100):
            beside = prefetcher.next(load, load)[1]
            with lock:
                got.append(beside)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == list(range(300))


# --- Static buffers -----------------------------------------------------------------------------


def test_static_buffers_keep_their_addresses_and_are_filled_in_order() -> None:
    for seed in (None, *range(8)):
        device, got = LazyDevice(seed), []
        sizes = [2, 3, 2, 2, 3, 1]
        batches = [[torch.full((size,), i), torch.tensor(i)] for i, size in enumerate(sizes)]
        want = [[part.tolist() for part in batch] for batch in batches]
        prefetcher = Prefetcher(META, StreamCopier(device), buffers=StaticBuffers(device))

        def load(batches: list[Any] = batches) -> tuple[Any, None]:
            return batches.pop(0), None

        addresses: dict[int, set[int]] = {}
        for i, size in enumerate(sizes):
            device.now = "other" if i > 3 else "main"
            batch, _ = prefetcher.next(load, lambda: None)
            addresses.setdefault(size, set()).update(part.data_ptr() for part in batch)
            for part in batch:
                device.read(part, got)
        device.finish()
        assert got == [part for batch in want for part in batch]
        assert all(len(found) == 2 for found in addresses.values())


def test_what_is_done_to_a_static_batch_does_not_last() -> None:
    device = LazyDevice()
    buffers = StaticBuffers(device)
    [first] = buffers.fill([torch.ones(2)])
    first.requires_grad_()
    [second] = buffers.fill([torch.zeros(2)])
    assert second.data_ptr() == first.data_ptr()
    assert device.lent == []
    device.now = "other"
    buffers.fill([torch.zeros(2)])
    assert device.lent == ["other"]
    assert not second.requires_grad


def test_static_buffers_need_a_device() -> None:
    data = ArrayDataset(torch.arange(4).numpy())
    for device in (None, "cpu", torch.device("cpu")):
        with pytest.raises(ValueError, match="static_buffers=True is for batches that are copied"):
            FastLoader(data, device=device, static_buffers=True)
    loader = FastLoader(data, device="meta", static_buffers=True)
    assert loader.static_buffers
    first, second = (list(loader) for _ in range(2))
    assert len(first) == len(second) == 4
    assert all(batch.is_meta for batch in first)
