"""Derives a verdict with bounds and a confidence from the steps of each rank.

All functions are pure. A share of a step, or a gain, is a range whose bounds are the minimum and
the maximum that the measured times allow.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

from fastload.tools.doctor.advice import advise
from fastload.tools.doctor.phases import PHASES, Probe, Step
from fastload.tools.measured import Range, mean_range, number

SCHEMA = 2
BOUND = 1.05  # minimum gain of a bottleneck
BUSY = 0.15  # share of CPU time of other processes from which times are unreliable
_WIDE = 1.2  # maximum quotient of the ends of a range that decides
_MAX_GAIN = 100.0  # maximum printed gain: above it the remaining step is too short to be measured
_MAX_SHARE = 0.999  # of a step
_FEW = 3  # minimum steps of a phase
_ENOUGH = 20  # steps of a phase


def figures(probe: Probe, rank: int, loader: dict[str, Any]) -> dict[str, Any]:
    """Returns the figures of one rank in JSON types; times in milliseconds."""
    phases = {
        name: summary(probe.taken[name], max(1, loader.get("num_workers", 1)))
        for name in PHASES
        if len(probe.taken.get(name, ())) >= min(_FEW, probe.steps)
    }
    begin = min((steps[0].start_s for steps in probe.taken.values() if steps), default=0.0)
    timeline = [
        [name, *(round(1e3 * s, 4) for s in (step.start_s - begin, step.wait_s, step.step_s))]
        for name, steps in probe.taken.items()
        for step in steps
    ]
    return {
        "rank": rank,
        "device": probe.device.type,
        "phases": phases,
        "loads": probe.loads,
        "loading": probe.loading,
        "epochs": probe.epochs,
        "batch_bytes": probe.batch_bytes,
        "nvml_utilisation_percent": probe.utilisation.percent,
        "loader": loader,
        "notes": list(probe.notes),
        "timeline": timeline,
    }


def summary(taken: Sequence[Step], workers: int = 1) -> dict[str, Any]:
    """Returns means with 95 % intervals: steps, their waiting time, and the rest."""
    calm = [step for step in taken if not step.disturbed]
    steps = calm if 2 * len(calm) >= len(taken) else list(taken)
    found: dict[str, Any] = {"steps": len(steps)}
    for name, values in (
        ("step", [1e3 * step.step_s for step in steps]),
        ("wait", [1e3 * step.wait_s for step in steps]),
        ("own", [1e3 * (step.step_s - step.wait_s) for step in steps]),
    ):
        spread = mean_range(values, workers).between(min(values), max(values))
        found |= {f"{name}_ms": statistics.fmean(values), f"{name}_range_ms": list(spread)}
    return found


def diagnose(ranks: Sequence[dict[str, Any]], machine: dict[str, Any]) -> dict[str, Any]:
    """Returns the verdict over all ranks, in JSON types.

    Args:
        ranks: The `figures` of each rank.
        machine: See `machine.facts`.

    Raises:
        RuntimeError: the script ended before enough real batches were loaded.
    """
    if not ranks or any("real" not in rank["phases"] for rank in ranks):
        raise RuntimeError(
            "the script ended before its training loader had given enough batches to measure: "
            "fewer --steps, or more data, are needed"
        )
    step_ms = max(1e-9, statistics.fmean(r["phases"]["real"]["step_ms"] for r in ranks))
    shares, best = _shares(ranks)
    gains = {name: _gain(share) for name, share in shares.items()}
    worst = max(best, key=lambda name: best[name])
    bound = worst if 1 / (1 - best[worst]) >= BOUND else "compute"
    undecided = [name for name, gain in gains.items() if _is_undecided(gain)]
    if worst in undecided or (bound == "compute" and undecided):
        bound = "unclear"
    rest = Range(1 - sum(s.high for s in shares.values()), 1 - sum(s.low for s in shares.values()))
    shares["compute"] = rest.between(0.0, 1.0)
    report: dict[str, Any] = {
        "schema": SCHEMA,
        "verdict": bound if bound == "unclear" else f"{bound}-bound",
        "step_ms": step_ms,
        "shares": {name: _json(share) for name, share in shares.items()},
        "perfect_loader_gain": _json(gains["data"]),
        "slowest_rank": _slowest(ranks, bound),
        "machine": machine,
        "ranks": list(ranks),
        "notes": sorted({note for rank in ranks for note in rank["notes"]}),
    }
    if any(len(rank["phases"]) == 1 for rank in ranks):
        report["notes"].append(
            "the script ended early: no cached batches were tried, and the share of data is the "
            "waiting alone"
        )
    report["confidence"] = _confidence(report, undecided)
    report["sentence"] = _sentence(report, gains, shares)
    report["advice"] = advise(report)
    return report


def _json(bounds: Range) -> dict[str, float]:
    return {name: float(f"{value:.3g}") for name, value in bounds._asdict().items()}


# --- Bounds -------------------------------------------------------------------------------------


def _shares(ranks: Sequence[dict[str, Any]]) -> tuple[dict[str, Range], dict[str, float]]:
    """Returns the share of a step per cost: bounds, and the best estimate.

    Loading costs as much as on the slowest rank, since the other ranks wait for it.
    """
    inputs = [_input_share(rank, ranks) for rank in ranks]
    best, data = max(inputs)
    shares = {
        "data": data,
        "transfer": _mean_share(ranks, _transfer_ms),
        "synchronisation": _mean_share(ranks, _synchronisation_ms),
    }
    best_of = {name: (share.low + share.high) / 2 for name, share in shares.items()}
    best_of["data"] = best
    return (
        {name: share.between(0.0, _MAX_SHARE) for name, share in shares.items()},
        {name: min(max(0.0, share), _MAX_SHARE) for name, share in best_of.items()},
    )


def _mean_share(
    ranks: Sequence[dict[str, Any]], cost_ms: Callable[[dict[str, Any]], Range]
) -> Range:
    step = max(1e-9, statistics.fmean(rank["phases"]["real"]["step_ms"] for rank in ranks))
    costs = zip(*map(cost_ms, ranks), strict=True)
    return Range(*(statistics.fmean(bound) / step for bound in costs))


def _input_share(rank: dict[str, Any], ranks: Sequence[dict[str, Any]]) -> tuple[float, Range]:
    """Returns the share of a step that loading costs one rank: best estimate and bounds.

    A step consists of waiting and the rest, `own`. Waiting is lost time. Further costs of loading
    (workers that use CPUs of the step, ranks that wait for data of this rank) are the excess of
    `own` over its value with cached batches.
    """
    phases = rank["phases"]
    real = phases["real"]
    step, wait = max(1e-9, real["step_ms"]), real["wait_ms"]
    faster = phases.get("cached") or phases.get("device")
    if faster is not None and rank["device"] != "cpu":
        # The device may compute while the host waits, but never idles for data if no host waits.
        longest = max(other["phases"]["real"]["wait_ms"] for other in ranks)
        most = max(0.0, min(2 * longest, step - faster["step_range_ms"][0]))
        lost = _excess(real, faster, "step").between(0.0, most)
        best = min(max(0.0, step - faster["step_ms"]), most)
        return best / step, Range(lost.low / step, lost.high / step)
    shortest, least, best_excess, excess = real["own_range_ms"][0], 0.0, 0.0, Range(0.0, 0.0)
    if faster is not None:
        shortest = min(shortest, faster["own_range_ms"][0])
        excess = _excess(real, faster, "own")
        # It must exceed the noise; on a busy machine other processes may cause it.
        if excess.low > 0 and not is_busy(rank):
            least, best_excess = excess.low, (excess.low + excess.high) / 2
    waits = Range(*real["wait_range_ms"])
    most_share = 1 - min(shortest, step) / step  # no loader is faster than cached batches

    def share(wait_ms: float, excess_ms: float) -> float:
        return float((wait_ms + excess_ms) / max(1e-9, step - wait + wait_ms))

    bounds = Range(share(waits.low, least), share(waits.high, max(0.0, excess.high)))
    return min(share(wait, best_excess), most_share), bounds.between(0.0, most_share)


def _excess(longer: dict[str, Any], shorter: dict[str, Any], name: str) -> Range:
    """Returns the difference of two means, with both errors."""
    error = math.hypot(
        *((p[f"{name}_range_ms"][1] - p[f"{name}_range_ms"][0]) / 2 for p in (longer, shorter))
    )
    excess = longer[f"{name}_ms"] - shorter[f"{name}_ms"]
    return Range(excess - error, excess + error)


def _transfer_ms(rank: dict[str, Any]) -> Range:
    cached, device = rank["phases"].get("cached"), rank["phases"].get("device")
    return _excess(cached, device, "step") if cached and device else Range(0.0, 0.0)


def _synchronisation_ms(rank: dict[str, Any]) -> Range:
    """Returns the time per step for exchanging gradients and waiting for the exchange."""
    phases = rank["phases"]
    if "alone" not in phases:
        return Range(0.0, 0.0)
    return _excess(phases.get("device") or phases["cached"], phases["alone"], "own")


def _gain(share: Range) -> Range:
    """Returns the speed-up of a step without a share of it."""
    return Range(*(1 / (1 - lost) for lost in share))


def _is_undecided(gain: Range) -> bool:
    return gain.low < BOUND <= gain.high and gain.high > _WIDE * gain.low


def is_busy(rank: dict[str, Any]) -> bool:
    """True if other processes, or the cgroup's quota, took CPU time from the steps."""
    return any(
        (load["others"] or 0) >= BUSY or load["throttled"] for load in rank["loads"].values()
    )


