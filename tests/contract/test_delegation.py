"""What torch's own iterators load, and how little of torch's inside that needs."""

from __future__ import annotations

import ast
import importlib
import inspect
import multiprocessing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracle import Stream, numbers, values
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, get_worker_info

import fastload
from fastload import FastLoader
from fastload.loader.native_iterator import _NativeIterator

ORDERED_OR_NOT = "in_order" in inspect.signature(DataLoader).parameters
NOT_KNOWN = "this torch has no in_order"


@pytest.mark.parametrize("workers", [0, 1])
def test_the_iterators_of_other_data_are_torchs(workers: int) -> None:
    elsewhere = TensorDataset(torch.empty(3, device="meta"))
    for data in (Stream(), [1, 2, 3], np.arange(3), elsewhere, numbers(3)):
        loader = FastLoader(data, 2, num_workers=workers)
        want = type(iter(DataLoader(data, 2, num_workers=workers)))  # type: ignore[arg-type]
        got = type(iter(loader))
        assert got is (_NativeIterator if isinstance(data, fastload.ArrayDataset) else want)


def test_data_pipes_are_torchs() -> None:
    pipes = pytest.importorskip("torch.utils.data.datapipes.iter")
    pipe = pipes.IterableWrapper(range(7))
    assert values(FastLoader(pipe, 3)) == values(DataLoader(pipe, 3))


class WhoAmI(list[int]):
    def __getitem__(self, index: Any) -> Any:
        info = get_worker_info()
        assert info is not None
        assert info.seed == torch.initial_seed()
        assert info.dataset is self
        return index, info.id, info.num_workers


def test_worker_info_is_of_processes_only() -> None:
    for batch in FastLoader(numbers(8), 2, num_workers=2):
        assert get_worker_info() is None
        assert len(batch) == 2
    assert get_worker_info() is None
    loader = FastLoader(WhoAmI(range(8)), 2, num_workers=2)
    seen = [[column.tolist() for column in batch] for batch in loader]
    assert get_worker_info() is None
    assert seen == [[[2 * k, 2 * k + 1], [k % 2] * 2, [2, 2]] for k in range(4)]


class Gated(list[int]):
    """0 ... 9; sample 0 waits until it is let go."""

    def __init__(self, event: Any) -> None:
        super().__init__(range(10))
        self.event = event

    def __getitem__(self, index: Any) -> Any:
        if index == 0:
            assert self.event.wait(60)
        info = get_worker_info()
        assert info is not None
        return index, info.id


