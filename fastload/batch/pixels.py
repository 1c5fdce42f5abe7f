"""Transforms of numbers and images: dtype, scale, layout, crop and flip.

All transforms of a field are applied in one pass, by the thread that copies the sample.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fastload import _core
from fastload.formats.fields import Field

_FLOATS = ("float32", "float16", "bfloat16")
_MAX_VALUES = {"bool": 1, "uint8": 255, "int8": 127, "uint16": 65535, "int16": 32767}
_MAX_STD = 10  # values in 0..1 have at most 0.5; larger ones are meant for unscaled integers
_CONVERTED = (*_MAX_VALUES, *_FLOATS)
_LAYOUTS = ("contiguous_format", "channels_last")


@dataclass(frozen=True)
class Cast:
    """Converts numbers to a floating dtype, without scaling.

    Values are rounded once, to the nearest, ties to even; values that are too large become
    infinite. The field's dtype is bool, uint8, int8, uint16, int16, float16, bfloat16 or float32;
    its shape is arbitrary.

    Args:
        dtype: "float32", "float16" or "bfloat16", or the dtype of torch or numpy with that name.

    Raises:
        ValueError: `dtype` is another one.

    Example:
        >>> loader = FastLoader(ArrayDataset(np.arange(4, dtype=np.uint8)), batch_size=4,
        ...     transforms={"data": Cast("bfloat16")})
        >>> next(iter(loader))
        tensor([0., 1., 2., 3.], dtype=torch.bfloat16)
    """

    __module__ = "fastload"

    dtype: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _float_name("Cast", self.dtype))


@dataclass(frozen=True)
class Normalize:
    """Scales integers to 0..1, then computes (x - mean) / std for each channel.

    The result equals torchvision's `ToDtype(torch.float32, scale=True)`, `Normalize(mean, std)` and
    `.to(dtype)` bit for bit: integers are multiplied by the reciprocal of the largest number of
    their dtype, floats are not scaled; each operation is rounded to float32, the result to `dtype`.
    NaN stays NaN. The channels are the last axis of the field, (H, W, C) or any other shape; an
    image (H, W) has one channel.

    Args:
        mean: One number per channel, or one for all channels; of the scaled values, in 0..1, for
            integers.
        std: One number per channel, or one for all channels; not 0.
        dtype: "float32", "float16" or "bfloat16", or the dtype of torch or numpy with that name.

    Raises:
        ValueError: an argument has another value, or `mean` and `std` differ in length. For fields
            of integers: a mean is larger than 1 or a deviation larger than 10, as for values in
            0..255.

    Example:
        >>> white = ArrayDataset(np.full((4, 2, 2, 3), 255, np.uint8))
        >>> steps = [Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)), ToChannelsFirst()]
        >>> loader = FastLoader(white, batch_size=4, transforms={"data": steps})
        >>> batch = next(iter(loader))
        >>> batch.shape, batch.unique()
        (torch.Size([4, 3, 2, 2]), tensor([1.]))
    """

    __module__ = "fastload"

    mean: Any
    std: Any
    dtype: str = "float32"

    def __post_init__(self) -> None:
        mean, std = _channel_numbers("mean", self.mean), _channel_numbers("std", self.std)
        if len(mean) != len(std) and 1 not in (len(mean), len(std)):
            raise ValueError(f"Normalize: mean has {len(mean)} channels, but std has {len(std)}")
        if any(np.float32(number) == 0 for number in std):
            raise ValueError(f"Normalize: std must not be 0 (in float32): {self.std!r}")
        count = max(len(mean), len(std))
        object.__setattr__(self, "mean", mean * (count // len(mean)))
        object.__setattr__(self, "std", std * (count // len(std)))
        object.__setattr__(self, "dtype", _float_name("Normalize", self.dtype))


@dataclass(frozen=True)
class ToChannelsFirst:
    """Converts images (H, W, C) to (C, H, W), and (H, W) to (1, H, W).

    Args:
        memory_format: torch.contiguous_format or torch.channels_last, or the name of one. With
            channels_last the batch is a view with torch's channels_last strides, at no cost.

    Raises:
        ValueError: `memory_format` is another one.

    Example:
        >>> loader = FastLoader(ArrayDataset(np.zeros((4, 5, 6, 3), np.uint8)), batch_size=4,
        ...     transforms={"data": ToChannelsFirst()})
        >>> next(iter(loader)).shape
        torch.Size([4, 3, 5, 6])
    """

    __module__ = "fastload"

    memory_format: Any = "contiguous_format"

    def __post_init__(self) -> None:
        name = str(self.memory_format).removeprefix("torch.")
        if name not in _LAYOUTS:
            raise ValueError(
                "ToChannelsFirst: memory_format must be torch.contiguous_format or "
                f"torch.channels_last, not {self.memory_format!r}"
            )
        object.__setattr__(self, "memory_format", name)


@dataclass(frozen=True)
class RandomHorizontalFlip:
    """Flips images horizontally, each with probability `p`.

    The random parameters of a sample are a function of the loader's seed, the epoch, the sample's
    index and the number of the transform among the random transforms of the field. They are equal
    for any number of workers, batch size and world size, after a resume, and for all fields with
    the same random transforms, such as an image and its mask. Without `seed=`, the seed is the one
    that DataLoader draws for its workers.

    A sample that a sampler yields several times in an epoch has new parameters each time:
    they depend on its position in the epoch of a `WeightedSampler`, and with any other sampler on
    the number of times that this rank has loaded it in the epoch. Samples that only pad the last
    step repeat their first parameters.

    Args:
        p: Probability in [0, 1].

    Raises:
        ValueError: `p` is outside [0, 1].

    Example:
        >>> pixels = ArrayDataset(np.arange(3, dtype=np.uint8).reshape(1, 1, 3))
        >>> loader = FastLoader(pixels, transforms={"data": RandomHorizontalFlip(p=1)})
        >>> next(iter(loader))
        tensor([[[2, 1, 0]]], dtype=torch.uint8)
    """

    __module__ = "fastload"

    p: float = 0.5

    def __post_init__(self) -> None:
        if not _is_real(self.p) or not 0 <= self.p <= 1:
            raise ValueError(f"RandomHorizontalFlip: p must be in [0, 1], not {self.p!r}")
        object.__setattr__(self, "p", float(self.p))


@dataclass(frozen=True)
class RandomCrop:
    """Crops each image at a random offset; see `RandomHorizontalFlip` for the random parameters.

    Args:
        size: (height, width) of the crop, or one integer for both.
        padding: Widths of the zeros that are added around the image first: one integer, (left and
            right, top and bottom), or (left, top, right, bottom). The zeros are of the stored
            dtype, so that `Normalize` changes them.

    Raises:
        ValueError: an argument has another value.

    Example:
        >>> images = ArrayDataset(np.zeros((4, 32, 32, 3), np.uint8))
        >>> loader = FastLoader(images, batch_size=4, transforms={"data": RandomCrop(24, 4)})
        >>> next(iter(loader)).shape
        torch.Size([4, 24, 24, 3])
    """

    __module__ = "fastload"

    size: Any
    padding: Any = 0

    def __post_init__(self) -> None:
        size = _counts("size must be (height, width)", self.size, 1, (1, 2))
        padding = _counts("padding must be 1, 2 or 4 numbers", self.padding, 0, (1, 2, 4))
        object.__setattr__(self, "size", size * (2 // len(size)))
        object.__setattr__(self, "padding", padding * (4 // len(padding)))


PixelTransform = Cast | Normalize | ToChannelsFirst | RandomHorizontalFlip | RandomCrop


@dataclass(frozen=True)
class Pixels:
    """Compiled transforms of a field.

    Attributes:
        plan: The transforms for the core.
        size: Stored height and width; None: they differ between images.
        field: The field as delivered: dtype and shape.
        planar: True if the channels are the first axis in memory.
        channels_last: True if the channels are the last axis in memory, and the batch is a view.
        is_random: True if random parameters are drawn for each sample.
    """

    plan: _core.PixelPlan
    size: tuple[int, int] | None
    field: Field
    planar: bool
    channels_last: bool
    is_random: bool

    @property
    def out_bytes(self) -> int:
        """Size of a delivered sample in bytes; 0 if it depends on the image."""
        return self.field.row_bytes


def check_order(steps: Sequence[PixelTransform]) -> None:
    """Raises ValueError unless the transforms can be applied in this order."""
    names = [type(step).__name__ for step in steps]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name} appears twice")
    if "Cast" in names and "Normalize" in names:
        raise ValueError("Cast and Normalize are mutually exclusive: Normalize(..., dtype=) casts")
    for number, step in enumerate(steps):
        if isinstance(step, RandomCrop) and any(step.padding) and "Normalize" in names[:number]:
            raise ValueError(
                "RandomCrop with padding must come before Normalize: it pads with zeros of the "
                "stored dtype"
            )


def make_pixels(
    field: Field, shape: tuple[int | None, ...], steps: Sequence[PixelTransform]
) -> Pixels:
    """Compiles the transforms of a field.

    Args:
        field: The field as stored.
        shape: Shape of a sample; (None, None, C) for images that differ in size.
        steps: The transforms, in an order that `check_order` accepts.

    Raises:
        ValueError: a transform does not fit the field.
    """
    found: dict[type, Any] = {type(step): step for step in steps}
    order = list(found)
    crop, flip = found.get(RandomCrop), found.get(RandomHorizontalFlip)
    first = found.get(ToChannelsFirst)
    is_image = field.ragged or any((crop, flip, first))  # ragged: decoded
    if is_image and len(shape) not in (2, 3):
        raise ValueError(
            f"{type(crop or flip or first).__name__} is for images, (H, W, C) or (H, W)"
        )
    normalize = found.get(Normalize)
    channels = _channels(shape, normalize, is_image)
    random = [step for step in order if step in (RandomCrop, RandomHorizontalFlip)]
    contiguous = first is not None and first.memory_format == "contiguous_format"
    item_bytes = field.storage.itemsize
    if item_bytes > 8:
        raise ValueError(f"{order[0].__name__} does not take {field.dtype}")
    plan = _core.PixelPlan(
        item_bytes=item_bytes,
        channels=channels,
        planar=contiguous,
        conversion=_conversion(field, normalize or found.get(Cast)),
        crop=crop and (crop.size, crop.padding, random.index(RandomCrop)),
        flip=flip
        and (
            flip.p,
            crop is not None and random[0] is RandomHorizontalFlip,
            random.index(RandomHorizontalFlip),
        ),
    )
    dtype = next((step.dtype for step in (normalize, found.get(Cast)) if step), field.dtype)
    delivered = replace(field, dtype=dtype, logical=None)
    if not is_image:
        rows = math.prod(n or 0 for n in shape) // channels
        return Pixels(plan, (1, rows), delivered, False, False, False)
    height, width = shape[:2]
    size = None if height is None or width is None else (height, width)
    out = plan.out_size(*size) if size else (0, 0) if crop is None else crop.size
    if len(shape) == 2 and first is None:
        delivered = replace(delivered, shape=tuple(out))
    else:
        delivered = replace(delivered, shape=(channels, *out) if contiguous else (*out, channels))
    moved = first is not None and not contiguous
    return Pixels(plan, size, delivered, contiguous, moved, bool(random))


def _channels(shape: tuple[int | None, ...], normalize: Normalize | None, is_image: bool) -> int:
    wanted = 1 if normalize is None else len(normalize.mean)
    last = 1 if is_image and len(shape) == 2 else (shape[-1] if shape else 1)
    channels = last if is_image or wanted > 1 else 1
    if channels == 0:
        raise ValueError("the field has no channels")
    if wanted not in (1, channels):
        hint = ""
        if shape and shape[0] == wanted:
            hint = "; channels are the last axis: store images as (H, W, C)"
        raise ValueError(f"Normalize has {wanted} channels, but the field has {last}{hint}")
    return channels or 1


def _conversion(field: Field, step: Cast | Normalize | None) -> Any:
    if step is None:
        return None
    if field.dtype not in _CONVERTED:
        raise ValueError(f"{type(step).__name__} takes {', '.join(_CONVERTED)}, not {field.dtype}")
    if isinstance(step, Cast):
        return field.dtype, step.dtype, False, 1.0, [0.0], [1.0]
    largest = _MAX_VALUES.get(field.dtype, 1)
    if largest > 1:
        _check_scaled(field, step, largest)
    scale = 1.0 / largest
    return field.dtype, step.dtype, True, scale, list(step.mean), list(step.std)


def _check_scaled(field: Field, step: Normalize, largest: int) -> None:
    """Raises ValueError for means and deviations of integers that are not scaled to 0..1."""
    if max(map(abs, step.mean)) <= 1 and max(map(abs, step.std)) <= _MAX_STD:
        return
    mean, std = (
        tuple(float(f"{number / largest:.4g}") for number in numbers)
        for numbers in (step.mean, step.std)
    )
    raise ValueError(
        f"Normalize: {field.dtype} numbers are scaled to 0..1 first, but mean and std are of "
        f"unscaled values: {step.mean} and {step.std}; divided by {largest} they are "
        f"Normalize({mean}, {std})"
    )


def _float_name(what: str, dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in _FLOATS and isinstance(dtype, (type, np.dtype)):
        name = np.dtype(dtype).name
    if name not in _FLOATS:
        raise ValueError(f"{what}: dtype must be one of {', '.join(_FLOATS)}, not {dtype!r}")
    return name


def _channel_numbers(what: str, value: Any) -> tuple[float, ...]:
    given = list(value) if isinstance(value, Iterable) and not isinstance(value, str) else [value]
    try:
        made = tuple(float(number) for number in given)
    except (TypeError, ValueError):
        made = ()
    with np.errstate(over="ignore"):
        if not made or not all(np.isfinite(np.float32(number)) for number in made):
            raise ValueError(
                f"Normalize: {what} must be a finite number, or one for each channel: {value!r}"
            )
    return made


def _counts(what: str, value: Any, least: int, lengths: tuple[int, ...]) -> tuple[int, ...]:
    given = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    whole = all(isinstance(n, (int, np.integer)) and not isinstance(n, bool) for n in given)
    if len(given) not in lengths or not whole or min(given) < least:
        raise ValueError(f"RandomCrop: {what}, each at least {least}: {value!r}")
    return tuple(int(n) for n in given)


def _is_real(value: Any) -> bool:
    return isinstance(value, (numbers.Real, np.number)) and not isinstance(value, bool)
