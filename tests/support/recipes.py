"""Reads the code blocks of docs/guides/recipes.md."""

from __future__ import annotations

import re

from paths import ROOT

RECIPES = ROOT / "docs/guides/recipes.md"


def blocks(*marks: str) -> list[tuple[int, str]]:
    """Line and code of the Python blocks with one of the marks, in order; "": without a mark."""
    text = RECIPES.read_text()
    found = re.finditer(r"^```python ?(\w*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    return [
        (text.count("\n", 0, block.start(2)) + 1, block[2]) for block in found if block[1] in marks
    ]


def run(*marks: str) -> dict[str, object]:
    """Runs these blocks one after the other; gives the names they leave."""
    namespace: dict[str, object] = {"__name__": "recipes"}
    for line, code in blocks(*marks):
        exec(compile("\n" * (line - 1) + code, str(RECIPES), "exec"), namespace)
    return namespace
