"""From the arrays of the core to the batch that the loader hands out."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, NoReturn, Protocol

import numpy as np
import numpy.typing as npt
import torch

from fastload.batch.decode import Decoded
from fastload.batch.device_fields import DeviceFields, RandomKeys
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
"""Of each field in turn: an array (B, *shape); values and offsets; padded values and lengths; or
`Decoded` images."""


class SampleLayout(Protocol):
    """The fields of a sample and the containers around their numbers, as `Extents` have them."""

    @property
    def fields(self) -> tuple[Field, ...]:
        """In the order of their arrays."""

    @property
    def structure(self) -> Structure:
        """The containers."""


class Samples(RandomKeys, Protocol):
    """The samples of a batch."""

    def __call__(self) -> Int64Array:
        """The dataset's indices, for messages."""


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
    # What is cut out of an array is a copy each, so that one that is kept does not keep them all.
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
    parts = [_parts(chosen.ragged.get(field.name)) for field in fields]
    for _name in added:
        makers.append(lambda array, samples: [finish(torch.from_numpy(array))])
        counts.append(1)
        parts.append(None)
    turned = [field.name in moved for field in fields] + [False] * len(added)

    def members(arrays: Arrays, samples: Samples) -> list[Any]:
        made: list[Any] = []
        start = 0
        for leaf, count, turn in zip(makers, counts, turned, strict=True):
            leaves = leaf(*arrays[start : start + count], samples)
            made += [Joined((leaves[0],), _channels_first)] if turn else leaves
            start += count
        return made

    return members, batch_builder(_with_parts(structure, parts))


def _tensors(arrays: Arrays, samples: Samples) -> list[Any]:
    return list(map(torch.from_numpy, arrays))


def _channels_first(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.permute(0, 3, 1, 2)


def pinner() -> Finish:
    """Copies tensors to pinned memory, until there is none left; then it says so and lets them be.

    Training goes on without it, only slower.
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
                f"{tensor.nbytes} bytes cannot be pinned, the batches of this iterator come "
                f"unpinned from now on: {error}",
            )
            return tensor

    return pinned


def _array_count(field: Field, transform: RaggedTransform | None) -> int:
    return 2 if field.ragged and not isinstance(transform, DecodeImage) else 1


# --- Containers --------------------------------------------------------------------------------


def _parts(transform: RaggedTransform | None) -> tuple[str, Any] | None:
    """What stands beside the values of a field, and the container where there are no keys."""
    if isinstance(transform, PadTo):
        return "lengths", Padded
    if isinstance(transform, Jagged) and not transform.nested:
        return "offsets", Ragged
    return None


def _with_parts(structure: Structure, parts: Sequence[tuple[str, Any] | None]) -> Structure:
    """The structure of a batch, whose leaves number what the leaf makers give."""
    starts = np.cumsum([0] + [1 if part is None else 2 for part in parts]).tolist()

    def numbered(part: Structure) -> Structure:
        if is_leaf(part):
            start, beside = starts[part], parts[part]
            return start if beside is None else beside[1](start, start + 1)
        if not isinstance(part, dict):
            return with_members(part, [numbered(child) for child in part])
        members: dict[Any, Any] = {}
        for key, child in part.items():
            beside = parts[child] if is_leaf(child) else None
            if beside is None:
                members[key] = numbered(child)
                continue
            other = f"{key}_{beside[0]}"
            if other in part:
                raise ValueError(f"transforms: {other!r} would stand twice in the batch")
            members |= {key: starts[child], other: starts[child] + 1}
        return with_members(part, members)

    return numbered(structure)


def _in_sequences(structure: Structure) -> set[int]:
    """The columns that are members of a list or tuple."""
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
    extents: Any,
) -> _LeafMaker:
    """`sequence` is that of default_collate for texts: those of tuples' members are tuples."""
    view = torch_dtype(field.dtype) if field.storage.name != field.dtype else None

    def tensor(array: Array) -> torch.Tensor:
        made = torch.from_numpy(array)
        return finish(made if view is None else made.view(view))

    if isinstance(transform, DecodeImage):
        shape = field.shape or (0, 0, MODES[transform.mode])
        return lambda *arrays: [tensor(_images(field, shape, extents, *arrays))]
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
    if _KNOWS_LIMITS and len(lengths):  # else padding it pads to the length of all samples together
        limits = {"min_seqlen": int(lengths.min()), "max_seqlen": int(lengths.max())}
    return Joined((values, offsets), partial(torch.nested.nested_tensor_from_jagged, **limits))


def _pieces(values: Array, offsets: Array) -> list[memoryview]:
    data = values.data
    return [data[a:b] for a, b in pairwise(offsets.tolist())]


def _texts(field: Field, values: Array, offsets: Array, samples: Samples) -> list[str]:
    texts = []
    for place, piece in enumerate(_pieces(values, offsets)):
        try:
            texts.append(str(piece, "utf-8"))
        except UnicodeDecodeError as error:
            where = f"field {field.name!r}: sample {samples()[place]}"
            raise FormatError(f"{where}: not UTF-8: {error}") from error
    return texts


def _dense(field: Field, values: Array, offsets: Array, samples: Samples) -> Array:
    """Samples of one length as (B, length, *shape)."""
    lengths = np.diff(offsets)
    length = int(lengths[0]) if len(lengths) else 0
    unequal = np.flatnonzero(lengths != length)
    if len(unequal):
        place = int(unequal[0])
        shapes = [(int(n), *field.shape) for n in (length, lengths[place])]
        _raise_unequal(field, place, shapes, samples, "PadTo(), Jagged() or AsList()")
    return values.reshape(len(lengths), length, *field.shape)


def _images(
    field: Field, shape: tuple[int, ...], extents: Any, decoded: Decoded, samples: Samples
) -> Array:
    """The images of a batch, of which none has `shape` if there is none."""
    if decoded.error is not None:
        index = int(samples()[decoded.place])
        where = f"field {field.name!r}: sample {index}{described_place(extents, field.name, index)}"
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
    for place, image in enumerate(images):
        if image.shape != images[0].shape:
            shapes = [images[0].shape, image.shape]
            _raise_unequal(field, place, shapes, samples, "DecodeImage(size=(H, W))")
    return np.stack(images)


def decode_fault(error: Exception) -> str:
    """Why an image cannot be decoded."""
    unknown = type(error).__name__ == "UnidentifiedImageError"
    return "not an image of a known kind" if unknown else str(error) or type(error).__name__


def _raise_unequal(
    field: Field, place: int, shapes: Sequence[tuple[int, ...]], samples: Samples, choices: str
) -> NoReturn:
    first, other = samples()[[0, place]].tolist()
    raise RuntimeError(
        f"stack expects each tensor to be equal size, but got {list(shapes[0])} at entry 0 and "
        f"{list(shapes[1])} at entry {place}: field {field.name!r}: sample {first} has shape "
        f"{shapes[0]}, sample {other} has shape {shapes[1]}; choose what becomes of it by "
        f"transforms={{{field.name!r}: ...}}: {choices}"
    )
