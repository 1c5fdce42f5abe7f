"""README.md keeps its word: its Python blocks run, its commands are the ones CI calls."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from paths import ROOT

README = (ROOT / "README.md").read_text()
TEST_COMMAND = "pip install '.[test]' && pytest"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, flags=re.MULTILINE | re.DOTALL)


def test_python_blocks_run_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = blocks("python")
    assert found
    namespace: dict[str, object] = {"__name__": "readme"}
    for number, block in enumerate(found, start=1):
        exec(compile(block, f"README.md, Python block {number}", "exec"), namespace)
    namespace.clear()  # functions hold it: the collector would end open files in any order


def test_test_command_is_the_one_ci_calls() -> None:
    assert any(TEST_COMMAND in block for block in blocks("sh"))
    assert TEST_COMMAND in (ROOT / ".ci/run").read_text()


def test_files_named_in_the_readme_exist() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
