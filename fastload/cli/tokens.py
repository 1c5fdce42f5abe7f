"""What `fastload info` shows of files of token ids."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from fastload.cli.text import count, printable, readable

_MOST_IDS = 1 << 20  # that are looked at


def are_tokens(path: str) -> bool:
    """Whether a path without a shape is one of token files: `.bin`, or Megatron's names."""
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
    """The files of token ids at a path, in JSON's types.

    Args:
        path: As for `TokenDataset`.
        dtype: Of the tokens; None: as a header says, uint16 in a raw file.

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
    looked = min(first.count, _MOST_IDS)
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
    """Prints what `describe` found."""
    from rich.console import Console

    console = Console(soft_wrap=True, markup=False, highlight=False)
    console.print(printable(facts["path"]))
    console.print(
        f"{count(facts['tokens'], 'token')} of {facts['dtype']} in "
        f"{count(facts['files'], 'file')}, {readable(facts['bytes'])}, read by TokenDataset"
    )
    if facts["assumed"]:
        console.print(
            f"{facts['dtype']} is assumed: a raw file does not tell its dtype (--dtype names "
            "another; with --dtype and --shape the numbers are shown as samples)"
        )
    if facts["documents"] is not None:
        console.print(count(facts["documents"], "document"))
    if facts["ids"] is not None:
        looked = facts["ids"]["looked at"]
        some = "" if looked == facts["tokens"] else f" in the first {looked:,} that were looked at"
        console.print(f"ids from {facts['ids']['min']} to {facts['ids']['max']}{some}")
