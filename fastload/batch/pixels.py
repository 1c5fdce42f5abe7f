"""What becomes of numbers and images on their way into a batch: dtype, scale, layout, augmentation.

All that is given for a field is done in one pass, by the thread that copies the sample.
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
_LARGEST = {"bool": 1, "uint8": 255, "int8": 127, "uint16": 65535, "int16": 32767}
_LARGEST_STD = 10  # values in 0..1 have at most 0.5; more than this is of unscaled integers
_CONVERTED = (*_LARGEST, *_FLOATS)
_LAYOUTS = ("contiguous_format", "channels_last")


@dataclass(frozen=True)
class Cast:
    """Converts numbers to a floating dtype: their values, not scaled, rounded once.

    The nearest value is taken, of two the even one; what is too large becomes infinite. The field
    holds bool, uint8, int8, uint16, int16, float16, bfloat16 or float32, and has any shape.

    Args:
        dtype: "float32", "float16" or "bfloat16"; or torch's or numpy's dtype of that name.

    Raises:
        ValueError: it is another one.

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
    """Scales integers to 0..1, and makes numbers (x - mean) / std, channel by channel.

    It equals torchvision's `ToDtype(torch.float32, scale=True)`, `Normalize(mean, std)` and
    `.to(dtype)`, bit for bit: integers are multiplied by the reciprocal of the largest number of
    their dtype, floats stay as they are; each operation is rounded to float32, the result to
    `dtype`. NaN stays NaN. The channels are the last axis of the field, (H, W, C) or any other
    shape; an image (H, W) has one channel.

    Args:
        mean: One number for each channel, or one for all. Of values in 0..1 if they are scaled.
        std: The same; not 0.
        dtype: "float32", "float16" or "bfloat16", or torch's or numpy's dtype of that name.

    Raises:
        ValueError: an argument is none of these, or means and deviations differ in number. Where a
            field of integers is loaded: a mean is beyond 1, or a deviation beyond 10, as of values
            in 0..255.

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
    """Makes images (H, W, C) images (C, H, W), and (H, W) images (1, H, W).

    Args:
        memory_format: torch.contiguous_format, or torch.channels_last: the batch has the same shape
            and torch's channels_last strides, which costs nothing. Or their names.

    Raises:
        ValueError: it is another one.

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
    """Mirrors images, each with probability `p`.

    What is drawn for a sample is a function of the loader's seed, the epoch, the sample's index and
    the place among the random transforms of the field: equal for any number of workers, batch size
    and world size, after a resume, and for all fields with the same random transforms, such as an
    image and its mask. Without `seed=` the seed is the one that DataLoader draws for its workers.

    A sample that a sampler gives several times in an epoch is drawn for anew each time: what counts
    then is its position in the epoch of a `WeightedSampler`, and with any other sampler how often
    it came before on this rank. Samples that only fill up the last step repeat their first draws.

    Args:
        p: In [0, 1].

    Raises:
        ValueError: it is not.

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
    """Cuts a window out of each image, at a place drawn as `RandomHorizontalFlip` describes.

    Args:
        size: (height, width) of the window, or one number for both.
        padding: Zeros that are laid around the image first: one number; (left and right, top and
            bottom); or (left, top, right, bottom). They are zeros of the stored dtype: what
            `Normalize` makes of them depends on the mean.

    Raises:
        ValueError: an argument is none of these.

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
    """What the core does to a field.

    Attributes:
        plan: For the core.
        size: Height and width as stored; None: every image has its own.
        field: As delivered: dtype and shape.
        planar: The channels are the first axis in memory.
        channels_last: They are the last axis in memory, and move to the front as a view.
        is_random: Whether something is drawn.
    """

    plan: _core.PixelPlan
    size: tuple[int, int] | None
    field: Field
    planar: bool
    channels_last: bool
    is_random: bool

    @property
    def out_bytes(self) -> int:
        """Bytes of a delivered sample; 0 if they depend on the image."""
        return self.field.row_bytes


def check_order(steps: Sequence[PixelTransform]) -> None:
    """Raises ValueError unless the transforms can follow each other so."""
    names = [type(step).__name__ for step in steps]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"{name} stands twice")
    if "Cast" in names and "Normalize" in names:
        raise ValueError("Cast and Normalize exclude each other: Normalize(..., dtype=) casts")
    for place, step in enumerate(steps):
        if isinstance(step, RandomCrop) and any(step.padding) and "Normalize" in names[:place]:
            raise ValueError(
                "RandomCrop with padding must stand before Normalize: it pads with zeros of the "
                "stored dtype"
            )


def make_pixels(
    field: Field, shape: tuple[int | None, ...], steps: Sequence[PixelTransform]
) -> Pixels:
    """What the core does to a field of this shape.

    Args:
        field: As stored.
        shape: Of a sample; (None, None, C) for images that differ in size.
        steps: The transforms, in an order that `check_order` accepts.

    Raises:
        ValueError: they do not fit the field.
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
    largest = _LARGEST.get(field.dtype, 1)
    if largest > 1:
        _check_scaled(field, step, largest)
    scale = 1.0 / largest
    return field.dtype, step.dtype, True, scale, list(step.mean), list(step.std)


def _check_scaled(field: Field, step: Normalize, largest: int) -> None:
    """Raises ValueError for means and deviations of integers that are not scaled to 0..1."""
    if max(map(abs, step.mean)) <= 1 and max(map(abs, step.std)) <= _LARGEST_STD:
        return
    mean, std = (
        tuple(float(f"{number / largest:.4g}") for number in numbers)
        for numbers in (step.mean, step.std)
    )
    raise ValueError(
        f"Normalize: {field.dtype} numbers are scaled to 0..1 first, but mean and std are of other "
        f"values: {step.mean} and {step.std}; divided by {largest} they are "
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
