"""Docstrings, comments, messages and pages keep to the glossary of docs/design.md."""

from __future__ import annotations

import pytest
import words

FOUND = words.findings()


def test_no_folder_has_more_or_fewer_banned_words_than_its_row_allows() -> None:
    numbers, allowed = words.counted(FOUND), words.left()
    if not allowed:
        # Without a table no word is allowed. Some docstrings may have a banned opening.
        assert sum(opens for _, opens in numbers.values()) <= 30
        numbers = {folder: (count, 0) for folder, (count, _) in numbers.items() if count}
    wrong = {
        folder: f"{numbers.get(folder, (0, 0))} found, {allowed.get(folder, (0, 0))} allowed"
        for folder in sorted(numbers.keys() | allowed.keys())
        if numbers.get(folder, (0, 0)) != allowed.get(folder, (0, 0))
    }
    program = "python tests/support/words.py"
    assert not wrong, (
        f"{wrong}; `{program} FOLDER` lists them, `{program} --update` lowers the rows"
    )


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
