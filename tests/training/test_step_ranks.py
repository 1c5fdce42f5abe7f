"""The training step on two ranks (gloo): all of `rank_checks.py` in one start of processes."""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import rank_checks
import torch
from steps import adam, make_model, mse

from fastload import TrainStep

pytestmark = pytest.mark.slow

WORLD = 2
SECONDS = 300


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def found(folder: Path) -> list[dict[str, str]]:
    """What each rank has found."""
    context = multiprocessing.get_context("spawn")
    arguments = [(rank, WORLD, folder) for rank in range(WORLD)]
    processes = [context.Process(target=rank_checks.main, args=one) for one in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join(SECONDS)
        if process.is_alive():
            process.kill()
            process.join()
    assert [process.exitcode for process in processes] == [0, 9]  # rank 1 dies at the end
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(WORLD)]


@pytest.mark.parametrize("name", [check.__name__ for check in rank_checks.CHECKS])
def test_on_two_ranks(name: str, found: list[dict[str, str]]) -> None:
    for rank, results in enumerate(found):
        assert results.get(name, "not reached") == "", f"rank {rank}"


def test_a_group_ends_after_an_error_and_when_a_rank_dies(found: list[dict[str, str]]) -> None:
    assert found[0]["ends"] == ""


@pytest.mark.parametrize("name", rank_checks.WRAPPERS)
def test_one_process_goes_on_where_two_have_saved(
    name: str, folder: Path, found: list[dict[str, str]]
) -> None:
    assert not any("".join(results.values()) for results in found)
    model = make_model()
    data: Any = rank_checks.loader()
    step = TrainStep(model, adam(model), mse, precision="fp32")
    step.load(folder / f"{name}.pt", data)
    assert step.steps == 1
    # Of 22 samples 8 are done.
    assert [group.total for group in data.groups(1)] == [4, 4, 4, 2]


def test_after_kill_9_of_a_rank_the_losses_go_on_bit_for_bit(tmp_path: Path) -> None:
    """torchrun starts all ranks anew, which go on from the last checkpoint."""
    script = Path(rank_checks.__file__).with_name("torchrun_training.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command += ["--max-restarts=1", "--monitor-interval=0.1", str(script), str(tmp_path)]
    command += ["--die-after", "11"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    broken, whole = (
        [json.loads(line) for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        for name in ("broken", "whole")
    )
    assert [number for number, _loss in whole] == list(range(1, 13))
    # The steps after the last checkpoint are made again.
    assert [number for number, _loss in broken] == [*range(1, 12), *range(10, 13)]
    assert dict(broken) == dict(whole)
    assert broken[9:11] == broken[11:13] == whole[9:11]