@pytest.mark.skipif(not ORDERED_OR_NOT, reason=NOT_KNOWN)
@pytest.mark.parametrize("in_order", [True, False])
def test_in_order_says_whether_processes_overtake(in_order: bool) -> None:
    event = multiprocessing.get_context("fork").Event()
    options: dict[str, Any] = {"num_workers": 2, "prefetch_factor": 2, "in_order": in_order}
    options |= {"multiprocessing_context": "fork"}
    loader = FastLoader(Gated(event), **options)
    if in_order:
        event.set()
    seen: list[tuple[int, int]] = []
    for index, worker in loader:
        seen.append((int(index), int(worker)))
        if len(seen) == 8:
            event.set()
        missing = set(range(10)) - {index for index, _ in seen}
        if missing:  # a resumed epoch leaves nothing out
            assert loader.state_dict()["samples"] == min(missing)
    assert [index for index, _ in seen] == (
        list(range(10)) if in_order else [1, 3, 4, 5, 6, 7, 8, 9, 0, 2]
    )
    assert [worker for _, worker in seen] == ([0, 1] * 5 if in_order else [1] * 8 + [0] * 2)


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"shuffle": True, "seed": 1}])
def test_native_data_come_in_order_in_any_case(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    want = values(FastLoader(numbers(100), 7, num_workers=2, **options))
    torch.manual_seed(0)
    loader = FastLoader(numbers(100), 7, num_workers=2, in_order=False, **options)
    assert loader.in_order is False
    assert values(loader) == want


class Counting(IterableDataset[int]):
    """0 ... n - 1, once in each process."""

    def __init__(self) -> None:
        self.begun = 0

    def __iter__(self) -> Iterator[int]:
        self.begun += 1
        return iter(range(3))


def test_an_iterable_dataset_is_iterated_once_an_epoch_by_each_process() -> None:
    data = Counting()
    assert values(FastLoader(data, 2)) == [[0, 1], [2]]
    assert data.begun == 1
    batches = values(FastLoader(data, 2, num_workers=2))
    assert batches == values(DataLoader(data, 2, num_workers=2))
    assert sorted(batches) == [[0, 1], [0, 1], [2], [2]]


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_of_both_kinds_live_side_by_side(workers: int) -> None:
    data = TensorDataset(torch.arange(20))
    batches: list[Any] = [DataLoader(data, 2, num_workers=workers), FastLoader(list(range(20)), 2)]
    batches += [FastLoader(data, 2, num_workers=workers) for _ in range(2)]
    seen = [
        ([a[0].tolist(), b.tolist()], [c[0].tolist(), d[0].tolist()])
        for a, b, c, d in zip(*batches, strict=True)
    ]
    assert seen == [([[k, k + 1]] * 2, [[k, k + 1]] * 2) for k in range(0, 20, 2)]


# --- Names that torch does not promise ----------------------------------------------------------

# Each is there in every version from 2.4 on; whoever adds one looks whether it is.
PRIVATE_NAMES = {
    "_auto_collation",
    "_get_iterator",
    "_index_sampler",
    "_iterator",
    "_next_data",
    "_num_workers",
    "_pin_memory",
    "_reset",
    "_send_idx",
    "_task_info",
    "torch._C._autograd._profiler_enabled",
    "torch._C._from_dlpack",
    "torch.utils.data._utils.collate",
    "torch.utils.data._utils.collate.collate",
    "torch.utils.data._utils.collate.default_collate_fn_map",
}
# Attributes of other objects than loaders and their iterators, and where they are.
PRIVATE_ATTRIBUTES = {
    "_get_default_store": torch.distributed.distributed_c10d,
    "_version": torch.Tensor,
}
# Torch 2.4 has it there; later ones have a public place, which is tried first.
OF_OLDER_TORCH = {"torch.distributed._tensor.distribute_tensor"}
# Python's, numpy's, a module of fastload, and a part of some names above.
OTHERS = {"_Hash", "_asdict", "_exit", "_fields", "_replace", "_mmap", "_core", "_utils"}


def private_names(path: Path) -> tuple[set[str], set[str]]:
    """Names with one leading underscore that a module uses, and those that it defines.

    An attribute goes by its own name, what is imported from torch by its whole one.
    """
    used, own = set(), set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            used.add(node.attr)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
            own.add(node.attr)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            own.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            own.add(node.target.id)
        elif isinstance(node, ast.Import):
            used |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            used |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in used if is_private(name)}, own


def is_private(name: str) -> bool:
    if "." in name:
        return name.startswith("torch.") and "._" in name
    return name.startswith("_") and not name.startswith("__")


def test_few_private_names_of_torch_are_used() -> None:
    loader = DataLoader([0, 1], num_workers=1)
    of_loader = {name for name in dir(loader) if is_private(name)}
    used: set[str] = set()
    own = set(OTHERS)
    for path in Path(fastload.__file__).parent.rglob("*.py"):
        if path.parent.name == "integrations":  # each goes with a version of a framework
            continue
        names, defined = private_names(path)
        used |= names
        own |= defined
    more = (used - own | of_loader & own) - PRIVATE_NAMES - set(PRIVATE_ATTRIBUTES)
    more -= OF_OLDER_TORCH
    assert not more, f"{more} may be gone in the next version of torch"
    for name, owner in PRIVATE_ATTRIBUTES.items():
        assert hasattr(owner, name), name
    processes = iter(loader)
    for name in PRIVATE_NAMES:
        if "." not in name:
            assert hasattr(loader, name) or hasattr(processes, name), name
            continue
        module, _, member = name.rpartition(".")
        found = importlib.import_module(module)
        assert hasattr(found, member), name
