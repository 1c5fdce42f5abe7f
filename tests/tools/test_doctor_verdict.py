"""The doctor's verdicts and advice as functions of numbers: nothing is said that these exclude."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastload.tools.doctor import data, show, verdict
from fastload.tools.doctor.phases import Step
from fastload.tools.measured import Range

FACTS = {"cores": 8, "quota_cores": None, "ranks_on_host": 1, "memlock_bytes": None, "gpus": []}
LOAD = {
    "seconds": 2.0,
    "cores": 8,
    "own": 0.2,
    "others": 0.02,
    "idle_cores": 6.0,
    "pressure": 0.0,
    "load_average": 0.5,
    "storage_bytes": 0,
    "major_faults": 0,
    "throttled": False,
}
LOADER = {
    "native": False,
    "map_style": True,
    "num_workers": 2,
    "pin_memory": False,
    "order": None,
    "persistent_workers": True,
    "on_device": False,
}
LOADING = {"fetch_ms": 9.0, "collate_ms": 1.0, "cpu_ms": 10.0, "queued_ms": 0.0}


def phase(step: float, wait: float = 0.0, spread: float = 0.0, steps: int = 40) -> dict[str, Any]:
    """Times whose means are known to +- `spread`, a share of them."""
    found: dict[str, Any] = {"steps": steps}
    for name, mean in (("step", step), ("wait", wait), ("own", step - wait)):
        found[f"{name}_ms"] = mean
        found[f"{name}_range_ms"] = [mean * (1 - spread), mean * (1 + spread)]
    return found


def a_rank(number: int = 0, where: str = "cpu", **phases: dict[str, Any]) -> dict[str, Any]:
    return {
        "rank": number,
        "device": where,
        "phases": phases,
        "loads": {name: dict(LOAD) for name in phases},
        "loading": dict(LOADING),
        "epochs": 0,
        "batch_bytes": 1 << 20,
        "nvml_utilisation_percent": None,
        "loader": dict(LOADER),
        "notes": [],
        "timeline": [],
    }


def slow_loading(**changes: dict[str, Any]) -> dict[str, Any]:
    """Half of each step is waiting; with changes to the parts of the rank, or to its loads."""
    rank = a_rank(real=phase(20, 10), cached=phase(10))
    for part, values in changes.items():
        for target in [rank["loads"]["real"]] if part == "load" else [rank[part]]:
            target.update(values)
    return rank


def advice(rank: dict[str, Any], **facts: Any) -> str:
    return "\n".join(verdict.diagnose([rank], FACTS | facts)["advice"])


# --- Verdicts -----------------------------------------------------------------------------------


def test_time_that_copies_take_is_transfer() -> None:
    phases = {"real": phase(20, 1), "cached": phase(20), "device": phase(15)}
    report = verdict.diagnose([a_rank(where="cuda", **phases)], FACTS)
    assert report["verdict"] == "transfer-bound"
    assert report["shares"] == {
        "data": {"low": 0, "high": 0},
        "transfer": {"low": 0.25, "high": 0.25},
        "synchronisation": {"low": 0, "high": 0},
        "compute": {"low": 0.75, "high": 0.75},
    }
    assert "pin_memory=True" in report["advice"][0]


def test_a_device_is_not_idle_for_data_if_no_host_waits() -> None:
    phases = {"real": phase(20, 0.1), "cached": phase(15), "device": phase(15)}
    assert verdict.diagnose([a_rank(where="cuda", **phases)], FACTS)["verdict"] == "compute-bound"


def test_a_slow_rank_is_named() -> None:
    fast = {"real": phase(20), "cached": phase(20), "alone": phase(10)}
    slow = {"real": phase(20), "cached": phase(20), "alone": phase(20)}
    report = verdict.diagnose([a_rank(0, **fast), a_rank(1, **slow)], FACTS)
    assert (report["verdict"], report["slowest_rank"]) == ("synchronisation-bound", 1)
    waits = {"real": phase(20, 10), "cached": phase(10), "alone": phase(10)}
    follows = {"real": phase(20), "cached": phase(10), "alone": phase(10)}
    report = verdict.diagnose([a_rank(0, **follows), a_rank(7, **waits)], FACTS)
    assert (report["verdict"], report["slowest_rank"]) == ("data-bound", 7)
    assert report["perfect_loader_gain"] == {"low": 2, "high": 2}


def test_on_a_busy_machine_a_slow_step_is_not_put_down_to_loading() -> None:
    """67.87 against 0.88 ms, with 21 ms of waiting: the rest may be the doing of others."""
    calm = a_rank(real=phase(67.87, 46.3), cached=phase(0.88))
    busy = a_rank(real=phase(67.87, 46.3), cached=phase(0.88))
    busy["loads"]["real"]["others"] = 0.9
    found = verdict.diagnose([calm], FACTS)
    assert found["perfect_loader_gain"]["low"] == pytest.approx(67.87 / 0.88, rel=0.01)
    assert found["confidence"]["level"] == "high"
    found = verdict.diagnose([busy], FACTS)
    assert found["perfect_loader_gain"] == {"low": 3.15, "high": 77.1}
    assert "3.1 to 77 times" in found["sentence"]
    assert found["confidence"]["level"] == "low"
    assert "other processes used 2 to 90 % of the CPUs" in found["confidence"]["reasons"][0]


def test_times_that_vary_too_much_give_no_verdict() -> None:
    rank = a_rank(real=phase(20, 0.5, spread=0.5), cached=phase(19, spread=0.5))
    report = verdict.diagnose([rank], FACTS)
    assert report["verdict"] == "unclear"
    assert report["confidence"]["level"] == "low"
    assert report["advice"] == []


def test_a_gain_has_no_more_digits_than_the_measurement() -> None:
    report = verdict.diagnose([a_rank(real=phase(55.26, 55.16), cached=phase(0.1))], FACTS)
    assert "more than 100 times" in report["sentence"]
    assert not re.search(r"\d\.\d\d", report["sentence"])


# --- Siblings: what a training may look like, and what must be said or not ------------------------


def test_a_dataset_that_sleeps_is_not_told_to_read_in_another_order_or_from_another_disk() -> None:
    text = advice(slow_loading(loading={"cpu_ms": 0.1}))
    assert "num_workers=4 instead of 2" in text
    assert "pack this dataset" in text
    for wrong in ("order=", "disk", "storage"):
        assert wrong not in text


def test_a_collate_fn_that_sleeps_is_named_and_packing_is_not_advised() -> None:
    text = advice(slow_loading(loading={"fetch_ms": 1.0, "collate_ms": 9.0, "cpu_ms": 1.0}))
    assert "the collate_fn takes 90%" in text
    assert "pack" not in text


def test_a_slow_model_is_not_helped_by_any_loader() -> None:
    report = verdict.diagnose([a_rank(real=phase(200, 0.1), cached=phase(200))], FACTS)
    assert report["verdict"] == "compute-bound"
    assert "at most 0 %" in report["sentence"]
    assert all("worker" not in line and "pack" not in line for line in report["advice"])


def test_a_dataset_that_computes_is_given_no_more_workers_than_there_are_idle_cpus() -> None:
    assert "num_workers=4 instead of 2" in advice(slow_loading(load={"idle_cores": 2.0}))
    assert "num_workers=3 instead of 2" in advice(slow_loading(load={"idle_cores": 0.8}))
    for idle in (0.0, 0.3, None):
        assert "num_workers" not in advice(slow_loading(load={"idle_cores": idle}))
    assert "num_workers" not in advice(slow_loading(load={"throttled": True}))
    assert "num_workers" not in advice(slow_loading(loader={"num_workers": 8}))


def test_a_dataset_that_waits_for_a_cpu_does_not_sleep() -> None:
    starved = {"cpu_ms": 2.0, "queued_ms": 8.0}
    busy = {"idle_cores": 0.0, "others": 0.9}
    assert "num_workers" not in advice(slow_loading(loading=starved, load=busy))
    unknown = starved | {"queued_ms": None}
    assert "num_workers" not in advice(slow_loading(loading=unknown, load=busy))


def test_loading_that_takes_no_time_is_not_what_is_waited_for() -> None:
    rank = slow_loading(
        loading={"fetch_ms": 0.1, "collate_ms": 0.1}, loader={"persistent_workers": False}
    )
    assert advice(rank | {"epochs": 5}).splitlines() == [
        "persistent_workers=True: processes are not started again in each epoch"
    ]


def test_cold_data_are_read_in_blocks_only_if_native() -> None:
    cold = {"storage_bytes": 40 << 20}
    native = {"native": True, "num_workers": 8}
    assert "21 MB/s" in advice(slow_loading(load=cold))
    assert "order='block'" not in advice(slow_loading(load=cold))
    assert "order='block'" in advice(slow_loading(load=cold, loader=native))
    assert "order=" not in advice(slow_loading(load=cold, loader=native | {"order": "block"}))
    assert "order=" not in advice(slow_loading(load={"storage_bytes": 1 << 19}, loader=native))
    assert "storage" not in advice(slow_loading(load={"storage_bytes": None}, loader=native))


def test_at_a_load_of_twenty_the_other_processes_come_first() -> None:
    rank = slow_loading(load={"others": 0.95, "idle_cores": 0.0, "load_average": 20.0})
    report = verdict.diagnose([rank], FACTS)
    assert report["advice"][0].startswith("other processes use 95%")
    assert "load average 20" in report["confidence"]["reasons"][0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"loader": {"num_workers": 0}}, "num_workers=6 instead of 0"),
        ({"loader": {"num_workers": 0, "map_style": False}}, "0; each must give its own"),
        ({"load": {"throttled": True}}, "the cgroup's quota (8 CPUs for this rank)"),
    ],
)
def test_advice_names_what_to_change(change: dict[str, Any], said: str) -> None:
    assert said in advice(slow_loading(**change))


def test_workers_that_persist_are_advised_where_epochs_began() -> None:
    rank = slow_loading(loader={"persistent_workers": False})
    assert "persistent_workers" not in advice(rank)
    assert "persistent_workers" in advice(rank | {"epochs": 3})


# --- Properties ---------------------------------------------------------------------------------

SHARE = st.floats(0, 1)
MILLISECONDS = st.floats(1e-3, 1e5)
STEPS = st.lists(st.tuples(MILLISECONDS, MILLISECONDS), min_size=3, max_size=12)


@st.composite
def ranks(draw: st.DrawFn) -> list[dict[str, Any]]:
    found = []
    where = draw(st.sampled_from(["cpu", "cuda"]))
    names = draw(st.sampled_from([["real"], ["real", "cached"], ["real", "cached", "alone"]]))
    names = [*names, *(["device"] if where == "cuda" and "cached" in names else [])]
    for number in range(draw(st.integers(1, 3))):
        phases = {}
        for name in names:
            taken = [
                Step(0.0, wait / 1e3, (wait + own) / 1e3, disturbed=False)
                for wait, own in draw(STEPS)
            ]
            phases[name] = verdict.summary(taken)
        rank = a_rank(number * 2, where, **phases)  # a rank may be missing
        rank["loads"]["real"] |= {
            "others": draw(st.none() | SHARE),
            "idle_cores": draw(st.none() | st.floats(0, 8)),
            "storage_bytes": draw(st.none() | st.integers(0, 1 << 30)),
            "throttled": draw(st.booleans()),
        }
        parts = ("fetch_ms", "collate_ms", "cpu_ms", "queued_ms")
        times = dict.fromkeys(parts, MILLISECONDS)
        rank["loading"] = draw(st.none() | st.fixed_dictionaries(times))
        rank["loader"] |= {
            "native": draw(st.booleans()),
            "map_style": draw(st.booleans()),
            "num_workers": draw(st.integers(0, 16)),
            "pin_memory": draw(st.booleans()),
            "persistent_workers": draw(st.booleans()),
            "on_device": draw(st.booleans()),
            "order": draw(st.sampled_from([None, "shuffled", "block"])),
        }
        rank |= {"epochs": draw(st.integers(0, 2)), "batch_bytes": draw(st.integers(0, 1 << 24))}
        found.append(rank)
    return found


@given(ranks())
def test_no_gain_is_claimed_that_the_measured_times_exclude(found: list[dict[str, Any]]) -> None:
    report = verdict.diagnose(found, FACTS)
    gain = report["perfect_loader_gain"]
    assert 1 <= gain["low"] <= gain["high"] <= 1000
    # No rank's step can become shorter than its shortest measured step without waiting.
    shortest = min(
        min(phase["own_range_ms"][0], phase["step_range_ms"][0])
        for rank in found
        for phase in rank["phases"].values()
    )
    longest = max(rank["phases"]["real"]["step_ms"] for rank in found)
    assert gain["high"] <= 1.01 * longest / shortest
    for share in report["shares"].values():
        assert 0 <= share["low"] <= share["high"] <= 1
    text = json.dumps(report, allow_nan=False)
    assert "Infinity" not in text
    for number in re.findall(r"\d[\d.,]*(?= times)", report["sentence"]):
        assert float(number.replace(",", "")) <= 1.06 * gain["high"]
    show.bars(report)
    show.confidence(report)


@given(ranks())
def test_no_advice_is_given_that_the_numbers_exclude(found: list[dict[str, Any]]) -> None:
    report = verdict.diagnose(found, FACTS)
    text = "\n".join(report["advice"])
    slowest = report["slowest_rank"]
    [rank] = [r for r in found if r["rank"] == (found[0]["rank"] if slowest is None else slowest)]
    loader, load, loading = rank["loader"], rank["loads"]["real"], rank["loading"]
    if report["verdict"] != "data-bound":
        for word in ("num_workers", "pack ", "order=", "storage", "collate_fn", "persistent"):
            assert word not in text
    if "order=" in text:
        assert loader["native"]
        assert loader["order"] != "block"
    if "storage" in text:
        assert load["storage_bytes"] >= 1 << 20
    wanted = re.search(r"num_workers=(\d+) instead", text)
    if wanted:
        assert int(wanted[1]) > loader["num_workers"]
        assert not load["throttled"]
        took = loading and loading["fetch_ms"] + loading["collate_ms"]
        if not took or took < 0.5 or loading["cpu_ms"] + loading["queued_ms"] >= took / 2:
            assert int(wanted[1]) <= 8
            assert int(wanted[1]) - loader["num_workers"] <= load["idle_cores"] + 0.5
    if "pack this" in text or "collate_fn" in text or wanted:
        took = loading and loading["fetch_ms"] + loading["collate_ms"]
        assert not loading or took >= 0.25 * rank["phases"]["real"]["wait_ms"]
    if "pack this" in text:
        assert not loader["native"]
        took = loading and loading["fetch_ms"] + loading["collate_ms"]
        assert not took or took < 0.5 or loading["collate_ms"] <= loading["fetch_ms"] * 1.001
    if "persistent" in text:
        assert rank["epochs"]
    if "pin_memory" in text or 'device="cuda"' in text:
        assert report["verdict"] == "transfer-bound"
    if "other processes" in text:
        assert load["others"] >= 0.3


# --- Data ---------------------------------------------------------------------------------------


def of_data(**changes: Any) -> dict[str, Any]:
    facts = FACTS | {"shm_bytes": 1 << 33, "memory_available_bytes": 1 << 34}
    report: dict[str, Any] = {"files": 4, "bytes": 1 << 30, "cached_share": 0.0, "native": True}
    report |= {"storage": {"storage": "rotating disk"}, "machine": facts}
    report |= {"cold_bytes_per_s": {"low": 8e7, "high": 1.2e8}}
    report |= {"warm_bytes_per_s": {"low": 4e9, "high": 6e9}}
    return report | changes


def test_a_slow_disk_is_named_with_its_measured_speed() -> None:
    text = "\n".join(data.find(of_data()))
    assert "rotating disk, 80 to 120 MB/s cold: copy the data to a solid-state disk" in text
    assert "order='block'" in text
    assert "order=" not in "\n".join(data.find(of_data(native=False)))


@pytest.mark.parametrize(
    "excluded",
    [
        {"cached_share": 1.0},
        {"cached_share": 0.999},
        {"cold_bytes_per_s": None},
        {"cold_bytes_per_s": {"low": 1e8, "high": 2e9}},
        {
            "cold_bytes_per_s": {"low": 8e7, "high": 1.2e8},
            "warm_bytes_per_s": {"low": 9e7, "high": 1e9},
        },
        {"storage": {"storage": "solid state"}},
        {"storage": {"storage": "memory"}},
    ],
)
def test_no_disk_is_advised_that_the_numbers_do_not_call_for(excluded: dict[str, Any]) -> None:
    assert "copy the data" not in "\n".join(data.find(of_data(**excluded)))


def test_data_in_the_page_cache_are_not_said_to_be_read_from_storage() -> None:
    full = FACTS | {"shm_bytes": 1 << 33, "memory_available_bytes": 1 << 20}
    assert "do not fit" in "\n".join(data.find(of_data(machine=full)))
    assert list(data.find(of_data(machine=full, cached_share=1.0))) == []


def test_ranges_are_finite(tmp_path: Any) -> None:
    (tmp_path / "x.bin").write_bytes(bytes(3))
    report = data.check(str(tmp_path))
    json.dumps(report, allow_nan=False)
    assert all(math.isfinite(v) for v in Range(**report["warm_bytes_per_s"]))
