"""The position of an iterator in its epoch, and the epochs of a loader."""

from __future__ import annotations

import base64
import copy
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from fastload.order.torch_samplers import OrderKey, draw_seed

Unit = Literal["samples", "batches"]


@dataclass
class Position:
    """How far one iterator has come in its epoch.

    All counts of a position have one unit: samples of all ranks in a seeded order, samples of this
    rank in an order of torch's, and batches where only the sampler itself knows its order.

    Attributes:
        epoch: Number of the epoch, from 0.
        first: Count that earlier iterators delivered of this epoch.
        unit: Unit of `first`, `step`, `end` and `offset`.
        step: Count of a full batch; 1 for batches.
        end: Count of the whole epoch; None if unknown.
        key: Values from which the order of the epoch can be computed again.
        resumed: True if torch drew the order when the epoch started, before it was saved.
        base_seed: torch's base seed, if random transforms depend on it.
        turns: Number of batches that were loaded or failed.
        delivered: `turns` of the last batch that the caller received.
        finished: True if the iterator has raised StopIteration.
    """

    epoch: int
    first: int = 0
    unit: Unit = "samples"
    step: int = 1
    end: int | None = None
    key: OrderKey = field(default_factory=dict)
    resumed: bool = False
    base_seed: int | None = None
    turns: int = 0
    delivered: int = 0
    finished: bool = False

    @property
    def offset(self) -> int:
        """Count of the epoch that was delivered, by earlier iterators too."""
        offset = self.first + self.delivered * self.step
        return offset if self.end is None else min(offset, self.end)

    @property
    def batches(self) -> int:
        """Number of batches of the epoch that were delivered; rounded up after other batches."""
        return -(-self.first // self.step) + self.delivered


class Epochs:
    """The epochs of a loader: the position of the last one, and where the next one starts.

    Each iterator has a position of its own, so that older iterators can continue without moving
    the loader.

    Attributes:
        current: Position of the iterator that started last; None before the first one.
        loaded: A loaded state that the next iterator starts from.
        next_epoch: Epoch of the next iterator, unless a state is loaded or the order is seeded.
        waiting: True if an iterator was made that has not started.
    """

    def __init__(self) -> None:
        self.current: Position | None = None
        self.loaded: dict[str, Any] | None = None
        self.next_epoch = 0
        self.waiting = False
        self.base_seed: int | None = None

    @property
    def running(self) -> Position | None:
        """Position in an epoch that has started and not ended; None between epochs."""
        return None if self.current is None or self.current.finished else self.current

    def start(self, position: Position) -> Position:
        """Makes the position of an iterator that starts now the current one, and returns it."""
        self.current, self.loaded, self.waiting = position, None, False
        self.next_epoch = position.epoch + 1
        return position

    def next(self, unit: Unit) -> Position:
        """Returns the position of an iterator that would start now and count in `unit`.

        Raises:
            ValueError: the loaded state counts in the other unit.
        """
        if self.loaded is None:
            return Position(self.next_epoch, unit=unit)
        state = without_none(self.loaded)
        key = decoded_key(state)
        if not state["begun"]:
            return Position(state["epoch"], unit=unit, key=key)
        if unit not in state:
            other = "batches" if unit == "samples" else "samples"
            raise ValueError(
                f"the state counts {other}, but with this sampler the loader counts {unit}: it was "
                "saved with another sampler or batch_sampler"
            )
        return Position(state["epoch"], state[unit], unit, key=key, resumed=True)

    def skip_loaded(self) -> None:
        """Makes the next iterator start the epoch after the loaded one."""
        assert self.loaded is not None
        self.next_epoch, self.loaded = self.loaded["epoch"] + 1, None

    def base_seed_of(self, drawn: int | None, generator: torch.Generator | None) -> int:
        """Returns the seed of the random transforms of a new iterator.

        Args:
            drawn: torch's base seed, drawn for this iterator; None: an earlier one is used.
            generator: Generator that a seed is drawn from if there was none earlier.
        """
        saved = None if self.loaded is None else self.loaded.get("base_seed")
        own = self.base_seed if drawn is None else drawn
        seed: int | None = own if saved is None else saved
        self.base_seed = draw_seed(generator) if seed is None else seed
        return self.base_seed

    @property
    def resumes(self) -> bool:
        """True if the next iterator continues an epoch whose order was drawn before."""
        return self.loaded is not None and bool(self.loaded.get("begun"))

    @property
    def saved_generator(self) -> torch.Tensor | None:
        """Generator state that the order of the loaded epoch was drawn from, if it was saved."""
        return decoded_key(self.loaded or {}).get("generator") if self.resumes else None

    @property
    def has_base_seed(self) -> bool:
        """True if torch drew the workers' seed of the next iterator before the state was saved."""
        return self.resumes or "base_seed_drawn" in without_none(self.loaded or {})


def encoded_key(key: OrderKey) -> dict[str, Any]:
    """Returns the key in JSON types; the state of a generator as base64."""
    made = copy.deepcopy({name: value for name, value in key.items() if name != "generator"})
    if "generator" in key:
        made["generator"] = base64.b64encode(key["generator"].numpy().tobytes()).decode()
    return made


def without_none(state: dict[str, Any]) -> dict[str, Any]:
    """Returns the entries of a state that have a value."""
    return {name: value for name, value in state.items() if value is not None}


def decoded_key(state: dict[str, Any]) -> OrderKey:
    """Returns the key that `encoded_key` wrote into a state."""
    state = without_none(state)
    key: OrderKey = {
        name: state[name] for name in ("seed", "sampler_epoch", "sampler_state") if name in state
    }
    if "generator" in state:
        raw = bytearray(base64.b64decode(state["generator"]))
        key["generator"] = torch.frombuffer(raw, dtype=torch.uint8)
    return key
