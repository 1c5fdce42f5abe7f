"""Description of the machine for logs and measurements, without host names and paths."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import re
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any


def describe() -> dict[str, Any]:
    """Returns CPU model, number of cores, GPU (if CUDA is initialized) and versions.

    Example:
        >>> sorted(describe())
        ['cores', 'cpu', 'fastload', 'gpu', 'python', 'torch']
    """
    return {
        "cpu": cpu_model(),
        "cores": core_count(),
        "gpu": _gpu(),
        "python": platform.python_version(),
        "torch": version("torch"),
        "fastload": version("fastload"),
    }


def sentence(machine: dict[str, Any]) -> str:
    """Returns the machine in one line; '' if nothing is known.

    Example:
        >>> sentence({"cpu": "Xeon", "cores": 2, "gpu": None, "torch": "2.13.0"})
        '2 cores of Xeon, torch 2.13.0'
    """
    cores, cpu = machine.get("cores"), machine.get("cpu")
    parts = [f"{cores} core{'s' * (cores != 1)} of {cpu}" if cores and cpu else ""]
    parts.append(str(machine.get("gpu") or ""))
    parts += [f"{name} {machine[name]}" for name in ("torch", "fastload") if machine.get(name)]
    return ", ".join(part for part in parts if part)


def now() -> str:
    """Returns date and time in UTC, to the second."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def core_count() -> int:
    """Returns the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0))


def cpu_model() -> str:
    """Returns the name of the processor."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.machine()
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else platform.machine()


def version(package: str) -> str:
    """Returns the installed version of a package, or 'unknown'."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _gpu() -> str | None:
    torch = sys.modules.get("torch")  # no reason to import it
    if torch is None or not torch.cuda.is_initialized():
        return None
    return str(torch.cuda.get_device_name())
