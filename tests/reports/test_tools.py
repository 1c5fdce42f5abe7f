"""Public reports about `fastload doctor`, `bench` and `report`, re-enacted."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import numpy as np
import pytest
from PIL import Image

import fastload
from fastload.cli import main


def test_a_report_labels_its_losses_and_marks_an_unfinished_epoch(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with open("run.jsonl", "w", encoding="utf-8") as log:
        log.write('{"fastload_log": 1, "loader": "DataLoader", "batch_size": 4}\n')
        for step in range(60):  # an epoch of 50 steps, and 10 of the next one
            row: dict[str, Any] = {"epoch": step // 50, "step": step, "start_s": float(step)}
            row |= {"step_s": 1.0, "wait_s": 0.25, "samples": 4, "loss": 60.0 - step}
            log.write(json.dumps(row) + "\n")
    assert main(["report", "run.jsonl", "--html", "page.html", "--json"]) == 0
    [summary] = json.loads(capsys.readouterr().out).values()
    assert (summary["epoch_s"], summary["unfinished_epochs_s"]) == (50, [10])
    assert (summary["last_loss"], summary["mean_loss"], summary["mean_loss_steps"]) == (1, 10.5, 20)
    with open("page.html", encoding="utf-8") as file:
        page = file.read()
    assert "mean loss of the last 20 steps" in page
    assert "epoch 1 is not finished" in page
    for tick in ("0", "10", "20", "30", "40", "50", "60"):
        assert f">{tick}</text>" in page


def test_the_doctor_says_of_a_sleeping_dataset_what_its_numbers_say(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with open("train.py", "w", encoding="utf-8") as script:
        script.write(
            "import time, torch\n"
            "class Slow(torch.utils.data.Dataset):\n"
            "    def __len__(self): return 400\n"
            "    def __getitem__(self, index): time.sleep(0.002); return torch.zeros(1)\n"
            "p = torch.nn.Parameter(torch.zeros(1)); o = torch.optim.SGD([p], lr=0.1)\n"
            "for batch in torch.utils.data.DataLoader(Slow(), 4): o.step()\n"
        )
    assert main(["doctor", "--json", "--steps", "20", "train.py"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"] == "data-bound"
    assert not any(word in " ".join(report["advice"]) for word in ("order=", "disk", "storage"))
    phases = report["ranks"][0]["phases"]
    shortest = min(phase["own_range_ms"][0] for phase in phases.values())
    longest = phases["real"]["step_ms"]
    gain = report["perfect_loader_gain"]
    assert 1 <= gain["low"] <= gain["high"] <= 1.01 * min(1000, longest / shortest)
    assert not re.search(r"\d\.\d\d", report["sentence"])
    assert report["confidence"]["level"] in ("high", "medium", "low")


def test_the_doctor_advises_no_disk_for_data_in_the_page_cache(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with open("data.bin", "wb") as file:
        file.write(bytes(1 << 20))
    assert main(["doctor", "--json", "data.bin"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["cached_share"] == 1
    assert not any(word in " ".join(report["findings"]) for word in ("disk", "storage", "order"))


def test_bench_of_encoded_images_compares_decoded_batches(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in "abcdefgh":
        os.makedirs(f"images/{name}")
        Image.fromarray(np.zeros((40, 30, 3), "u1")).save(f"images/{name}/0.jpg")
    fastload.pack("images", "out", encoded=True)
    capsys.readouterr()
    options = ["--quick", "--seconds", "0.01", "--torch-workers", "0", "--batch-size", "2"]
    assert main(["bench", "out", *options, "--json", "-"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["delivers"]["image"].startswith("decoded to RGB and scaled to 224 x 224")
    assert set(result["warm"]["times_dataloader"]) == {"low", "median", "high"}
    assert result["warm"]["limit"] is None
