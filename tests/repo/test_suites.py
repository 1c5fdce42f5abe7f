"""The runner of other people's suites sees what passes, what fails, and by which iterators."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import pytest
from paths import TESTS
from waiting import wait_for

SUITE = """
import os, pathlib, subprocess, sys, unittest
import torch
import torch.utils.data
from torch.utils.data import DataLoader, TensorDataset

JOIN_TIMEOUT = 1.0

class TestSome(unittest.TestCase):
    def test_native(self):
        self.assertEqual(DataLoader.__name__, "FastLoader")
        self.assertIs(torch.utils.data.DataLoader, DataLoader)
        self.assertEqual(len(list(DataLoader(TensorDataset(torch.zeros(4)), 2))), 2)

    def test_torch(self):
        self.assertEqual(JOIN_TIMEOUT, 3.0)
        for _ in range(2):
            self.assertEqual(list(DataLoader([1, 2], collate_fn=list)), [[1], [2]])

    def test_fails(self):
        for number in range(2):
            with self.subTest(number=number):
                self.assertEqual(number, 0)

    def test_kills(self):
        left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        pathlib.Path("left").write_text(str(left.pid))
        os._exit(3)

    @unittest.skip("for a reason")
    def test_skipped(self):
        pass

    def test_that_comes_later(self):
        pass
"""


@pytest.fixture
def suites(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(TESTS))
    return importlib.import_module("suites")


def test_cases_are_sorted_by_what_is_known_of_them(suites: ModuleType) -> None:
    Case, judge = suites.Case, suites.judge
    cases = [Case("a", "passed"), Case("b", "failed"), Case("c", "died"), Case("d", "skipped")]
    verdict = judge(cases, {})
    assert [case.name for case in verdict.unexplained] == ["b", "c"]
    assert not verdict.is_good
    verdict = judge(cases, {"b": "why", "c": "why", "d": "why"})
    assert [case.name for case in verdict.expected] == ["b", "c"]
    assert verdict.is_good
    assert not judge(cases, {"a": "why", "b": "why", "c": "why"}).is_good


def test_a_suite_is_run_to_its_end(
    suites: ModuleType, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "test_dataloader.py").write_text(SUITE)
    listed, expected = tmp_path / "cases.json", tmp_path / "expected.json"
    names = [f"test_dataloader.py::TestSome::test_{name}" for name in ("fails", "kills")]
    expected.write_text(json.dumps({"torch": [{"reason": "known", "cases": names}]}))
    command = ["--torch-tests", str(tmp_path), "--json", str(listed), "--patience", "3"]
    assert suites.main([*command, "--expected", str(expected)]) == 0
    cases = {case["name"].rpartition("_")[2]: case for case in json.loads(listed.read_text())}
    assert {name: case["outcome"] for name, case in cases.items()} == {
        "native": "passed",
        "torch": "passed",
        "fails": "failed",
        "kills": "died",
        "skipped": "skipped",
        "later": "passed",
    }
    assert (cases["native"]["native"], cases["native"]["torch"]) == (1, 0)
    assert (cases["torch"]["native"], cases["torch"]["torch"]) == (0, 2)
    assert "1 != 0" in cases["fails"]["detail"]
    left = Path("/proc", (tmp_path / "left").read_text(), "stat")

    def has_ended() -> bool:
        try:
            return left.read_text().rpartition(")")[2].split()[0] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True

    wait_for(has_ended)
    assert "natively     1 cases; iterators: 1 native, 2 of torch's" in capfd.readouterr().out


def test_every_difference_has_a_reason_and_stands_once(suites: ModuleType) -> None:
    for entries in json.loads((suites.HERE / "suites_expected.json").read_text()).values():
        names = [name for entry in entries for name in entry["cases"]]
        assert len(names) == len(set(names))
        assert all(len(entry["reason"]) > 20 and entry["cases"] for entry in entries)