def _slowest(ranks: Sequence[dict[str, Any]], bound: str) -> int | None:
    """Returns the rank for which the others wait, if one stands out."""
    phase, figure = ("real", "wait_ms") if bound == "data" else ("alone", "own_ms")
    times = {r["rank"]: r["phases"][phase][figure] for r in ranks if phase in r["phases"]}
    if len(times) < 2:
        return None
    slowest = max(times, key=lambda rank: times[rank])
    others = [time for rank, time in times.items() if rank != slowest]
    return slowest if times[slowest] > 1.5 * statistics.median(others) else None


# --- Words --------------------------------------------------------------------------------------


def _confidence(report: dict[str, Any], undecided: Sequence[str]) -> dict[str, Any]:
    """Returns the confidence ('high', 'medium', 'low'), and the reason if not high."""
    loads = [load for rank in report["ranks"] for load in rank["loads"].values()]
    others = [load["others"] for load in loads if load["others"] is not None]
    weak: list[str] = []
    strong: list[str] = []
    if others and max(others) >= BUSY:
        average = max(load["load_average"] for load in loads)
        used = Range(min(others), max(others)).percent()
        text = f"other processes used {used} of the CPUs (load average {number(average, 2)})"
        (strong if max(others) >= 2 * BUSY else weak).append(text)
    if not others:
        weak.append("how busy the machine was is not known")
    if any(load["throttled"] for load in loads):
        strong.append("the cgroup's quota stopped the process")
    steps = min(phase["steps"] for r in report["ranks"] for phase in r["phases"].values())
    if steps < _ENOUGH:
        weak.append(f"only {steps} steps were measured")
    if any(len(rank["phases"]) == 1 for rank in report["ranks"]):
        weak.append("the script ended early")
    if undecided:
        strong.append(f"the times of steps vary too much to tell ({', '.join(undecided)})")
    level = "low" if strong else "medium" if weak else "high"
    return {"level": level, "reasons": strong + weak}


