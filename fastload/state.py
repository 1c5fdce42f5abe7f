"""Where a loader is in its data, and how that is saved and restored."""

from __future__ import annotations

import base64
import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from fastload.order import KeyedSampler
from fastload.torch_order import Draw, draw_seed, foreseen_draw

VERSION = 1
_KEYED = ("seed", "order", "epoch", "samples")
_TORCH = ("sampler", "epoch", "begun")
# None where there is nothing to say: torch.distributed.checkpoint loads the keys that the state of
# the loader has before, and no others.
_TORCH_OPTIONAL = (
    "samples",
    "batches",
    "seed",
    "generator",
    "sampler_epoch",
    "sampler_state",
    "world",
    "base_seed_drawn",
)
_OPTIONAL = {*_TORCH_OPTIONAL, "base_seed", "block_rows", "window_blocks", "weights"}
_COUNTS = ("epoch", "samples", "batches", "block_rows", "window_blocks")
_LARGEST_COUNT = 2**62


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
        state = _given(self.loaded)
        if not state["begun"]:
            return Start(state["epoch"], 0, _decoded(state), False)
        if unit not in state:
            other = "batches" if unit == "samples" else "samples"
            raise ValueError(
                f"the state counts {other}, but with this sampler the loader counts {unit}: it was "
                "saved with another sampler or batch_sampler"
            )
        return Start(state["epoch"], state[unit], _decoded(state), True)

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
        return _decoded(self.loaded or {}).get("generator") if self.resumes else None

    @property
    def has_base_seed(self) -> bool:
        """Whether torch drew the seed of the workers for the next iterator before it was saved."""
        return self.resumes or "base_seed_drawn" in _given(self.loaded or {})


# --- Keyed order -------------------------------------------------------------------------------


def keyed_state(sampler: KeyedSampler, mark: Bookmark, fingerprint: str) -> dict[str, Any]:
    """The state of a loader with keyed order; equal on all ranks."""
    progress = mark.progress
    running = progress is not None and not progress.finished
    state = {
        "version": VERSION,
        "fingerprint": fingerprint,
        "seed": sampler.seed,
        "order": sampler.order if sampler.shuffle else "sequential",
        "epoch": progress.epoch if running and progress else sampler.next_epoch,
        "samples": progress.position if running and progress else 0,
    }
    return state | sampler.details()


def restore_keyed(state: dict[str, Any], sampler: KeyedSampler, fingerprint: str) -> None:
    """Makes the sampler's next epoch the one that was saved, from the saved place on.

    Raises:
        ValueError: the state is none of this loader; the message says what differs.
    """
    if "sampler" in state:
        raise ValueError("the state was saved without seed=: give none here, or start anew")
    _check(state, _KEYED, fingerprint)
    order = sampler.order if sampler.shuffle else "sequential"
    _same("seed", state["seed"], sampler.seed)
    _same("order", state["order"], order)
    details = sampler.details()
    if not details.keys() <= state.keys():
        raise ValueError(f"the state is damaged: {state!r}")
    if "weights" in details:
        _same("fingerprint of the weights", state["weights"], details["weights"])
    if state["samples"] > sampler.positions:
        raise ValueError(
            f"the state has {state['samples']} samples of an epoch, which has only "
            f"{sampler.positions} here: it is damaged, or num_samples was another"
        )
    if order == "block":
        sampler.block_rows, sampler.window_blocks = state["block_rows"], state["window_blocks"]
    sampler.restore(state["epoch"], state["samples"])


# --- torch's orders ----------------------------------------------------------------------------


def torch_state(
    index_sampler: Any,
    mark: Bookmark,
    fingerprint: str,
    *,
    base_seed_drawn: bool,
    generator: torch.Generator | None,
    is_random: bool,
) -> dict[str, Any]:
    """The state of a loader whose order comes from any other sampler; always with the same keys.

    Args:
        index_sampler: Of the loader.
        mark: Of the loader.
        fingerprint: Of its dataset.
        base_seed_drawn: torch has drawn the seed of the workers for the next epoch already.
        generator: It is drawn from; None: torch's default one.
        is_random: Transforms are keyed by it.
    """
    sampler, progress = bottom(index_sampler), mark.progress
    state: dict[str, Any] = {
        "version": VERSION,
        "fingerprint": fingerprint,
        "sampler": type(sampler).__name__,
        "epoch": mark.next_epoch,
        "begun": False,
    }
    state |= dict.fromkeys(_TORCH_OPTIONAL)
    if progress is not None and not progress.finished:
        state |= {"epoch": progress.epoch, "begun": True}
        state["batches" if progress.end is None else "samples"] = progress.position
        if progress.base_seed is not None:
            state["base_seed"] = progress.base_seed
        return state | _encoded(progress.draw)
    if base_seed_drawn:
        state["base_seed_drawn"] = True
    if is_random:
        state["base_seed"] = mark.base_seed if base_seed_drawn else _foreseen_seed(generator)
    draw = sampler_draw(index_sampler)
    own = own_generator(sampler)
    if own is not None:
        draw["generator"] = own.get_state()
    due = not base_seed_drawn and generator is None
    return state | _encoded(draw | foreseen_draw(sampler, due))


def _foreseen_seed(generator: torch.Generator | None) -> int:
    copied = torch.Generator()
    copied.set_state((generator or torch.default_generator).get_state())
    return draw_seed(copied)


