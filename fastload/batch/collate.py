"""Builds batches of the arrays that the core gathers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NoReturn, Protocol

import numpy as np
import numpy.typing as npt
import torch

from fastload.batch.device_fields import DeviceFields, RandomKeys
from fastload.batch.images import Decoded
from fastload.batch.parts import Joined, Parts, split
from fastload.batch.transforms import (
    MODES,
    AsList,
    Choices,
    DecodeImage,
    Jagged,
    Padded,
    PadTo,
    Ragged,
    RaggedTransform,
)
from fastload.errors import FormatError, add_note, warn
from fastload.formats.columns import Int64Array
from fastload.formats.fields import BYTE_STRINGS, TEXT, Field, torch_dtype
from fastload.formats.places import described_place
from fastload.formats.structure import (
    Builder,
    Structure,
    batch_builder,
    is_leaf,
    with_added,
    with_members,
)

Array = npt.NDArray[Any]
Arrays = list[Any]
"""Arrays of the fields in order. A field has an array (B, *shape); values and offsets; padded
values and lengths; or `Decoded` images."""


class SampleLayout(Protocol):
    """Fields of a sample and the containers around their numbers; `Extents` is one."""

    @property
    def fields(self) -> tuple[Field, ...]:
        """Fields in the order of their arrays."""

    @property
    def structure(self) -> Structure:
        """Containers of a sample."""


class Samples(RandomKeys, Protocol):
    """The samples of a batch."""

    def __call__(self) -> Int64Array:
        """Returns the dataset's indices, for messages."""


Maker = Callable[[Arrays, Samples], Any]
PartsMaker = Callable[[Arrays, Samples], Parts]
Finish = Callable[[torch.Tensor], torch.Tensor]
_KNOWS_LIMITS = "max_seqlen" in inspect.signature(torch.nested.nested_tensor_from_jagged).parameters
_LeafMaker = Callable[..., Sequence[Any]]  # from a field's arrays and `Samples` to its leaves


def batch_maker(
    layout: SampleLayout, chosen: Choices, pin: bool = False, added: Sequence[str] = ()
) -> Maker:
    """Returns the function from the arrays of a batch to the batch; see `BatchPlan.collate`.

    Args:
        layout: Fields and structure of a sample.
        chosen: The transforms of the fields.
        pin: Copy tensors to pinned memory.
        added: Names of the arrays that follow those of the fields.

    Raises:
        ValueError: a member of the batch has the name of another one.
    """
    # Each sample that is cut out of an array is a copy: keeping one must not keep the whole array.
    members, build = _compiled(layout, chosen, pin, added, np.copy)
    return lambda arrays, samples: build(
        [
            member.make(*member.leaves) if type(member) is Joined else member
            for member in members(arrays, samples)
        ]
    )


def parts_maker(
    layout: SampleLayout,
    chosen: Choices,
    pin: bool,
    added: Sequence[str],
    device_fields: DeviceFields,
) -> PartsMaker:
    """Returns the function from the arrays of a batch to its tensors for a device.

    Args:
        layout: See `batch_maker`.
        chosen: See `batch_maker`.
        pin: See `batch_maker`.
        added: See `batch_maker`.
        device_fields: Fields whose arrays are as stored.
    """
    members, build = _compiled(layout, chosen, pin, added, lambda array: array, device_fields)
    if members is _tensors and not added:
        return lambda arrays, samples: Parts(arrays, build)
    return lambda arrays, samples: split(members(arrays, samples), build)


def _compiled(
    layout: SampleLayout,
    chosen: Choices,
    pin: bool,
    added: Sequence[str],
    piece: Callable[[Array], Array],
    device_fields: DeviceFields | None = None,
) -> tuple[Callable[[Arrays, Samples], list[Any]], Builder]:
    """Returns the function from arrays to members of a batch, and that from members to the batch.

    Args:
        layout: See `batch_maker`.
        chosen: See `batch_maker`.
        pin: See `batch_maker`.
        added: See `batch_maker`.
        piece: Applied to each sample that is cut out of an array.
        device_fields: Fields whose arrays are as stored.
    """
    fields = [chosen.delivered(field) for field in layout.fields]
    structure = layout.structure
    for number, name in enumerate(added, len(fields)):
        structure = with_added(structure, name, number)
    moved = {name for name, pixels in chosen.pixels.items() if pixels.channels_last}
    plain = not moved and not any(f.ragged or f.storage.name != f.dtype for f in fields)
    if plain and not pin and not device_fields:
        return _tensors, batch_builder(structure)

    finish: Finish = pinner() if pin else lambda tensor: tensor
    keyless = _in_sequences(layout.structure)
    makers: list[_LeafMaker] = [
        partial(device_fields.leaf, field.name)
        if device_fields and field.name in device_fields
        else _leaf_maker(
            field,
            chosen.ragged.get(field.name),
            finish,
            tuple if column in keyless else list,
            piece,
            layout,
        )
        for column, field in enumerate(fields)
    ]
    counts = [_array_count(field, chosen.ragged.get(field.name)) for field in fields]
    companions = [_companion(chosen.ragged.get(field.name)) for field in fields]
    for _name in added:
        makers.append(lambda array, samples: [finish(torch.from_numpy(array))])
        counts.append(1)
        companions.append(None)
    turned = [field.name in moved for field in fields] + [False] * len(added)

    def members(arrays: Arrays, samples: Samples) -> list[Any]:
        made: list[Any] = []
        start = 0
        for leaf, count, turn in zip(makers, counts, turned, strict=True):
            leaves = leaf(*arrays[start : start + count], samples)
            made += [Joined((leaves[0],), _channels_first)] if turn else leaves
            start += count
        return made

    return members, batch_builder(_with_companions(structure, companions))