def _sentence(report: dict[str, Any], gains: dict[str, Range], shares: dict[str, Range]) -> str:
    verdict, slowest = report["verdict"], report["slowest_rank"]
    who = "" if slowest is None else f" All wait for rank {slowest}."
    if verdict == "data-bound":
        return (
            f"data-bound: {shares['data'].percent()} of each step is lost to loading. "
            f"A perfect loader would make it {times(gains['data'])} as fast.{who}"
        )
    if verdict == "transfer-bound":
        return f"transfer-bound: {shares['transfer'].percent()} of each step copies batches."
    if verdict == "synchronisation-bound":
        return (
            f"synchronisation-bound: in {shares['synchronisation'].percent()} of each step ranks "
            f"exchange gradients or wait to do so.{who}"
        )
    if verdict == "unclear":
        return (
            f"unclear: loading costs {shares['data'].percent()} of each step. Measure again on a "
            "machine that does nothing else, or with more --steps."
        )
    return (
        "compute-bound: loading is hidden behind the step. A perfect loader would save at most "
        f"{100 * shares['data'].high:.0f} % of it."
    )


def times(gain: Range) -> str:
    """Formats a gain, without digits that the measurement does not support."""
    if gain.low >= _MAX_GAIN:
        return f"more than {_MAX_GAIN:.0f} times"
    if gain.high > _MAX_GAIN:
        return f"{number(gain.low, 2)} to more than {_MAX_GAIN:.0f} times"
    return f"{gain.text()} times"
