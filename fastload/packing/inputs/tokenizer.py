"""Tokenizers of others, whose tokens are held to a dtype that fits their vocabulary."""

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
    """A tokenizer, loaded once in each process.

    Attributes:
        name: The path of a `tokenizer.json`, or `tiktoken:NAME`.
        eos: The id of the token that ends a text.
        dtype: Of the tokens.
    """

    name: str
    eos: int | None
    dtype: str

    def encode(self, text: str) -> Leaf:
        """The tokens of a text, ended by that of `eos`; special tokens in the text are text.

        Raises:
            BadRecordError: a token does not fit the dtype.
        """
        ids = _encoder(self.name).encode(text)
        array: Array = np.array(ids if self.eos is None else [*ids, self.eos], np.int64)
        highest = np.iinfo(self.dtype).max
        if len(array) and not 0 <= array.min() <= array.max() <= highest:
            bad = int(array[(array < 0) | (array > highest)][0])
            raise BadRecordError(f"token {bad} does not fit {self.dtype}")
        if not len(array):
            return Leaf(np.zeros(0, self.dtype), self.dtype)
        return Leaf(array.astype(self.dtype), self.dtype)

    def describe(self) -> Any:
        """What shapes the tokens, in JSON's types."""
        name = self.name
        if not name.startswith(_TIKTOKEN):
            with open(name, "rb") as file:
                name = hashlib.sha256(file.read()).hexdigest()
        return [name, self.eos, self.dtype]


def open_tokenizer(name: AnyPath, *, eos: str | None, dtype: Any) -> Tokenizer:
    """Loads a tokenizer and looks at its vocabulary.

    Raises:
        FormatError: the file is no tokenizer.
        ValueError: `eos` is not in the vocabulary, or `dtype` does not hold it.
        ImportError: its package is not installed.
        OSError: the file cannot be read.
    """
    text = os.fsdecode(name)
    path = text if text.startswith(_TIKTOKEN) else absolute(text)
    encoder = _encoder(path)
    highest = encoder.size() - 1
    if dtype is None:
        dtype = next((known for known in _DTYPES if highest <= np.iinfo(known).max), "int64")
    dtype = dtype_name(dtype)
    if not dtype.startswith(("int", "uint")) or highest > np.iinfo(dtype).max:
        raise ValueError(
            f"{text}: its vocabulary has {highest + 1} tokens, which {dtype} does not hold"
        )
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
            raise FormatError(f"{path}: no tokenizer: {error}") from error
        self._own.no_truncation()  # nothing is cut short
        self._own.no_padding()

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._own.encode(text, add_special_tokens=False).ids
        return ids

    def size(self) -> int:
        # Ids may leave gaps, so that there are higher ones than tokens.
        return 1 + max(self._own.get_vocab(with_added_tokens=True).values(), default=-1)

    def id_of(self, token: str) -> int | None:
        found: int | None = self._own.token_to_id(token)
        return found


class _Tiktoken:
    """An encoding of tiktoken, which may fetch its files when it is used first."""

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
    """The encoder, read anew if its file has changed."""
    if name.startswith(_TIKTOKEN):
        return _Tiktoken(name.removeprefix(_TIKTOKEN))
    return _HuggingFace(name)
