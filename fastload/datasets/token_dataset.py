"""Streams of token ids as a dataset of windows, or of documents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from fastload.datasets.file_datasets import Dataset
from fastload.formats.columns import Int64Array
from fastload.formats.extents import Extents
from fastload.formats.files import Paths, absolute_paths
from fastload.formats.tokens import (
    TokenFile,
    check_vocabulary,
    document_extents,
    read_files,
    window_extents,
)

_MAX_TOKENS = 2**48  # of a window: its bytes fit 64 bits by far


class TokenDataset(Dataset):
    """Windows of token ids, read where they lie and delivered as int64.

    It reads raw `.bin` files as nanoGPT writes them, one-dimensional `.npy` files, Megatron's
    `.bin` with `.idx` and llm.c's `.bin`. Window i of a file holds its tokens
    `i * stride ... i * stride + seq_len`, so a file of n tokens has
    `(n - 1 - seq_len) // stride + 1` windows, none if it is too short; no window crosses files.
    It is pickled as its path and options.

    nanoGPT's `get_batch` draws windows at random::

        x, y = get_batch("train")

        loader = FastLoader(TokenDataset("train.bin", 1024), batch_size=12, shuffle=True, seed=0)
        for x, y in loader: ...

    `stride=1` has the very windows that `get_batch` draws from; the default, `seq_len`, gives every
    token once in an epoch.

    Args:
        path: A file; for Megatron either file, or what their names begin with; a folder of files,
            in natural order; or a sequence of files. All have one dtype.
        seq_len: Tokens of x; a window has one more. None with `documents`.
        stride: Tokens from one window to the next; None: `seq_len`.
        dtype: Dtype of the tokens in the file; None: as its header says, uint16 in a raw file.
        targets: True: a sample is (x, y), two arrays (seq_len,), y one token later than x. False:
            the whole window, an array (seq_len + 1,).
        documents: True: a sample is `{"tokens": [length]}`, a document of a Megatron index, as
            long as it is (see `PadTo` and `Jagged`). For other files, where documents begin and the
            last one ends: integers from 0 to the number of tokens; for several files a list of
            these.
        vocab_size: Every token must be in [0, vocab_size). The files are read once for this when
            the dataset is made (about a second for each GB), not where it is unpickled. None: ids
            are not checked.
        io: How files are read: "auto" (by file system), "mmap" or "pread".

    Attributes:
        path: Absolute; a list of paths if a sequence was given.
        seq_len: See Args.
        stride: Tokens from one window to the next; None with `documents`.
        dtype: Dtype of the tokens in the file, as a name.
        targets: See Args.
        documents: See Args.
        vocab_size: See Args.

    Raises:
        FormatError: a file is damaged, is of another format, does not fit its index or header, or
            has another dtype; a token is not in [0, vocab_size), named by file and position.
        ValueError: arguments that do not fit each other or the files.
        OSError: a file cannot be read.

    Example:
        >>> np.arange(10, dtype="uint16").tofile("ten.bin")
        >>> TokenDataset("ten.bin", 4)[1]
        (array([4, 5, 6, 7]), array([5, 6, 7, 8]))
    """

    __module__ = "fastload"

    def __init__(
        self,
        path: Paths,
        seq_len: int | None = None,
        *,
        stride: int | None = None,
        dtype: Any = None,
        targets: bool = True,
        documents: bool | npt.ArrayLike | Sequence[npt.ArrayLike] = False,
        vocab_size: int | None = None,
        io: str = "auto",
    ) -> None:
        self.path = absolute_paths(path)
        self.dtype = dtype
        self.targets = targets
        self.documents = documents
        self.seq_len: int | None = None
        self.stride: int | None = None
        if documents is not False:
            if seq_len is not None or stride is not None:
                raise ValueError("documents are samples as they are: without seq_len and stride")
        elif seq_len is None:
            raise ValueError("seq_len is needed: the number of tokens in a sample")
        else:
            self.seq_len = _positive("seq_len", seq_len)
            self.stride = self.seq_len if stride is None else _positive("stride", stride)
        self.vocab_size = None if vocab_size is None else _positive("vocab_size", vocab_size)
        super().__init__(self._reopen(), io)
        if self.vocab_size is not None:
            for file in self._files:
                check_vocabulary(file, self.vocab_size)

    def _reopen(self) -> Extents:
        files = read_files(self.path, self.dtype)
        self.dtype, self._files = files[0].dtype, files
        if self.seq_len is None:
            several = len(files) > 1 or not isinstance(self.path, str)
            bounds = _bounds(files, self.documents, several=several)
            return document_extents(files, bounds)
        assert self.stride is not None
        return window_extents(files, self.seq_len, self.stride, targets=self.targets)

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        del state["_files"]
        return state

    @property
    def shortage(self) -> str | None:
        """Returns the reason why there are no windows, or None if there are any."""
        if len(self) or self.seq_len is None:
            return None
        longest = max(self._files, key=lambda file: file.count)
        return (
            f"{longest.source}: file has {longest.count} tokens, needs at least {self.seq_len + 1} "
            f"for seq_len={self.seq_len}"
        )

    def _rows(self, indices: Sequence[int]) -> Int64Array:
        try:
            return super()._rows(indices)
        except IndexError as error:
            raise IndexError(": ".join(filter(None, (str(error), self.shortage)))) from None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.path!r}: {self._described()})"


def _positive(name: str, value: Any) -> int:
    is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_integer or not 1 <= value <= _MAX_TOKENS:
        raise ValueError(f"{name} must be a positive integer, at most 2^48, not {value!r}")
    return int(value)


def _bounds(files: Sequence[TokenFile], documents: Any, *, several: bool) -> list[Int64Array]:
    """Returns the offsets of the documents of each file, in tokens."""
    if documents is True:
        bounds = [file.documents for file in files]
        for file, known in zip(files, bounds, strict=True):
            if known is None:
                raise ValueError(
                    f"{file.source} does not say where documents begin: give their offsets, "
                    "documents=[0, ..., number of tokens]"
                )
        return [known for known in bounds if known is not None]
    given = list(documents) if several else [documents]
    if len(given) != len(files):
        raise ValueError(f"documents are given for {len(given)} files, but there are {len(files)}")
    return [_checked(file, offsets) for file, offsets in zip(files, given, strict=True)]


def _checked(file: TokenFile, offsets: Any) -> Int64Array:
    array = np.asarray(offsets)
    if array.ndim != 1 or array.dtype.kind not in "iu" or not len(array):
        raise ValueError(f"{file.source}: documents must be integers from 0 to {file.count}")
    if array[0] != 0 or array[-1] != file.count or (array[1:] < array[:-1]).any():
        raise ValueError(
            f"{file.source}: documents must go upwards from 0 to the number of tokens, "
            f"{file.count}; they go from {array[0]} to {array[-1]}"
        )
    return array.astype(np.int64)
