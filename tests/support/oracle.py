"""The slow truth that fast code is compared with: plain loops over Python integers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset

from fastload import ArrayDataset

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def _mix(x: int) -> int:
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def _key(seed: int, epoch: int, stream: int) -> int:
    key = _mix((seed + GOLDEN) & MASK)
    key = _mix(key ^ _mix((epoch + 2 * GOLDEN) & MASK))
    return _mix(key ^ _mix((stream + 3 * GOLDEN) & MASK))


def permuted(position: int, n: int, seed: int, epoch: int, stream: int = 0) -> int:
    """Index at a position of the keyed permutation of [0, n), a Feistel network."""
    bits = (n - 1).bit_length()
    left_bits = bits // 2
    right_bits = bits - left_bits
    key = _key(seed, epoch, stream)
    count = 24 if bits <= 12 else 6
    rounds = [_mix((key + GOLDEN * (i + 1)) & MASK) for i in range(count)]

    def scramble(i: int, half: int, out_bits: int) -> int:
        x = ((half ^ rounds[i]) * GOLDEN) & MASK
        x = ((x ^ (x >> 32)) * 0xD6E8FEB86659FD93) & MASK
        return x >> (64 - out_bits) if out_bits else 0

    value = position
    while True:
        left, right = value >> right_bits, value & ((1 << right_bits) - 1)
        for i in range(0, count, 2):
            left ^= scramble(i, right, left_bits)
            right ^= scramble(i + 1, left, right_bits)
        value = (left << right_bits) | right
        if value < n:
            return value


def global_order(rows: int, seed: int, epoch: int, order: str) -> list[int]:
    """All indices of an epoch in the order in which the ranks together take them."""
    if order == "sequential":
        return list(range(rows))
    return [permuted(position, rows, seed, epoch) for position in range(rows)]


def rank_batches(
    order: list[int], batch: int, rank: int, world: int, drop_last: bool, first: int = 0
) -> Iterator[list[int]]:
    """What one rank gets: its contiguous part of each step's `batch * world` positions."""
    step = batch * world
    for start in range(first, len(order), step):
        rest = order[start : start + step]
        if len(rest) < step:
            if drop_last:
                return
            share = -(-len(rest) // world)
            endless = rest + order * (share * world // max(1, len(order)) + 1)
            yield endless[rank * share : (rank + 1) * share]
            return
        yield rest[rank * batch : (rank + 1) * batch]


def repeat_draw(index: int, before: int) -> int:
    """What is drawn by for an index that came so often before in an epoch."""
    if before == 0:
        return index
    return _mix(_mix((index + GOLDEN) & MASK) ^ _mix((before + 2 * GOLDEN) & MASK)) | 1 << 63


def cropped_and_flipped(
    seed: int, epoch: int, draw: int, tops: int, lefts: int
) -> tuple[int, int, bool]:
    """Top and left of a window, and whether it is mirrored: random transforms 0 and 1 of a field.

    Args:
        seed: Of the loader.
        epoch: Of the loader.
        draw: Of the sample: its index, or what stands for it.
        tops: How many there are to choose from.
        lefts: The same.
    """

    def bits(transform: int, number: int) -> int:
        key = _key(seed, epoch, MASK - transform)
        return _mix((_mix((key + GOLDEN * (draw + 1)) & MASK) + GOLDEN * (number + 1)) & MASK)

    flip = (bits(1, 0) >> 11) * 2.0**-53 < 0.5
    return bits(0, 0) * tops >> 64, bits(0, 1) * lefts >> 64, flip


def random_states(generator: torch.Generator | None) -> tuple[str, str]:
    """Digests of the default generator and of another one."""

    def digest(state: torch.Tensor) -> str:
        return hashlib.sha256(state.numpy().tobytes()).hexdigest()[:16]

    return digest(torch.get_rng_state()), digest(generator.get_state()) if generator else ""


def trace(loader: Any, generator: torch.Generator | None, stops: list[int | None]) -> list[Any]:
    """Everything that can be seen of a loader: batches and random states after each step.

    Args:
        loader: Gives tensors.
        generator: Its generator.
        stops: For each epoch, after how many batches it is left; None: at its end.
    """
    seen: list[Any] = []
    for stop in stops:
        batches = iter(loader)
        seen.append(("iter", random_states(generator)))
        taken = 0
        while taken != stop:
            try:
                batch = next(batches)
            except StopIteration:
                seen.append(("end", random_states(generator)))
                break
            taken += 1
            seen.append((batch.tolist(), random_states(generator)))
    return seen


# --- Small things to load ----------------------------------------------------------------------


class Stream(IterableDataset[int]):
    """0 ... 6, without a length."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(7))


def numbers(n: int) -> ArrayDataset:
    """0 ... n - 1."""
    return ArrayDataset(np.arange(n))


def values(loader: Any) -> list[Any]:
    """The batches of a loader of tensors as lists."""
    return [batch.tolist() for batch in loader]


def flat(batches: list[list[Any]]) -> list[Any]:
    """The members of all lists."""
    return [member for batch in batches for member in batch]


def crc32c(data: bytes) -> int:
    """CRC-32C bit by bit, straight from its definition."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF
