"""The machine under a measurement: what it is, what memory is used, which files are cached."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fastload import _core
from fastload.training import host

_CHUNK_BYTES = 1 << 30  # of a file, mapped at a time to ask what is cached


def describe() -> dict[str, Any]:
    """The machine and the versions that matter for speed; no host name, no paths."""
    return {
        **host.describe(),
        "architecture": platform.machine(),
        "copy_kernels": _core.copy_kernels(),
        "last_level_cache_bytes": _last_level_cache_bytes(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": f"{platform.system()} {platform.release()}",
        "numpy": host.version("numpy"),
    }


def core_count() -> int:
    """The CPU cores that this process may use."""
    return host.core_count()


def _last_level_cache_bytes() -> int:
    sizes = [0]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        if found := re.fullmatch(r"(\d+)([KM])", path.read_text().strip()):
            sizes.append(int(found[1]) << {"K": 10, "M": 20}[found[2]])
    return max(sizes)


class Resident(NamedTuple):
    """Memory of this process, in bytes.

    Attributes:
        anonymous_bytes: RssAnon: what the process allocated.
        file_bytes: RssFile: mapped pages of the page cache, which the kernel may take back.
    """

    anonymous_bytes: int
    file_bytes: int

    @classmethod
    def now(cls) -> Resident:
        """The figures at this moment."""
        status = Path("/proc/self/status").read_text()
        sizes = dict(re.findall(r"^(Rss\w+):\s*(\d+) kB$", status, re.MULTILINE))
        return cls(int(sizes["RssAnon"]) * 1024, int(sizes["RssFile"]) * 1024)


def available_bytes() -> int:
    """Memory that could be had now, as the kernel estimates it."""
    found = re.search(r"^MemAvailable:\s*(\d+) kB$", Path("/proc/meminfo").read_text(), re.M)
    return int(found[1]) * 1024 if found else 0


def cached_share(path: str | os.PathLike[str]) -> float:
    """The share of a file's pages that lie in the page cache, from 0 to 1; 0 for an empty file."""
    libc = ctypes.CDLL(None, use_errno=True)
    size = os.stat(path).st_size
    cached = pages = 0
    with open(path, "rb") as file:
        for start in range(0, size, _CHUNK_BYTES):
            length = min(_CHUNK_BYTES, size - start)
            flags = np.empty(-(-length // mmap.PAGESIZE), np.uint8)
            with mmap.mmap(file.fileno(), length, offset=start, prot=mmap.PROT_READ) as mapped:
                view = np.frombuffer(mapped, np.uint8)
                status = libc.mincore(
                    ctypes.c_void_p(view.ctypes.data),
                    ctypes.c_size_t(length),
                    ctypes.c_void_p(flags.ctypes.data),
                )
                del view
            if status != 0:
                raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), os.fspath(path))
            cached += int(np.count_nonzero(flags & 1))
            pages += len(flags)
    return cached / pages if pages else 0.0


def drop_from_cache(paths: Iterable[str | os.PathLike[str]]) -> float:
    """Takes files out of the page cache, without root, and returns the largest share that stayed.

    What stays: pages that some process still maps, and file systems that live in memory.
    """
    left = 0.0
    for path in paths:
        with open(path, "rb") as file:
            os.fsync(file.fileno())  # dirty pages are not dropped
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        left = max(left, cached_share(path))
    return left


def read_into_cache(paths: Iterable[str | os.PathLike[str]]) -> None:
    """Reads files from end to end."""
    buffer = bytearray(8 << 20)
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while file.readinto(buffer):
                pass
