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

_RAMP_SHARE = 0.2  # share of the seconds for warm-up: workers start, buffers are allocated
_CHUNK_SECONDS = 0.01  # batches between two reads of the clock
_PACED_BATCHES = 7
_PACED_SECONDS = 0.25  # at most, for the loader to get ahead of a paced consumer


@dataclass(frozen=True)
class Speed:
    """Speed of one loader in one round.

    Attributes:
        samples_per_s: Steady-state speed with an idle consumer.
        batch_us: Time per batch in the steady state.
        first_batch_ms: Time from the construction of the loader to its first batch.
        next_us: Median time of `next()` for a consumer that is slower than the loader.
    """

    samples_per_s: float
    batch_us: float
    first_batch_ms: float
    next_us: float


def drive(make_loader: Callable[[], Iterable[Any]], batch_size: int, seconds: float) -> Speed:
    """Measures a new loader, over as many epochs as needed.

    Args:
        make_loader: Constructs the loader; each batch must have `batch_size` samples.
        batch_size: Samples per batch.
        seconds: Duration of the measurement at full speed.
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
    """Returns samples per second of an epoch, or of its first seconds."""
    count = 0
    start = time.perf_counter()
    for count, _ in enumerate(loader, 1):  # noqa: B007
        if time.perf_counter() - start >= seconds:
            break
    return count * batch_size / (time.perf_counter() - start)


def _consume(batches: Iterable[Any], chunk: int, seconds: float) -> tuple[int, float]:
    """Consumes batches in chunks for some seconds; returns their number and the time."""
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
    """Runs every contender once per round; returns the results by round."""
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
    """Returns the median of the ratios of the rounds."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def summary(rounds: Iterable[Speed], row_bytes: int) -> dict[str, float]:
    """Returns medians over the rounds, with four digits."""
    measured = list(rounds)
    medians = {
        name: statistics.median(getattr(speed, name) for speed in measured)
        for name in Speed.__dataclass_fields__
    }
    medians["bytes_per_s"] = medians["samples_per_s"] * row_bytes
    return {name: digits(value) for name, value in medians.items()}


def digits(value: float) -> float:
    """Returns the value rounded to four significant digits."""
    return float(f"{value:.4g}")
