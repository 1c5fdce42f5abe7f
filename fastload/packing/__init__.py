"""Packs datasets into folders of shards (`pack`); connects to clusters that pack (`connected`)."""

from __future__ import annotations

from fastload.packing.convert import PackReport, pack
from fastload.packing.jobs.engines import connected
from fastload.packing.shards import Progress

__all__ = ["PackReport", "Progress", "connected", "pack"]
