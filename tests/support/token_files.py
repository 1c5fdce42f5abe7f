"""Writes files of tokens as other projects write them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

MEGATRON_CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5}
MEGATRON_CODES |= {"float32": 6, "uint16": 8, "uint32": 9}
LLMC = {"uint16": (20240520, 1), "uint32": (20240801, 7)}


def megatron_index(
    dtype: str,
    lengths: Sequence[int],
    documents: Sequence[int] | None,
    *,
    magic: bytes = b"MMIDIDX\0\0",
    version: int = 1,
    modes: bytes = b"",
) -> bytes:
    """An `.idx` of sequences; `documents` None: as fairseq writes it."""
    item_bytes = np.dtype(dtype).itemsize
    pointers = np.cumsum([0, *lengths])[:-1] * item_bytes
    head = magic + struct.pack("<QBQ", version, MEGATRON_CODES[dtype], len(lengths))
    if documents is not None:
        head += struct.pack("<Q", len(documents))
    body = np.array(lengths, "<i4").tobytes() + pointers.astype("<i8").tobytes()
    return head + body + np.array(documents or [], "<i8").tobytes() + modes


def write_megatron(
    stem: Path, documents: Sequence[Sequence[Sequence[int]]], dtype: str = "uint16"
) -> np.ndarray:
    """Documents, each made of sequences; returns all tokens."""
    sequences = [sequence for document in documents for sequence in document]
    tokens = np.array([token for sequence in sequences for token in sequence], dtype)
    tokens.tofile(stem.with_name(stem.name + ".bin"))
    starts = np.cumsum([0, *map(len, documents)]).tolist()
    index = megatron_index(dtype, [len(sequence) for sequence in sequences], starts)
    stem.with_name(stem.name + ".idx").write_bytes(index)
    return tokens


def llmc_file(tokens: np.ndarray, *, version: int | None = None, count: int | None = None) -> bytes:
    """A file as llm.c's data scripts write it."""
    header = np.zeros(256, "<i4")
    magic, known = LLMC[tokens.dtype.name]
    header[:3] = magic, version or known, len(tokens) if count is None else count
    return header.tobytes() + tokens.tobytes()
