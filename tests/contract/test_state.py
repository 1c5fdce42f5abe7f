"""Saving and resuming as trainers do it: another process, other workers, several epochs."""

from __future__ import annotations

import copy
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracle import numbers, values
from torch.utils.data import IterableDataset

import fastload
from fastload import FastLoader

Run = Callable[..., subprocess.CompletedProcess[str]]

N, SIZE = 23, 4
STEPS = -(-N // SIZE)

RESUME = """
import json, sys
import torch
from fastload import FastLoader
for options, state in json.loads(sys.argv[1]):
    torch.manual_seed(12345)
    loader = FastLoader("x.npy", 4, **options)
    loader.load_state_dict(state)
    print(json.dumps([batch.tolist() for batch in loader]))
"""


def test_a_fresh_process_goes_on_with_the_remaining_batches(run_torch: Run, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(N))
    given, want = [], []
    for options in ({"seed": 1, "shuffle": True}, {"shuffle": True}, {}):
        for k in (1, 3, STEPS):
            loader = FastLoader(tmp_path / "x.npy", SIZE, **options)
            list(loader)
            batches = iter(loader)
            for _ in range(k):
                next(batches)
            given.append((options, loader.state_dict()))
            want.append(json.dumps(values(batches)))
    assert run_torch(RESUME, json.dumps(given)).stdout.splitlines() == want


def test_four_epochs_of_processes_are_two_and_two() -> None:
    four_epochs_are_two_and_two({"shuffle": True}, 2, True)


def four_epochs_are_two_and_two(options: dict[str, Any], workers: int, listed: bool) -> None:
    def make() -> FastLoader[Any]:
        data = list(range(N)) if listed else numbers(N)
        own = torch.Generator().manual_seed(3) if "seed" not in options else None
        return FastLoader(data, SIZE, num_workers=workers, generator=own, **options)

    loader = make()
    whole = [values(loader) for _ in range(4)]
    loader = make()
    epochs = [values(loader), values(loader)]
    resumed = make()
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert epochs + [values(resumed), values(resumed)] == whole


def test_a_state_does_not_change_once_it_was_given() -> None:
    for options in ({"seed": 1}, {}, {"sampler": list(range(N))}):
        loader = FastLoader(numbers(N), SIZE, **options)
        states, copies = [], []
        for _ in loader:
            states.append(loader.state_dict())
            copies.append(copy.deepcopy(states[-1]))
        assert states == copies
        assert len({json.dumps(state) for state in states}) == STEPS
        states[0]["epoch"] = 77
        assert loader.state_dict()["epoch"] != 77


def test_a_state_is_small_for_any_number_of_samples(tmp_path: Path) -> None:
    path = tmp_path / "huge.bin"
    with path.open("wb") as file:
        file.truncate(10**9)
    for options in ({"seed": 1}, {"seed": 1, "shuffle": True}, {}):
        loader = FastLoader(fastload.open(path, dtype="uint8", shape=()), 256, **options)
        next(iter(loader))
        assert len(json.dumps(loader.state_dict())) < 1024


def test_a_checkpoint_of_torch_holds_it_and_every_rank_reads_it(tmp_path: Path) -> None:
    loaders = [FastLoader(numbers(N), 2, seed=1, shuffle=True, shard=(r, 2)) for r in range(2)]
    batches = [iter(loader) for loader in loaders]
    for one in batches:
        next(one)
    torch.save({"data": loaders[0].state_dict()}, tmp_path / "checkpoint.pt")
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["data"]
    for rank, one in enumerate(batches):
        resumed = FastLoader(numbers(N), 2, seed=1, shuffle=True, shard=(rank, 2))
        resumed.load_state_dict(state)
        assert values(resumed) == values(one)


@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("options", [{"seed": 1, "shuffle": True}, {"shuffle": True}, {}])
def test_persistent_workers_take_a_loaded_place_at_the_next_epoch(
    options: dict[str, Any], listed: bool
) -> None:
    data = list(range(N)) if listed else numbers(N)
    loader = FastLoader(data, SIZE, num_workers=1, persistent_workers=True, **options)
    batches = iter(loader)
    whole = [next(batches).tolist(), next(batches).tolist()]
    state = loader.state_dict()
    whole.append(next(batches).tolist())
    loader.load_state_dict(state)
    assert loader.state_dict() == state
    whole += values(batches)  # which goes on where it was
    assert iter(loader) is batches
    assert values(batches) == whole[2:]
    assert len(values(loader)) == STEPS


class Fragile(IterableDataset[int]):
    """0 ... 6; what comes after 1 is an error."""

    def __iter__(self) -> Fragile:
        self.last = -1
        return self

    def __next__(self) -> int:
        self.last += 1
        if self.last == 2:
            raise ValueError("two")
        if self.last > 6:
            raise StopIteration
        return self.last


@pytest.mark.parametrize(("workers", "k"), [*((0, k) for k in range(8)), (1, 4)])
def test_an_error_of_a_stream_has_had_its_turn(workers: int, k: int) -> None:
    def drawn(batches: Any, count: int) -> list[Any]:
        seen: list[Any] = []
        for _ in range(count):
            try:
                seen.append(next(batches).item())
            except (ValueError, StopIteration) as error:
                seen.append(type(error))
        return seen

    loader = FastLoader(Fragile(), num_workers=workers)
    whole = drawn(iter(loader), 8)
    assert whole == [0, 1, ValueError, 3, 4, 5, 6, StopIteration]
    batches = iter(loader)
    assert drawn(batches, k) == whole[:k]
    state = loader.state_dict()
    resumed = FastLoader(Fragile(), num_workers=workers)
    resumed.load_state_dict(state)
    first = 2 if k == 3 else k  # nothing was handed out since the error: it comes once more
    assert drawn(iter(resumed), 8 - first) == whole[first:]
