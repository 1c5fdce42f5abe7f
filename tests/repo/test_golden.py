"""Files that an earlier version wrote are opened, resumed or refused as ever.

tests/golden/write_d71a9b4.py wrote them, with the code of that commit.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import golden_packs
import golden_training
import numpy as np
import pytest
from golden_loaders import IDS, LOADERS, TOKENS, listed
from paths import GOLDEN

import fastload
from fastload import ArrayDataset, FastLoader
from fastload.cli import main

WRITTEN = GOLDEN / "d71a9b4"
STATES = json.loads((WRITTEN / "states.json").read_text())
BY_LOADER = {of["loader"]: of for of in STATES if of["taken"]}


def check_rows(dataset: Any, expected: list[dict[str, Any]]) -> None:
    assert len(dataset) == len(expected)
    for row, sample in zip(dataset, expected, strict=True):
        assert set(row) == set(sample)
        for name, value in sample.items():
            assert np.array_equal(row[name], value), name


def test_datasets_that_grew_or_were_merged_or_selected_hold_their_samples() -> None:
    rows = golden_packs.samples(0, 9)
    grown = [{**sample, "y": row * 10} for row, sample in enumerate(rows)]
    check_rows(fastload.open(WRITTEN / "grown"), grown)
    check_rows(fastload.open(WRITTEN / "grown", split="val"), grown[3:])
    check_rows(fastload.open(WRITTEN / "merged"), rows)
    selected = fastload.open(WRITTEN / "selected")
    chosen = [int(row["text"].split()[1]) for row in selected]
    assert len(set(chosen)) == 5
    kept = [{"x": rows[row]["x"].astype("f2"), "text": rows[row]["text"]} for row in chosen]
    check_rows(selected, kept)


def test_images_without_those_that_were_left_out_hold_their_pixels() -> None:
    dataset = fastload.open(WRITTEN / "images")
    pixels = [(image.tobytes(), label) for image, label in dataset]
    assert pixels == golden_packs.IMAGES


def test_packing_and_merging_the_same_samples_gives_the_golden_files(tmp_path: Path) -> None:
    parts = [tmp_path / "a", tmp_path / "b"]
    for part, (first, end) in zip(parts, ((0, 6), (6, 9)), strict=True):
        rows = golden_packs.samples(first, end)
        fastload.pack(rows, part, shard_size=golden_packs.SHARD_SIZE, workers=1)
    fastload.merge(tmp_path / "merged", parts)
    for golden in (WRITTEN / "merged").iterdir():
        assert (tmp_path / "merged" / golden.name).read_bytes() == golden.read_bytes()


@pytest.mark.parametrize("name", ["grown", "images", "merged", "selected"])
def test_checksums_of_datasets_fit_and_find_a_changed_byte(name: str, tmp_path: Path) -> None:
    copy = shutil.copytree(WRITTEN / name, tmp_path / name)
    assert main(["verify", "--full", str(copy)]) == 0
    shard = next(iter(sorted(copy.glob("*.safetensors"))))
    content = bytearray(shard.read_bytes())
    content[4096] ^= 1
    shard.write_bytes(content)
    assert main(["verify", "--full", str(copy)]) == 1


@pytest.mark.parametrize("of", STATES, ids=lambda of: f"{of['loader']}-{of['taken']}")
def test_a_loader_resumes_from_its_state(of: dict[str, Any]) -> None:
    os.utime(TOKENS)  # a checkout sets the times of files
    loader = LOADERS[of["loader"]]()
    loader.load_state_dict(of["state"])
    assert listed(loader) == of["then"]


@pytest.mark.parametrize("of", STATES, ids=lambda of: f"{of['loader']}-{of['taken']}")
def test_a_state_of_today_has_the_keys_and_fingerprint_of_the_golden_one(
    of: dict[str, Any],
) -> None:
    loader = LOADERS[of["loader"]]()
    if of["taken"] is None:
        list(loader)
    else:
        iterator = iter(loader)
        for _ in range(of["taken"]):
            next(iterator)
    state, golden = loader.state_dict(), of["state"]
    assert golden.keys() <= state.keys()
    fixed = golden.keys() - {"seed", "generator", "base_seed"}
    if "sampler" not in golden:
        fixed = golden.keys()
    assert {key: state[key] for key in fixed} == {key: golden[key] for key in fixed}


@pytest.mark.parametrize(
    ("saved", "make", "message"),
    [
        (
            "seeded",
            LOADERS["seeded sequential"],
            "the state was saved with another order: 'full', here it is 'sequential'",
        ),
        ("seeded", LOADERS["sequential"], "the state was saved with seed=5: "),
        ("sequential", LOADERS["seeded"], "the state was saved without seed=: "),
        ("sequential", LOADERS["shuffled"], "another sampler: 'SequentialSampler'"),
        ("own sampler", LOADERS["sequential"], "another sampler: 'Evens'"),
        (
            "seeded",
            lambda: FastLoader(ArrayDataset(IDS + 1.5), 4, seed=5, shuffle=True),
            "another fingerprint of the dataset",
        ),
        (
            "seeded",
            lambda: FastLoader(ArrayDataset(IDS), 4, seed=6, shuffle=True),
            "another seed: 5, here it is 6",
        ),
        (
            "weighted",
            lambda: FastLoader(
                ArrayDataset(IDS), 4, sampler=fastload.WeightedSampler(IDS + 1.0, seed=3)
            ),
            "another fingerprint of the weights",
        ),
    ],
)
def test_a_loader_of_another_kind_refuses_a_state(saved: str, make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make().load_state_dict(BY_LOADER[saved]["state"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "the state is of version 2; version 1 is read"),
        ({"samples": -1}, "the state is damaged: 'samples' is -1"),
        ({"samples": 24}, "the state has 24 samples of an epoch, which has only 23 here"),
        ({"other": 1}, "the state has 'other', which is not of a FastLoader"),
    ],
)
def test_a_state_that_was_changed_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        LOADERS["seeded"]().load_state_dict(BY_LOADER["seeded"]["state"] | change)


def test_a_training_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    log = tmp_path / "step.jsonl"
    shutil.copy(WRITTEN / "step.jsonl", log)
    loader, model, step = golden_training.parts(log)
    step.load(WRITTEN / "checkpoint.pt", loader)
    assert step.steps == golden_training.STEPS_BEFORE
    expected = json.loads((WRITTEN / "training.json").read_text())
    assert golden_training.losses(loader, step) == pytest.approx(expected["losses"], rel=1e-5)
    assert golden_training.weights(model) == pytest.approx(expected["weights"], rel=1e-5)


@pytest.mark.parametrize(
    ("name", "steps", "keys"), [("watch", 7, set()), ("step", 3, {"grad_norm", "nonfinite"})]
)
def test_logs_are_reported(
    name: str, steps: int, keys: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = WRITTEN / f"{name}.jsonl"
    head, *lines = map(json.loads, path.read_text().splitlines())
    keys = keys | {"epoch", "step", "start_s", "step_s", "wait_s", "samples"}
    assert head["fastload_log"] == 1
    assert len(lines) == steps
    assert all(keys <= set(line) for line in lines)
    assert main(["report", "--json", str(path)]) == 0
    reported = json.loads(capsys.readouterr().out)[name]
    finished = [line for line in lines if "unfinished" not in line]
    losses = [line["loss"] for line in finished]
    timed = finished[1:]  # the first step warms up
    took = sum(line["step_s"] for line in timed)
    waited = sum(line["wait_s"] for line in timed)
    assert reported["steps"] == len(finished)
    assert reported["mean_loss"] == pytest.approx(np.mean(losses))
    assert reported["last_loss"] == losses[-1]
    assert reported["samples_per_s"] == pytest.approx(sum(line["samples"] for line in timed) / took)
    assert reported["wait_share"] == pytest.approx(waited / took)


def rows_after(task: str) -> list[dict[str, Any]]:
    rows = golden_packs.samples(0, golden_packs.ROWS)
    if task == "append":
        return golden_packs.samples(0, 2 * golden_packs.ROWS)
    if task == "add_column":
        return [{**sample, "y": np.full(24, row)} for row, sample in enumerate(rows)]
    return rows


def finished_shards(out: Path) -> list[Path]:
    lines = (out / ".fastload/journal.jsonl").read_text().splitlines()
    entries = [json.loads(line) for line in lines]
    prefix = {"main": "shard", "y": "y"}
    paths = [out / f"{prefix[of['group']]}-{of['shard']:06d}.safetensors" for of in entries]
    assert paths
    return paths


@pytest.mark.parametrize("task", golden_packs.TASKS)
def test_a_killed_task_goes_on_and_keeps_its_finished_shards(task: str, tmp_path: Path) -> None:
    out = shutil.copytree(WRITTEN / "killed" / task / "out", tmp_path / "out")
    finished = finished_shards(out)
    before = [path.stat() for path in finished]
    golden_packs.TASKS[task](out, resume=True)
    for path, status in zip(finished, before, strict=True):
        assert (path.stat().st_ino, path.stat().st_mtime_ns) == (status.st_ino, status.st_mtime_ns)
    check_rows(fastload.open(out), rows_after(task))
    assert main(["verify", str(out)]) == 0
    assert not (out / ".fastload").exists()


@pytest.mark.parametrize("task", golden_packs.TASKS)
def test_a_killed_task_refuses_other_arguments(task: str, tmp_path: Path) -> None:
    out = shutil.copytree(WRITTEN / "killed" / task / "out", tmp_path / "out")
    message = r"cannot be resumed, because input or options changed: .*rows_each: \d+ -> \d+; "
    with pytest.raises(ValueError, match=message):
        golden_packs.TASKS[task](out, resume=True, shard_size=1 << 16)


def test_a_killed_pack_is_no_dataset_and_is_not_started_again_unasked(tmp_path: Path) -> None:
    out = shutil.copytree(WRITTEN / "killed/pack/out", tmp_path / "out")
    with pytest.raises(FileExistsError, match="incomplete pack: 1 of 3 shards are written"):
        golden_packs.TASKS["pack"](out)
    with pytest.raises(fastload.FormatError, match="incomplete pack: 1 of 3 shards are written"):
        fastload.open(out)


@pytest.mark.parametrize("task", ["append", "add_column"])
def test_a_dataset_whose_growth_was_killed_has_its_samples_of_before(task: str) -> None:
    check_rows(fastload.open(WRITTEN / "killed" / task / "out"), rows_after("pack"))
