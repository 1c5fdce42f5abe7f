"""Height and width of encoded images, if they are stored with them."""

from __future__ import annotations

from dataclasses import replace

from fastload.formats.columns import SIZE_BYTES, Column
from fastload.formats.extents import Extents
from fastload.formats.fields import Field


def size_extents(extents: Extents, name: str) -> Extents | None:
    """The sizes of the images of a field: uint32 (2,) for each sample, height and width.

    None if they are not stored. 0, 0 are not known.
    """
    of = Field(name, "uint32", (2,))
    for group in extents.groups:
        for column in group.columns:
            if column.field.name == name and column.sizes is not None:
                made = Column(of, SIZE_BYTES, column.sources, column.sizes)
                held = (replace(group, columns=(made,)),)
                return replace(extents, groups=held, structure=0, content=None)
    return None
