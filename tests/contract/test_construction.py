"""Arguments and attributes that people and trainers rely on."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import gc
import inspect
import itertools
import os
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracle import Stream, numbers, values
from torch.utils.data import DataLoader, default_convert

import fastload
from fastload import FastLoader

# One of each kind of error, the names of arguments apart where two can be made at once.
WRONG: list[dict[str, Any]] = [
    {"num_workers": -1},
    {"num_workers": 0, "prefetch_factor": 2},
    {"num_workers": 1, "prefetch_factor": -1},
    {"num_workers": 0, "persistent_workers": True},
    {"num_workers": 0, "multiprocessing_context": "fork"},
    {"num_workers": 1, "multiprocessing_context": "bad"},
    {"num_workers": 1, "multiprocessing_context": 3},
    {"timeout": -1},
    {"shuffle": True},  # wrong for a stream and for no samples
    {"sampler": [0]},
    {"sampler": [0], "shuffle": True},
    {"batch_sampler": [[0]]},
    {"batch_sampler": [[0]], "sampler": [0]},
    {"batch_size": None},
    {"batch_size": None, "drop_last": True},
    {"batch_size": 2.0},
    {"batch_size": 0},
    {"drop_last": True},
    {"drop_last": None},
]
DATA: dict[str, Callable[[], Any]] = {
    "native": lambda: numbers(4),
    "list": lambda: [1, 2, 3, 4],
    "no samples": lambda: numbers(0),
    "stream": Stream,
}


def outcome(kind: Any, data: Any, options: dict[str, Any]) -> tuple[type, str]:
    try:
        kind(data, **options)
    except Exception as error:
        return type(error), str(error)
    return type(None), ""


@pytest.mark.parametrize("name", DATA)
def test_of_several_errors_torchs_comes_first(name: str) -> None:
    data, seen = DATA[name](), set()
    # For a stream, seed= is an error of its own.
    own: list[dict[str, Any]] = [{}] if name == "stream" else [{}, {"seed": 0}]
    for chosen in itertools.combinations(WRONG, 3):
        options: dict[str, Any] = {}
        for wrong in chosen:
            options |= wrong
        want = outcome(DataLoader, data, options)
        for extra in own:
            assert outcome(FastLoader, data, options | extra) == want, (options, extra)
        seen.add(want)
    assert len(seen) > 12


# torch's iterator fails half made, and once more when it is collected.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_errors_at_iter_are_torchs_for_any_data() -> None:
    for data in (numbers(4), [1, 2, 3, 4]):
        for options in ({"num_workers": 0, "timeout": 1}, {"num_workers": 1, "prefetch_factor": 0}):
            with pytest.raises(AssertionError) as theirs:
                iter(DataLoader(data, **options))  # type: ignore[arg-type]
            with pytest.raises(AssertionError) as ours:
                iter(FastLoader(data, **options))
            assert str(theirs.value) in ("", str(ours.value))  # older torch says nothing
            del ours, theirs
            gc.collect()


def test_a_frozen_attribute_names_the_subclass() -> None:
    class Mine(FastLoader[Any]):
        def __init__(self, data: Any) -> None:
            self.before = 1
            super().__init__(data, seed=0)
            self.after = 2

    loader = Mine(numbers(4))
    assert (loader.before, loader.after) == (1, 2)
    for name in ("batch_size", "batch_sampler", "sampler", "drop_last", "dataset", "seed"):
        with pytest.raises(ValueError, match=f"{name} attribute should not be .* Mine is init"):
            setattr(loader, name, None)


def first_seed(worker: int) -> None:
    torch.manual_seed(100)


class Seeds(list[int]):
    """What a worker sees."""

    def __getitem__(self, index: Any) -> Any:
        info = torch.utils.data.get_worker_info()
        return -1 if info is None else info.num_workers * 1000 + torch.initial_seed() % 1000


def test_what_is_assigned_acts_at_the_next_iterator_of_torchs() -> None:
    loader = FastLoader(Seeds(range(4)), 2)
    assert values(loader) == [[-1, -1]] * 2
    loader.num_workers, loader.prefetch_factor = 1, 2
    loader.worker_init_fn = first_seed
    assert values(loader) == [[1100, 1100]] * 2
    loader.collate_fn, loader.timeout, loader.in_order = sum, 9, False
    loader.prefetch_factor = 5
    loader.multiprocessing_context = "forkserver"
    assert loader.multiprocessing_context is torch.multiprocessing.get_context("forkserver")
    loader.multiprocessing_context = "fork"
    batches = iter(loader)
    assert list(batches) == [2200, 2200]
    plain: Any = batches
    assert (plain._timeout, plain._prefetch_factor) == (9, 5)
    assert not getattr(plain, "_in_order", False)  # older torch has none


@pytest.mark.parametrize("data", [numbers(8), list(range(8))], ids=["native", "list"])
def test_a_generator_and_pinning_that_are_assigned_act(data: Any) -> None:
    loader = FastLoader(data, 8, shuffle=True)
    generator = torch.Generator().manual_seed(5)
    loader.generator = generator
    before = torch.get_rng_state(), generator.get_state()
    loader.pin_memory = True
    says = type(data) is not list or hasattr(torch, "accelerator")  # torch 2.4 says nothing
    warned = pytest.warns(UserWarning, match="no accelerator is found")
    with warned if says else contextlib.nullcontext():
        batches = iter(loader)
    loader.num_workers, loader.pin_memory = 0, False
    list(batches)
    assert not torch.equal(generator.get_state(), before[1])
    # The generator of the sampler is its own affair, as in DataLoader.
    assert loader.sampler.generator is None  # type: ignore[union-attr]


def test_native_iterators_take_what_is_assigned() -> None:
    loader = FastLoader(numbers(8), 2, num_workers=1)
    loader.timeout, loader.prefetch_factor = 7, 3
    batches = iter(loader)
    assert (batches._delivery.timeout_s, batches._settings.batches_ahead) == (7, 3)
    assert (batches._resources.depth, batches._resources.threads) == (3, 1)
    loader.worker_init_fn = first_seed
    with pytest.warns(UserWarning, match="worker_init_fn is not used"):
        list(loader)
    loader.device = "meta"
    assert all(batch.is_meta for batch in loader)


def test_values_that_follow_from_others() -> None:
    for data in (numbers(4), [1, 2, 3, 4]):
        for options in ({"batch_sampler": [[0, 1]]}, {"batch_size": None}, {"batch_size": 3}):
            ours, theirs = FastLoader(data, **options), DataLoader(data, **options)  # type: ignore[arg-type]
            for name in ("batch_size", "drop_last", "_auto_collation", "collate_fn"):
                assert getattr(ours, name) is getattr(theirs, name), (name, options)
            assert type(ours.sampler) is type(theirs.sampler)
            assert type(ours.batch_sampler) is type(theirs.batch_sampler)
            assert type(ours._index_sampler) is type(theirs._index_sampler)
    assert FastLoader([1], batch_size=None).collate_fn is default_convert
    assert FastLoader(numbers(4)).prefetch_factor is None
    stream = FastLoader(Stream())
    assert type(stream.sampler) is type(DataLoader(Stream()).sampler)


OWN: dict[str, Any] = {
    "seed": 5,
    "shard": (0, 2),
    "order": "block",
    "tail": "drop",
    "device": "meta",
    "io": "pread",
    "verify": "lazy",
    "on_error": "skip",
    "batch_transform": dict,
    "static_buffers": False,
}
STATIC = OWN | {"on_error": "raise", "static_buffers": True}  # these two exclude each other


@pytest.mark.parametrize("own", [OWN, STATIC], ids=["skip", "static"])
def test_rebuilt_from_what_is_not_the_default(own: dict[str, Any], tmp_path: Path) -> None:
    """As trainers do that put another sampler into a loader."""
    fastload.pack({"x": np.arange(40)}, tmp_path / "packed")
    loader = FastLoader(tmp_path / "packed", 4, drop_last=True, num_workers=1, **own)
    parameters = inspect.signature(type(loader).__init__).parameters
    public = {k: v for k, v in vars(loader).items() if not k.startswith("_")}
    assert set(public) <= set(parameters)
    for name, value in own.items():
        assert public[name] == value
    changed = {k: v for k, v in public.items() if v is not parameters[k].default}
    changed |= {"sampler": [3, 1, 2, 0, 9], "batch_sampler": None, "shuffle": False}
    again = type(loader)(**changed)
    assert {k: vars(again)[k] for k in own} == own
    assert again.sampler == [3, 1, 2, 0, 9]
    assert (again.batch_size, again.drop_last, again.num_workers) == (4, True, 1)
    assert again.dataset is loader.dataset
    assert [batch["x"].shape for batch in again] == [(4,)]


def opened_in(folder: Path, act: Callable[[], Any]) -> set[str]:
    """The names of the files in a folder that anybody opens meanwhile: the kernel tells."""
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init1(os.O_NONBLOCK)
    try:
        assert libc.inotify_add_watch(watch, os.fsencode(folder), 0x20) > 0  # IN_OPEN
        kept = act()
        names = set()
        try:
            events = os.read(watch, 1 << 16)
        except BlockingIOError:
            events = b""
        while events:
            length = int.from_bytes(events[12:16], "little")
            names.add(events[16 : 16 + length].rstrip(b"\0").decode())
            events = events[16 + length :]
        del kept
        return names - {""}
    finally:
        os.close(watch)


def test_construction_opens_the_manifest_only(tmp_path: Path) -> None:
    folder = tmp_path / "packed"
    fastload.pack({"x": np.arange(4096.0)}, folder, shard_size=4096)
    assert len(list(folder.iterdir())) > 4

    def load() -> Any:
        return [batch["x"].sum() for batch in FastLoader(folder, 1024, num_workers=1)]

    made = opened_in(folder, lambda: FastLoader(folder, 2, shuffle=True, seed=0, num_workers=2))
    assert made == {"fastload.json"}
    assert len(opened_in(folder, load)) > 4  # the watch does see shards


def test_construction_leaves_the_accelerator_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def touched(*_: Any) -> None:
        raise AssertionError("CUDA was initialised")

    monkeypatch.setattr(torch.cuda, "_lazy_init", touched)
    loader = FastLoader(numbers(8), 2, pin_memory=True, device="cuda", num_workers=2)
    keyed = FastLoader(numbers(8), 2, pin_memory=True, device="cuda:0", seed=0, shuffle=True)
    assert (len(loader), len(keyed)) == (4, 4)
    copy.deepcopy(loader)
    with pytest.raises(AssertionError, match="was initialised"):
        torch.zeros(1, device="cuda")


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("native", [True, False])
def test_a_loader_in_use_copies_and_pickles(native: bool, workers: int) -> None:
    data: Any = numbers(6) if native else list(range(6))
    loader = FastLoader(data, 2, num_workers=workers, persistent_workers=workers > 0)
    for clone in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert values(clone) == [[0, 1], [2, 3], [4, 5]]
    batches = iter(loader)
    next(batches)
    for clone in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert values(clone) == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(NotImplementedError):
        pickle.dumps(batches)
    assert values(batches) == [[2, 3], [4, 5]]


def test_warnings_about_workers_are_torchs() -> None:
    told = []
    for kind in (DataLoader, FastLoader):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            kind([1, 2, 3, 4], num_workers=1000)  # type: ignore[arg-type]
        told.append([(w.category, str(w.message)) for w in caught])
    assert told[0] == told[1]
    assert len(told[0]) == 1
