"""Loaders over the fake CUDA driver when something ends, fails, changes or is captured."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cpp_build import built
from cuda_loaders import CUDA, LARGE, Anything, loaders, native, rows
from fake_gpu import FakeGpu, assert_equal, host, seen
from paths import SUPPORT

from fastload import ArrayDataset, CudaError, FastLoader


@pytest.mark.parametrize("name", ["large and small", "python", "python, processes"])
def test_leaving_early(name: str, gpu: FakeGpu) -> None:
    gpu.library.fake_cuda_seed(2, 500)
    on_device, on_cpu = loaders(name)
    for _ in range(3):
        for batch in on_device:
            got = seen(gpu, batch)
            break
        del batch
        want = host(next(iter(on_cpu)))
        gpu.synchronise(gpu.now)
        assert_equal(got, want)


def test_nobody_writes_to_the_memory_of_a_batch_that_was_not_taken(gpu: FakeGpu) -> None:
    gpu.library.fake_cuda_seed(8, 3000)
    image = torch.ones(4, *LARGE["x"].shape[1:], dtype=torch.uint8)
    mine = []
    for _ in range(4):
        batches = iter(native())
        next(batches)
        del batches
        mine += [gpu.allocate(image) for _ in range(2)]
        for memory in mine[-2:]:
            gpu.copy(gpu.now, memory, image)
    got = [gpu.read(batch["y"]) for batch in native()]  # later than all that the side stream had
    got += [gpu.read(memory) for memory in mine]
    gpu.synchronise(gpu.now)
    assert all(torch.equal(memory, image) for memory in got[-8:])


def test_an_error_in_the_middle_has_its_turn(gpu: FakeGpu) -> None:
    batches = iter(FastLoader(Anything(), 2, device=CUDA))
    got = []
    for turn in range(6):
        if turn == 3:
            with pytest.raises(KeyError, match="seven"):
                next(batches)
            continue
        got.append(seen(gpu, next(batches)))
    with pytest.raises(StopIteration):
        next(batches)
    gpu.synchronise(gpu.now)
    whole = [[0, 1], [2, 3], [4, 5], [8, 9], [10]]
    assert_equal(got, [host(batch) for batch in FastLoader(Anything(), batch_sampler=whole)])


def test_a_state_counts_what_was_handed_out(gpu: FakeGpu) -> None:
    on_cpu = FastLoader(ArrayDataset(LARGE), 4, seed=4, shuffle=True)
    want = [batch["y"].tolist() for batch in on_cpu]
    for taken in (1, 7, 15):
        loader = native(seed=4, shuffle=True)
        batches = iter(loader)
        for _ in range(taken):
            next(batches)
        resumed = native(seed=4, shuffle=True)
        resumed.load_state_dict(loader.state_dict())
        got = [gpu.read(batch["y"]) for batch in resumed]
        gpu.synchronise(gpu.now)
        assert [one.tolist() for one in got] == want[taken:]


def test_epochs_with_persistent_workers(gpu: FakeGpu) -> None:
    loader = FastLoader(
        ArrayDataset(LARGE), 7, device=CUDA, num_workers=2, persistent_workers=True, seed=1
    )
    plain = FastLoader(ArrayDataset(LARGE), 7, seed=1)
    for _ in range(3):
        got = [seen(gpu, batch) for batch in loader]
        gpu.synchronise(gpu.now)
        assert_equal(got, [host(batch) for batch in plain])
    del loader


def test_two_iterators_and_threads_that_share_one(gpu: FakeGpu) -> None:
    gpu.library.fake_cuda_seed(4, 100)
    loader = native()
    for one, other in zip(loader, loader, strict=True):
        first, second = seen(gpu, one), seen(gpu, other)
    gpu.synchronise(gpu.now)
    assert_equal(first, second)
    shared, got = iter(native()), []

    def work() -> None:
        for batch in shared:
            got.append(gpu.read(batch["y"]))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gpu.synchronise(gpu.now)
    assert sorted(number for one in got for number in one.tolist()) == list(range(60))


@pytest.mark.parametrize("static", [False, True])
def test_a_batch_that_was_copied_ahead_in_inference_mode_can_be_trained_on(
    static: bool, gpu: FakeGpu
) -> None:
    batches = iter(native(static_buffers=static))
    with torch.inference_mode():
        next(batches)
    batch = next(batches)
    assert not any(member.is_inference() for member in batch.values())


class OneBuffer(torch.utils.data.Dataset[Any]):
    """Puts each batch into the same memory, which a loop without workers has done with by then."""

    def __init__(self) -> None:
        self._buffer = torch.empty(4, 40000)

    def __len__(self) -> int:
        return 12

    def __getitems__(self, indices: list[int]) -> list[Any]:
        self._buffer[:] = torch.tensor(indices).float()[:, None]
        return [self._buffer]


def test_the_next_batch_may_be_loaded_into_the_same_memory(gpu: FakeGpu) -> None:
    gpu.library.fake_cuda_seed(3, 500)
    batches = FastLoader(OneBuffer(), 4, device=CUDA, collate_fn=lambda batch: batch[0])
    got = [gpu.read(batch) for batch in batches]
    gpu.synchronise(gpu.now)
    assert torch.cat([batch[:, 0] for batch in got]).tolist() == list(range(12))


class Box:
    """Moves by its own method."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def to(self, device: torch.device) -> Box:
        return Box(self.tensor.clone())


