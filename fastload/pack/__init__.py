"""Packs datasets into folders of shards."""

from __future__ import annotations

from fastload.pack.convert import PackReport, pack
from fastload.pack.shards import Progress

__all__ = ["PackReport", "Progress", "pack"]
