"""Contenders that run in a process of their own, idle between measurements."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


class Side:
    """A process that prints "ready" once, then one line for each line it reads.

    Args:
        command: The program and its arguments.
        environment: Variables to add to those of this process.

    Raises:
        RuntimeError: The process ended before it was ready.
    """

    def __init__(self, command: Sequence[Any], environment: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            list(map(str, command)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | (environment or {}),
        )

    def __enter__(self) -> Side:
        while (line := self.process.stdout.readline()) != "ready\n":
            if not line:
                self.process.wait()
                raise RuntimeError(f"{self.process.args[0]} ended before it was ready")
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()

    def ask(self, line: str) -> str:
        """The answer to a line."""
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline()


def build_gather_limit(folder: Path) -> Path:
    """Compiles gather_limit.cpp with the compiler of CXX, or c++."""
    program = folder / "gather_limit"
    flags = ["-std=c++20", "-O3", "-march=native", "-pthread"]
    compiler = os.environ.get("CXX", "c++")
    subprocess.run([compiler, *flags, HERE / "gather_limit.cpp", "-o", program], check=True)
    return program


class GatherLimit(Side):
    """Threads that gather the rows of .npy files and do nothing else; see gather_limit.cpp.

    Args:
        program: Of `build_gather_limit`.
        files: Arrays of bytes (rows, row_bytes), or of int64 labels (rows,).
        rows: Of each file.
        batch: Rows of a batch.
        threads: Of the program.
    """

    KERNELS = ("memcpy", "prefetch", "stream")

    def __init__(
        self, program: Path, files: Sequence[Path], rows: int, batch: int, threads: int
    ) -> None:
        columns: list[Any] = []
        for file in files:
            data = file.stat().st_size
            offset = 128  # of the data behind the header that numpy writes for such arrays
            columns += [file, offset, (data - offset) // rows]
        super().__init__([program, batch, threads, rows, *columns])

    def measure(self, kernel: str, seconds: float) -> dict[str, float]:
        """Samples per second by one of the kernels, and microseconds of CPU per batch."""
        rate, cpu_us = map(float, self.ask(f"{kernel} {seconds}").split())
        return {"samples_per_s": rate, "cpu_us": cpu_us}