def test_that_holds_for_what_moves_by_itself_too(gpu: FakeGpu) -> None:
    batches = FastLoader(OneBuffer(), 4, device=CUDA, collate_fn=lambda batch: [Box(batch[0]), 1])
    streams, got = [0, 0, gpu.make_stream()], []
    for gpu.now, (box, one) in zip(streams, batches, strict=True):
        assert one == 1
        got += box.tensor[:, 0].tolist()
    assert got == list(range(12))


def test_streams_may_change_between_batches(gpu: FakeGpu) -> None:
    gpu.library.fake_cuda_seed(5, 300)
    streams = [0, gpu.make_stream(), gpu.make_stream()]
    for static in (False, True):
        got, batches = [], iter(native(static_buffers=static))
        for turn, _ in enumerate(range(15)):
            gpu.now = streams[turn * 7 % 5 % 3]
            got.append(seen(gpu, next(batches)))
        gpu.now = 0
        for stream in streams:
            gpu.synchronise(stream)
        assert_equal(got, [host(batch) for batch in FastLoader(ArrayDataset(LARGE), 4)])


def test_a_capture_is_not_disturbed_and_loses_nothing(gpu: FakeGpu) -> None:
    got, batches = [], iter(native())
    for turn in range(15):
        if turn in (0, 3, 14):
            gpu.capture(gpu.now, True)
            copies = gpu.calls("cuMemcpyHtoDAsync")
            for _ in range(2):
                with pytest.raises(CudaError, match="graph is being captured"):
                    next(batches)
            assert gpu.calls("cuMemcpyHtoDAsync") == copies
            gpu.capture(gpu.now, False)
        got.append(seen(gpu, next(batches)))
    gpu.synchronise(gpu.now)
    assert_equal(got, [host(batch) for batch in FastLoader(ArrayDataset(LARGE), 4)])


def test_static_buffers_are_the_same_in_every_epoch(gpu: FakeGpu) -> None:
    gpu.library.fake_cuda_seed(6, 200)
    loader = native(static_buffers=True)
    places, got = set(), []
    for _ in range(3):
        for batch in loader:
            places.add(tuple(tensor.data_ptr() for tensor in batch.values()))
            got.append(seen(gpu, batch))
    gpu.synchronise(gpu.now)
    assert len(places) == 1
    assert_equal(got, [host(batch) for batch in FastLoader(ArrayDataset(LARGE), 4)] * 3)


def test_a_host_far_ahead_of_the_device_waits_and_the_pool_stays_small(gpu: FakeGpu) -> None:
    gpu.library.fake_cuda_seed(7, 2000)
    loader = FastLoader(ArrayDataset(LARGE), 4, device=CUDA, num_workers=1, prefetch_factor=2)
    for batch in loader:
        gpu.read(batch["y"])
    bound = loader._resources.target(CUDA, static=False)
    assert bound is not None
    assert bound.pool is not None
    assert bound.pool.allocation_count <= 3 * (2 + 1 + 5) + 8


def test_epochs_after_the_first_pin_nothing(gpu: FakeGpu) -> None:
    gpu.library.fake_cuda_seed(8, 300)
    loader = FastLoader(ArrayDataset(rows(64, 50_000)), 4, device=CUDA, num_workers=1)
    pinned = []
    for _ in range(6):
        for batch in loader:
            gpu.read(batch)
        gpu.synchronise(gpu.now)
        pinned.append(gpu.calls("cuMemHostRegister"))
    assert pinned[0] > 0
    assert set(pinned) == {pinned[0]}


