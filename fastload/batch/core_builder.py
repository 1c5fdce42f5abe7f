"""Batches that the core builds without Python."""

from __future__ import annotations

import torch
from torch._C import _from_dlpack  # of torch.utils.dlpack.from_dlpack, without its Python

from fastload import _core
from fastload.batch.collate import SampleLayout
from fastload.batch.transforms import Choices
from fastload.formats.fields import torch_dtype
from fastload.formats.structure import container_maker

_DLPACK_TYPES = {
    torch.int8: (0, 8),
    torch.int16: (0, 16),
    torch.int32: (0, 32),
    torch.int64: (0, 64),
    torch.uint8: (1, 8),
    torch.float16: (2, 16),
    torch.float32: (2, 32),
    torch.float64: (2, 64),
    torch.bfloat16: (4, 16),
    torch.complex64: (5, 64),
    torch.complex128: (5, 128),
    torch.bool: (6, 8),
}
"""Type code and bits of the dtypes that every torch takes from DLPack."""


def core_builder(layout: SampleLayout, chosen: Choices) -> _core.BatchBuilder | None:
    """Returns the builder of the same batches as `collate.batch_maker`, if fields are tensors.

    Args:
        layout: Fields and structure of a sample.
        chosen: The transforms of the fields.

    Returns:
        The builder for the engine; None if a field needs Python.
    """
    tensors = []
    for field in map(chosen.delivered, layout.fields):
        dtype = _DLPACK_TYPES.get(torch_dtype(field.dtype))
        if field.ragged or dtype is None:
            return None
        pixels = chosen.pixels.get(field.name)
        turned = pixels is not None and pixels.channels_last
        tensors.append((*dtype, list(field.shape), turned))
    return _core.BatchBuilder(_from_dlpack, tensors, layout.structure, container_maker)
