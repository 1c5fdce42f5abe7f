"""Writes docs/reference/compatibility.md from tests/contract/promises.json.

python tests/support/promises.py
"""

from __future__ import annotations

import json
from typing import NamedTuple

from paths import ROOT, TESTS

SOURCE = TESTS / "contract/promises.json"
PAGE = ROOT / "docs/reference/compatibility.md"

_HEAD = """\
# Compatibility with DataLoader, statement by statement

<!-- Written by tests/support/promises.py from tests/contract/promises.json; do not edit. -->

[The guide](../guides/compatibility.md) has the differences in short. Each statement below is proven
by the tests named next to it (`pytest tests/loader/test_loader.py::test_attributes` runs one).
**differs** marks where FastLoader deviates from DataLoader, with the reason; **measured** marks
figures that a program measures.
"""


class Promise(NamedTuple):
    """One statement, the tests that prove it, and how it differs from DataLoader."""

    number: int
    statement: str
    tests: list[str]
    note: str = ""

    @property
    def proof(self) -> str:
        tests = ", ".join(f"`{test}`" for test in self.tests)
        return "; ".join(text for text in (tests, self.note) if text)


class Section(NamedTuple):
    """Statements on one subject."""

    letter: str
    title: str
    promises: list[Promise]
    note: str = ""


def read() -> list[Section]:
    """Returns the sections of promises.json."""
    return [
        Section(**{**section, "promises": [Promise(**row) for row in section["promises"]]})
        for section in json.loads(SOURCE.read_text())
    ]


def page(sections: list[Section]) -> str:
    """Returns the text of the reference page."""
    blocks = [_HEAD]
    for section in sections:
        rows = "".join(
            f"| {row.number} | {_cell(row.statement)} | {_cell(row.proof)} |\n"
            for row in section.promises
        )
        note = f"{section.note}\n\n" if section.note else ""
        table = f"| # | Statement | Proven by |\n|---|---|---|\n{rows}"
        blocks.append(f"## {section.letter}. {section.title}\n\n{note}{table}")
    return "\n".join(blocks)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(read()))
