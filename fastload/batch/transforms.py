"""Transforms of the fields of a dataset."""

from __future__ import annotations

import cmath
import importlib.util
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from fastload.batch.pixels import (
    Pixels,
    PixelTransform,
    RandomCrop,
    RandomHorizontalFlip,
    check_order,
    make_pixels,
)
from fastload.formats.fields import Field, torch_dtype

MODES = {"RGB": 3, "L": 1, "RGBA": 4}
"""Number of channels by the mode of a decoded image."""


@dataclass(frozen=True)
class PadTo:
    """Pads each sample at its end to the length of the longest sample in the batch.

    The field becomes a tensor (B, L, *shape), where L is the largest length, rounded up. The
    lengths, int64 (B,), are added to the batch: in a dict under the key `<name>_lengths`, in other
    containers as a namedtuple `Padded(values, lengths)`. Text and bytes are padded as uint8.

    Args:
        multiple: L is rounded up to a multiple of this integer.
        value: Value of the padding; the field's dtype must be able to hold it.

    Raises:
        ValueError: `multiple` is not a positive integer, or `value` is not a number.

    Example:
        >>> loader = FastLoader("data/text", 8, transforms={"ids": PadTo(8)})  # doctest: +SKIP
        >>> batch = next(iter(loader))  # doctest: +SKIP
        >>> batch["ids"].shape, batch["ids_lengths"].shape  # doctest: +SKIP
        (torch.Size([8, 104]), torch.Size([8]))
    """

    __module__ = "fastload"

    multiple: int = 1
    value: Any = 0

    def __post_init__(self) -> None:
        _check_integer("PadTo: multiple", self.multiple)
        if not isinstance(self.value, (numbers.Number, np.bool_)):
            raise ValueError(f"PadTo: value must be a number, not {self.value!r}")


@dataclass(frozen=True)
class Jagged:
    """Concatenates the samples of a batch.

    Args:
        nested: True: the field becomes a nested tensor of `torch.nested` in jagged layout, with
            shape (B, *, *shape). False: it becomes a tensor (total, *shape), and its offsets, int64
            (B + 1,) from 0 to total, are added to the batch: in a dict under the key
            `<name>_offsets`, in other containers as a namedtuple `Ragged(values, offsets)`.

    Raises:
        ValueError: `nested` is not a bool.

    Example:
        >>> loader = FastLoader("data/text", 8, transforms={"ids": Jagged()})  # doctest: +SKIP
        >>> next(iter(loader))["ids"].is_nested  # doctest: +SKIP
        True
    """

    __module__ = "fastload"

    nested: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.nested, bool):
            raise ValueError(f"Jagged: nested must be True or False, not {self.nested!r}")


@dataclass(frozen=True)
class AsList:
    """Returns the samples of a batch as a list of tensors (length, *shape).

    Each tensor has its own memory. Text becomes list[str], bytes become list[bytes].

    Example:
        >>> loader = FastLoader("data/text", 8, transforms={"ids": AsList()})  # doctest: +SKIP
        >>> len(next(iter(loader))["ids"])  # doctest: +SKIP
        8
    """

    __module__ = "fastload"


