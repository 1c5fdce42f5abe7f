"""Errors, timeouts and signals: which one reaches the caller, when, and what comes after it."""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracle import numbers, values
from torch.utils.data import get_worker_info

import fastload
from fastload import FastLoader


class TwoArgumentsError(Exception):
    """Cannot be made of one message."""

    def __init__(self, first: str, second: int) -> None:
        super().__init__(first, second)


class Fails(list[int]):
    """0 ... n - 1; asking for one of them is an error."""

    def __init__(self, n: int, error: BaseException, bad: int = 3) -> None:
        super().__init__(range(n))
        self.error = error
        self.bad = bad

    def __getitem__(self, index: Any) -> Any:
        if index == self.bad:
            raise self.error
        return index


def test_without_processes_the_error_is_the_very_object() -> None:
    for error in (TwoArgumentsError("a", 2), KeyError("k"), KeyboardInterrupt(), SystemExit(3)):
        loader = FastLoader(Fails(6, error), 2, num_workers=0)
        batches = iter(loader)
        assert next(batches).tolist() == [0, 1]
        with pytest.raises(type(error)) as caught:
            next(batches)
        assert caught.value is error
        assert traceback.extract_tb(error.__traceback__)[-1].name == "__getitem__"
        assert loader.state_dict()["samples"] == 2
        assert next(batches).tolist() == [4, 5]
        assert loader.state_dict()["samples"] == 6
        assert list(batches) == []


@pytest.mark.parametrize(
    ("error", "raised", "text"),
    [
        (ValueError("boom"), ValueError, "boom"),
        (KeyError("boom"), KeyError, "KeyError: 'boom'"),
        (FileNotFoundError(2, "gone", "a.npy"), FileNotFoundError, "gone: 'a.npy'"),
        (TwoArgumentsError("a", 2), RuntimeError, "TwoArgumentsError: ('a', 2)"),
    ],
)
def test_errors_of_processes_keep_their_type(
    error: Exception, raised: type[Exception], text: str
) -> None:
    batches = iter(FastLoader(Fails(6, error), 2, num_workers=1))
    assert next(batches).tolist() == [0, 1]
    with pytest.raises(raised) as caught:
        next(batches)
    assert type(caught.value) is raised
    message = str(caught.value)
    assert f"Caught {type(error).__name__} in DataLoader worker process 0." in message
    assert "Original Traceback" in message
    assert text in message
    assert values(batches) == [[4, 5]]


@pytest.mark.parametrize("workers", [0, 2])
def test_each_batch_of_a_dataset_that_always_fails_is_one_error(workers: int) -> None:
    class Always(list[int]):
        def __getitem__(self, index: Any) -> Any:
            raise RuntimeError("always")

    batches = iter(FastLoader(Always(range(41)), 2, num_workers=workers))
    for _ in range(21):
        with pytest.raises(RuntimeError, match="always"):
            next(batches)
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(batches)


@pytest.mark.parametrize("workers", [None, 0, 2])
def test_a_file_that_vanished_is_an_error_of_its_batches(
    workers: int | None, tmp_path: Path
) -> None:
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", np.arange(4))
    loader = FastLoader(tmp_path, 2, num_workers=workers)
    (tmp_path / "b.npy").unlink()
    batches = iter(loader)
    assert [next(batches).tolist(), next(batches).tolist()] == [[0, 1], [2, 3]]
    for _ in range(2):
        with pytest.raises(FileNotFoundError, match=r"b\.npy") as caught:
            next(batches)
        assert str(caught.value.filename).endswith("b.npy")
    assert list(batches) == []


@pytest.mark.parametrize("workers", [0, 1])
def test_stop_iteration_in_a_collate_function_is_no_end(workers: int) -> None:
    def collate(samples: list[int]) -> list[int]:
        if 2 in samples:
            raise StopIteration
        return samples

    for data in (list(range(6)), numbers(6)):
        batches = iter(FastLoader(data, 2, num_workers=workers, collate_fn=collate))
        assert [int(sample) for sample in next(batches)] == [0, 1]
        with pytest.raises(RuntimeError, match="raised StopIteration"):
            next(batches)
        assert [[int(sample) for sample in batch] for batch in batches] == [[4, 5]]


class Slow(list[int]):
    """Sample 2 is ready when somebody has made the file."""

    def __init__(self, path: Path) -> None:
        super().__init__(range(6))
        self.path = path

    def __getitem__(self, index: Any) -> Any:
        while index == 2 and not self.path.exists():
            time.sleep(0.01)
        return index


def test_a_late_batch_of_a_process_is_an_error_and_comes_later(tmp_path: Path) -> None:
    go = tmp_path / "go"
    loader = FastLoader(Slow(go), 2, num_workers=1, timeout=60)
    batches = iter(loader)
    assert next(batches).tolist() == [0, 1]
    batches._timeout = 0.3  # the first batch waited for the process to start
    for _ in range(2):
        start = time.monotonic()
        with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.3 seconds"):
            next(batches)
        assert time.monotonic() - start >= 0.3
        assert loader.state_dict()["samples"] == 2
    go.touch()
    batches._timeout = 60
    assert next(batches).tolist() == [2, 3]
    assert loader.state_dict()["samples"] == 4
    assert values(batches) == [[4, 5]]
    assert loader.state_dict()["epoch"] == 1


def refuse(worker: int) -> None:
    raise LookupError(f"worker {worker}")


def test_an_error_of_worker_init_fn_comes_with_the_first_batch() -> None:
    batches = iter(FastLoader(list(range(2)), 2, num_workers=1, worker_init_fn=refuse))
    with pytest.raises(LookupError, match="worker 0"):
        next(batches)
    assert list(batches) == []


@pytest.mark.parametrize("make", [numbers, lambda n: list(range(n))])
def test_an_error_of_a_collate_function_shows_its_lines(make: Callable[[int], Any]) -> None:
    def collate(samples: list[Any]) -> Any:
        raise ZeroDivisionError(len(samples))

    loader = FastLoader(make(4), 2, collate_fn=collate)
    with pytest.raises(ZeroDivisionError) as caught:
        next(iter(loader))
    assert caught.value.args == (2,)
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "collate"


def test_a_process_that_dies_is_an_error_that_names_it() -> None:
    class Dies(list[int]):
        def __getitem__(self, index: Any) -> Any:
            if index == 2 and get_worker_info() is not None:
                os._exit(7)
            return index

    batches = iter(FastLoader(Dies(range(4)), 2, num_workers=1))
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid.* exited unexpectedly"):
        list(batches)


def test_an_index_beyond_the_end_names_the_sample() -> None:
    data = fastload.ArrayDataset({"x": np.arange(3)})
    loader = FastLoader(data, batch_sampler=[[0], [1, 7], [2]])
    batches = iter(loader)
    assert next(batches)["x"].tolist() == [0]
    with pytest.raises(IndexError, match="7"):
        next(batches)
    assert torch.equal(next(batches)["x"], torch.tensor([2]))
