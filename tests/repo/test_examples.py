"""The examples: FastLoader takes DataLoader's place in a few lines, and no loss changes."""

from __future__ import annotations

import difflib
import re
import runpy
import sys
from pathlib import Path

import pytest
from paths import ROOT
from torch.utils.data import DataLoader

EXAMPLES = ROOT / "examples"
SMALL = {
    "gpt": "--steps 5 --batch-size 4 --length 16 --width 32 --accumulate 2 --evaluate-every 3",
    "resnet": "--epochs 2 --images 60 --batch-size 16 --blocks 1",
    "tabular": "--epochs 3 --rows 2000",
}


def printed(
    name: str,
    script: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> list[str]:
    """The lines that an example prints when it is run in the current folder."""
    known = set(sys.modules)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(EXAMPLES / name)
        patch.setattr(sys, "argv", [script, *SMALL[name].split()])
        try:
            runpy.run_path(str(EXAMPLES / name / script), run_name="__main__")
        finally:  # two examples have a module `model` each
            for module in set(sys.modules) - known:
                if (getattr(sys.modules[module], "__file__", None) or "").startswith(str(EXAMPLES)):
                    del sys.modules[module]
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("name", SMALL)
def test_an_example_changes_at_most_five_lines(name: str) -> None:
    before = (EXAMPLES / name / "train.py").read_text().splitlines()
    after = (EXAMPLES / name / "train_fastload.py").read_text().splitlines()
    changes = [line[0] for line in difflib.ndiff(before, after)]
    assert "import DataLoader" in "\n".join(before)
    assert "DataLoader" not in "\n".join(after)
    assert 0 < changes.count("+") <= 5
    assert 0 < changes.count("-") <= 5


@pytest.mark.parametrize("name", SMALL)
def test_an_example_prints_the_same_losses_natively(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def refuse(loader: DataLoader) -> None:
        raise AssertionError(f"{loader.dataset} is not loaded natively")

    monkeypatch.chdir(tmp_path)
    expected = printed(name, "train.py", monkeypatch, capsys)
    monkeypatch.setattr(DataLoader, "_get_iterator", refuse)
    assert printed(name, "train_fastload.py", monkeypatch, capsys) == expected
    losses = [float(line.split()[-1]) for line in expected]
    assert len(losses) >= 6
    assert len(set(losses)) > 4


def test_the_folder_says_how_to_run_each_example() -> None:
    text = (EXAMPLES / "README.md").read_text()
    scripts = {path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.glob("*/train*.py")}
    assert set(re.findall(r"^python examples/(\S+)", text, re.MULTILINE)) == scripts
