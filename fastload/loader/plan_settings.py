"""The arguments of a loader that its plan depends on, and their checks against the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DistributedSampler

from fastload.batch.plan import BatchPlan
from fastload.formats import checks
from fastload.formats.extents import Extents
from fastload.formats.structure import MISSING, REAL


@dataclass(frozen=True)
class PlanSettings:
    """The arguments of a loader that its plan depends on.

    A plan stays valid while the data and these settings are equal to those it was compiled from.

    Attributes:
        transforms: Transforms by field name, as given.
        verify: As given to the loader.
        on_error: As given to the loader.
        masked: Batches report which of their samples are real.
    """

    transforms: Any
    verify: str | None
    on_error: str
    masked: bool

    @classmethod
    def of(cls, loader: Any) -> PlanSettings:
        """Returns a snapshot of the current settings of a loader.

        Raises:
            ValueError: its batches cannot report which of their samples are real, but should.
        """
        transforms = loader.transforms
        if isinstance(transforms, Mapping):
            transforms = {
                name: tuple(steps) if isinstance(steps, list) else steps
                for name, steps in transforms.items()
            }
        return cls(transforms, loader.verify, loader.on_error, _is_masked(loader))

    @property
    def added(self) -> tuple[str, ...]:
        """Names of the members that batches have in addition to the fields."""
        return (MISSING,) * (self.on_error == "skip") + (REAL,) * self.masked

    def compile(self, extents: Extents) -> BatchPlan:
        """Compiles the plan of a dataset.

        Args:
            extents: Location of its samples.

        Raises:
            ValueError: a setting does not fit the data.
        """
        self._check_values()
        extents = checks.lazily(extents) if self.verify == "lazy" else extents
        plan = BatchPlan.compile(extents, self.transforms, self.added)
        skips = self.on_error == "skip"
        if skips and not plan.image_fields and not checks.has_checksums(extents, lazy=True):
            raise ValueError(
                "on_error='skip' leaves out samples that do not fit their checksums, which needs "
                "packed data and verify='lazy', and samples whose images cannot be decoded, which "
                "needs DecodeImage in transforms="
            )
        return plan

    def check_unplanned(self, dataset: Any) -> None:
        """Raises ValueError for settings of data that torch loads or collates.

        Args:
            dataset: The dataset of the loader.
        """
        self._check_values()
        if self.transforms is not None:
            raise ValueError(
                "transforms= are for native data in batches, without a collate_fn: see "
                "fastload.open; torch's own iterators pass the samples to the collate_fn unchanged"
            )
        opened_otherwise = getattr(dataset, "verify", 0) != self.verify
        if self.on_error == "skip" or (self.verify is not None and opened_otherwise):
            raise ValueError(
                "verify= and on_error= are for native data in batches, without a collate_fn: see "
                "fastload.open; a dataset that was opened with verify= checks itself"
            )

    def _check_values(self) -> None:
        if self.on_error not in ("raise", "skip"):
            raise ValueError(f"on_error must be 'raise' or 'skip', not {self.on_error!r}")


def _is_masked(loader: Any) -> bool:
    """Returns whether batches report which of their samples are real.

    Raises:
        ValueError: they should, but cannot.
    """
    samplers = loader._samplers
    if not samplers.adds_mask(loader.tail):
        return False
    if not loader._auto_collation:
        raise ValueError("tail='mask' needs batch_size: it adds a member to each batch")
    if isinstance(samplers.base, DistributedSampler) and samplers.own is None:
        kind = type(samplers.base).__name__
        raise ValueError(f"tail='mask': {kind} does not report which of its samples are real")
    return True
