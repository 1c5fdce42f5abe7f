"""Public reports about `fastload doctor`, `bench` and `report`, re-enacted."""

from __future__ import annotations

import json
from typing import Any

import pytest

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
