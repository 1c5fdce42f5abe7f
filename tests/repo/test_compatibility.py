"""docs/compatibility.md is complete and names tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

import pytest
from paths import ROOT

TEXT = (ROOT / "docs/compatibility.md").read_text()

# Each letter's promises, by their numbers.
SECTIONS = {
    "A": range(1, 13),
    "B": range(13, 18),
    "C": range(18, 34),
    "D": range(34, 42),
    "E": range(42, 51),
    "F": range(51, 63),
    "G": range(63, 74),
    "H": range(74, 85),
    "I": range(85, 89),
    "J": range(89, 96),
    "K": range(96, 107),
    "L": range(107, 111),
    "M": range(111, 116),
}


class Row(NamedTuple):
    number: int
    what: str
    proof: str


def rows(letter: str) -> list[Row]:
    """The table of a section."""
    found = re.search(rf"^## {letter}\. .*\n((?:(?!## ).*\n)*)", TEXT, re.M)
    assert found, f"docs/compatibility.md has no section {letter}"
    lines = [line for line in found[1].splitlines() if line.startswith("|")]
    assert lines[:2] == ["| # | What holds | Where it is proven |", "|---|---|---|"]
    table = []
    for line in lines[2:]:
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        assert len(cells) == 3, line
        table.append(Row(int(cells[0]), cells[1], cells[2]))
    return table


def references(row: Row) -> list[tuple[str, str]]:
    """The tests a row names: file and function."""
    return re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row.proof)


def functions(path: Path) -> set[str]:
    """The names of all tests that pytest finds in a file outside classes."""
    body = ast.parse(path.read_text()).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("letter", SECTIONS)
def test_each_promise_is_there_once_and_in_order(letter: str) -> None:
    assert [row.number for row in rows(letter)] == list(SECTIONS[letter])


@pytest.mark.parametrize("letter", SECTIONS)
def test_each_promise_is_proven_or_has_a_reason(letter: str) -> None:
    for row in rows(letter):
        assert row.what, row
        named = references(row)
        # Whatever looks like a test has to be one that the check below sees.
        assert row.proof.count("::") == len(named), row
        reason = re.search(r"\*\*(differs|measured)\*\*:? (.*)", row.proof)
        assert named or (reason and len(reason[2]) > 20), (
            f"{row.number} has neither test nor reason"
        )
        for path in re.findall(r"`(benchmarks/[\w/]+\.py|docs/[\w/]+\.md)`", row.proof):
            assert (ROOT / path).is_file(), f"{row.number}: there is no {path}"


@pytest.mark.parametrize("letter", SECTIONS)
def test_each_test_that_is_named_exists(letter: str) -> None:
    for row in rows(letter):
        for file, name in references(row):
            path = ROOT / file
            assert path.is_file(), f"{row.number}: there is no {file}"
            assert name.startswith("test_"), f"{row.number}: {name} is no test"
            assert name in functions(path), f"{row.number}: {file} has no {name}"


def test_sections_count_to_the_end() -> None:
    assert [number for section in SECTIONS.values() for number in section] == list(range(1, 116))
