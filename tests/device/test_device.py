"""Copies to a device: on streams that run as late or as early as they may, all is as on the CPU."""

from __future__ import annotations

import gc
import time
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from lazy_device import LazyDevice
from torch.utils.data import Dataset, IterableDataset

from fastload import ArrayDataset, FastLoader
from fastload.device import prefetcher as devices
from fastload.device.prefetcher import Target, device_with_index
from fastload.device.torch_copier import NoStreams, TorchStreams
from fastload.loader.resources import LoaderResources

META = torch.device("meta")
HAS_STREAMS: dict[str, Any] = dict.fromkeys(("Stream", "Event", "current_stream", "stream"))
HAS_STREAMS["current_device"] = lambda: None


@pytest.fixture
def on_lazy_device(monkeypatch: pytest.MonkeyPatch) -> Callable[..., LazyDevice]:
    """Makes the loaders' device a lazy one."""

    def make(seed: int | None = None) -> LazyDevice:
        device = LazyDevice(seed)
        monkeypatch.setattr(devices, "TorchStreams", lambda where: device)
        monkeypatch.setattr(torch, "meta", types.SimpleNamespace(**HAS_STREAMS), raising=False)
        return device

    return make


class Squares(Dataset[Any]):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 5:
            raise KeyError("no five")
        return {"x": torch.tensor(index**2), "name": str(index)}


class Counting(IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(7))


def native(**options: Any) -> FastLoader[Any]:
    return FastLoader(ArrayDataset({"x": np.arange(23)}), 4, device="meta", **options)


LOADERS: dict[str, Callable[[], FastLoader[Any]]] = {
    "native": native,
    "native, seed": lambda: native(seed=1, shuffle=True),
    "native, workers": lambda: native(num_workers=2, shuffle=True),
    "python": lambda: FastLoader([{"x": i} for i in range(11)], 2, device="meta", seed=3),
    "python, workers": lambda: FastLoader(
        [{"x": i} for i in range(11)], 2, device="meta", num_workers=1, persistent_workers=True
    ),
    "iterable": lambda: FastLoader(
        Counting(), 3, device="meta", batch_transform=lambda batch: {"x": batch}
    ),
}


