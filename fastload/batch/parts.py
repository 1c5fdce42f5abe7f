"""Tensors of a batch that are copied to a device, and how the batch is rebuilt of the copies."""

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
    """Stored images to which a kernel on the device applies the transforms of their field.

    Attributes:
        images: (B, H, W, C) of the stored dtype, contiguous.
        plan: The compiled transforms.
        size: Height and width of the stored images.
        seed: Seed of the random transforms.
        epoch: Epoch of the random transforms.
        draws: int64 (B,): RNG keys of the samples.
        shape: Shape of the delivered tensor in memory, (B, ...).
        dtype: Dtype of the delivered tensor.
        staging_bytes: Additional memory on the device that the kernel needs, in bytes.
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
"""Source of one tensor on the device. An array is contiguous memory of the core."""

Build = Callable[[Sequence[Any]], Any]


@dataclass(frozen=True)
class Joined:
    """A member of a batch that is built of several tensors, or is a view of one.

    Attributes:
        leaves: The tensors.
        make: Builds the member of the tensors, or of their copies.
    """

    leaves: tuple[Leaf, ...]
    make: Callable[..., Any]


@dataclass(slots=True)
class Parts:
    """The tensors of a batch, and the function that rebuilds the batch.

    Attributes:
        leaves: The tensors that are copied.
        build: Builds the batch of the copies, in order, and the moved `others`; called once.
        others: Objects that are moved by their own method `to`.
    """

    leaves: Sequence[Leaf]
    build: Build
    others: Sequence[Any] = ()


def split(members: Sequence[Any], build: Callable[[Sequence[Any]], Any]) -> Parts:
    """Returns the parts of a batch whose members are known.

    Args:
        members: Tensors, `Raw` images and `Joined` members are copied, other objects are not.
        build: Builds the batch of its members.
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
    """Returns the parts of any batch: the plain tensors in its containers.

    Tensors on the device are not copied. Tensors of other kinds, and objects with a method `to`,
    are moved by that method; other objects are left unchanged. The caller may reuse the containers
    and arrays of the batch as soon as this function returns.

    Args:
        batch: The batch; mappings, lists, tuples and namedtuples are searched for tensors.
        device: The device of the rebuilt batch.
    """
    leaves: list[Leaf] = []
    others: list[Any] = []
    make = _taken_apart(batch, device, leaves, others)

    def build(parts: Sequence[Any]) -> Any:
        return make(parts[: len(leaves)], parts[len(leaves) :])

    return Parts(leaves, build, others)


def moved(other: Any, device: torch.device) -> Any:
    """Returns an object of `Parts.others` on the device."""
    if isinstance(other, torch.Tensor):
        return other.to(device, non_blocking=True)
    return other.to(device)


_Make = Callable[
    [Sequence[torch.Tensor], Sequence[Any]], Any
]  # of the copies and the moved objects


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
    """Returns a function from new members to a container like this one; it is called once."""
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
    """Returns True if a copy of the tensor's bytes is a copy of the tensor."""
    if type(tensor) is not torch.Tensor:
        return False
    if tensor.layout is not torch.strided or tensor.requires_grad:
        return False
    return not (tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg())
