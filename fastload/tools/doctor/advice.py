"""Advice for a training, and the numbers that it depends on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

_MAX_ADVICE = 3  # pieces of advice
_OTHERS = 0.3  # share of all CPU time
_COLD_BYTES = 1 << 20
_COLD_SHARE = 0.05  # share of the bytes of the batches
_EXPLAINS = 0.25  # share of the waiting time
_KNOWN_MS = 0.5  # of loading a batch, below which its parts are not known
_SMALL_LOCK = 64 << 20


class Evidence(NamedTuple):
    """Figures of the slowest-loading rank that advice depends on; None if unknown.

    Attributes:
        granted: CPUs that this rank may use, by its affinity or the cgroup's quota.
        idle_cores: Idle CPUs during the phase with real batches.
        others: Share of all CPU time used by other processes.
        throttled: True if the cgroup's quota stopped the process.
        cold_bytes_per_s: Bytes per second read from storage, if they are a notable part of the
            batches, else 0.
        sleeps: True if loading mostly waits (sleeps, remote reads), and not for a CPU.
        collates: Share of the loading time spent in the collate_fn.
        explains: True if fetching and collating take long enough to explain the waiting.
        starts_epochs: True if epochs started during the phase with real batches.
    """

    granted: int
    idle_cores: float | None
    others: float | None
    throttled: bool
    cold_bytes_per_s: float
    sleeps: bool | None
    collates: float | None
    explains: bool | None
    starts_epochs: bool

    @classmethod
    def of(cls, rank: dict[str, Any], machine: dict[str, Any]) -> Evidence:
        """Reads the evidence from the figures of a rank."""
        load = rank["loads"].get("real", {})
        whole = rank["loads"].get("whole", {})
        loading = rank["loading"]
        cores = machine["quota_cores"] or machine["cores"]
        sleeps = collates = explains = None
        took = loading["fetch_ms"] + loading["collate_ms"] if loading is not None else 0.0
        if loading is not None:
            explains = took >= _EXPLAINS * rank["phases"]["real"]["wait_ms"]
        if loading is not None and took >= _KNOWN_MS:
            collates = loading["collate_ms"] / took
            if loading["queued_ms"] is not None:
                sleeps = took - loading["cpu_ms"] - loading["queued_ms"] > 0.5 * took
        read = load.get("storage_bytes") or 0
        delivered = rank["batch_bytes"] * rank["phases"]["real"]["steps"]
        is_cold = read >= max(_COLD_BYTES, _COLD_SHARE * delivered)
        return cls(
            granted=max(1, int(cores // machine["ranks_on_host"])),
            idle_cores=_first(load.get("idle_cores"), whole.get("idle_cores")),
            others=_first(load.get("others"), whole.get("others")),
            throttled=load.get("throttled", False),
            cold_bytes_per_s=read / load["seconds"] if is_cold else 0.0,
            sleeps=sleeps,
            collates=collates,
            explains=explains,
            starts_epochs=rank["epochs"] > 0,
        )


def _first(value: float | None, other: float | None) -> float | None:
    return other if value is None else value


def advise(report: dict[str, Any]) -> list[str]:
    """Returns the advice, most useful first."""
    slowest = report["slowest_rank"]
    ranks = {rank["rank"]: rank for rank in report["ranks"]}
    rank = ranks.get(slowest, report["ranks"][0])
    bound = report["verdict"].removesuffix("-bound")
    found = {
        "data": _data_advice,
        "transfer": _transfer_advice,
        "synchronisation": _synchronisation_advice,
        "compute": _compute_advice,
    }.get(bound)
    evidence = Evidence.of(rank, report["machine"])
    return [*_machine_advice(evidence), *(found(report, rank, evidence) if found else ())][
        :_MAX_ADVICE
    ]


def _machine_advice(evidence: Evidence) -> Iterator[str]:
    if evidence.others is not None and evidence.others >= _OTHERS:
        yield (
            f"other processes use {evidence.others:.0%} of the CPUs: end them, or measure on a "
            "machine that does nothing else"
        )
    if evidence.throttled:
        yield (
            f"the cgroup's quota ({evidence.granted} CPUs for this rank) stops the process: ask "
            "for more CPUs, or use fewer torch threads"
        )


def _data_advice(report: dict[str, Any], rank: dict[str, Any], evidence: Evidence) -> Iterator[str]:
    loader = rank["loader"]
    native, workers = loader["native"], loader["num_workers"]
    if evidence.cold_bytes_per_s:
        where = f"batches are read from storage ({evidence.cold_bytes_per_s / 1e6:,.0f} MB/s)"
        if native and loader["map_style"] and loader["order"] != "block":
            yield f"{where}: order='block' reads longer runs, and a second epoch may be cached"
        else:
            yield f"{where}: `fastload doctor PATH` measures how fast it is"
    wanted = more_workers(workers, evidence)
    if wanted and evidence.explains is not False:
        each = "" if loader["map_style"] else "; each must give its own share (get_worker_info)"
        yield f"num_workers={wanted} instead of {workers}{each}"
    if evidence.explains is False:
        pass  # starting workers, or passing batches between processes, takes the time
    elif not native and (evidence.collates or 0.0) > 0.5:
        yield (
            f"the collate_fn takes {evidence.collates:.0%} of the time that loading takes: make it "
            "faster, or let FastLoader's transforms do it"
        )
    elif not native and loader["map_style"]:
        yield "pack this dataset: fastload pack MODULE:DATASET data, then FastLoader('data', ...)"
    if workers and evidence.starts_epochs and not loader["persistent_workers"] and not native:
        yield "persistent_workers=True: processes are not started again in each epoch"


def more_workers(workers: int, evidence: Evidence) -> int:
    """Returns a better number of workers; 0 if the numbers do not support more.

    Workers that compute need idle CPUs; workers that wait do not.
    """
    if evidence.throttled:
        return 0
    if evidence.sleeps:
        wanted = min(max(2 * workers, 4), 4 * evidence.granted)
    elif evidence.idle_cores is None:
        return 0
    else:
        free = int(evidence.idle_cores + 0.5)
        wanted = min(workers + free, max(2 * workers, evidence.granted), evidence.granted)
    return wanted if wanted > workers else 0


def _transfer_advice(
    report: dict[str, Any], rank: dict[str, Any], evidence: Evidence
) -> Iterator[str]:
    loader = rank["loader"]
    if loader["on_device"]:
        return  # the batches were copied by the loader
    if not loader["pin_memory"]:
        yield 'pin_memory=True, and batch.to("cuda", non_blocking=True)'
    yield 'FastLoader(..., device="cuda"): batches are copied ahead, beside the step'
    limit = report["machine"]["memlock_bytes"]
    if limit is not None and limit < _SMALL_LOCK:
        yield f"the limit of locked memory is small ({limit >> 10} KiB): ulimit -l unlimited"


def _synchronisation_advice(
    report: dict[str, Any], rank: dict[str, Any], evidence: Evidence
) -> Iterator[str]:
    if report["slowest_rank"] is not None:
        yield "give ranks the same work: batches of equal size and length"
    yield "exchange gradients less often: model.no_sync() for all but the last of n batches"


def _compute_advice(
    report: dict[str, Any], rank: dict[str, Any], evidence: Evidence
) -> Iterator[str]:
    yield "the step itself: torch.compile, a lower precision, or a larger batch_size"
