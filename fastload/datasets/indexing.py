"""Indexing with slices, lists and arrays, as numpy does along the first axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def selected(index: Any, length: int) -> Sequence[Any] | None:
    """Returns the indices that a slice, list, range or array selects; None for any other index.

    Integers are returned as given: negative or out of range. Booleans are a mask with one entry
    per sample.

    Args:
        index: Index of `dataset[index]`.
        length: Samples of the dataset.

    Raises:
        TypeError: an array that holds neither integers nor booleans, or has more than one axis; a
            list that mixes booleans and others.
        IndexError: a mask whose length is not that of the dataset.

    Example:
        >>> list(selected(slice(-2, None), 5)), selected([True, False, True], 3), selected(4, 5)
        ([3, 4], [0, 2], None)
    """
    if isinstance(index, slice):
        return range(*index.indices(length))
    if isinstance(index, (list, range)):
        booleans = sum(isinstance(each, (bool, np.bool_)) for each in index)
        if not booleans:
            return index
        if booleans < len(index):
            raise TypeError("a list of indices holds integers, or one boolean per sample, not both")
        index = np.array(index)
    if not hasattr(index, "__array__") or np.ndim(index) == 0:
        return None
    array = np.asarray(index)
    if array.ndim != 1:
        raise TypeError(f"an array of indices must have one axis, not shape {array.shape}")
    if array.dtype.kind == "b":
        if len(array) != length:
            raise IndexError(f"a mask of {len(array)} booleans does not fit {length} samples")
        array = np.flatnonzero(array)
    elif array.dtype.kind not in "iu":
        raise TypeError(f"an array of indices must hold integers or booleans, not {array.dtype}")
    indices: list[int] = array.tolist()
    return indices