@dataclass(frozen=True)
class DecodeImage:
    """Decodes images (JPEG, PNG and all formats of Pillow) to uint8 (B, H, W, C).

    Pillow decodes in `num_workers` threads, ahead of the consumer. The pixels equal those of
    torchvision's PIL path: `Image.open(...).convert(mode)`, then `Resize` and `CenterCrop` with
    bilinear interpolation and antialiasing. 16-bit grey images are the exception: that path makes
    them white, DecodeImage keeps their upper 8 bits. An image that cannot be decoded, or with
    pixels of floats or 32-bit integers, raises a `FormatError` for its batch that names the sample.

    Args:
        size: (height, width) of the result. None: as stored; all images of a batch must then have
            the same size. Packed datasets store the sizes, so that such images are decoded directly
            into the memory of the batch.
        mode: "RGB", "L" (grey, C = 1) or "RGBA".
        resize: None: the image is scaled to exactly `size`, like `Resize(size)`. An integer: the
            shorter side is scaled to it and the center of `size` is cropped, like `Resize(resize)`
            and `CenterCrop(size)`; at least as large as both sides of `size`.
        exif: Rotate the image by its EXIF orientation; torchvision does not.

    Raises:
        ValueError: an argument has another value.

    Example:
        >>> decode = DecodeImage((224, 224), resize=256)
        >>> FastLoader("photos", 64, transforms={"image": decode})  # doctest: +SKIP
    """

    __module__ = "fastload"

    size: tuple[int, int] | None = None
    mode: str = "RGB"
    resize: int | None = None
    exif: bool = False

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"DecodeImage: mode must be one of {', '.join(MODES)}: {self.mode!r}")
        if not isinstance(self.exif, bool):
            raise ValueError(f"DecodeImage: exif must be True or False, not {self.exif!r}")
        if self.size is not None:
            if not isinstance(self.size, Sequence) or len(self.size) != 2:
                raise ValueError(f"DecodeImage: size must be (height, width), not {self.size!r}")
            for side in self.size:
                _check_integer("DecodeImage: a side of size", side)
            object.__setattr__(self, "size", (int(self.size[0]), int(self.size[1])))
        if self.resize is not None:
            _check_integer("DecodeImage: resize", self.resize)
            if self.size is None or self.resize < max(self.size):
                raise ValueError(
                    f"DecodeImage: resize={self.resize} needs a size that it covers, not "
                    f"size={self.size}"
                )

    @property
    def image_bytes(self) -> int:
        """Size of a decoded image in bytes; 0 if it depends on the image."""
        return 0 if self.size is None else self.size[0] * self.size[1] * MODES[self.mode]


RaggedTransform = PadTo | Jagged | AsList | DecodeImage
Transform = RaggedTransform | PixelTransform
Transforms = Mapping[str, Transform | Sequence[Transform]]


class Padded(NamedTuple):
    """A padded field of a batch of samples without keys.

    Attributes:
        values: (B, L, *shape).
        lengths: int64 (B,).
    """

    values: Any
    lengths: Any


class Ragged(NamedTuple):
    """A jagged field of a batch of samples without keys.

    Attributes:
        values: (total, *shape).
        offsets: int64 (B + 1,); sample i is `values[offsets[i] : offsets[i + 1]]`.
    """

    values: Any
    offsets: Any


class Choices(NamedTuple):
    """Validated transforms of a dataset by field name.

    Attributes:
        ragged: Transforms of ragged fields.
        pixels: Compiled transforms of numbers: of fixed-size fields and of decoded images.
    """

    ragged: dict[str, RaggedTransform]
    pixels: dict[str, Pixels]

    @property
    def is_random(self) -> bool:
        """True if a transform draws random parameters for each sample."""
        return any(pixels.is_random for pixels in self.pixels.values())

    def delivered(self, field: Field) -> Field:
        """Returns the field as the core delivers it."""
        pixels = self.pixels.get(field.name)
        return field if pixels is None else pixels.field


def choices(transforms: Any, fields: Sequence[Field]) -> Choices:
    """Validates and compiles the transforms of a dataset.

    Args:
        transforms: A mapping from field names to a transform or a sequence of transforms.
        fields: Fields of the dataset.

    Raises:
        ValueError: a transform does not fit its field, or the transforms before it.
    """
    chosen = Choices({}, {})
    if transforms is None:
        return chosen
    if not isinstance(transforms, Mapping):
        raise ValueError(f"transforms must map names of fields to transforms, not {transforms!r}")
    names = [field.name for field in fields]
    for name, given in transforms.items():
        if name not in names:
            known = ", ".join(map(repr, names))
            raise ValueError(f"transforms: the dataset has no field {name!r}; it has {known}")
        alone = isinstance(given, str) or not isinstance(given, Sequence)
        steps = [given] if alone else list(given)
        for step in steps:
            if not isinstance(step, Transform):
                raise ValueError(
                    f"transforms: field {name!r}: PadTo(), Jagged(), AsList(), DecodeImage(), "
                    "Cast(), Normalize(), ToChannelsFirst(), RandomHorizontalFlip() or "
                    f"RandomCrop() is needed, not {step!r}"
                )
        for field in fields:
            if field.name == name and steps:
                _choose(chosen, field, steps)
    return chosen


