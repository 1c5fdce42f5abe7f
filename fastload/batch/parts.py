"""A batch in parts: the tensors that go to a device, and how the batch is made of their copies."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fastload import _core
from fastload.formats.columns import Int64Array


@dataclass(frozen=True)
class Raw:
    """Images as they are stored, of which a kernel on the device makes what is delivered.

    Attributes:
        images: (B, H, W, C) of the stored dtype, in one block.
        plan: What the kernel does.
        size: Height and width as they are stored.
        seed: Of what is drawn for each image.
        epoch: The same.
        draws: (B), of which random transforms make what they draw.
        shape: Of what is delivered, (B, ...) as it lies in memory.
        dtype: The same.
        staging_bytes: Memory on the device that the kernel needs beside that.
    """

    images: torch.Tensor
    plan: _core.PixelPlan
    size: tuple[int, int]
    seed: int
    epoch: int
    draws: Int64Array
    shape: tuple[int, ...]
    dtype: torch.dtype
    staging_bytes: int


Leaf = torch.Tensor | npt.NDArray[Any] | Raw
"""What becomes one tensor on the device; arrays are the core's, in one block, in its memory."""

Build = Callable[[Sequence[Any]], Any]


@dataclass(frozen=True)
class Joined:
    """A member of a batch that is made of several tensors, or of another view of one.

    Attributes:
        leaves: Of which it is made.
        make: Makes it of them, or of their copies.
    """

    leaves: tuple[Leaf, ...]
    make: Callable[..., Any]


@dataclass(slots=True)
class Parts:
    """A batch in parts.

    Attributes:
        leaves: What is copied.
        build: The batch, of the copies in their order and what was moved; is called once.
        others: What moves by its own method `to`.
    """

    leaves: Sequence[Leaf]
    build: Build
    others: Sequence[Any] = ()


def split(members: Sequence[Any], build: Callable[[Sequence[Any]], Any]) -> Parts:
    """The parts of a batch whose members are known.

    Args:
        members: Tensors, `Raw` images and `Joined` ones are copied, anything else stays.
        build: The batch, of its members.
    """
    leaves: list[Leaf] = []
    for member in members:
        if isinstance(member, (torch.Tensor, Raw)):
            leaves.append(member)
        elif isinstance(member, Joined):
            leaves += member.leaves

    def rebuild(tensors: Sequence[torch.Tensor]) -> Any:
        copies = iter(tensors)
        return build([_copied(member, copies) for member in members])

    return Parts(leaves, rebuild)


def _copied(member: Any, copies: Iterator[torch.Tensor]) -> Any:
    if isinstance(member, (torch.Tensor, Raw)):
        return next(copies)
    if isinstance(member, Joined):
        return member.make(*(next(copies) for _ in member.leaves))
    return member


def take_apart(batch: Any, device: torch.device) -> Parts:
    """The parts of any batch: the plain tensors in its containers that are not on the device.

    Other tensors, and objects that have a method `to`, move by that; anything else stays as it is.
    Whoever made the batch may use its containers and arrays for another one from now on.

    Args:
        batch: Mappings, lists, tuples and namedtuples are looked into.
        device: Where its tensors are to be.
    """
    leaves: list[Leaf] = []
    others: list[Any] = []
    make = _taken_apart(batch, device, leaves, others)

    def build(parts: Sequence[Any]) -> Any:
        return make(parts[: len(leaves)], parts[len(leaves) :])

    return Parts(leaves, build, others)


def moved(other: Any, device: torch.device) -> Any:
    """One of `Parts.others` on the device."""
    if isinstance(other, torch.Tensor):
        return other.to(device, non_blocking=True)
    return other.to(device)


_Make = Callable[[Sequence[torch.Tensor], Sequence[Any]], Any]  # of the copies and what was moved


def _taken_apart(data: Any, device: torch.device, leaves: list[Leaf], others: list[Any]) -> _Make:
    if isinstance(data, torch.Tensor):
        if _is_there(data, device):
            return lambda copies, moved: data
        if _is_copied(data):
            leaves.append(data)
            return partial(_copy_of, len(leaves) - 1)
    if callable(getattr(data, "to", None)):
        others.append(data)
        return partial(_moved_of, len(others) - 1)
    if isinstance(data, Mapping):
        keys, members = list(data), [data[key] for key in data]
    elif isinstance(data, (list, tuple)):
        keys, members = list(range(len(data))), list(data)
    else:
        kept = data.copy() if isinstance(data, np.ndarray) else data
        return lambda copies, moved: kept
    made = [_taken_apart(member, device, leaves, others) for member in members]
    fill = _refilled(data, keys)
    return lambda copies, moved: fill([make(copies, moved) for make in made])


def _copy_of(number: int, copies: Sequence[torch.Tensor], moved: Sequence[Any]) -> Any:
    return copies[number]


def _moved_of(number: int, copies: Sequence[torch.Tensor], moved: Sequence[Any]) -> Any:
    return moved[number]


def _refilled(data: Any, keys: list[Any]) -> Callable[[list[Any]], Any]:
    """How a container like this one, as it is now, is made of its members; is called once."""
    kind = type(data)
    if isinstance(data, tuple):
        return (lambda members: kind(*members)) if hasattr(data, "_fields") else tuple
    if not hasattr(data, "__setitem__"):
        return lambda members: _as(kind, dict(zip(keys, members, strict=True)))
    clone = copy.copy(data)

    def fill(members: list[Any]) -> Any:
        for key, member in zip(keys, members, strict=True):
            clone[key] = member
        return clone

    return fill


def _as(kind: Any, members: dict[Any, Any]) -> Any:
    try:
        return kind(members)
    except TypeError:
        return members


def _is_there(tensor: torch.Tensor, device: torch.device) -> bool:
    where = tensor.device
    return where.type == device.type and device.index in (None, where.index)


def _is_copied(tensor: torch.Tensor) -> bool:
    """Whether its bytes are all that there is to it."""
    if type(tensor) is not torch.Tensor:
        return False
    if tensor.layout is not torch.strided or tensor.requires_grad:
        return False
    return not (tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg())
