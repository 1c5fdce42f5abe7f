"""`fastload demo`: real images, three trainings, identical losses."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fastload import PackedDataset
from fastload.tools import demo

pytestmark = pytest.mark.slow


def run(*arguments: str | Path) -> int:
    parser = argparse.ArgumentParser()
    demo.add_arguments(parser)
    return demo.run(parser.parse_args([*map(str, arguments)]))


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The first 20 images of each digit."""
    rows = np.loadtxt(demo.digits_file(), delimiter=",", dtype=np.float32)
    rows = np.concatenate([rows[rows[:, -1] == digit][:20] for digit in range(10)])
    source = tmp_path_factory.mktemp("digits") / "few.csv.gz"
    np.savetxt(source, rows, fmt="%g", delimiter=",")
    return source


@pytest.fixture
def few_digits(digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are the demo's source."""
    monkeypatch.setattr(demo, "digits_file", lambda: digits)
    monkeypatch.setenv("COLUMNS", "160")


@pytest.mark.usefixtures("few_digits")
def test_losses_are_identical_and_data_is_right(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--epochs", "2", "--folder", tmp_path / "kept") == 0
    shown = capsys.readouterr().out
    assert f"All {2 * (200 // 64)} losses are identical" in shown
    for expected in (
        "DataLoader, PNG files",
        "FastLoader, packed",
        "waiting",
        "samples/s",
    ):
        assert expected in shown
    images = demo.ImageFolder(tmp_path / "kept" / "images")
    packed = PackedDataset(tmp_path / "kept" / "packed")
    assert len(images) == len(packed) == 200
    for index in (0, 57, 199):
        np.testing.assert_array_equal(images[index][0].numpy(), packed[index][0])
        assert images[index][1] == packed[index][1] == index // 20


@pytest.mark.usefixtures("few_digits")
def test_different_losses_fail(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def trained(loader: Any, epochs: int, device: str) -> demo.Training:
        is_torch = type(loader) is torch.utils.data.DataLoader
        return demo.Training([0.5, 0.25 if is_torch else 0.25 + 1e-7], 0.5, 2.0, 0.5, 128)

    monkeypatch.setattr(demo, "train", trained)
    assert run("--epochs", "1") == 1
    assert "From step 1 on, the losses of these differ" in capsys.readouterr().out


def test_training_learns_and_leaves_the_generator_alone() -> None:
    label = torch.arange(8)
    image = torch.zeros(8, 28, 28, 3, dtype=torch.uint8)
    image[label, label] = 255
    before = torch.get_rng_state()
    result = demo.train([[image, label]] * 3, 20, "cpu")
    assert torch.equal(torch.get_rng_state(), before)
    assert result.losses[-1] < result.losses[0] / 2
    assert result.samples == 480
    assert 0 <= result.wait_seconds <= result.seconds


@pytest.mark.parametrize(("missing", "told"), [("mlxtend", "mlxtend"), ("PIL", "Pillow")])
def test_missing_package_is_named(missing: str, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == missing else find(name)
    )
    with pytest.raises(ModuleNotFoundError, match=rf"{told}.*pip install mlxtend pillow"):
        run()


def test_existing_folder_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(FileExistsError):
        run("--folder", tmp_path)
    with pytest.raises(ValueError, match="epochs"):
        run("--epochs", "0")