def check_torch(state: dict[str, Any], index_sampler: Any, fingerprint: str) -> None:
    """Raises ValueError, with what differs, unless the state fits a loader with this sampler."""
    state = _given(state)
    if "seed" in state and "sampler" not in state:
        raise ValueError(f"the state was saved with seed={state['seed']!r}: give it here, too")
    _check(state, _TORCH, fingerprint)
    sampler = bottom(index_sampler)
    _same("sampler", state["sampler"], type(sampler).__name__)
    if "world" in state:
        _same("world size", state["world"], getattr(sampler, "num_replicas", None))
    counted = "samples" in state or "batches" in state
    drawn = type(state.get("seed", 0)) is int and type(state.get("generator", "")) is str
    base_seed = state.get("base_seed", 0)
    drawn = drawn and type(base_seed) is int and 0 <= base_seed < 2**64
    if type(state["begun"]) is not bool or (state["begun"] and not counted) or not drawn:
        raise ValueError(f"the state is damaged: {state!r}")


def prepare_sampler(mark: Bookmark, index_sampler: Any) -> None:
    """Puts sampler and generator where the loaded state has them, before they are iterated."""
    if mark.loaded is None:
        return
    sampler, saved = bottom(index_sampler), _decoded(mark.loaded)
    if mark.resumes:  # else what the user has set since then counts
        set_sampler_epoch(index_sampler, saved)
    if "sampler_state" in saved:
        for candidate in (index_sampler, sampler):
            if _is_stateful(candidate):
                candidate.load_state_dict(copy.deepcopy(saved["sampler_state"]))
                break
    own = own_generator(sampler)
    if own is not None and "generator" in saved:
        own.set_state(saved["generator"])


def set_sampler_epoch(index_sampler: Any, saved: Draw | None) -> None:
    """Restores the epoch of a sampler that has one, such as DistributedSampler."""
    sampler, epoch = bottom(index_sampler), (saved or {}).get("sampler_epoch")
    if epoch is not None and hasattr(sampler, "set_epoch"):
        sampler.set_epoch(epoch)


def sampler_draw(index_sampler: Any) -> Draw:
    """What the sampler itself says about the order that it will give next."""
    sampler, draw = bottom(index_sampler), Draw()
    if isinstance(sampler, KeyedSampler):  # it moves on by itself
        draw["sampler_epoch"] = sampler.next_epoch
    elif hasattr(sampler, "set_epoch") and isinstance(getattr(sampler, "epoch", None), int):
        draw["sampler_epoch"] = sampler.epoch
    if isinstance(getattr(sampler, "num_replicas", None), int):
        draw["world"] = sampler.num_replicas
    for candidate in (index_sampler, sampler):
        if _is_stateful(candidate):
            draw["sampler_state"] = copy.deepcopy(candidate.state_dict())
            break
    return draw


def bottom(index_sampler: Any) -> Any:
    """The sampler under a batch sampler, if it has one."""
    below = getattr(index_sampler, "sampler", None)
    return index_sampler if below is None else below


def own_generator(sampler: Any) -> torch.Generator | None:
    """The generator that was given to a sampler, if it is one of torch's."""
    own = getattr(sampler, "generator", None)
    return own if isinstance(own, torch.Generator) else None


def _is_stateful(sampler: Any) -> bool:
    # After an epoch torchdata's samplers say "at its end", and resume there: with nothing. The
    # loader counts as well as they do.
    if any(kind.__module__.startswith("torchdata.") for kind in type(sampler).__mro__):
        return False
    return hasattr(sampler, "state_dict") and hasattr(sampler, "load_state_dict")


def _encoded(draw: Draw) -> dict[str, Any]:
    made = copy.deepcopy({k: v for k, v in draw.items() if k != "generator"})
    if "generator" in draw:
        made["generator"] = base64.b64encode(draw["generator"].numpy().tobytes()).decode()
    return made


def _given(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if value is not None}


def _decoded(state: dict[str, Any]) -> Draw:
    state = _given(state)
    draw: Draw = {k: state[k] for k in ("seed", "sampler_epoch", "sampler_state") if k in state}
    if "generator" in state:
        raw = bytearray(base64.b64decode(state["generator"]))
        draw["generator"] = torch.frombuffer(raw, dtype=torch.uint8)
    return draw


def own_copy(state_dict: Any) -> dict[str, Any]:
    """The state that somebody gives to `load_state_dict`.

    Raises:
        TypeError: it is no dict.
    """
    if not isinstance(state_dict, Mapping):
        raise TypeError(
            f"a state is a dict as state_dict() returns it, not of type {type(state_dict).__name__}"
        )
    return copy.deepcopy(dict(state_dict))


def _check(state: dict[str, Any], keys: tuple[str, ...], fingerprint: str) -> None:
    if state.get("version", VERSION) != VERSION:
        raise ValueError(f"the state is of version {state['version']}; version {VERSION} is read")
    missing = [key for key in (*keys, "version", "fingerprint") if key not in state]
    if missing:
        raise ValueError(f"the state has no {missing[0]!r}: it is not of a FastLoader")
    known = {*keys, "version", "fingerprint", *_OPTIONAL}
    for key in state:
        # Wrappers add keys of their own, such as Accelerate's `_iterator_finished`.
        if key not in known and not str(key).startswith("_"):
            raise ValueError(f"the state has {key!r:.100}, which is not of a FastLoader")
    for key in _COUNTS:
        if key in state and (type(state[key]) is not int or not 0 <= state[key] < _LARGEST_COUNT):
            raise ValueError(f"the state is damaged: {key!r} is {state[key]!r:.100}")
    _same("fingerprint of the dataset", state["fingerprint"], fingerprint)


def _same(what: str, saved: Any, here: Any) -> None:
    if saved != here:
        raise ValueError(f"the state was saved with another {what}: {saved!r}, here it is {here!r}")
