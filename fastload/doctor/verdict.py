"""From the steps of each rank to a verdict, and what to change."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

from fastload.doctor.phases import PHASES, Probe, Step

SCHEMA = 1
BOUND = 1.05  # a gain from which on something is called the bound
_BUSY = 0.95
_STORAGE = 0.1  # of the time of all CPUs, waiting for storage
_FEW = 3  # steps of a phase that say something


def figures(probe: Probe, rank: int, loader: dict[str, Any]) -> dict[str, Any]:
    """What one rank saw, ready for JSON; times in milliseconds."""
    phases = {
        name: _summary(probe.taken[name])
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
        "load": {
            "cpu_busy": round(probe.load.busy, 3),
            "waiting_for_storage": round(probe.load.waiting_for_storage, 3),
            "throttled": probe.load.throttled,
        },
        "nvml_utilisation_percent": probe.utilisation.percent,
        "loader": loader,
        "notes": list(probe.notes),
        "timeline": timeline,
    }


def _summary(taken: Sequence[Step]) -> dict[str, float]:
    """Means, since loaders with workers come in bursts; medians beside them for comparisons."""
    calm = [step for step in taken if not step.disturbed]
    steps = calm if 2 * len(calm) >= len(taken) else list(taken)
    own = [step.step_s - step.wait_s for step in steps]
    median = statistics.median(own)
    spread = statistics.median(abs(value - median) for value in own)
    return {
        "steps": len(steps),
        "step_ms": 1e3 * statistics.fmean(step.step_s for step in steps),
        "wait_ms": 1e3 * statistics.fmean(step.wait_s for step in steps),
        "own_ms": 1e3 * statistics.fmean(own),
        "own_median_ms": 1e3 * median,
        # Of a median: 1.25 standard deviations over the root of the count.
        "own_error_ms": 1e3 * 1.25 * 1.4826 * spread / math.sqrt(len(steps)),
    }


def diagnose(ranks: Sequence[dict[str, Any]], machine: dict[str, Any]) -> dict[str, Any]:
    """The verdict over all ranks, ready for JSON.

    Args:
        ranks: The `figures` of each.
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
    parts = {
        "data": max(_input_ms(rank, ranks) for rank in ranks),
        "transfer": statistics.fmean(_transfer_ms(rank) for rank in ranks),
        "synchronisation": _synchronisation_ms(ranks),
    }
    parts = {name: min(max(0.0, part), 0.999 * step_ms) for name, part in parts.items()}
    gains = {name: step_ms / (step_ms - part) for name, part in parts.items()}
    worst = max(gains, key=lambda name: gains[name])
    bound = worst if gains[worst] >= BOUND else "compute"
    shares = {name: part / step_ms for name, part in parts.items()}
    shares["compute"] = max(0.0, 1 - sum(shares.values()))
    report: dict[str, Any] = {
        "schema": SCHEMA,
        "verdict": f"{bound}-bound",
        "step_ms": step_ms,
        "shares": shares,
        "perfect_loader_gain": gains["data"],
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
    report["sentence"] = _sentence(report)
    report["advice"] = list(_advice(report, bound))[:2]
    return report


def _input_ms(rank: dict[str, Any], ranks: Sequence[dict[str, Any]]) -> float:
    phases = rank["phases"]
    real = phases["real"]
    wait: float = real["wait_ms"]
    faster = phases.get("cached") or phases.get("device")
    if faster is None:
        return wait
    if rank["device"] == "cpu":
        # Waiting is lost for certain; what else is lost (workers that take CPUs away from the
        # step, ranks that wait for this one's data) has to stand out from the noise.
        excess: float = real["own_median_ms"] - faster["own_median_ms"]
        error = math.hypot(real["own_error_ms"], faster["own_error_ms"])
        # Never more than the means say: no loader beats the cached batches.
        lost_on_cpu = min(excess, real["own_ms"] - faster["own_ms"])
        return wait + (max(0.0, lost_on_cpu) if excess > 3 * error else 0.0)
    # The device may work on while the host waits; it cannot idle for data if no host waits.
    longest = max(other["phases"]["real"]["wait_ms"] for other in ranks)
    lost: float = min(real["step_ms"] - faster["step_ms"], 2 * longest)
    return lost


def _transfer_ms(rank: dict[str, Any]) -> float:
    cached, device = rank["phases"].get("cached"), rank["phases"].get("device")
    return cached["step_ms"] - device["step_ms"] if cached and device else 0.0


def _synchronisation_ms(ranks: Sequence[dict[str, Any]]) -> float:
    """What a step would be shorter if ranks neither exchanged gradients nor waited to do so."""
    if any("alone" not in rank["phases"] for rank in ranks):
        return 0.0
    together = [
        (rank["phases"].get("device") or rank["phases"]["cached"])["own_ms"] for rank in ranks
    ]
    alone = [rank["phases"]["alone"]["own_ms"] for rank in ranks]
    return statistics.fmean(together) - statistics.fmean(alone)


def _slowest(ranks: Sequence[dict[str, Any]], bound: str) -> int | None:
    """The rank for which the others wait, if one stands out."""
    phase, figure = ("real", "wait_ms") if bound == "data" else ("alone", "own_ms")
    times = {r["rank"]: r["phases"][phase][figure] for r in ranks if phase in r["phases"]}
    if len(times) < 2:
        return None
    slowest = max(times, key=lambda rank: times[rank])
    others = [time for rank, time in times.items() if rank != slowest]
    return slowest if times[slowest] > 1.5 * statistics.median(others) else None


def _sentence(report: dict[str, Any]) -> str:
    shares, gain = report["shares"], report["perfect_loader_gain"]
    verdict = report["verdict"]
    slowest = report["slowest_rank"]
    who = "" if slowest is None else f" All wait for rank {slowest}."
    if verdict == "data-bound":
        return (
            f"data-bound: {shares['data']:.0%} of each step is lost to loading. "
            f"A perfect loader would make it {gain:.2f} times as fast.{who}"
        )
    if verdict == "transfer-bound":
        return (
            f"transfer-bound: {shares['transfer']:.0%} of each step copies batches to the device."
        )
    if verdict == "synchronisation-bound":
        return (
            f"synchronisation-bound: in {shares['synchronisation']:.0%} of each step ranks "
            f"exchange gradients or wait to do so.{who}"
        )
    return (
        f"compute-bound: a perfect loader would make it only {gain:.2f} times as fast; "
        "loading is hidden behind the step."
    )


def _advice(report: dict[str, Any], bound: str) -> Iterator[str]:
    rank = report["ranks"][report["slowest_rank"] or 0]
    loader = rank["loader"]
    if bound == "data":
        yield from _data_advice(report, rank)
    elif bound == "transfer":
        if not loader["pin_memory"]:
            yield 'pin_memory=True, and batch.to("cuda", non_blocking=True)'
        yield 'FastLoader(..., device="cuda"): batches are copied ahead, beside the step'
        limit = report["machine"]["memlock_bytes"]
        if limit is not None and limit < 64 << 20:
            yield f"the limit of locked memory is small ({limit >> 10} KiB): ulimit -l unlimited"
    elif bound == "synchronisation":
        if report["slowest_rank"] is not None:
            yield "give ranks the same work: batches of equal size and length"
        yield "exchange gradients less often: model.no_sync() for all but the last of n batches"
    else:
        yield "the step itself: torch.compile, a lower precision, or a larger batch_size"


def _data_advice(report: dict[str, Any], rank: dict[str, Any]) -> Iterator[str]:
    loader, load, machine = rank["loader"], rank["load"], report["machine"]
    cores = machine["quota_cores"] or machine["cores"]
    share = max(1, int(cores // machine["ranks_on_host"]))
    workers = loader["num_workers"]
    if load["waiting_for_storage"] >= _STORAGE:
        yield "storage too slow: `fastload doctor PATH` measures it; a local disk, or order='block'"
    each = "" if loader["map_style"] else "; each must give its own share (get_worker_info)"
    busy = load["throttled"] or load["cpu_busy"] >= _BUSY
    if workers == 0 and (share > 1 or loader["native"]):
        yield f"num_workers={max(1, min(share, 8))} instead of 0{each}"
    elif not busy and workers < share:
        yield f"num_workers={min(share, 2 * workers)} instead of {workers}{each}"
    if not loader["native"] and loader["map_style"]:
        yield "pack this dataset: fastload pack MODULE:DATASET data, then FastLoader('data', ...)"
    if busy:
        what = "stopped by its quota" if load["throttled"] else f"{load['cpu_busy']:.0%} busy"
        yield f"CPU too busy: {cores:g} cores, {what}; fewer torch threads or other processes"
    if workers > 0 and not loader["persistent_workers"] and not loader["native"]:
        yield "persistent_workers=True: processes are not started again in each epoch"
