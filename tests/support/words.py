"""Finds words that the glossary of docs/design.md replaces; a program that lists them.

python tests/support/words.py [FOLDER ...]   # lists the places
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from paths import ROOT

BANNED = re.compile(
    r"\b(?:told|nobody|somebody|whoever|anew|beside|hitherto|thereof|thereby|begun|began|said"
    r"|foresee[ns]?|foreseeing|foresaw|bookmark(?:s|ed)?|mend(?:s|ed|ing)?"
    r"|shar(?:e|es|ed|ing)\s+(?:\w+self\s+|them\s+|it\s+)?out|hand(?:s|ed|ing)?\s+(?:over|out)"
    r"|pass(?:es|ed|ing)?\s+over|what\s+becomes?\s+of|keyed\s+orders?|bottom\s+samplers?|odd\s+ind(?:ex|ices)"
    r"|comes?\s+again|as\s+ever|for\s+(?:it|they|there)\s+(?:is|are|was|were|has|have|may|can)"
    r"|of\s+its\s+kind|begins|gaps?|look(?:s|ed)\s+at|go(?:es)?\s+on|asked\s+for)\b",
    re.IGNORECASE,
)
OPENING = re.compile(r"(?:What|Whether|Of|The same)\b")
FOLDERS = ("fastload", "csrc", "docs", "examples", "benchmarks")
PAGES = ("README.md", "CONTRIBUTING.md")

# Code and quotations are not prose.
_CODE = re.compile(r"```.*?(?:```|\Z)|``[^`]*``|`[^`]*`", re.DOTALL)
_QUOTE = re.compile(r"\"[^\"\n]{1,200}\"|“[^”]*”")
_CPP = re.compile(
    r"//(?P<line>[^\n]*)|/\*(?P<block>.*?)\*/"
    r"|(?P<include>^[ \t]*#[ \t]*include[^\n]*)"
    r"|\"(?P<text>(?:[^\"\\\n]|\\.)*)\"|'(?:[^'\\\n]|\\.)+'",
    re.DOTALL | re.MULTILINE,
)
_MESSAGES = {"warn", "warning", "error", "add_argument", "add_parser", "print"}


class Finding(NamedTuple):
    """A banned word, or a docstring with a banned opening."""

    path: str
    line: int
    text: str
    is_opening: bool


def find(path: str, text: str) -> Iterator[Finding]:
    """Yields what the text of one file must not hold; `path` is relative to the repository."""
    passages = {".py": _python, ".md": _markdown}.get(Path(path).suffix, _cpp)
    for line, passage, is_docstring in passages(text):
        if is_docstring and OPENING.match(passage):
            yield Finding(path, line, passage.splitlines()[0], True)
        prose = _QUOTE.sub(_blank, _CODE.sub(_blank, passage))
        for match in BANNED.finditer(prose):
            yield Finding(path, line + prose[: match.start()].count("\n"), match.group(), False)


def findings(root: Path = ROOT) -> list[Finding]:
    """Returns the findings in all files that the rule covers."""
    paths = [root / page for page in PAGES]
    for folder in FOLDERS:
        for suffix in ("py", "md", "h", "cpp", "cu"):
            paths += sorted((root / folder).rglob(f"*.{suffix}"))
    found: list[Finding] = []
    for path in paths:
        found += find(str(path.relative_to(root)), path.read_text())
    return found


def _python(source: str) -> Iterator[tuple[int, str, bool]]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    comments = [(t.start[0], t.string.lstrip("# ")) for t in tokens if t.type == tokenize.COMMENT]
    for line, text in _joined(comments):
        yield line, text, False
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and _is_text(first.value):
                yield first.lineno, first.value.value.strip(), True
        if isinstance(node, ast.Raise) or (
            isinstance(node, ast.Call) and _name(node.func) in _MESSAGES
        ):
            # A message is one passage, also where it is written as several strings.
            texts = [part for part in ast.walk(node) if _is_text(part)]
            if texts:
                yield node.lineno, " ".join(part.value for part in texts), False


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def _name(function: ast.expr) -> str:
    return getattr(function, "attr", getattr(function, "id", ""))


def _markdown(source: str) -> Iterator[tuple[int, str, bool]]:
    # Words in italics are quoted, as in the glossary itself.
    yield 1, re.sub(r"(?<!\*)\*[^*\n|]+\*(?!\*)", _blank, source), False


def _cpp(source: str) -> Iterator[tuple[int, str, bool]]:
    comments: list[tuple[int, str]] = []
    for match in _CPP.finditer(source):
        line = source.count("\n", 0, match.start()) + 1
        text = match["line"] or match["block"] or match["text"] or ""
        if match["line"] is not None:
            comments.append((line, text))
        elif match["include"] is None:
            yield line, text, False
    for line, text in _joined(comments):
        yield line, text, False


def _joined(comments: list[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Joins comments on consecutive lines, since a phrase may be broken between them."""
    start, lines = 0, []
    for line, text in comments:
        if lines and line != start + len(lines):
            yield start, "\n".join(lines)
            lines = []
        start = start if lines else line
        lines.append(text)
    if lines:
        yield start, "\n".join(lines)


def _blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match.group())


def main(arguments: list[str]) -> None:
    for path, line, text, is_opening in findings():
        if not arguments or any(path.startswith(folder) for folder in arguments):
            sys.stdout.write(f"{path}:{line}: {'opens with: ' if is_opening else ''}{text}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