def on_cpu(make: Callable[[], FastLoader[Any]], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    torch.manual_seed(7)
    with monkeypatch.context() as patch:
        patch.setattr(LoaderResources, "target", lambda self, device, static: None)
        return [batch["x"].tolist() for batch in make()]


@pytest.mark.parametrize("name", LOADERS)
def test_any_timing_gives_the_batches_of_the_cpu(
    name: str, on_lazy_device: Callable[..., LazyDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    want = on_cpu(LOADERS[name], monkeypatch)
    for seed in (None, 0) if "workers" in name else (None, *range(12)):
        device, got = on_lazy_device(seed), []
        torch.manual_seed(7)
        batches = iter(LOADERS[name]())
        for batch in batches:
            device.read(batch["x"], got)
            del batch
        waits = device.waits
        device.finish()
        assert got == want
        assert device.copies == len(want)
        assert waits <= max(0, len(want) - 4), "the host waited for more than the fifth batch back"


def test_copies_are_one_batch_ahead_and_only_with_a_device(
    on_lazy_device: Callable[..., LazyDevice],
) -> None:
    device = on_lazy_device()
    batches = iter(native(num_workers=0))
    assert device.copies == 0
    next(batches)
    assert device.copies == 2
    next(batches)
    assert device.copies == 3
    list(FastLoader(ArrayDataset(np.arange(8)), 4))
    assert device.copies == 3


def test_threads_that_are_ahead_let_copies_be_ahead(
    on_lazy_device: Callable[..., LazyDevice],
) -> None:
    device = on_lazy_device()
    batches: Any = iter(native(num_workers=2, prefetch_factor=2))
    next(batches)
    for taken in (2, 3):
        while batches._source.stats()["ready"] < 2:
            time.sleep(0.001)
        next(batches)
        assert device.copies == taken + 1


@pytest.mark.parametrize("name", LOADERS)
def test_leaving_early_frees_nothing_that_is_copied(
    name: str, on_lazy_device: Callable[..., LazyDevice]
) -> None:
    device, seen = on_lazy_device(), []
    loader = LOADERS[name]()
    for batch in loader:
        device.read(batch["x"], seen)
        break
    if loader.persistent_workers:
        again = list(loader)  # begins anew
        assert len(again) == 6
    del batch, loader
    gc.collect()
    assert device.waits  # for the batch that nobody took
    device.finish()
    assert len(seen) == 1
    assert min(seen[0]) >= 0


class Box:
    """Moves as a batch of some library does: by its method, or not at all."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.where: list[str] = []

    def to(self, device: torch.device) -> Box:
        if self.tensor.max() > 8:
            raise RuntimeError("too large")
        box = Box(self.tensor.clone())
        box.where = [*self.where, str(device)]
        return box


class OneOfEach(Dataset[Any]):
    """Each batch is the same objects as the one before it, with other numbers."""

    def __init__(self) -> None:
        self.buffer = torch.zeros(2)
        self.batch = {"box": Box(self.buffer), "array": self.buffer.numpy(), "count": 0}
        self.batch |= {"plain": torch.ones(2), "sparse": torch.eye(2).to_sparse(), "list": [0]}

    def __len__(self) -> int:
        return 12

    def __getitems__(self, indices: list[int]) -> Any:
        self.buffer[:] = torch.tensor(indices)
        self.batch["count"] = self.batch["list"][0] = indices[0]
        return self.batch


def one_of_each(dataset: OneOfEach) -> Iterator[Any]:
    return iter(FastLoader(dataset, 2, device="meta", collate_fn=lambda batch: batch))


def test_a_batch_may_be_loaded_into_the_objects_of_the_one_before(on_lazy_device: Any) -> None:
    device, got, dataset = on_lazy_device(), [], OneOfEach()
    batches = one_of_each(dataset)
    for _ in range(4):
        batch = next(batches)
        assert batch["sparse"].is_meta
        assert batch["plain"] is not dataset.batch["plain"]
        assert batch["box"].where == ["meta"]
        got.append([batch["box"].tensor.tolist(), batch["array"].tolist()])
        assert batch["list"] == [batch["count"]] == [got[-1][1][0]]
    device.finish()
    assert got == [[[i, i + 1]] * 2 for i in range(0, 8, 2)]


def test_what_cannot_move_is_the_error_of_its_batch(on_lazy_device: Any) -> None:
    device = on_lazy_device()
    batches, counts = one_of_each(OneOfEach()), []
    for _ in range(6):
        try:
            counts.append(next(batches)["count"])
        except RuntimeError as error:
            counts.append(str(error))
    assert counts == [0, 2, 4, 6, "too large", "too large"]
    with pytest.raises(StopIteration):
        next(batches)
    del batches
    gc.collect()
    device.finish()


def test_what_moves_by_itself_follows_the_stream(on_lazy_device: Any) -> None:
    device, dataset = on_lazy_device(), OneOfEach()
    del dataset.batch["sparse"]  # torch cannot take one back from meta
    batches = one_of_each(dataset)
    assert next(batches)["box"].where == ["meta"]
    device.now = "other"
    box = next(batches)["box"]
    assert box.where == ["meta", "cpu", "meta"]
    assert box.tensor.tolist() == [2, 3]
    assert next(batches)["box"].where == ["meta"]


def test_an_error_has_its_turn_and_the_others_are_delivered(
    on_lazy_device: Callable[..., LazyDevice],
) -> None:
    device, got, caught = on_lazy_device(1), [], []
    batches = iter(FastLoader(Squares(), 2, device="meta"))
    for turn in range(5):
        try:
            device.read(next(batches)["x"], got)
        except KeyError as error:
            caught.append((turn, error.args))
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(batches)
    device.finish()
    assert caught == [(2, ("no five",))]
    assert got == [[0, 1], [4, 9], [36, 49], [64, 81]]


@pytest.mark.parametrize("name", LOADERS)
def test_the_state_counts_what_was_handed_out(
    name: str, on_lazy_device: Callable[..., LazyDevice], monkeypatch: pytest.MonkeyPatch
) -> None:
    want = on_cpu(LOADERS[name], monkeypatch)
    on_lazy_device()
    for taken in {1, len(want) - 1, len(want)}:
        torch.manual_seed(7)
        loader = LOADERS[name]()
        batches = iter(loader)
        for _ in range(taken):
            next(batches)
        resumed = LOADERS[name]()
        resumed.load_state_dict(loader.state_dict())
        assert [batch["x"].shape for batch in resumed] == [
            torch.Size([len(batch)]) for batch in want[taken:]
        ]
        assert len(list(resumed)) == len(want)


def test_what_waits_for_its_turn_does_not_hold_the_iterator(
    on_lazy_device: Callable[..., LazyDevice],
) -> None:
    on_lazy_device()
    for make in (native, LOADERS["python"]):
        batches = iter(make())
        for _ in range(6):
            next(batches)
        reference = weakref.ref(batches)
        gc.disable()
        del batches
        gone = reference() is None
        gc.enable()
        assert gone


def test_a_copy_that_fails_is_its_batchs_error(on_lazy_device: Callable[..., LazyDevice]) -> None:
    device = on_lazy_device()
    copy, fails = device.copy, [False, True, False]

    def failing(*copies: Any) -> None:
        if fails and fails.pop(0):
            raise MemoryError("full")
        copy(*copies)

    device.copy = failing  # type: ignore[method-assign]
    batches = iter(native())
    next(batches)
    with pytest.raises(MemoryError):
        next(batches)
    assert len(list(batches)) == 4


def test_another_stream_than_that_of_the_memory(on_lazy_device: Callable[..., LazyDevice]) -> None:
    device, got = on_lazy_device(), []
    batches = iter(native(num_workers=0))
    device.read(next(batches)["x"], got)
    assert device.lent == []
    device.now = "other"
    for batch in batches:
        device.read(batch["x"], got)
        assert device.lent == ["other"]
    device.finish()
    assert sorted(map(sum, got)) == sorted(sum(range(i, min(i + 4, 23))) for i in range(0, 23, 4))


def test_the_transform_runs_on_the_batch_that_was_copied(
    on_lazy_device: Callable[..., LazyDevice],
) -> None:
    device, got = on_lazy_device(), []

    def doubled(batch: Any) -> Any:
        device.read(batch["x"], got)
        return batch

    list(native(batch_transform=doubled))
    device.finish()
    assert got[0] == [0, 1, 2, 3]


# --- Without streams, and torch's own -----------------------------------------------------------


def test_what_has_streams() -> None:
    assert device_with_index(None) is None
    assert device_with_index("cpu") is None
    for name in ("meta", "mps"):
        device = device_with_index(name)
        assert device == torch.device(name)
        assert isinstance(Target(device)._streams, NoStreams)


def test_a_device_is_found_at_iter_not_before() -> None:
    if torch.cuda.is_available():
        pytest.skip("needs a machine without a GPU")
    for dataset in (ArrayDataset(np.arange(4)), list(range(4))):
        for name in ("cuda", "cuda:9", "privateuseone"):
            loader: FastLoader[Any] = FastLoader(dataset, device=name)
            with pytest.raises(RuntimeError, match=f"device='{name}' cannot be used: .*on the CPU"):
                iter(loader)


def test_calls_of_torchs_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    class Event:
        def query(self) -> bool:
            return True

        def synchronize(self) -> None:
            calls.append("synchronize")

    class Stream:
        def __init__(self, device: torch.device) -> None:
            self.name = str(device)

        def record_event(self) -> Event:
            calls.append(f"record {self.name}")
            return Event()

        def wait_event(self, event: Event) -> None:
            calls.append(f"wait {self.name}")

        def __enter__(self) -> None:
            calls.append("enter")

        def __exit__(self, *raised: object) -> None:
            calls.append("leave")

    current = Stream(torch.device("cpu"))
    current.name = "current"
    fake = types.SimpleNamespace(
        Stream=Stream,
        Event=Event,
        current_stream=lambda device: current,
        current_device=lambda: 2,
        stream=lambda stream: stream,
    )
    monkeypatch.setattr(torch, "meta", fake, raising=False)
    device = device_with_index("meta")
    assert device == torch.device("meta:2")
    target = Target(device)
    prefetcher = target.prefetcher()
    streams = target._streams
    assert isinstance(streams, TorchStreams)
    assert streams.side() is TorchStreams(torch.device("meta:2")).side()
    turns = iter([(torch.ones(2), 1), (torch.ones(3), 2)])
    batch, beside = prefetcher.next(lambda: next(turns), lambda: next(turns))
    assert batch.is_meta
    assert (batch.shape, beside) == ((2,), 1)
    copied = ["record current", "wait meta:2", "enter", "leave", "record meta:2"]
    assert calls == [*copied, *copied, "wait current"]
    del prefetcher
    assert calls[-1] == "synchronize"


class Answering(IterableDataset[Any]):
    """Gives the next number when the one before was taken back."""

    def __init__(self) -> None:
        self.answers = [0]

    def __iter__(self) -> Iterator[int]:
        for _ in range(4):
            yield self.answers.pop() + 1


def test_a_stream_may_wait_for_what_became_of_the_batch_before(
    on_lazy_device: Callable[..., LazyDevice],
) -> None:
    device = on_lazy_device()
    stream, got = Answering(), []
    for batch in FastLoader(stream, 1, device="meta"):
        device.finish()
        stream.answers.append(int(batch))
        got.append(int(batch))
    assert got == [1, 2, 3, 4]
