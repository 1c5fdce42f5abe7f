"""The compatibility reference is complete, up to date, and names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import promises
import pytest
from paths import ROOT

SECTIONS = promises.read()
ROWS = [row for section in SECTIONS for row in section.promises]


def functions(path: Path) -> set[str]:
    """The names of all tests that pytest finds in a file outside classes."""
    body = ast.parse(path.read_text()).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef)}


def test_the_page_is_the_one_that_the_program_writes() -> None:
    assert promises.PAGE.read_text() == promises.page(SECTIONS), "run tests/support/promises.py"


def test_sections_and_statements_are_numbered_without_holes() -> None:
    assert "".join(section.letter for section in SECTIONS) == "ABCDEFGHIJKLM"
    assert [row.number for row in ROWS] == list(range(1, 116))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row.number))
def test_each_statement_is_proven_by_tests_that_exist_or_has_a_reason(
    row: promises.Promise,
) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row.proof)
    # Whatever looks like a test has to be one that the check below reads.
    assert row.proof.count("::") == len(named)
    assert row.statement
    reason = re.search(r"\*\*(differs|measured)\*\*:? (.*)", row.note)
    assert named or (reason and len(reason[2]) > 20)
    for path in re.findall(r"`((?:benchmarks|docs)/[\w/]+\.(?:py|md))`", row.proof):
        assert (ROOT / path).is_file(), f"there is no {path}"
    for file, name in named:
        path = ROOT / file
        assert path.is_file(), f"there is no {file}"
        assert name.startswith("test_"), f"{name} is no test"
        assert name in functions(path), f"{file} has no {name}"


def test_the_guide_says_how_many_statements_there_are() -> None:
    guide = (ROOT / "docs/guides/compatibility.md").read_text()
    assert f"{len(ROWS)} statements" in guide