def _tensors(arrays: Arrays, samples: Samples) -> list[Any]:
    return list(map(torch.from_numpy, arrays))


def _channels_first(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.permute(0, 3, 1, 2)


def pinner() -> Finish:
    """Returns a function that copies tensors to pinned memory.

    If there is no pinned memory left, it warns once and returns all further tensors unchanged:
    training continues, more slowly.
    """
    works = True

    def pinned(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal works
        if not works:
            return tensor
        try:
            return tensor.pin_memory()
        except RuntimeError as error:
            works = False
            warn(
                f"{tensor.nbytes} bytes cannot be pinned; further batches of this iterator are "
                f"not pinned: {error}",
            )
            return tensor

    return pinned


def _array_count(field: Field, transform: RaggedTransform | None) -> int:
    return 2 if field.ragged and not isinstance(transform, DecodeImage) else 1


# --- Containers --------------------------------------------------------------------------------


def _companion(transform: RaggedTransform | None) -> tuple[str, Any] | None:
    """Returns the name of the tensor next to a field's values, and the namedtuple of both."""
    if isinstance(transform, PadTo):
        return "lengths", Padded
    if isinstance(transform, Jagged) and not transform.nested:
        return "offsets", Ragged
    return None


def _with_companions(
    structure: Structure, companions: Sequence[tuple[str, Any] | None]
) -> Structure:
    """Returns the structure of a batch, whose leaves number the results of the leaf makers."""
    starts = np.cumsum([0] + [1 if companion is None else 2 for companion in companions]).tolist()

    def numbered(part: Structure) -> Structure:
        if is_leaf(part):
            start, companion = starts[part], companions[part]
            return start if companion is None else companion[1](start, start + 1)
        if not isinstance(part, dict):
            return with_members(part, [numbered(child) for child in part])
        members: dict[Any, Any] = {}
        for key, child in part.items():
            companion = companions[child] if is_leaf(child) else None
            if companion is None:
                members[key] = numbered(child)
                continue
            other = f"{key}_{companion[0]}"
            if other in part:
                raise ValueError(f"transforms: the batch would have two members {other!r}")
            members |= {key: starts[child], other: starts[child] + 1}
        return with_members(part, members)

    return numbered(structure)


def _in_sequences(structure: Structure) -> set[int]:
    """Returns the columns that are members of a list or tuple."""
    if is_leaf(structure):
        return set()
    keyed = isinstance(structure, dict)
    found: set[int] = set()
    for child in structure.values() if keyed else structure:
        found |= _in_sequences(child) if keyed or not is_leaf(child) else {child}
    return found


# --- Leaves ------------------------------------------------------------------------------------


def _leaf_maker(
    field: Field,
    transform: RaggedTransform | None,
    finish: Finish,
    sequence: type[Any],
    piece: Callable[[Array], Array],
    layout: Any,
) -> _LeafMaker:
    """Returns the function from the arrays of a field to its leaves.

    Args:
        field: The field as delivered.
        transform: Its transform, if it is ragged.
        finish: Applied to each tensor.
        sequence: Container of texts: default_collate makes tuples of the members of tuples.
        piece: Applied to each sample that is cut out of an array.
        layout: Fields and structure of a sample.
    """
    view = torch_dtype(field.dtype) if field.storage.name != field.dtype else None

    def tensor(array: Array) -> torch.Tensor:
        made = torch.from_numpy(array)
        return finish(made if view is None else made.view(view))

    if isinstance(transform, DecodeImage):
        shape = field.shape or (0, 0, MODES[transform.mode])
        return lambda *arrays: [tensor(_images(field, shape, layout, *arrays))]
    if not field.ragged:
        return lambda array, samples: [tensor(array)]
    if isinstance(transform, PadTo):
        return lambda values, lengths, samples: [tensor(values), finish(torch.from_numpy(lengths))]
    if isinstance(transform, Jagged):

        def jagged(values: Array, offsets: Array, samples: Samples) -> list[Any]:
            both = tensor(values), finish(torch.from_numpy(offsets))
            return [_nested(*both, np.diff(offsets))] if transform.nested else list(both)

        return jagged
    if isinstance(transform, AsList):
        sequence = list
    if field.logical == TEXT:
        return lambda *arrays: [sequence(_texts(field, *arrays))]
    if field.logical in BYTE_STRINGS:
        return lambda values, offsets, samples: [
            sequence(piece.tobytes() for piece in _pieces(values, offsets))
        ]
    if isinstance(transform, AsList):
        return lambda values, offsets, samples: [
            Joined(
                tuple(tensor(piece(values[a:b])) for a, b in pairwise(offsets.tolist())),
                lambda *tensors: list(tensors),
            )
        ]
    return lambda *arrays: [tensor(_dense(field, *arrays))]


def _nested(values: torch.Tensor, offsets: torch.Tensor, lengths: Array) -> Joined:
    limits: dict[str, Any] = {}
    if _KNOWS_LIMITS and len(lengths):  # else padding would pad to the total length
        limits = {"min_seqlen": int(lengths.min()), "max_seqlen": int(lengths.max())}
    return Joined((values, offsets), partial(torch.nested.nested_tensor_from_jagged, **limits))


def _pieces(values: Array, offsets: Array) -> list[memoryview]:
    data = values.data
    return [data[a:b] for a, b in pairwise(offsets.tolist())]


def _texts(field: Field, values: Array, offsets: Array, samples: Samples) -> list[str]:
    texts = []
    for row, piece in enumerate(_pieces(values, offsets)):
        try:
            texts.append(str(piece, "utf-8"))
        except UnicodeDecodeError as error:
            where = f"field {field.name!r}: sample {samples()[row]}"
            raise FormatError(f"{where}: not UTF-8: {error}") from error
    return texts


def _dense(field: Field, values: Array, offsets: Array, samples: Samples) -> Array:
    """Returns samples of equal length as an array (B, length, *shape)."""
    lengths = np.diff(offsets)
    length = int(lengths[0]) if len(lengths) else 0
    unequal = np.flatnonzero(lengths != length)
    if len(unequal):
        row = int(unequal[0])
        shapes = [(int(n), *field.shape) for n in (length, lengths[row])]
        _raise_unequal(field, row, shapes, samples, "PadTo(), Jagged() or AsList()")
    return values.reshape(len(lengths), length, *field.shape)


def _images(
    field: Field, shape: tuple[int, ...], layout: Any, decoded: Decoded, samples: Samples
) -> Array:
    """Returns the images of a batch as one array (B, *shape); `shape` is used for B = 0 only."""
    if decoded.error is not None:
        index = int(samples()[decoded.error_row])
        where = f"field {field.name!r}: sample {index}{described_place(layout, field.name, index)}"
        if isinstance(decoded.error, MemoryError):
            add_note(decoded.error, where)
            raise decoded.error
        why = decode_fault(decoded.error)
        raise FormatError(f"{where}: the image cannot be decoded: {why}") from decoded.error
    if decoded.images is not None and not decoded.others:
        return decoded.images
    images = decoded.each()
    if not images:
        return np.empty((0, *shape), field.storage)
    for row, image in enumerate(images):
        if image.shape != images[0].shape:
            shapes = [images[0].shape, image.shape]
            _raise_unequal(field, row, shapes, samples, "DecodeImage(size=(H, W))")
    return np.stack(images)


def decode_fault(error: Exception) -> str:
    """Describes why an image cannot be decoded."""
    unknown = type(error).__name__ == "UnidentifiedImageError"
    return "not an image of a known kind" if unknown else str(error) or type(error).__name__


def _raise_unequal(
    field: Field, row: int, shapes: Sequence[tuple[int, ...]], samples: Samples, choices: str
) -> NoReturn:
    first, other = samples()[[0, row]].tolist()
    raise RuntimeError(
        f"stack expects each tensor to be equal size, but got {list(shapes[0])} at entry 0 and "
        f"{list(shapes[1])} at entry {row}: field {field.name!r}: sample {first} has shape "
        f"{shapes[0]}, sample {other} has shape {shapes[1]}; choose a transform by "
        f"transforms={{{field.name!r}: ...}}: {choices}"
    )
