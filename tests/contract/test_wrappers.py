"""What tools do with a loader: rebuild it, walk through it, loop over it."""

from __future__ import annotations

import inspect
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracle import flat, numbers, values
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
)

import fastload
from fastload import ArrayDataset, AsList, FastLoader, KeyedSampler
from fastload.loader.native_iterator import _NativeIterator


def rebuilt(loader: FastLoader[Any], sampler: Any) -> FastLoader[Any]:
    """A loader made as Lightning makes one to put its own sampler in.

    The arguments are the public attributes that the signature knows and that are not the defaults.
    """
    signature = inspect.signature(type(loader).__init__).parameters
    given = {name: value for name, value in vars(loader).items() if not name.startswith("_")}
    given["multiprocessing_context"] = loader.multiprocessing_context
    arguments = {
        name: value
        for name, value in given.items()
        if name in signature and value is not signature[name].default
    }
    required = [
        name
        for name, parameter in signature.items()
        if parameter.default is parameter.empty
        and parameter.kind is parameter.POSITIONAL_OR_KEYWORD
        and name != "self"
    ]
    assert required == ["dataset"]
    if getattr(loader, "batch_size", None) is None:
        batches = type(loader.batch_sampler)
        assert batches is BatchSampler
        arguments["batch_sampler"] = batches(sampler, loader.batch_sampler.batch_size, False)  # type: ignore[union-attr]
        for name in ("sampler", "batch_size", "shuffle", "drop_last"):
            arguments.pop(name, None)
    else:
        arguments |= {"sampler": sampler, "shuffle": False}
        arguments.pop("batch_sampler", None)
    return type(loader)(**arguments)


class Mine(FastLoader[Any]):
    """Somebody's subclass."""


def test_an_injected_sampler_keeps_the_class_and_the_own_arguments() -> None:
    data = ArrayDataset({"x": np.arange(20)})
    for kind in (FastLoader, Mine):
        for options in (
            {"batch_size": 3, "shuffle": True, "seed": 7, "tail": "short", "device": "meta"},
            {"batch_size": 3, "num_workers": 2, "prefetch_factor": 4, "timeout": 9},
            {"batch_sampler": BatchSampler(SequentialSampler(data), 3, False), "seed": 7},
            {"batch_size": 3, "pin_memory_device": "cuda", "in_order": False},
        ):
            loader = kind(data, **options)
            sampler: DistributedSampler[Any] = DistributedSampler(data, 2, 1, shuffle=True)
            again = rebuilt(loader, sampler)
            assert type(again) is kind
            for name in ("seed", "shard", "order", "tail", "device", "io", "transforms", "verify"):
                assert getattr(again, name) == getattr(loader, name)
            for name in ("num_workers", "timeout", "in_order", "pin_memory_device"):
                assert getattr(again, name) == getattr(loader, name)
            again.device = None
            assert type(iter(again)) is _NativeIterator
            again.set_epoch(4)
            assert sampler.epoch == 4
            assert flat([batch["x"].tolist() for batch in again]) == list(sampler)
            assert len(again) == 4


def test_transforms_survive_a_rebuild(tmp_path: Path) -> None:
    samples = [{"x": np.arange(n), "y": n} for n in (1, 2, 3)]
    fastload.pack(samples, tmp_path / "data")
    loader = FastLoader(tmp_path / "data", 2, transforms={"x": AsList()}, verify="open")
    again = rebuilt(loader, SequentialSampler(loader.dataset))  # type: ignore[arg-type]
    assert (again.transforms, again.verify, again.on_error) == (loader.transforms, "open", "raise")
    assert [len(batch["x"]) for batch in again] == [2, 1]