def is_random(transforms: Transforms | None) -> bool:
    """Returns True if a transform draws random parameters for each sample."""
    given = (transforms or {}).values()
    steps = [step for one in given for step in (one if isinstance(one, Sequence) else [one])]
    return any(isinstance(step, RandomCrop | RandomHorizontalFlip) for step in steps)


def _choose(chosen: Choices, field: Field, steps: list[Transform]) -> None:
    shape: tuple[int | None, ...] = field.shape
    first, where = steps[0], f"transforms: field {field.name!r}: "
    if isinstance(first, RaggedTransform):
        _check_field(first, field)
        chosen.ragged[field.name] = first
        steps = steps[1:]
    pixels = [step for step in steps if isinstance(step, PixelTransform)]
    if len(pixels) < len(steps) or (pixels and field.ragged and not isinstance(first, DecodeImage)):
        raise ValueError(
            f"{where}{type(steps[0]).__name__} is not allowed here: a ragged field has one "
            "transform, and only DecodeImage may be followed by others"
        )
    if not pixels:
        return
    if isinstance(first, DecodeImage):
        shape = (*(first.size or (None, None)), MODES[first.mode])
    try:
        check_order(pixels)
        chosen.pixels[field.name] = make_pixels(field, shape, pixels)
    except ValueError as error:
        raise ValueError(f"{where}{error}") from None


def _check_field(transform: RaggedTransform, field: Field) -> None:
    kind = type(transform).__name__
    if not field.ragged:
        raise ValueError(
            f"transforms: field {field.name!r} is {field}, of fixed size; {kind} is for ragged "
            "fields"
        )
    if isinstance(transform, PadTo):
        padding(transform, field)
    if isinstance(transform, DecodeImage):
        is_bytes = field.dtype == "uint8" and field.shape == ()
        if not is_bytes or field.logical not in (None, "bytes", "image"):
            what = field.logical if is_bytes else field
            raise ValueError(
                f"transforms: field {field.name!r} is {what}; DecodeImage is for bytes of images"
            )
        if importlib.util.find_spec("PIL") is None:
            raise ValueError("DecodeImage needs Pillow: pip install pillow")


def padding(transform: PadTo, field: Field) -> tuple[int, bytes]:
    """Returns the core's arguments of a padded field: the multiple, and one element in bytes.

    Raises:
        ValueError: the field's dtype cannot hold the value.
    """
    number = _stored(transform.value, field)
    if number is None:
        raise ValueError(
            f"transforms: field {field.name!r}: PadTo(value={transform.value!r}) does not fit "
            f"{field.dtype}"
        )
    return transform.multiple, np.full(field.shape, number, field.storage).tobytes()


def _stored(value: Any, field: Field) -> Any:
    """Returns the value as the field stores it; None if the dtype cannot hold it."""
    kind = field.storage.kind if field.storage.name == field.dtype else "torch"
    if kind in "iub":
        if isinstance(value, (complex, np.complexfloating)) or value != value // 1:
            return None
        low, high = (0, 1) if kind == "b" else _limits(field.storage)
        return int(value) if low <= value <= high else None
    if kind != "c" and isinstance(value, (complex, np.complexfloating)):
        return None
    if kind == "torch":
        import torch

        made = torch.tensor(float(value), dtype=torch.float64).to(torch_dtype(field.dtype))
        stored = made.view(getattr(torch, field.storage.name)).item()
        return stored if _is_near(made.double().item(), value) else None
    with np.errstate(over="ignore"):
        rounded = np.array(value).astype(field.storage)[()]
    return rounded if _is_near(complex(rounded), value) else None


def _limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    limits = np.iinfo(dtype)
    return int(limits.min), int(limits.max)


def _is_near(stored: complex, value: Any) -> bool:
    """Returns True if the stored value is the given one up to rounding."""
    wanted = complex(value)
    if cmath.isfinite(wanted):
        return cmath.isfinite(stored) and abs(stored - wanted) <= abs(wanted) / 2
    return cmath.isnan(stored) if cmath.isnan(wanted) else stored == wanted


def _check_integer(what: str, value: Any) -> None:
    if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{what} must be a positive integer, not {value!r}")