def test_memory_that_cannot_be_pinned_is_used_all_the_same(gpu: FakeGpu) -> None:
    gpu.may_be_pageable = True
    gpu.fail("cuMemHostRegister", 1, 1, -1)
    gpu.fail("cuMemHostAlloc", 1, 2, -1)
    loader = native()
    with pytest.warns(RuntimeWarning, match="pinned"):
        first = [seen(gpu, batch) for batch in loader]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        second = [seen(gpu, batch) for batch in loader]
    gpu.synchronise(gpu.now)
    assert_equal(first, [host(batch) for batch in FastLoader(ArrayDataset(LARGE), 4)])
    assert_equal(second, first)


def test_an_error_of_the_driver_is_raised_by_next_and_the_batch_comes_later(gpu: FakeGpu) -> None:
    got, batches = [], iter(native())
    for turn in range(15):
        if turn == 4:
            gpu.fail("cuMemcpyHtoDAsync", 1, 2, 2)  # of the batch after the next
        if turn == 9:
            gpu.fail("cuStreamWaitEvent", 2, 2, 1)
        try:
            batch = next(batches)
        except CudaError:
            batch = next(batches)
        got.append(seen(gpu, batch))
    gpu.synchronise(gpu.now)
    assert_equal(got, [host(batch) for batch in FastLoader(ArrayDataset(LARGE), 4)])


@pytest.mark.parametrize(
    "call",
    [
        *("cuCtxPushCurrent", "cuStreamIsCapturing", "cuEventRecord", "cuStreamWaitEvent"),
        *("cuEventQuery", "cuMemcpyHtoDAsync", "cuEventElapsedTime"),
    ],
)
def test_whatever_call_fails_no_batch_is_lost(call: str, gpu: FakeGpu) -> None:
    want = [host(batch) for batch in FastLoader(ArrayDataset(LARGE), 4)]
    errors = []
    for nth in range(1, 12):
        got, batches = [], iter(native())
        got.append(seen(gpu, next(batches)))
        gpu.fail(call, nth, 2, 1)
        while len(got) < len(want):
            try:
                got.append(seen(gpu, next(batches)))
            except CudaError as error:
                errors.append(str(error))
        gpu.library.fake_cuda_forgive()
        gpu.synchronise(gpu.now)
        assert_equal(got, want)
    assert all(error.startswith(call) for error in errors)
    assert len(errors) <= 11
    assert not errors or call != "cuEventElapsedTime"


LOST = """
import gc, os, sys
import numpy as np
sys.path.insert(0, sys.argv[2])
from fake_gpu import FakeGpu
from fastload import ArrayDataset, CudaError, FastLoader, StoppedError, _core
from fastload.device import prefetcher as devices
from fastload.device.cuda_copier import Cuda
gpu = FakeGpu(sys.argv[1])
devices.open_cuda = lambda device: Cuda(gpu, _core.CudaDevice(0, gpu.path))
loader = FastLoader(ArrayDataset(np.zeros((64, 9000))), 4, device="cuda:0", num_workers=0)
"""

STICKY = """
batches = iter(loader)
next(batches)
gpu.library.fake_cuda_stick(700)
for use in (batches, loader):
    for _ in range(3):
        try:
            for batch in use:
                pass
        except CudaError as error:
            assert "outside fastload" in str(error), error
        else:
            raise AssertionError("no error")
assert loader.stats()["gpu_stall_s"] >= 0
del batches, use
gc.collect()
"""

FORK = """
batches = iter(loader)
first = next(batches)
child = os.fork()
if child == 0:
    for use in (lambda: next(batches), lambda: next(iter(loader))):
        try:
            use()
        except StoppedError:
            pass
        else:
            os._exit(1)
    if any(loader.stats()[key] for key in ("h2d_bytes", "h2d_s", "gpu_stall_s")):
        os._exit(2)
    del batches
    gc.collect()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert len(list(batches)) == 15
"""


EXIT = """
gpu.library.fake_cuda_seed(1, 20_000)
batches = iter(loader)
kept = [next(batches), next(batches)]
other = iter(FastLoader([np.full(9000, i) for i in range(9)], 2, device="cuda:0"))
next(other)
"""


@pytest.mark.slow
@pytest.mark.parametrize("code", [STICKY, FORK, EXIT], ids=["sticky", "fork", "exit"])
def test_the_end_of_a_device_or_a_process(code: str, run_torch: Callable[..., Any]) -> None:
    library = built("fake_cuda") / "libfake_cuda.so"
    run_torch(LOST + code, str(library), str(SUPPORT))
