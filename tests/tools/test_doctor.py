"""`fastload doctor`: verdicts on calibrated trainings, what it changes in a script, its outputs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from calibrated import Clock, Counters, Loader, train
from torch.utils.data import DataLoader

from fastload import ArrayDataset, FastLoader
from fastload.tools.doctor import script
from fastload.tools.doctor.phases import Finished, Probe


def quiet(clock: Clock) -> Probe:
    """A probe of a machine that does nothing else."""
    return Probe(clock=clock, counters=Counters())


def examined(run: Callable[[], None], probe: Probe) -> dict[str, Any]:
    report = script.watch(run, probe)
    assert report is not None
    return report


# --- Verdicts -----------------------------------------------------------------------------------

# Time of a batch over that of a step, its jitter, workers, and whether loading is the bound.
CALIBRATED = [
    (1.10, 0.0, 1, True),
    (1.10, 0.0, 4, True),
    (1.12, 0.02, 2, True),
    (1.15, 0.05, 4, True),
    (1.25, 0.05, 1, True),
    (1.5, 0.1, 4, True),
    (2.0, 0.0, 2, True),
    (4.0, 0.2, 4, True),
    (0.10, 0.0, 0, True),
    (1.0, 0.1, 0, True),
    (1.02, 0.0, 1, False),
    (1.02, 0.0, 4, False),
    (1.01, 0.02, 2, False),
    (1.0, 0.0, 4, False),
    (0.98, 0.02, 2, False),
    (0.9, 0.05, 4, False),
    (0.5, 0.2, 1, False),
    (0.1, 0.5, 4, False),
    (0.02, 0.1, 0, False),
    (0.0, 0.0, 0, False),
]


@pytest.mark.parametrize(("ratio", "jitter", "workers", "bound"), CALIBRATED)
def test_verdict_of_a_calibrated_training(
    ratio: float, jitter: float, workers: int, bound: bool
) -> None:
    clock, step_s = Clock(), 0.02
    loader = Loader(clock, ratio * step_s, jitter, workers)
    report = examined(train(clock, loader, step_s), quiet(clock))
    assert report["verdict"] == ("data-bound" if bound else "compute-bound")
    perfect = 1 + ratio if workers == 0 else max(1.0, ratio)
    assert_gain(report, perfect, rel=0.03 + jitter / 4)


def assert_gain(report: dict[str, Any], perfect: float, rel: float) -> None:
    """The true gain lies in the reported range, which is no wider than the noise."""
    low, high = (report["perfect_loader_gain"][name] for name in ("low", "high"))
    assert low * (1 - rel) <= perfect <= high * (1 + rel)
    assert high / low < 1 + 5 * rel


def test_a_full_queue_does_not_hide_slow_loading() -> None:
    clock = Clock()
    run = train(clock, Loader(clock, 0.023, 0.0, 4), 0.02)
    original = torch.nn.Linear.forward

    def slow_first(self: Any, x: torch.Tensor) -> torch.Tensor:
        torch.nn.Linear.forward = original  # type: ignore[method-assign]
        clock.now += 100  # a compiler, say
        return original(self, x)

    torch.nn.Linear.forward = slow_first  # type: ignore[method-assign]
    report = examined(run, quiet(clock))
    assert report["verdict"] == "data-bound"
    assert_gain(report, 1.15, rel=0.03)


@pytest.mark.parametrize(("batches", "gain"), [(10_000, 1.0), (10, 1 + 0.05 / 0.02)])
def test_what_the_start_of_an_epoch_takes_counts_in_each_but_the_first(
    batches: int, gain: float
) -> None:
    clock = Clock()

    class Opening(Loader):
        def _get_iterator(self) -> Any:
            clock.now += 0.5
            return itertools.islice(super()._get_iterator(), batches)

    loader = Opening(clock, 0.001, 0.0, 1)

    def run() -> None:
        for _ in range(20):
            train(clock, loader, 0.02)()

    report = examined(run, quiet(clock))
    low, high = (report["perfect_loader_gain"][name] for name in ("low", "high"))
    assert low * 0.95 <= gain <= high * 1.05


def test_noise_of_the_step_is_not_loading() -> None:
    clock = Clock()
    run = train(clock, Loader(clock, 0.001, 0.5, 2), 0.02, jitter=0.5)
    assert examined(run, quiet(clock))["verdict"] == "compute-bound"


# --- What it does to a script -------------------------------------------------------------------


def test_real_batches_cost_two_looks_at_the_clock_and_no_synchronisation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, probe = Clock(), Probe(steps=40)
    probe._clock = clock
    edges: list[str | None] = []
    monkeypatch.setattr(probe, "_synchronize", lambda: edges.append(probe.phase))
    seen: list[int] = []

    def run() -> None:
        for _ in train_steps(DataLoader(torch.zeros(1000, 1), batch_size=1)):
            if probe.phase == "real":
                seen.append(clock.asked)

    examined(run, probe)
    assert len(seen) == 40
    assert {after - before for before, after in itertools.pairwise(seen)} == {2}
    assert edges == ["real", "real", "cached", "cached"]


def train_steps(loader: Any) -> Iterator[Any]:
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    for batch in loader:
        yield batch
        optimizer.step()


def test_batches_are_real_first_and_then_four_again_and_again() -> None:
    probe, got = Probe(steps=6, warm_up=2), []

    def run() -> None:
        for batch in train_steps(DataLoader(torch.arange(100), batch_size=1)):
            got.append(int(batch))

    examined(run, probe)
    real = 2 + 2 + 6
    assert got[:real] == list(range(real))
    assert got[real:] == [6, 7, 8, 9, 6, 7]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("native", [True, False])
def test_fastloader_is_watched_over_epochs(native: bool, workers: int) -> None:
    dataset = ArrayDataset(np.arange(8)) if native else list(range(8))
    loader = FastLoader(dataset, 2, num_workers=workers, persistent_workers=workers > 0)
    probe, epochs = Probe(steps=5, warm_up=3), []

    def run() -> None:
        for epoch in range(50):
            for _ in train_steps(loader):
                pass
            epochs.append(epoch)

    report = examined(run, probe)
    assert report["ranks"][0]["loader"]["native"] is native
    assert report["ranks"][0]["phases"]["real"]["steps"] == 5
    assert 1 <= len(epochs) <= 4
    loader._iterator = None  # its processes would wait for the garbage collector


def test_a_validation_is_not_taken_for_the_training_nor_its_time() -> None:
    clock = Clock()
    training = Loader(clock, 0.001, 0.0, 1)
    validation = DataLoader(torch.zeros(100, 1), batch_size=1)

    def run() -> None:
        for _ in validation:
            clock.now += 1
        for number, _ in enumerate(train_steps(training)):
            clock.now += 0.02
            if number % 20 == 19:
                for _ in validation:
                    clock.now += 1

    report = examined(run, quiet(clock))
    assert report["step_ms"] == pytest.approx(20, rel=0.01)
    assert report["ranks"][0]["loader"]["class"] == "Loader"


@pytest.mark.parametrize("on_device", [False, True])
def test_with_a_device_the_last_batches_lie_there_already(
    on_device: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, probe, places = Clock(), Probe(steps=4, warm_up=2), {}
    probe._clock = clock
    monkeypatch.setattr(probe, "_synchronize", lambda: None)  # this device has nothing to wait for
    parameter = torch.nn.Parameter(torch.zeros(1, device="meta"))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    loader = FastLoader(torch.zeros(100, 1), 1, device="meta" if on_device else None)

    def run() -> None:
        for batch in loader:
            places.setdefault(probe.phase, set()).add(batch.device.type)
            clock.now += 0.01 if batch.device.type == "meta" else 0.03
            optimizer.step()

    report = examined(run, probe)
    if on_device:
        assert places == {None: {"meta"}, "real": {"meta"}, "device": {"meta"}}
    else:
        assert places == {None: {"cpu"}, "real": {"cpu"}, "cached": {"cpu"}, "device": {"meta"}}
        assert report["verdict"] == "transfer-bound"
        assert report["shares"]["transfer"] == {"low": 0.667, "high": 0.667}


def test_a_script_that_writes_to_its_batches_gets_copies() -> None:
    seen = []

    def run() -> None:
        for batch in train_steps(DataLoader(torch.ones(200, 1), batch_size=1)):
            seen.append(float(batch["x"] if isinstance(batch, dict) else batch))
            batch += 1

    report = examined(run, Probe(steps=8, warm_up=1))
    assert set(seen[11:]) == {2.0}
    assert any("writes to its batches" in note for note in report["notes"])


def test_without_an_optimizer_the_longest_loader_is_measured() -> None:
    def run() -> None:
        for _ in DataLoader(torch.zeros(300, 1), batch_size=1):
            pass

    report = examined(run, Probe(steps=5, warm_up=2))
    assert any("no optimizer" in note for note in report["notes"])


def test_a_short_script_is_judged_by_its_waiting_and_a_shorter_one_not_at_all() -> None:
    clock = Clock()

    def run(batches: int) -> None:
        for _, _ in zip(range(batches), train_steps(Loader(clock, 0.02, 0.0, 0)), strict=False):
            clock.now += 0.02

    report = examined(lambda: run(30), quiet(clock))
    assert report["verdict"] == "data-bound"
    assert any("ended early" in note for note in report["notes"])
    with pytest.raises(RuntimeError, match="fewer --steps"):
        script.watch(lambda: run(5), quiet(clock))


def test_errors_of_the_script_are_the_scripts_until_batches_are_ours() -> None:
    def run(last: int) -> None:
        for number, _ in enumerate(train_steps(DataLoader(torch.zeros(300, 1), batch_size=1))):
            if number == last:
                raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        script.watch(lambda: run(5), Probe(steps=10, warm_up=2))
    report = examined(lambda: run(20), Probe(steps=10, warm_up=2))
    assert any("raised KeyError" in note for note in report["notes"])


def test_nothing_stays_patched() -> None:
    before = DataLoader.__iter__, FastLoader.__iter__
    with pytest.raises(Finished), Probe().installed():
        assert DataLoader.__iter__ is not before[0]
        raise Finished
    assert (DataLoader.__iter__, FastLoader.__iter__) == before
