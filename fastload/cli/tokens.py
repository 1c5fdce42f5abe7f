"""`fastload info` for files of token ids."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from fastload.cli.text import count, printable, readable

_MAX_IDS = 1 << 20  # ids that are read


def are_tokens(path: str) -> bool:
    """True if a path without a shape names token files: `.bin`, or names of Megatron."""
    from fastload.formats import is_packed
    from fastload.formats.files import absolute, suffix
    from fastload.formats.walk import data_files

    full = absolute(path)
    if is_packed(full):
        return False
    if not os.path.isdir(full):
        beside = not os.path.exists(full) and os.path.exists(full + ".idx")
        return beside or suffix(full) in (".bin", ".idx")
    suffixes = set(map(suffix, data_files(full, ".bin", ".npy", ".safetensors")))
    return suffixes == {".bin"}


def describe(path: str, dtype: str | None) -> dict[str, Any]:
    """Describes the token files at a path, in JSON types.

    Args:
        path: As for `TokenDataset`.
        dtype: Dtype of the tokens; None: as a header says, uint16 in a raw file.

    Raises:
        FormatError: a file is damaged or holds no tokens.
        ValueError: the dtype is not one of tokens, or a header says another.
        OSError: a file cannot be read.
    """
    from fastload.formats.files import absolute
    from fastload.formats.tokens import read_files

    files = read_files(path, dtype)
    documents = [file.documents for file in files]
    first = max(files, key=lambda file: file.count)
    item = np.dtype(first.dtype)
    looked = min(first.count, _MAX_IDS)
    ids = np.frombuffer(first.source.read(first.offset, looked * item.itemsize), item)
    return {
        "path": absolute(path),
        "tokens": sum(file.count for file in files),
        "dtype": first.dtype,
        "assumed": dtype is None and all(f.offset == 0 and f.documents is None for f in files),
        "files": len(files),
        "bytes": sum(file.source.size_bytes for file in files),
        "documents": sum(len(d) - 1 for d in documents if d is not None)
        if all(d is not None for d in documents)
        else None,
        "ids": {"min": int(ids.min()), "max": int(ids.max()), "looked at": looked}
        if looked
        else None,
    }


def show(facts: dict[str, Any]) -> None:
    """Prints the result of `describe`."""
    from rich.console import Console

    console = Console(soft_wrap=True, markup=False, highlight=False)
    console.print(printable(facts["path"]))
    console.print(
        f"{count(facts['tokens'], 'token')} of {facts['dtype']} in "
        f"{count(facts['files'], 'file')}, {readable(facts['bytes'])}, read by TokenDataset"
    )
    if facts["assumed"]:
        console.print(
            f"{facts['dtype']} is assumed, because a raw file has no dtype (--dtype names "
            "another; with --dtype and --shape the numbers are shown as samples)"
        )
    if facts["documents"] is not None:
        console.print(count(facts["documents"], "document"))
    if facts["ids"] is not None:
        looked = facts["ids"]["looked at"]
        some = "" if looked == facts["tokens"] else f" in the first {looked:,}"
        console.print(f"ids from {facts['ids']['min']} to {facts['ids']['max']}{some}")
