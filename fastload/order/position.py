"""How far a loader has come in its epoch, and where the next iterator starts."""

from __future__ import annotations

import base64
import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from fastload.order.torch_samplers import Draw, draw_seed


@dataclass
class Progress:
    """How far one iterator has come in its epoch.

    Attributes:
        epoch: Its epoch.
        first: Samples (or batches) of the epoch before its first batch.
        per_batch: Samples, of all ranks, in a batch; 1 where batches are counted.
        end: Where the epoch ends, in the same unit; None if unknown.
        draw: What it takes to draw the order again.
        base_seed: torch's, if random transforms are keyed by it.
        turns: Batches handed out or failed.
        handed: The turn of the last batch that was handed out.
        finished: It has said that there are no more.
    """

    epoch: int
    first: int = 0
    per_batch: int = 1
    end: int | None = None
    draw: Draw = field(default_factory=dict)
    base_seed: int | None = None
    turns: int = 0
    handed: int = 0
    finished: bool = False

    @property
    def position(self) -> int:
        """Samples (or batches) of the epoch that have been handed out."""
        position = self.first + self.handed * self.per_batch
        return position if self.end is None else min(position, self.end)


class Start(NamedTuple):
    """Where an iterator begins.

    Attributes:
        epoch: Its epoch.
        first: Samples (or batches) that were handed out before.
        draw: What its order was or will be drawn from, as far as that was saved.
        is_drawn: torch made its draws when the epoch began the first time.
    """

    epoch: int
    first: int
    draw: Draw
    is_drawn: bool


class Bookmark:
    """The place of a loader: of the iterator that began last, or a loaded one that waits.

    Attributes:
        progress: Of the iterator that began last.
        loaded: A loaded state that the next iterator will take.
        next_epoch: Of an iterator that is not keyed.
        waiting: An iterator was made that has not begun.
        base_seed: What torch drew for the iterator that was made last, if transforms need it.
        warned_empty: Somebody was told that epochs are empty.
    """

    def __init__(self) -> None:
        self.progress: Progress | None = None
        self.loaded: dict[str, Any] | None = None
        self.next_epoch = 0
        self.waiting = False
        self.base_seed: int | None = None
        self.warned_empty = False

    def begin(self, progress: Progress) -> Progress:
        """An iterator has begun."""
        self.progress, self.loaded, self.waiting = progress, None, False
        self.next_epoch = progress.epoch + 1
        return progress

    def take(self, unit: str) -> Start:
        """Where an iterator begins that begins now and counts in `unit`: samples or batches.

        Raises:
            ValueError: the loaded state counts in the other one.
        """
        if self.loaded is None:
            return Start(self.next_epoch, 0, {}, False)
        state = without_none(self.loaded)
        if not state["begun"]:
            return Start(state["epoch"], 0, decoded_draw(state), False)
        if unit not in state:
            other = "batches" if unit == "samples" else "samples"
            raise ValueError(
                f"the state counts {other}, but with this sampler the loader counts {unit}: it was "
                "saved with another sampler or batch_sampler"
            )
        return Start(state["epoch"], state[unit], decoded_draw(state), True)

    def pass_over(self) -> None:
        """The next iterator takes the epoch after the loaded one."""
        assert self.loaded is not None
        self.next_epoch, self.loaded = self.loaded["epoch"] + 1, None

    def base_seed_of(self, drawn: int | None, generator: torch.Generator | None) -> int:
        """The seed by which the random transforms of a new iterator are keyed.

        Args:
            drawn: By this iterator; None: it goes on with an earlier draw.
            generator: To draw from if there was none.
        """
        saved = None if self.loaded is None else self.loaded.get("base_seed")
        kept = self.base_seed if drawn is None else drawn
        seed: int | None = kept if saved is None else saved
        self.base_seed = draw_seed(generator) if seed is None else seed
        return self.base_seed

    @property
    def resumes(self) -> bool:
        """Whether the next iterator goes on with an epoch whose draws were made before."""
        return self.loaded is not None and bool(self.loaded.get("begun"))

    @property
    def drawn_from(self) -> torch.Tensor | None:
        """The state of the generator from which the loaded epoch was drawn, if that was saved."""
        return decoded_draw(self.loaded or {}).get("generator") if self.resumes else None

    @property
    def has_base_seed(self) -> bool:
        """Whether torch drew the seed of the workers for the next iterator before it was saved."""
        return self.resumes or "base_seed_drawn" in without_none(self.loaded or {})


def encoded_draw(draw: Draw) -> dict[str, Any]:
    """The draw in JSON types; the state of a generator as base64."""
    made = copy.deepcopy({k: v for k, v in draw.items() if k != "generator"})
    if "generator" in draw:
        made["generator"] = base64.b64encode(draw["generator"].numpy().tobytes()).decode()
    return made


def without_none(state: dict[str, Any]) -> dict[str, Any]:
    """The keys of a state that have a value."""
    return {key: value for key, value in state.items() if value is not None}


def decoded_draw(state: dict[str, Any]) -> Draw:
    """The draw that `encoded_draw` wrote into a state."""
    state = without_none(state)
    draw: Draw = {k: state[k] for k in ("seed", "sampler_epoch", "sampler_state") if k in state}
    if "generator" in state:
        raw = bytearray(base64.b64decode(state["generator"]))
        draw["generator"] = torch.frombuffer(raw, dtype=torch.uint8)
    return draw
