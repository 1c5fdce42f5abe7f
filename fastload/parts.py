"""A batch in parts: the tensors that go to a device, and how the batch is made of their copies."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch

from fastload import _core
from fastload.formats.extents import Int64Array


@dataclass(frozen=True)
class Raw:
    """Images as they are stored, of which a kernel on the device makes what is delivered.

    Attributes:
        images: (B, H, W, C) of the stored dtype, in one block.
        plan: What the kernel does.
        size: Height and width as they are stored.
        seed: Of what is drawn for each image.
        epoch: The same.
        indices: (B), the dataset's.
        shape: Of what is delivered, (B, ...) as it lies in memory.
        dtype: The same.
        staging_bytes: Memory on the device that the kernel needs beside that.
    """

    images: torch.Tensor
    plan: _core.PixelPlan
    size: tuple[int, int]
    seed: int
    epoch: int
    indices: Int64Array
    shape: tuple[int, ...]
    dtype: torch.dtype
    staging_bytes: int


Leaf = torch.Tensor | npt.NDArray[Any] | Raw
"""What becomes one tensor on the device; arrays are the core's, in one block, in its memory."""

Build = Callable[[Sequence[torch.Tensor]], Any]


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
        build: The batch, of the copies in their order; is called once.
    """

    leaves: Sequence[Leaf]
    build: Build


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

    Other tensors, and objects that have a method `to`, are moved by that when the batch is built;
    anything else stays as it is.

    Args:
        batch: Mappings, lists, tuples and namedtuples are looked into.
        device: Where its tensors are to be.
    """
    leaves: list[Leaf] = list(_plain_tensors(batch, device))

    def build(tensors: Sequence[torch.Tensor]) -> Any:
        return _with_copies(batch, device, iter(tensors))

    return Parts(leaves, build)


def _plain_tensors(data: Any, device: torch.device) -> Iterator[torch.Tensor]:
    if isinstance(data, torch.Tensor):
        if _is_copied(data, device):
            yield data
    elif callable(getattr(data, "to", None)):
        return
    elif isinstance(data, Mapping):
        for key in data:
            yield from _plain_tensors(data[key], device)
    elif isinstance(data, (list, tuple)):
        for member in data:
            yield from _plain_tensors(member, device)


def _with_copies(data: Any, device: torch.device, copies: Iterator[torch.Tensor]) -> Any:
    """In the order of `_plain_tensors`."""
    if isinstance(data, torch.Tensor):
        if _is_copied(data, device):
            return next(copies)
        return data if _is_there(data, device) else data.to(device, non_blocking=True)
    if callable(getattr(data, "to", None)):
        return data.to(device)
    if isinstance(data, Mapping):
        return _like(data, {key: _with_copies(data[key], device, copies) for key in data})
    if isinstance(data, (list, tuple)):
        members = [_with_copies(member, device, copies) for member in data]
        if hasattr(data, "_fields"):
            return type(data)(*members)
        return tuple(members) if isinstance(data, tuple) else _like(data, dict(enumerate(members)))
    return data


def _is_there(tensor: torch.Tensor, device: torch.device) -> bool:
    where = tensor.device
    return where.type == device.type and device.index in (None, where.index)


def _is_copied(tensor: torch.Tensor, device: torch.device) -> bool:
    """Whether its bytes are all that there is to it."""
    if type(tensor) is not torch.Tensor or _is_there(tensor, device):
        return False
    if tensor.layout is not torch.strided or tensor.requires_grad:
        return False
    return not (tensor.is_quantized or tensor.is_nested or tensor.is_conj() or tensor.is_neg())


def _like(template: Any, members: dict[Any, Any]) -> Any:
    if hasattr(template, "__setitem__"):
        clone = copy.copy(template)
        for key, value in members.items():
            clone[key] = value
        return clone
    try:
        return type(template)(members)
    except TypeError:
        return members
