"""State that `torch.load(weights_only=True)` loads: tensors, numbers, strings and containers."""

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
    """Returns the state with numpy scalars converted to Python numbers of the same value.

    Containers without numpy scalars are returned unchanged, not copied.

    Example:
        >>> plain_numbers({"lr": [np.float64(0.1), np.float32(0.5)], "last": np.int64(3)})
        {'lr': [0.1, 0.5], 'last': 3}
    """
    return _replaced(state, _number)


def encode(state: Any) -> Any:
    """Returns the state with numpy scalars as Python numbers and numpy arrays as tensors."""
    return _replaced(state, lambda leaf: _tensor(_number(leaf)))


def decode(state: Any) -> Any:
    """Returns the state that was passed to `encode`, with its arrays."""
    if isinstance(state, dict) and set(state) == {_ARRAY}:
        return state[_ARRAY].numpy()
    if type(state) in (list, tuple):
        return type(state)(map(decode, state))
    if type(state) in (dict, OrderedDict):
        for key, value in state.items():
            state[key] = decode(value)
    return state


def find_unloadable(state: Any, name: str = "") -> tuple[str, str] | None:
    """Finds the first value that `torch.load(weights_only=True)` does not load.

    Returns:
        Its path and type, such as `("scheduler.lr_lambdas[0].pool", "multiprocessing.Pool")`; None
        if the whole state can be loaded.
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
    """Applies `leaf` to all values; containers without changes are returned unchanged."""
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
    """Returns the Python number of a numpy scalar if it has the same value."""
    if type(value) is np.ndarray and value.ndim == 0:
        value = value[()]
    if isinstance(value, np.timedelta64):  # a duration, although numpy derives it from integer
        return value
    if not isinstance(value, (np.number, np.bool_, np.str_, np.bytes_)):
        return value
    found = value.item()
    if type(found) not in _NUMBERS and isinstance(value, np.floating):
        found = float(value)  # long double
    exact = type(found) in _NUMBERS and (found == value or value != value)
    return found if exact else value


def _tensor(value: Any) -> Any:
    """Returns a dict with the array as a tensor, if torch has its dtype."""
    if type(value) is not np.ndarray:
        return value
    try:
        return {_ARRAY: torch.from_numpy(value.astype(value.dtype.newbyteorder("="), order="C"))}
    except TypeError:
        return value
