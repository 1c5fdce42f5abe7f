"""How a loader is measured.

One consumer takes batches and drops them at once. Contenders take turns, several rounds long, and
ratios are taken within a round: what else happens on a machine hits both sides of a ratio.
"""

from __future__ import annotations

import itertools
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

_RAMP_SHARE = 0.2  # of the seconds, before counting starts: workers start, first buffers are made
_CHUNK_SECONDS = 0.01  # between two looks at the clock
_PACED_BATCHES = 7
_PACED_SECONDS = 0.25  # at most, for the loader to get ahead of a paced consumer


@dataclass(frozen=True)
class Speed:
    """What one loader did in one round.

    Attributes:
        samples_per_s: In the steady state, with a consumer that does nothing else.
        batch_us: Time of a batch then.
        first_batch_ms: From the construction of the loader to its first batch.
        next_us: What `next()` costs a consumer that is slower than the loader, by the median.
    """

    samples_per_s: float
    batch_us: float
    first_batch_ms: float
    next_us: float


def drive(make_loader: Callable[[], Iterable[Any]], batch_size: int, seconds: float) -> Speed:
    """Measures a fresh loader, over as many epochs as it takes.

    Args:
        make_loader: Constructs it; every batch must hold `batch_size` samples.
        batch_size: Samples of a batch.
        seconds: Length of the measurement at full speed.
    """
    start = time.perf_counter()
    loader = make_loader()
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    next(batches)
    first = time.perf_counter() - start
    ramp_batches, ramp = _consume(batches, 1, seconds * _RAMP_SHARE)
    chunk = max(1, int(_CHUNK_SECONDS * ramp_batches / ramp))
    count, elapsed = _consume(batches, chunk, seconds)
    per_batch = elapsed / count
    paced = []
    for _ in range(_PACED_BATCHES):
        time.sleep(min(_PACED_SECONDS, max(0.002, 4 * per_batch)))
        before = time.perf_counter()
        next(batches)
        paced.append(time.perf_counter() - before)
    return Speed(
        samples_per_s=batch_size / per_batch,
        batch_us=1e6 * per_batch,
        first_batch_ms=1e3 * first,
        next_us=1e6 * statistics.median(paced),
    )


def drive_once(loader: Iterable[Any], batch_size: int, seconds: float) -> float:
    """Samples per second from the start of an epoch to its end, or for so many seconds."""
    count = 0
    start = time.perf_counter()
    for count, _ in enumerate(loader, 1):  # noqa: B007
        if time.perf_counter() - start >= seconds:
            break
    return count * batch_size / (time.perf_counter() - start)


def _consume(batches: Iterable[Any], chunk: int, seconds: float) -> tuple[int, float]:
    """Takes whole chunks of batches for so long; returns how many, and the time it took."""
    count = 0
    start = time.perf_counter()
    while True:
        for _ in itertools.islice(batches, chunk):
            pass
        count += chunk
        elapsed = time.perf_counter() - start
        if elapsed >= seconds:
            return count, elapsed


def take_turns(
    contenders: Mapping[str, Callable[[], Any]],
    rounds: int,
    announce: Callable[[str], None] = lambda _: None,
) -> dict[str, list[Any]]:
    """Runs every contender once a round; returns what each returned, by round."""
    results: dict[str, list[Any]] = {name: [] for name in contenders}
    with warnings.catch_warnings():
        # More workers than cores is one of the counts that people try.
        warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
        for turn in range(rounds):
            for name, run in contenders.items():
                announce(f"{name}, round {turn + 1} of {rounds}")
                results[name].append(run())
    return results


def median_ratio(over: Iterable[float], under: Iterable[float]) -> float:
    """The median of the ratios of each round."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def summary(rounds: Iterable[Speed], row_bytes: int) -> dict[str, float]:
    """Medians over the rounds, with four digits."""
    measured = list(rounds)
    medians = {
        name: statistics.median(getattr(speed, name) for speed in measured)
        for name in Speed.__dataclass_fields__
    }
    medians["bytes_per_s"] = medians["samples_per_s"] * row_bytes
    return {name: digits(value) for name, value in medians.items()}


def digits(value: float) -> float:
    """The value with the four digits that a measurement is good for."""
    return float(f"{value:.4g}")