class Shard(BatchSampler):
    """Every second batch of another batch sampler, as Accelerate deals them out."""

    def __init__(self, batches: BatchSampler, rank: int) -> None:
        super().__init__(batches.sampler, batches.batch_size, batches.drop_last)
        self.rank = rank

    def __iter__(self) -> Any:
        return itertools.islice(super().__iter__(), self.rank, None, 2)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stock_loader_over_the_dataset_gives_the_same_data(workers: int, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(40).reshape(20, 2))
    for options in ({"shuffle": False}, {"seed": 5, "shuffle": True, "shard": False}):
        loader = FastLoader(tmp_path / "x.npy", 3, **options)
        want = values(loader)
        seen: list[Any] = []
        for rank in range(2):
            loader.set_epoch(0)
            assert isinstance(loader.batch_sampler, BatchSampler)
            shard = Shard(loader.batch_sampler, rank)
            stock = DataLoader(loader.dataset, batch_sampler=shard, num_workers=workers)
            seen.append(values(stock))
        dealt = [batch for pair in itertools.zip_longest(*seen) for batch in pair]
        assert dealt[: len(want)] == want


def test_a_stock_loader_asks_for_many_samples_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    kind = ArrayDataset
    many = kind.__getitems__

    def counted(dataset: ArrayDataset, indices: Any) -> Any:
        asked.append(len(indices))
        return many(dataset, indices)

    monkeypatch.setattr(kind, "__getitems__", counted)
    monkeypatch.setattr(kind, "__getitem__", None)
    batches = values(DataLoader(numbers(10), 4))  # type: ignore[arg-type]
    assert (batches[-1], asked) == ([8, 9], [4, 4, 2])


def test_the_parts_are_where_torch_has_them() -> None:
    data = numbers(12)
    loader = FastLoader(data, 3, shuffle=True, drop_last=True)
    assert loader.dataset is data
    assert type(loader.batch_sampler) is BatchSampler
    assert loader.batch_sampler.sampler is loader.sampler
    assert type(loader.sampler) is RandomSampler
    assert (loader.batch_sampler.batch_size, loader.batch_sampler.drop_last) == (3, True)
    assert loader.sampler.data_source is data
    sampler: DistributedSampler[Any] = DistributedSampler(range(12), 2, 0)  # type: ignore[arg-type]
    loader = FastLoader(data, 3, sampler=sampler)
    loader.sampler.set_epoch(3)  # type: ignore[union-attr]
    assert sampler.epoch == 3
    assert flat(values(loader)) == list(sampler)
    keyed = FastLoader(data, 3, seed=0)
    assert type(keyed.sampler) is KeyedSampler
    assert isinstance(keyed.sampler, DistributedSampler)
    assert keyed.sampler.dataset is data
    keyed.sampler.set_epoch(3)
    assert keyed.state_dict()["epoch"] == 3


def test_loops_of_all_kinds() -> None:
    for data in (numbers(7), list(range(7))):
        loader = FastLoader(data, 3)
        want = [[0, 1, 2], [3, 4, 5], [6]]
        assert [(k, batch.tolist()) for k, batch in enumerate(loader)] == list(enumerate(want))
        assert [a.tolist() for a, _ in zip(loader, range(2), strict=False)] == want[:2]
        assert values(itertools.islice(loader, 1, None)) == want[1:]
        assert values(itertools.islice(itertools.cycle(loader), 7)) == (want * 3)[:7]
        assert values(itertools.chain(loader, loader)) == want * 2
        assert values(reversed(list(loader))) == want[::-1]
        assert values(map(torch.neg, loader)) == [[-x for x in batch] for batch in want]
        assert max(int(batch.max()) for batch in loader) == 6
        first, *rest = loader
        assert (first.tolist(), len(rest)) == ([0, 1, 2], 2)
        assert loader  # a length is a truth value
        batches = iter(loader)
        assert next(batches).tolist() == [0, 1, 2]
        assert values(batches) == want[1:]
        assert next(batches, None) is None


def test_progress_bars_know_the_length() -> None:
    from rich.progress import track

    loader = FastLoader(numbers(7), 3)
    assert len(loader) == 3
    assert values(track(loader, disable=True)) == [[0, 1, 2], [3, 4, 5], [6]]
