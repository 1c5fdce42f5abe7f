"""Where a loader is in its data, and how that is saved and restored."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch

from fastload.order.keyed_sampler import KeyedSampler
from fastload.order.position import Bookmark, decoded_draw, encoded_draw, without_none
from fastload.order.samplers import (
    bottom,
    is_stateful,
    own_generator,
    sampler_draw,
    set_sampler_epoch,
)
from fastload.order.torch_samplers import draw_seed, foreseen_draw

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
        return state | encoded_draw(progress.draw)
    if base_seed_drawn:
        state["base_seed_drawn"] = True
    if is_random:
        state["base_seed"] = mark.base_seed if base_seed_drawn else _foreseen_seed(generator)
    draw = sampler_draw(index_sampler)
    own = own_generator(sampler)
    if own is not None:
        draw["generator"] = own.get_state()
    due = not base_seed_drawn and generator is None
    return state | encoded_draw(draw | foreseen_draw(sampler, due))


def _foreseen_seed(generator: torch.Generator | None) -> int:
    copied = torch.Generator()
    copied.set_state((generator or torch.default_generator).get_state())
    return draw_seed(copied)


def check_torch(state: dict[str, Any], index_sampler: Any, fingerprint: str) -> None:
    """Raises ValueError, with what differs, unless the state fits a loader with this sampler."""
    state = without_none(state)
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
    sampler, saved = bottom(index_sampler), decoded_draw(mark.loaded)
    if mark.resumes:  # else what the user has set since then counts
        set_sampler_epoch(index_sampler, saved)
    if "sampler_state" in saved:
        for candidate in (index_sampler, sampler):
            if is_stateful(candidate):
                candidate.load_state_dict(copy.deepcopy(saved["sampler_state"]))
                break
    own = own_generator(sampler)
    if own is not None and "generator" in saved:
        own.set_state(saved["generator"])


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
