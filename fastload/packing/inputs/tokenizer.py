"""Tokenizers of other packages, and dtypes that fit their vocabularies."""

from __future__ import annotations

import functools
import hashlib
import os
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastload.errors import FormatError, refuse_pipe
from fastload.formats.dtypes import dtype_name
from fastload.formats.files import AnyPath, absolute
from fastload.packing.columns import Array
from fastload.packing.inputs.images import BadRecordError
from fastload.packing.inputs.kind import library
from fastload.packing.inputs.leaves import Leaf

_TIKTOKEN = "tiktoken:"
_DTYPES = ("uint16", "uint32")


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer, loaded once per process.

    Attributes:
        name: Path of a `tokenizer.json`, or `tiktoken:NAME`.
        eos: Id of the token that is appended to each text; None appends none.
        dtype: Dtype of the tokens.
    """

    name: str
    eos: int | None
    dtype: str

    def encode(self, text: str) -> Leaf:
        """Returns the tokens of a text and the `eos` token; special tokens are encoded as text.

        Raises:
            BadRecordError: a token does not fit the dtype.
        """
        ids = _encoder(self.name).encode(text)
        array: Array = np.array(ids if self.eos is None else [*ids, self.eos], np.int64)
        max_id = np.iinfo(self.dtype).max
        if len(array) and not 0 <= array.min() <= array.max() <= max_id:
            bad = int(array[(array < 0) | (array > max_id)][0])
            raise BadRecordError(f"token {bad} does not fit {self.dtype}")
        if not len(array):
            return Leaf(np.zeros(0, self.dtype), self.dtype)
        return Leaf(array.astype(self.dtype), self.dtype)

    def describe(self) -> Any:
        """Returns the properties that shape the tokens, in JSON types."""
        name = self.name
        if not name.startswith(_TIKTOKEN):
            with open(name, "rb") as file:
                name = hashlib.sha256(file.read()).hexdigest()
        return [name, self.eos, self.dtype]


def open_tokenizer(name: AnyPath, *, eos: str | None, dtype: Any) -> Tokenizer:
    """Loads a tokenizer and checks its vocabulary.

    Raises:
        FormatError: the file is not a tokenizer.
        ValueError: `eos` is not in the vocabulary, or `dtype` is too small for it.
        ImportError: its package is not installed.
        OSError: the file cannot be read.
    """
    text = os.fsdecode(name)
    path = text if text.startswith(_TIKTOKEN) else absolute(text)
    encoder = _encoder(path)
    max_id = encoder.size() - 1
    if dtype is None:
        dtype = next((known for known in _DTYPES if max_id <= np.iinfo(known).max), "int64")
    dtype = dtype_name(dtype)
    if not dtype.startswith(("int", "uint")) or max_id > np.iinfo(dtype).max:
        raise ValueError(f"{text}: its vocabulary has {max_id + 1} tokens, too many for {dtype}")
    ends = None
    if eos is not None and (ends := encoder.id_of(eos)) is None:
        raise ValueError(f"{text}: there is no token {eos!r} in its vocabulary")
    return Tokenizer(path, ends, dtype)


class _HuggingFace:
    """A `tokenizer.json`."""

    def __init__(self, path: str) -> None:
        tokenizers = library("tokenizers", "tokenizers")
        refuse_pipe(path)
        with open(path, encoding="utf-8") as file:
            content = file.read()
        try:
            self._own = tokenizers.Tokenizer.from_str(content)
        except Exception as error:  # the package raises bare Exception
            raise FormatError(f"{path}: not a tokenizer: {error}") from error
        self._own.no_truncation()  # texts keep all tokens
        self._own.no_padding()

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._own.encode(text, add_special_tokens=False).ids
        return ids

    def size(self) -> int:
        # Ids need not be contiguous, so the largest id may exceed the number of tokens.
        return 1 + max(self._own.get_vocab(with_added_tokens=True).values(), default=-1)

    def id_of(self, token: str) -> int | None:
        found: int | None = self._own.token_to_id(token)
        return found


class _Tiktoken:
    """An encoding of tiktoken, which may download its files on first use."""

    def __init__(self, name: str) -> None:
        self._own = library("tiktoken", "tokenizers").get_encoding(name)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._own.encode_ordinary(text)
        return ids

    def size(self) -> int:
        size: int = self._own.n_vocab
        return size

    def id_of(self, token: str) -> int | None:
        try:
            found: int = self._own.encode_single_token(token)
        except KeyError:
            return None
        return found


def _encoder(name: str) -> _HuggingFace | _Tiktoken:
    if name.startswith(_TIKTOKEN):
        return _load(name, (0, 0))
    status = os.stat(name)
    return _load(name, (status.st_size, status.st_mtime_ns))


@functools.lru_cache(maxsize=1)
def _load(name: str, stamp: tuple[int, int]) -> _HuggingFace | _Tiktoken:
    """Returns the encoder; the cache misses if the file has changed."""
    if name.startswith(_TIKTOKEN):
        return _Tiktoken(name.removeprefix(_TIKTOKEN))
    return _HuggingFace(name)
