"""Memory stays flat, nothing is opened before it is needed, and everything ends."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
from typing import Any

import numpy as np
import pytest
import torch

from fastload import ArrayDataset, FastLoader, StoppedError


def images(rows: int = 512) -> ArrayDataset:
    data = np.zeros((rows, 64, 64, 3), np.uint8)
    return ArrayDataset({"x": data, "y": np.arange(rows)})


def run_program(text: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = textwrap.dedent(text)
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=120
    )


def test_memory_is_flat_over_50_epochs(device: torch.device) -> None:
    loader = FastLoader(images(), 32, shuffle=True, seed=0, device=device)
    seen = []
    for _ in range(50):
        for batch in loader:
            batch["x"].float().mean()
        del batch
        gc.collect()
        torch.cuda.synchronize(device)
        seen.append((torch.cuda.memory_reserved(device), loader._resources.pool.allocation_count))
    assert seen[2] == seen[-1], seen


def test_a_loader_opens_nothing_before_its_first_batch() -> None:
    done = run_program(
        """
        import numpy as np, torch
        from fastload import ArrayDataset, FastLoader
        loader = FastLoader(ArrayDataset(np.arange(8)), 2, device="cuda")
        len(loader), loader.state_dict()
        assert not torch.cuda.is_initialized()
        print(next(iter(loader)).tolist())
        assert torch.cuda.is_initialized()
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[0, 1]\n"


def test_the_second_rank_opens_no_context_on_the_first_gpu() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("this takes two GPUs")
    done = run_program(
        """
        import os, subprocess
        import numpy as np, torch
        from fastload import ArrayDataset, FastLoader
        torch.cuda.set_device(1)
        for batch in FastLoader(ArrayDataset(np.zeros((64, 40_000))), 8, device="cuda"):
            assert batch.device.index == 1
        asked = "--query-compute-apps=pid,gpu_uuid --format=csv,noheader".split()
        told = subprocess.run(["nvidia-smi", *asked], capture_output=True, text=True).stdout
        mine = [line for line in told.splitlines() if line.startswith(str(os.getpid()))]
        print(len(mine))
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "1\n"


def test_a_forked_child_gets_a_clear_error(device: torch.device) -> None:
    batches = iter(FastLoader(images(), 32, device=device))
    next(batches)
    child = os.fork()
    if child == 0:
        try:
            next(batches)
        except StoppedError:
            os._exit(0)
        except BaseException:
            os._exit(2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(list(batches)) == 15


def test_a_lost_device_is_a_clear_error() -> None:
    done = run_program(
        """
        import numpy as np, torch
        from fastload import ArrayDataset, CudaError, FastLoader
        loader = FastLoader(ArrayDataset(np.arange(64)), 2, device="cuda")
        batches = iter(loader)
        next(batches)
        torch.zeros(4, device="cuda")[torch.full((4,), 9, device="cuda")]  # a kernel that asserts
        try:
            for batch in batches:
                torch.cuda.current_stream().query()
        except CudaError as error:
            print("CudaError", error)
        except RuntimeError as error:  # torch may see it first
            print("torch", error)
            try:
                next(iter(loader))
            except (CudaError, RuntimeError) as error:
                print("then", type(error).__name__)
        """
    )
    assert done.returncode == 0, done.stderr
    assert "CudaError" in done.stdout or "then" in done.stdout, done.stdout


@pytest.mark.parametrize("end", ["", "raise SystemExit(0)", "import os; os._exit(0)"])
def test_a_program_may_end_while_copies_run(end: str) -> None:
    done = run_program(
        f"""
        import numpy as np, torch
        from fastload import ArrayDataset, FastLoader
        loader = FastLoader(ArrayDataset(np.zeros((64, 1 << 20))), 8, shuffle=True, device="cuda")
        batches = iter(loader)
        torch.cuda._sleep(50_000_000)
        batch = next(batches)
        {end}
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


def test_two_loaders_at_once(device: torch.device) -> None:
    loaders: list[Any] = [
        FastLoader(images(), 32, shuffle=True, seed=seed, device=device) for seed in range(2)
    ]
    wants = [
        [batch["y"] for batch in FastLoader(images(), 32, shuffle=True, seed=seed)]
        for seed in range(2)
    ]
    for number, pair in enumerate(zip(*loaders, strict=True)):
        for want, batch in zip(wants, pair, strict=True):
            assert torch.equal(batch["y"].cpu(), want[number])
