"""What a FastLoader is: arguments, attributes, lengths."""

from __future__ import annotations

import inspect
import itertools
import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from oracle import Stream, numbers, values
from torch.utils.data import (
    DataLoader,
    RandomSampler,
    TensorDataset,
    default_collate,
)

from fastload import FastLoader
from fastload.loader.epoch_setup import default_depth

THEIRS = inspect.signature(DataLoader).parameters
NEW_IN_TORCH = [] if "in_order" in THEIRS else ["in_order"]  # torch 2.6 brought it


def test_signature_is_torchs_and_more() -> None:
    ours = list(inspect.signature(FastLoader).parameters.values())
    theirs = list(THEIRS.values())
    assert [p.name for p in ours[: len(theirs)]] == [p.name for p in theirs]
    assert [p.kind for p in ours[: len(theirs)]] == [p.kind for p in theirs]
    extras = ours[len(theirs) :]
    names = ["seed", "shard", "order", "tail", "device", "io", "transforms", "verify", "on_error"]
    names += ["batch_transform", "static_buffers"]
    assert [p.name for p in extras] == [*NEW_IN_TORCH, *names]
    assert all(p.kind is p.KEYWORD_ONLY and p.default is not p.empty for p in extras)
    assert FastLoader[int]
    assert issubclass(FastLoader, DataLoader)


BAD: list[dict[str, Any]] = [
    {"num_workers": -1},
    {"timeout": -1},
    {"num_workers": 0, "prefetch_factor": 2},
    {"num_workers": 1, "prefetch_factor": -1},
    {"num_workers": 0, "persistent_workers": True},
    {"num_workers": 0, "multiprocessing_context": "fork"},
    {"num_workers": 1, "multiprocessing_context": "bad"},
    {"num_workers": 1, "multiprocessing_context": 3},
    {"sampler": [0], "shuffle": True},
    {"sampler": [0], "shuffle": True, "batch_sampler": [[0]]},
    {"batch_sampler": [[0]], "batch_size": 2},
    {"batch_sampler": [[0]], "batch_size": None},
    {"batch_sampler": [[0]], "shuffle": True},
    {"batch_sampler": [[0]], "sampler": [0]},
    {"batch_sampler": [[0]], "drop_last": True},
    {"batch_size": None, "drop_last": True},
    {"batch_size": 2.0},
    {"batch_size": np.int64(2)},
    {"batch_size": True},
    {"batch_size": 0},
    {"batch_size": -1},
    {"drop_last": 1},
    {"drop_last": None},
]


@pytest.mark.parametrize("options", BAD)
@pytest.mark.parametrize("keyed", [False, True])
def test_errors_are_torchs(options: dict[str, Any], keyed: bool) -> None:
    for data in (numbers(4), [1, 2, 3, 4]):
        with pytest.raises((ValueError, TypeError)) as theirs:
            DataLoader(data, **options)  # type: ignore[arg-type]
        extra = {"seed": 0} if keyed else {}
        with pytest.raises((ValueError, TypeError)) as ours:
            FastLoader(data, **options, **extra)
        assert type(ours.value) is type(theirs.value)
        assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize(
    "options",
    [{"shuffle": True}, {"shuffle": 3}, {"sampler": [0]}, {"batch_sampler": [[0]]}],
)
def test_errors_over_an_iterable_dataset_are_torchs(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError) as theirs:
        DataLoader(Stream(), **options)
    with pytest.raises(ValueError) as ours:
        FastLoader(Stream(), **options)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("options", [{}, {"seed": 0}])
