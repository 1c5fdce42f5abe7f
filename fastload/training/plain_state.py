"""State that `torch.load(weights_only=True)` takes: tensors, numbers, strings and containers."""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

_ARRAY = "fastload.numpy"  # the only key of a dict that holds an array as a tensor
_NUMBERS = (bool, int, float, complex, str, bytes)


def plain_numbers(state: Any) -> Any:
    """The same state with numbers of numpy as Python's, where these hold the same value.

    What has none of them is returned as it is.

    Example:
        >>> plain_numbers({"lr": [np.float64(0.1), np.float32(0.5)], "last": np.int64(3)})
        {'lr': [0.1, 0.5], 'last': 3}
    """
    return _replaced(state, _number)


def encode(state: Any) -> Any:
    """The same state with numbers of numpy as Python's, and its arrays as tensors."""
    return _replaced(state, lambda leaf: _tensor(_number(leaf)))


def decode(state: Any) -> Any:
    """The state that was encoded, with its arrays."""
    if isinstance(state, dict) and set(state) == {_ARRAY}:
        return state[_ARRAY].numpy()
    if type(state) in (list, tuple):
        return type(state)(map(decode, state))
    if type(state) in (dict, OrderedDict):
        for key, value in state.items():
            state[key] = decode(value)
    return state


def find_unloadable(state: Any, name: str = "") -> tuple[str, str] | None:
    """What `torch.load(weights_only=True)` does not take.

    Returns:
        Its place and its type, as `("scheduler.lr_lambdas[0].pool", "multiprocessing.Pool")`; None
        if all can be loaded.
    """
    if type(state) in (torch.Tensor, torch.nn.Parameter):
        return None
    if type(state) in (dict, OrderedDict):
        for key, value in state.items():
            within = f"[{key!r}]"
            if isinstance(key, str) and key.isidentifier():
                within = f".{key}" if name else key
            if found := find_unloadable(key, f"the key {name}{within}"):
                return found
            if found := find_unloadable(value, name + within):
                return found
    elif type(state) in (list, tuple):
        for number, value in enumerate(state):
            if found := find_unloadable(value, f"{name}[{number}]"):
                return found
    elif not _is_loadable(state):
        return name, f"{type(state).__module__}.{type(state).__qualname__}"
    return None


def _is_loadable(value: Any) -> bool:
    file = io.BytesIO()
    try:
        torch.save(value, file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except Exception:  # pickling may raise anything
        return False
    return True


def _replaced(state: Any, leaf: Callable[[Any], Any]) -> Any:
    """The containers around `leaf(value)`; those in which nothing changes are kept."""
    kind = type(state)
    if kind in (dict, OrderedDict):
        items = [(_replaced(k, leaf), _replaced(v, leaf)) for k, v in state.items()]
        same = all(a is k and b is v for (a, b), (k, v) in zip(items, state.items(), strict=True))
        return state if same else kind(items)
    if kind in (list, tuple, set):
        values = [_replaced(value, leaf) for value in state]
        same = all(a is b for a, b in zip(values, state, strict=True))
        return state if same else kind(values)
    return leaf(state)


def _number(value: Any) -> Any:
    """Python's number for one of numpy, as far as that is exact."""
    if type(value) is np.ndarray and value.ndim == 0:
        value = value[()]
    if isinstance(value, np.timedelta64):  # a time, although numpy counts it among the integers
        return value
    if not isinstance(value, (np.number, np.bool_, np.str_, np.bytes_)):
        return value
    found = value.item()
    if type(found) not in _NUMBERS and isinstance(value, np.floating):
        found = float(value)  # of long doubles
    exact = type(found) in _NUMBERS and (found == value or value != value)
    return found if exact else value


def _tensor(value: Any) -> Any:
    """A dict with the tensor of an array, if torch has its dtype."""
    if type(value) is not np.ndarray:
        return value
    try:
        return {_ARRAY: torch.from_numpy(value.astype(value.dtype.newbyteorder("="), order="C"))}
    except TypeError:
        return value
