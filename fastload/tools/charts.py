"""Charts by matplotlib, as image files or in a self-contained HTML page."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import Any

# Readable on white and on black.
COLORS = ("#3b82d8", "#e07b1a", "#2f9e4f", "#c2409f", "#8a6cd8", "#12a0a8", "#d1495b", "#8c8c3a")
DASHES = ("-", "--", ":", "-.")
MISSING = "charts need matplotlib: pip install matplotlib"

_INK = "#010203"  # placeholder for the text colour of the page
_STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;margin:0 auto;padding:1rem;max-width:72rem}
h1{font-size:1.4rem;margin:.5rem 0}h2{font-size:1.1rem;margin:2rem 0 .5rem}
p,li{overflow-wrap:anywhere}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-variant-numeric:tabular-nums}
td,th{padding:.3rem .6rem;text-align:right;border-bottom:1px solid #8886;vertical-align:top}
td{white-space:nowrap}th.text{text-align:left}td.text{white-space:normal;text-align:left;min-width:9rem;max-width:20rem}
th{font-weight:600;vertical-align:bottom}td:first-child,th:first-child{text-align:left}
td:first-child{white-space:normal;overflow-wrap:anywhere;min-width:8rem;max-width:18rem}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,30rem),1fr));gap:1rem}
figure{margin:0;min-width:0;max-width:44rem}figure svg{width:100%;height:auto;display:block}
figcaption,.note{font-size:.875rem;opacity:.75}
"""


def is_available() -> bool:
    """Returns True if matplotlib is installed."""
    try:
        _figure_class()
    except ModuleNotFoundError:
        return False
    return True


def check(path: Path) -> None:
    """Raises unless an image file with this name can be drawn.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        ValueError: matplotlib does not support the suffix.
    """
    known = _figure_class()().canvas.get_supported_filetypes()
    if path.suffix and path.suffix[1:].lower() not in known:
        raise ValueError(f"{path}: matplotlib draws {', '.join(known)}")


def save(
    path: Path, draws: Sequence[Callable[[Any], object]], footer: str, *, height: float = 3.2
) -> None:
    """Draws charts into one image file, two in a row.

    Args:
        path: See `check`.
        draws: Functions, each called with the axes of its chart.
        footer: Text below the charts: machine, date and settings.
        height: Height of a chart in inches.
    """
    check(path)
    columns = min(2, len(draws))
    rows = -(-len(draws) // columns)
    figure = _figure_class()(figsize=(6.4 * columns, height * rows), layout="constrained")
    for place, draw in enumerate(draws):
        draw(_bare(figure.add_subplot(rows, columns, place + 1)))
    figure.supxlabel(footer, fontsize=7, x=0.01, ha="left")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        figure.savefig(path, dpi=150)


def chart(draw: Callable[[Any], object], caption: str, *, height: float = 2.9) -> str:
    """Returns a chart as an HTML `<figure>` in the text colour of the page.

    Args:
        draw: Called with the axes.
        caption: Text below the chart, also for screen readers.
        height: Height in inches; the width is 5.6.
    """
    from matplotlib import rc_context

    ink = dict.fromkeys(
        ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), _INK
    )
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": caption, "font.size": 9.5, **ink}
    text = io.StringIO()
    with rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)
        figure = _figure_class()(figsize=(5.6, height), layout="constrained")
        draw(_bare(figure.add_subplot()))
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None})
    drawn = re.sub(r"<metadata>.*?</metadata>", "", text.getvalue(), flags=re.DOTALL)
    drawn = drawn[drawn.index("<svg") :].replace(_INK, "currentColor")
    drawn = drawn.replace("<svg", f'<svg role="img" aria-label="{escape(caption)}"', 1)
    return f"<figure>{drawn}<figcaption>{escape(caption)}</figcaption></figure>"


def label(name: str, most: int = 32) -> str:
    """Returns a text for matplotlib: shortened, in one line, with formulas escaped."""
    name = " ".join(name.split())
    name = name if len(name) <= most else name[: most - 1] + "…"
    return " " * name.startswith("_") + name.replace("$", r"\$")


def _figure_class() -> Any:
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(MISSING, name="matplotlib") from error
    return Figure


def _bare(axes: Any) -> Any:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(visible=True, alpha=0.2, linewidth=0.6)
    axes.set_axisbelow(True)
    return axes


# --- The page -----------------------------------------------------------------------------------


def page(title: str, parts: Sequence[str]) -> str:
    """Returns a self-contained page; `parts` are HTML.

    Example:
        >>> page("a < b", ["<p>text</p>"]).count("a &lt; b")
        2
    """
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n" + "\n".join(parts) + "\n</body>\n</html>\n"
    )


def heading(text: str) -> str:
    """Returns a heading."""
    return f"<h2>{escape(text)}</h2>"


def paragraph(text: str, *, note: bool = False) -> str:
    """Returns a paragraph; a note is smaller."""
    return f"<p{' class=note' * note}>{escape(text)}</p>"


def items(texts: Sequence[str]) -> str:
    """Returns a list; an empty string without texts."""
    return "<ul>" + "".join(f"<li>{escape(text)}</li>" for text in texts) + "</ul>" if texts else ""


def grid(charts: Sequence[str]) -> str:
    """Returns charts side by side, or below one another in a narrow window."""
    return '<div class="charts">' + "\n".join(charts) + "</div>"


def table(
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    colors: Sequence[str] = (),
    text: bool = False,
) -> str:
    """Returns a table that scrolls in a narrow window.

    Args:
        titles: Titles of the columns.
        rows: Rows of cells.
        colors: Colours of a square before each row.
        text: True if cells hold text, which may wrap, rather than numbers.
    """
    kind = " class=text" * text
    head = "".join(f"<th{kind}>{escape(title)}</th>" for title in titles)
    squares = [f'<span style="color:{color}">&#9632;</span> ' for color in colors]
    squares += [""] * (len(rows) - len(squares))
    body = "".join(
        f"<tr><td{kind}>{square}" + f"</td><td{kind}>".join(map(escape, row)) + "</td></tr>"
        for square, row in zip(squares, rows, strict=True)
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'