def test_nothing_can_be_shuffled(options: dict[str, Any]) -> None:
    assert values(FastLoader(numbers(0), batch_size=2, **options)) == []
    with pytest.raises(ValueError, match="num_samples should be a positive integer value, but got"):
        FastLoader(numbers(0), shuffle=True, **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"shard": (0, 2)}, "shard= needs seed="),
        ({"shard": False}, "shard= needs seed="),
        ({"order": "block"}, "needs seed="),
        ({"tail": "mask"}, "needs seed="),
        ({"order": "other", "seed": 1}, "order must be"),
        ({"io": "read"}, "io must be"),
        ({"device": "gpu"}, "device='gpu': Expected one of cpu, cuda"),
        ({"seed": -1}, "seed must be in"),
        ({"prefetch_factor": -1}, "prefetch_factor must be at least 1, not -1"),
        ({"prefetch_factor": 0}, "prefetch_factor must be at least 1, not 0"),
        ({"timeout": float("nan")}, "timeout must be 0 or a positive number of seconds, not nan"),
        ({"multiprocessing_context": "fork"}, "can only be used with multi-process loading"),
    ],
)
def test_own_errors(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        FastLoader(numbers(4), **options)
    with pytest.raises(ValueError, match="map-style"):
        FastLoader(Stream(), seed=0)


@pytest.mark.parametrize(
    "options",
    [{"prefetch_factor": n} for n in (True, False, 1.5, 2.0, "2")] + [{"num_workers": 1.5}],
    ids=str,
)
def test_counts_are_integers(options: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="must be an integer, not"):
        FastLoader(numbers(4), **options)


@pytest.mark.parametrize("prefetch", [1, 7, np.int64(2)])
def test_prefetch_factor_is_allowed_where_num_workers_is_left_out(prefetch: Any) -> None:
    loader = FastLoader(numbers(4), prefetch_factor=prefetch)
    assert loader.prefetch_factor == prefetch
    assert values(loader) == [[0], [1], [2], [3]]
    loader.prefetch_factor = 0
    with pytest.raises(ValueError, match="prefetch_factor must be at least 1, not 0"):
        iter(loader)


@pytest.mark.parametrize("options", [{}, {"seed": 3}], ids=str)
def test_each_argument_is_an_attribute_and_a_loader_is_rebuilt_from_them(
    options: dict[str, Any],
) -> None:
    names = list(inspect.signature(FastLoader).parameters)
    for shuffle in (None, False, True):
        loader = FastLoader(numbers(9), 2, shuffle, **options)
        given = {name: getattr(loader, name) for name in names}
        assert given["shuffle"] is shuffle
        again = FastLoader(**given)
        assert again.shuffle is shuffle
        batches = []
        for one in (loader, again):
            torch.manual_seed(0)
            one.set_epoch(0)
            batches.append(values(one))
        assert batches[0] == batches[1]
    loader.shuffle = True  # as it is
    with pytest.raises(ValueError, match="shuffle attribute should not be set after FastLoader"):
        loader.shuffle = False


def test_a_subclass_may_set_shuffle_before_the_loader_is_made() -> None:
    class Loader(FastLoader[Any]):
        def __init__(self, shuffle: bool) -> None:
            self.shuffle = shuffle
            super().__init__(numbers(4), shuffle=shuffle)
            self.shuffle = shuffle

    assert sorted(values(Loader(True))) == [[0], [1], [2], [3]]
    with pytest.raises(ValueError, match="mutually exclusive"):
        FastLoader(numbers(4), shuffle=True, sampler=RandomSampler(numbers(4)))


def test_errors_that_torch_raises_at_iter() -> None:
    loader = FastLoader(numbers(4), num_workers=0, timeout=1)
    with pytest.raises(AssertionError, match="requires timeout == 0"):
        iter(loader)
    loader = FastLoader(numbers(4), num_workers=1, prefetch_factor=0)
    with pytest.raises(AssertionError, match="prefetch_factor must be greater than 0"):
        iter(loader)


def test_attributes() -> None:
    loader = FastLoader(numbers(4), batch_size=2, num_workers=0)
    plain = DataLoader(numbers(4), batch_size=2)  # type: ignore[arg-type]
    public = {name for name in vars(loader) if not name.startswith("_")}
    assert public == {name for name in vars(plain) if not name.startswith("_")} | {
        *NEW_IN_TORCH,
        "seed",
        "shard",
        "order",
        "tail",
        "device",
        "io",
        "transforms",
        "verify",
        "on_error",
        "batch_transform",
        "static_buffers",
    }
    assert public <= set(inspect.signature(FastLoader).parameters)
    assert (loader.prefetch_factor, loader.batch_size, loader.drop_last) == (None, 2, False)
    assert FastLoader(numbers(4), num_workers=1).prefetch_factor == 2
    batched = FastLoader(numbers(4), batch_sampler=[[0, 1]])
    assert (batched.batch_size, batched.drop_last) == (None, False)
    assert FastLoader(numbers(4), batch_size=None).batch_sampler is None
    context = FastLoader(numbers(4), num_workers=1, multiprocessing_context="spawn")
    assert context.multiprocessing_context is torch.multiprocessing.get_context("spawn")


def test_workers_are_chosen_for_native_data_only() -> None:
    assert 1 <= FastLoader(numbers(4)).num_workers <= 4
    assert FastLoader(numbers(4), num_workers=0).num_workers == 0
    assert FastLoader([1, 2]).num_workers == 0
    assert FastLoader(numbers(4), collate_fn=list).num_workers == 0
    assert FastLoader(numbers(4), batch_size=None).num_workers == 0
    chosen = FastLoader(numbers(4), prefetch_factor=3, persistent_workers=True, timeout=5)
    assert (chosen.prefetch_factor, chosen.persistent_workers, chosen.timeout) == (3, True, 5)
    assert chosen.num_workers > 0
    assert iter(chosen) is iter(chosen)


@pytest.mark.parametrize(
    "name",
    ["batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "persistent_workers"]
    + ["seed", "shard", "order", "tail", "io"],
)
def test_what_cannot_be_assigned(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} attribute should not be set after FastLoader is"):
        setattr(FastLoader(numbers(4)), name, None)


def test_what_can_be_assigned_takes_effect(live_threads: Callable[[], set[str]]) -> None:
    loader = FastLoader(numbers(4), batch_size=2, num_workers=0)
    loader.num_workers = 2
    before = live_threads()
    batches = iter(loader)
    assert len(live_threads() - before) == 2
    del batches
    loader.collate_fn = list
    loader.num_workers = 0
    assert [len(batch) for batch in loader] == [2, 2]
    assert "SingleProcess" in type(iter(loader)).__name__


def test_auto_workers_never_become_processes() -> None:
    loader = FastLoader(numbers(4), batch_size=2)
    loader.collate_fn = list
    assert "SingleProcess" in type(iter(loader)).__name__
    assert loader.num_workers == 0


def test_many_workers_only_warn(live_threads: Callable[[], set[str]]) -> None:
    before = live_threads()
    with pytest.warns(UserWarning, match="num_workers=100000 threads load this dataset, and"):
        FastLoader(numbers(4), num_workers=100_000)
    assert live_threads() == before
    loader = FastLoader(numbers(4), num_workers=0)
    with warnings.catch_warnings():  # they are threads, not processes
        warnings.simplefilter("error")
        list(FastLoader(numbers(4), num_workers=len(os.sched_getaffinity(0)) + 1))
        loader.num_workers = 3
        list(loader)
    with pytest.warns(UserWarning, match="This DataLoader will create 1000 worker processes"):
        FastLoader(numbers(4), num_workers=1000, collate_fn=list)


def test_construction_starts_and_draws_nothing(live_threads: Callable[[], set[str]]) -> None:
    before, state = live_threads(), torch.get_rng_state()
    loader = FastLoader(numbers(4), shuffle=True, num_workers=2)
    keyed = FastLoader(numbers(4), shuffle=True, seed=0, num_workers=2)
    batches = iter(keyed)  # threads start at the first next()
    assert live_threads() == before
    assert torch.equal(state, torch.get_rng_state())
    del loader, batches


@pytest.mark.parametrize("workers", [0, 1, 2, 5])
@pytest.mark.parametrize("options", [{}, {"seed": 3, "shuffle": True}])
def test_length_is_what_is_given(workers: int, options: dict[str, Any]) -> None:
    for n, size, drop_last in itertools.product(range(10), (1, 2, 3, 4), (False, True)):
        if options and n == 0:
            continue
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "the epoch has no batches|This DataLoader will create"
            )
            loader = FastLoader(
                numbers(n), size, drop_last=drop_last, num_workers=workers, **options
            )
            batches = values(loader)
        assert len(loader) == len(batches) == (n // size if drop_last else -(-n // size))
        assert all(len(batch) == size for batch in batches[:-1])
        kept = n // size * size if drop_last else n
        flat = sorted(itertools.chain(*batches))
        assert flat == list(range(n))[:kept] or (options and len(set(flat)) == kept)


def test_an_epoch_without_batches_says_so_once() -> None:
    for options in ({}, {"seed": 0}):
        loader = FastLoader(numbers(1), batch_size=4, drop_last=True, **options)
        assert len(loader) == 0
        with pytest.warns(UserWarning, match=r"needs 4 samples, but the epoch has 1"):
            assert list(loader) == []
        assert list(loader) == []
        assert [len(b) for b in FastLoader(numbers(1), batch_size=4, **options)] == [1]


def test_sizes_beyond_everything() -> None:
    for options in ({}, {"seed": 0}, {"shuffle": True}, {"seed": 0, "shuffle": True}):
        assert [len(b) for b in FastLoader(numbers(3), 10**15, **options)] == [3]


def test_length_follows_the_dataset() -> None:
    data = TensorDataset(torch.arange(4))
    loader = FastLoader(data, batch_size=2)
    assert (len(loader), len(list(loader))) == (2, 2)
    data.tensors = (torch.arange(6),)
    batches = iter(loader)
    assert (len(loader), len(batches), len(list(batches))) == (3, 3, 3)
    with pytest.raises(TypeError):
        len(FastLoader(data, sampler=iter([1])))
    with pytest.raises(TypeError):
        len(FastLoader(Stream()))


@pytest.mark.parametrize("options", [{}, {"num_workers": 2}, {"seed": 0}])
def test_the_profiler_sees_each_next(options: dict[str, Any]) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        list(FastLoader(numbers(4), 2, **options))
    names = {event.key: event.count for event in profile.key_averages()}
    assert names["enumerate(DataLoader)#_NativeIterator.__next__"] == 3


def test_default_depth() -> None:
    assert default_depth(1, 2) == 64
    assert default_depth(1 << 30, 2) == 3
    assert default_depth(1 << 30, 0) == 2
    assert default_depth(16 << 20, 1) == 4


def test_default_collate_is_what_it_was() -> None:
    assert FastLoader(numbers(2)).collate_fn is default_collate
    sampler: Callable[..., Any] = RandomSampler
    assert type(FastLoader(numbers(2), shuffle=True).sampler) is sampler
