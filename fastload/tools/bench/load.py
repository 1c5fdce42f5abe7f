"""Load of the machine, and the part of it that this training causes."""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path
from typing import Any, NamedTuple

_FEW_TICKS = 20  # of the kernel's clock, below which shares of CPU time say nothing


class Snapshot(NamedTuple):
    """The kernel's counters at one moment.

    Attributes:
        wall_s: Monotonic clock.
        busy_s: Busy time of the CPUs that this process may use, including other virtual machines.
        idle_s: Idle time of these CPUs, including waits for storage.
        own_s: CPU time of the training's processes.
        storage_bytes: Bytes that they read from storage; None if the kernel does not report it.
        major_faults: Their accesses to mapped memory that read from storage.
        throttled: Number of times the cgroup's quota stopped the process.
        pressure_s: Time in which a runnable task waited for a CPU, on the whole machine; None if
            the kernel does not report it.
    """

    wall_s: float
    busy_s: float
    idle_s: float
    own_s: float
    storage_bytes: int | None
    major_faults: int
    throttled: int
    pressure_s: float | None


def snapshot() -> Snapshot:
    """Reads the counters; takes some milliseconds.

    Example:
        >>> report = difference(snapshot(), snapshot())
        >>> report["cores"] >= 1
        True
    """
    tick = os.sysconf("SC_CLK_TCK")
    busy, idle = _cpu_ticks()
    pids = _training()
    own, faults = _used(pids)
    return Snapshot(
        time.perf_counter(),
        busy / tick,
        idle / tick,
        own / tick,
        _storage_bytes(pids),
        faults,
        throttled(),
        _pressure_s(),
    )


def difference(before: Snapshot, after: Snapshot) -> dict[str, Any]:
    """Returns the load between two snapshots, in JSON types; None for unknown values.

    `own` and `others` are shares of the time of all usable CPUs, `idle_cores` is a number of CPUs.
    """
    cores = len(os.sched_getaffinity(0))
    seconds = max(1e-9, after.wall_s - before.wall_s)
    busy, idle = after.busy_s - before.busy_s, after.idle_s - before.idle_s
    own, total = after.own_s - before.own_s, busy + idle
    known = total * os.sysconf("SC_CLK_TCK") >= _FEW_TICKS
    pressure = storage = None
    if before.pressure_s is not None and after.pressure_s is not None:
        pressure = min(1.0, (after.pressure_s - before.pressure_s) / seconds)
    if before.storage_bytes is not None and after.storage_bytes is not None:
        storage = max(0, after.storage_bytes - before.storage_bytes)
    return {
        "seconds": seconds,
        "cores": cores,
        "own": min(1.0, max(0.0, own / total)) if known else None,
        "others": min(1.0, max(0.0, (busy - own) / total)) if known else None,
        "idle_cores": cores * idle / total if known else None,
        "pressure": pressure,
        "load_average": os.getloadavg()[0],
        "storage_bytes": storage,
        "major_faults": max(0, after.major_faults - before.major_faults),
        "throttled": after.throttled > before.throttled,
    }


def _cpu_ticks() -> tuple[int, int]:
    """Returns busy and idle ticks of the usable CPUs."""
    usable = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    busy = idle = 0
    with contextlib.suppress(OSError):
        for line in Path("/proc/stat").read_text().splitlines():
            name, *values = line.split()
            if name in usable:
                # user, nice, system, idle, iowait, irq, softirq, steal; the rest is in user
                ticks = [int(value) for value in values[:8]]
                idle += sum(ticks[3:5])
                busy += sum(ticks) - sum(ticks[3:5])
    return busy, idle


def _training() -> list[int]:
    """Returns this process and its descendants; with several ranks, those of their parent."""
    several = os.environ.get("LOCAL_WORLD_SIZE", "1") not in ("", "0", "1")
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        fields = _stat(int(folder.name))
        if fields:
            children.setdefault(int(fields[1]), []).append(int(folder.name))
    found = [os.getppid() if several else os.getpid()]
    for pid in found:
        found += children.get(pid, [])
    return found


def _stat(pid: int) -> list[str]:
    """Returns the fields of /proc/PID/stat after the name; [] if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _used(pids: list[int]) -> tuple[int, int]:
    """Returns ticks and major faults of the processes and of their ended children."""
    ticks = faults = 0
    for fields in map(_stat, pids):
        if fields:
            faults += int(fields[9]) + int(fields[10])
            ticks += sum(int(value) for value in fields[11:15])
    return ticks, faults


def _storage_bytes(pids: list[int]) -> int | None:
    total = None
    for pid in pids:
        with contextlib.suppress(OSError):
            found = re.search(r"^read_bytes: (\d+)$", Path(f"/proc/{pid}/io").read_text(), re.M)
            if found:
                total = (total or 0) + int(found[1])
    return total


def _pressure_s() -> float | None:
    with contextlib.suppress(OSError):
        found = re.search(r"^some .*total=(\d+)", Path("/proc/pressure/cpu").read_text(), re.M)
        if found:
            return int(found[1]) / 1e6
    return None


# --- The cgroup ---------------------------------------------------------------------------------


def _cgroup_file(name: str) -> str:
    """A file of this process's cgroup (version 2), or of the root that a container sees; or ""."""
    folders = ["/sys/fs/cgroup", "/sys/fs/cgroup/cpu"]
    with contextlib.suppress(OSError):
        found = re.search(r"^0::(/.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
        folders.insert(0, "/sys/fs/cgroup" + (found[1] if found else ""))
    for folder in folders:
        with contextlib.suppress(OSError):
            return Path(folder, name).read_text()
    return ""


def throttled() -> int:
    """Returns the number of times the cgroup's quota stopped its processes."""
    found = re.search(r"^nr_throttled (\d+)$", _cgroup_file("cpu.stat"), re.MULTILINE)
    return int(found[1]) if found else 0


def quota() -> float | None:
    """Returns the CPUs that the cgroup grants this process; None without a limit."""
    limit, _, period = _cgroup_file("cpu.max").strip().partition(" ")
    if not limit:  # version 1
        limit = _cgroup_file("cpu.cfs_quota_us").strip()
        period = _cgroup_file("cpu.cfs_period_us").strip()
    return int(limit) / int(period) if limit.isdigit() and period.isdigit() else None
