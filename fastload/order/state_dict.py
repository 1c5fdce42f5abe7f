"""Saves and restores the position of a loader as a state dict."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch

from fastload.order.keyed_sampler import KeyedSampler
from fastload.order.position import Epochs, decoded_key, encoded_key, without_none
from fastload.order.samplers import SamplerView
from fastload.order.torch_samplers import draw_seed, predicted_key

VERSION = 1
_SEEDED = ("seed", "order", "epoch", "samples")
_TORCH = ("sampler", "epoch", "begun")
# A state has all of these keys, with None for those without a value: torch.distributed.checkpoint
# loads only the keys that the new loader's state has.
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
_MAX_COUNT = 2**62


# --- Seeded order ------------------------------------------------------------------------------


def seeded_state(sampler: KeyedSampler, epochs: Epochs, fingerprint: str) -> dict[str, Any]:
    """Returns the state of a loader with a seeded order; equal on all ranks."""
    running = epochs.running
    state = {
        "version": VERSION,
        "fingerprint": fingerprint,
        "seed": sampler.seed,
        "order": sampler.order if sampler.shuffle else "sequential",
        "epoch": running.epoch if running else sampler.next_epoch,
        "samples": running.offset if running else 0,
    }
    return state | sampler.details()


def restore_seeded(state: dict[str, Any], sampler: KeyedSampler, fingerprint: str) -> None:
    """Makes the saved epoch the sampler's next one, from the saved position on.

    Raises:
        ValueError: the state does not fit this loader; the message names the difference.
    """
    if "sampler" in state:
        raise ValueError(
            "the state was saved without seed=: remove seed= from this loader, or do not load this "
            "state"
        )
    _check(state, _SEEDED, fingerprint)
    order = sampler.order if sampler.shuffle else "sequential"
    _check_same("seed", state["seed"], sampler.seed)
    _check_same("order", state["order"], order)
    details = sampler.details()
    if not details.keys() <= state.keys():
        raise ValueError(f"the state is damaged: {state!r}")
    if "weights" in details:
        _check_same("fingerprint of the weights", state["weights"], details["weights"])
    if state["samples"] > sampler.positions:
        raise ValueError(
            f"the state has {state['samples']} samples of an epoch, which has only "
            f"{sampler.positions} here: it is damaged, or num_samples was another"
        )
    if order == "block":
        sampler.block_rows, sampler.window_blocks = state["block_rows"], state["window_blocks"]
    sampler.restore(state["epoch"], state["samples"])


# --- Orders of other samplers ------------------------------------------------------------------


def torch_state(
    samplers: SamplerView,
    epochs: Epochs,
    fingerprint: str,
    *,
    base_seed_drawn: bool,
    generator: torch.Generator | None,
    is_random: bool,
) -> dict[str, Any]:
    """Returns the state of a loader with any other sampler; it always has the same keys.

    Args:
        samplers: Samplers of the loader.
        epochs: Epochs of the loader.
        fingerprint: Fingerprint of its dataset.
        base_seed_drawn: True if torch has drawn the workers' seed of the next epoch already.
        generator: Generator that the seed is drawn from; None: torch's default one.
        is_random: True if random transforms depend on that seed.
    """
    running = epochs.running
    state: dict[str, Any] = {
        "version": VERSION,
        "fingerprint": fingerprint,
        "sampler": type(samplers.base).__name__,
        "epoch": epochs.next_epoch,
        "begun": False,
    }
    state |= dict.fromkeys(_TORCH_OPTIONAL)
    if running is not None:
        state |= {"epoch": running.epoch, "begun": True, running.unit: running.offset}
        if running.base_seed is not None:
            state["base_seed"] = running.base_seed
        return state | encoded_key(running.key)
    if base_seed_drawn:
        state["base_seed_drawn"] = True
    if is_random:
        state["base_seed"] = epochs.base_seed if base_seed_drawn else _predicted_seed(generator)
    key = samplers.order_key()
    if samplers.generator is not None:
        key["generator"] = samplers.generator.get_state()
    due = not base_seed_drawn and generator is None
    return state | encoded_key(key | predicted_key(samplers.base, due))


def _predicted_seed(generator: torch.Generator | None) -> int:
    copied = torch.Generator()
    copied.set_state((generator or torch.default_generator).get_state())
    return draw_seed(copied)


def check_torch(state: dict[str, Any], samplers: SamplerView, fingerprint: str) -> None:
    """Raises ValueError, with the difference, unless the state fits a loader with this sampler."""
    state = without_none(state)
    if "seed" in state and "sampler" not in state:
        raise ValueError(f"the state was saved with seed={state['seed']!r}: give it here, too")
    _check(state, _TORCH, fingerprint)
    sampler = samplers.base
    _check_same("sampler", state["sampler"], type(sampler).__name__)
    if "world" in state:
        _check_same("world size", state["world"], getattr(sampler, "num_replicas", None))
    counted = "samples" in state or "batches" in state
    drawn = type(state.get("seed", 0)) is int and type(state.get("generator", "")) is str
    base_seed = state.get("base_seed", 0)
    drawn = drawn and type(base_seed) is int and 0 <= base_seed < 2**64
    if type(state["begun"]) is not bool or (state["begun"] and not counted) or not drawn:
        raise ValueError(f"the state is damaged: {state!r}")


def prepare_samplers(samplers: SamplerView, epochs: Epochs) -> None:
    """Restores sampler and generator from a loaded state, before they are iterated."""
    if epochs.loaded is None:
        return
    saved = decoded_key(epochs.loaded)
    if epochs.resumes:  # between epochs, a later set_epoch of the user wins
        samplers.restore_epoch(saved)
    samplers.restore_state(saved)


def own_copy(state_dict: Any) -> dict[str, Any]:
    """Returns a deep copy of the argument of `load_state_dict`.

    Raises:
        TypeError: it is not a dict.
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
        if key in state and (type(state[key]) is not int or not 0 <= state[key] < _MAX_COUNT):
            raise ValueError(f"the state is damaged: {key!r} is {state[key]!r:.100}")
    _check_same("fingerprint of the dataset", state["fingerprint"], fingerprint)


def _check_same(name: str, saved: Any, here: Any) -> None:
    if saved != here:
        raise ValueError(f"the state was saved with another {name}: {saved!r}, here it is {here!r}")
