"""Facts about the machine that loading depends on."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import sys
from pathlib import Path
from typing import Any

from fastload.tools.bench import load

_PSEUDO = {"tmpfs", "ramfs"}
_REMOTE = {"nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "ceph", "9p", "beegfs", "glusterfs"}


def facts() -> dict[str, Any]:
    """Returns cores, ranks on this host, and limits; sizes in bytes, None without a limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    shm = shutil.disk_usage("/dev/shm") if os.path.isdir("/dev/shm") else None
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "quota_cores": load.quota(),
        "ranks_on_host": int(ranks) if ranks.isdigit() else 1,
        "memlock_bytes": None if soft == resource.RLIM_INFINITY else soft,
        "shm_bytes": shm.total if shm else 0,
        "shm_free_bytes": shm.free if shm else 0,
        "gpus": gpus(),
    }


def gpus() -> list[dict[str, Any]]:
    """Returns the PCIe links of NVIDIA GPUs, as the kernel reports them."""
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
    """Returns the type of the file system of a path, and of its storage."""
    best, kind, source = "", "unknown", ""
    real = os.path.realpath(path)
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mounts").read_text("utf-8", "surrogateescape").splitlines():
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
    """Describes a loader for the advice."""
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
        "own_collate": loader.collate_fn is not None
        and loader.collate_fn.__module__.partition(".")[0] not in ("torch", "fastload"),
        "order": getattr(loader, "order", None),
        "on_device": getattr(loader, "device", None) is not None,
    }
