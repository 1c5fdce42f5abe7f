"""How the samples of a dataset become batches, compiled once for all epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from fastload import _core
from fastload.batch.collate import Maker, PartsMaker, SampleLayout, batch_maker, parts_maker
from fastload.batch.core_builder import core_builder
from fastload.batch.device_fields import DeviceFields
from fastload.batch.images import ImageField
from fastload.batch.sizes import delivered_bytes, sample_bytes
from fastload.batch.transforms import Choices, DecodeImage, PadTo, choices, padding
from fastload.formats.extents import Extents
from fastload.formats.fields import Field

_NO_DEVICE_FIELDS = DeviceFields()


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """Description of the batches of a dataset: what the engine gathers and how it is collated.

    A plan depends on the dataset, the transforms and the additional members only. It is immutable:
    iterators and threads may share it.

    Attributes:
        layout: Fields and structure of a sample; `Extents` if the core loads the dataset.
        choices: The transforms of the fields, validated.
        added: Names of the arrays that follow those of the fields.
        image_fields: Fields of encoded images by the number of their first array in a batch.
        sample_bytes: Mean size of a stored sample in bytes; 0 for a layout without data.
        delivered_bytes: Mean size of a delivered sample in bytes, encoded images included; 0 for
            a layout without data.
    """

    layout: SampleLayout
    choices: Choices
    added: tuple[str, ...]
    image_fields: Mapping[int, ImageField]
    sample_bytes: int
    delivered_bytes: int

    @classmethod
    def compile(
        cls, layout: SampleLayout, transforms: Any = None, added: Sequence[str] = ()
    ) -> BatchPlan:
        """Compiles the plan of a dataset.

        Args:
            layout: Fields and structure of a sample.
            transforms: A mapping from field names to transforms, as given by the user; None: none.
            added: Names of the arrays that follow those of the fields. They are members of the
                batch: under these keys in a dict, else at its end.

        Raises:
            ValueError: a transform does not fit its field, or a member of the batch has the name
                of another one.
        """
        chosen = choices(transforms, layout.fields)
        stored, delivered = 0, 0
        if isinstance(layout, Extents):
            stored = sample_bytes(layout)
            delivered = delivered_bytes(layout.fields, chosen, stored)
        images = _image_fields(layout.fields, chosen)
        plan = cls(layout, chosen, tuple(added), images, stored, delivered)
        _ = plan._host_collate  # raises for names that clash
        return plan

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields of the dataset, as stored."""
        return self.layout.fields

    @property
    def extents(self) -> Extents:
        """Location of the samples, for a dataset that the core loads."""
        assert isinstance(self.layout, Extents)
        return self.layout

    @property
    def is_random(self) -> bool:
        """True if a transform draws random parameters for each sample."""
        return self.choices.is_random

    def engine_arguments(self, device_fields: DeviceFields = _NO_DEVICE_FIELDS) -> list[Any]:
        """Returns the engine's argument for each field: dtype, shape, and what it does to them.

        Args:
            device_fields: Fields that are gathered as stored.
        """
        return [_engine_argument(field, self.choices, device_fields) for field in self.fields]

    def collate(self, *, pin: bool = False) -> Maker:
        """Returns the function from the arrays of a batch to the batch in memory of the host.

        Args:
            pin: Copy tensors to pinned memory.
        """
        if pin:
            return batch_maker(self.layout, self.choices, pin, self.added)
        return self._host_collate

    def collate_parts(
        self, device_fields: DeviceFields = _NO_DEVICE_FIELDS, *, pin: bool = False
    ) -> PartsMaker:
        """Returns the function from the arrays of a batch to its tensors for a device.

        Args:
            device_fields: Fields whose arrays are as stored.
            pin: Copy tensors to pinned memory.
        """
        return parts_maker(self.layout, self.choices, pin, self.added, device_fields)

    @cached_property
    def core_builder(self) -> _core.BatchBuilder | None:
        """The core's builder of whole batches in host memory; None if Python must collate them."""
        return None if self.added else core_builder(self.layout, self.choices)

    @cached_property
    def _host_collate(self) -> Maker:
        return batch_maker(self.layout, self.choices, added=self.added)


def _image_fields(fields: Sequence[Field], chosen: Choices) -> dict[int, ImageField]:
    found, number = {}, 0
    for field in fields:
        transform = chosen.ragged.get(field.name)
        if isinstance(transform, DecodeImage):
            found[number] = ImageField(field.name, transform, chosen.pixels.get(field.name))
        number += 2 if field.ragged else 1
    return found


def _engine_argument(field: Field, chosen: Choices, device_fields: DeviceFields) -> Any:
    transform, pixels = chosen.ragged.get(field.name), chosen.pixels.get(field.name)
    if pixels is not None and not field.ragged and field.name not in device_fields:
        made = pixels.field
        return made.storage, made.shape, (pixels.plan, *(pixels.size or (0, 0)))
    if isinstance(transform, PadTo):
        return field.storage, field.shape, padding(transform, field)
    return field.storage, field.shape
