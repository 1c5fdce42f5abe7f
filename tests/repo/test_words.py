"""Docstrings, comments, messages and pages keep to the glossary of docs/design.md."""

from __future__ import annotations

import pytest
import words

FOUND = words.findings()


def test_no_banned_word_is_written() -> None:
    wrong = [f"{found.path}:{found.line}: {found.text}" for found in FOUND if not found.is_opening]
    assert not wrong, "\n".join(wrong)


def test_few_docstrings_have_a_banned_opening() -> None:
    openings = [f"{found.path}:{found.line}: {found.text}" for found in FOUND if found.is_opening]
    assert len(openings) <= 30, "\n".join(openings)


@pytest.mark.parametrize(
    ("path", "text", "count"),
    [
        ("a.py", "# nobody waits\n", 1),
        ("a.py", "nobody = 1\n", 0),
        ("a.py", "x = 1  # rows are shared\n# out\n\n# hand\nx = 2\n# over\n", 1),
        ("a.py", 'def f():\n    """Is told, and told."""\n', 2),
        ("a.py", 'def f():\n    """Takes `told`, or ``anew``, or "beside"."""\n', 0),
        ("a.py", 'raise ValueError(f"{x} lies beside " "it")\n', 1),
        ("a.py", 'x = "beside"\n', 0),
        ("a.py", '"""Of a batch."""\n', 1),
        ("a.py", '"""Offsets."""\n\n\nclass A:\n    """Whether it is."""\n', 1),
        ("a.h", "// Rows are shared\n// out.\nint told;\n", 1),
        ("a.h", '#include "told.h"\nauto x = "nobody";  /* anew */\n', 2),
        ("a.md", "Samples are shared\nout. `told`\n```\nanew\n```\n", 1),
        ("a.md", "What is foreseen, said somebody.", 3),
    ],
)
def test_prose_is_searched_and_code_and_quotations_are_not(
    path: str, text: str, count: int
) -> None:
    assert len(list(words.find(path, text))) == count
