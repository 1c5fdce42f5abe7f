"""What a machine is and does, as far as loading depends on it."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import sys
from pathlib import Path
from typing import Any

_PSEUDO = {"tmpfs", "ramfs"}
_REMOTE = {"nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "ceph", "9p", "beegfs", "glusterfs"}


class Load:
    """How busy the CPUs of this process are between two moments, by the kernel's counters.

    Example:
        >>> load = Load()
        >>> load.begin()
        >>> load.end()
        >>> 0 <= load.busy <= 1
        True
    """

    def __init__(self) -> None:
        self.busy = self.waiting_for_storage = 0.0  # of the time of all CPUs
        self.throttled = False  # the cgroup's quota stopped the process
        self._before: tuple[list[int], int] | None = None

    def begin(self) -> None:
        """Notes the counters."""
        self._before = _cpu_times(), _throttled()

    def end(self) -> None:
        """Finds what has happened since."""
        if self._before is None:
            return
        before, throttled = self._before
        spent = [after - first for after, first in zip(_cpu_times(), before, strict=True)]
        total = max(1, sum(spent))
        self.busy = 1 - (spent[3] + spent[4]) / total
        self.waiting_for_storage = spent[4] / total
        self.throttled = _throttled() > throttled


def _cpu_times() -> list[int]:
    """user, nice, system, idle, iowait, irq, softirq, steal of the CPUs that may be used."""
    usable = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    times = [0] * 8
    with contextlib.suppress(OSError):
        for line in Path("/proc/stat").read_text().splitlines():
            name, *values = line.split()
            if name in usable:
                times = [a + int(b) for a, b in zip(times, values, strict=False)]
    return times


def _cgroup_file(name: str) -> str:
    """The file of this process's cgroup (version 2), or of the root a container sees; or ""."""
    folders = ["/sys/fs/cgroup"]
    with contextlib.suppress(OSError):
        found = re.search(r"^0::(/.*)$", Path("/proc/self/cgroup").read_text(), re.MULTILINE)
        folders.insert(0, "/sys/fs/cgroup" + (found[1] if found else ""))
    for folder in folders:
        with contextlib.suppress(OSError):
            return Path(folder, name).read_text()
    return ""


def _throttled() -> int:
    found = re.search(r"^nr_throttled (\d+)$", _cgroup_file("cpu.stat"), re.MULTILINE)
    return int(found[1]) if found else 0


def quota() -> float | None:
    """CPUs that the cgroup grants this process; None without a limit."""
    limit, _, period = _cgroup_file("cpu.max").strip().partition(" ")
    return int(limit) / int(period) if limit.isdigit() and period.isdigit() else None


def facts() -> dict[str, Any]:
    """Cores, ranks on this host, and limits; sizes in bytes, None where there is no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    shm = shutil.disk_usage("/dev/shm") if os.path.isdir("/dev/shm") else None
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "quota_cores": quota(),
        "ranks_on_host": int(ranks) if ranks.isdigit() else 1,
        "memlock_bytes": None if soft == resource.RLIM_INFINITY else soft,
        "shm_bytes": shm.total if shm else 0,
        "shm_free_bytes": shm.free if shm else 0,
        "gpus": gpus(),
    }


def gpus() -> list[dict[str, Any]]:
    """The links of NVIDIA's GPUs, as the kernel knows them."""
    found = []
    for device in sorted(Path("/sys/bus/pci/devices").glob("*")):
        with contextlib.suppress(OSError, ValueError):
            if (device / "vendor").read_text().strip() != "0x10de":
                continue
            if not (device / "class").read_text().startswith("0x03"):
                continue  # not a display or 3D controller
            names = ("current_link_width", "max_link_width", "current_link_speed", "numa_node")
            link = {name: (device / name).read_text().strip() for name in names}
            found.append({"address": device.name, **link})
    return found


def file_system(path: str) -> dict[str, Any]:
    """Type of the file system that holds a path, and what its storage is."""
    best, kind, source = "", "unknown", ""
    real = os.path.realpath(path)
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mounts").read_text().splitlines():
            device, mount, name = line.split()[:3]
            inside = real == mount or real.startswith(mount.rstrip("/") + "/")
            if inside and len(mount) >= len(best):
                best, kind, source = mount, name, device
    storage = "unknown"
    if kind in _PSEUDO:
        storage = "memory"
    elif kind in _REMOTE or kind.startswith("fuse"):
        storage = "network or user space"
    else:
        numbers = os.stat(path).st_dev
        queue = Path(f"/sys/dev/block/{os.major(numbers)}:{os.minor(numbers)}")
        for folder in (queue / "queue", queue / ".." / "queue"):
            with contextlib.suppress(OSError):
                turns = (folder / "rotational").read_text().strip() == "1"
                storage = "rotating disk" if turns else "solid state"
                break
    return {"file_system": kind, "device": source, "storage": storage}


def describe_loader(loader: Any) -> dict[str, Any]:
    """What advice needs to know of a loader."""
    iterable = sys.modules["torch"].utils.data.IterableDataset
    dataset = loader.dataset
    return {
        "class": type(loader).__name__,
        "native": bool(getattr(loader, "is_native", False)),
        "dataset": f"{type(dataset).__module__}.{type(dataset).__qualname__}",
        "map_style": not isinstance(dataset, iterable),
        "batch_size": loader.batch_size,
        "num_workers": loader.num_workers,
        "pin_memory": bool(loader.pin_memory),
        "persistent_workers": bool(loader.persistent_workers),
    }
