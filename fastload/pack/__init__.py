"""Packs datasets into folders of shards."""

from __future__ import annotations

from fastload.pack.convert import PackReport, Progress, pack

__all__ = ["PackReport", "Progress", "pack"]
