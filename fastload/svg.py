"""Pictures as SVG inside a page of HTML that needs nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

COLORS = ("#2a6fdb", "#d9822b", "#3d9140", "#a33ea1", "#777777")
_STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;margin:0 auto;padding:1rem;max-width:60rem}
h1{font-size:1.25rem}h2{font-size:1rem;margin-top:2rem}
svg{width:100%;max-width:44rem;height:auto;display:block}svg text{fill:currentColor;font-size:11px}
.scroll{overflow-x:auto}table{border-collapse:collapse}
td,th{padding:.2rem .6rem;text-align:right;border-bottom:1px solid #8886}
td:first-child,th:first-child{text-align:left}
"""


def page(title: str, parts: Sequence[str]) -> str:
    """One self-contained page; `parts` are HTML already.

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
    """A heading of a part."""
    return f"<h2>{escape(text)}</h2>"


def paragraph(text: str) -> str:
    """A paragraph."""
    return f"<p>{escape(text)}</p>"


def item(text: str) -> str:
    """A line of a list."""
    return f"<li>{escape(text)}</li>"


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that scrolls by itself on a narrow screen."""
    head = "".join(f"<th>{escape(title)}</th>" for title in titles)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def legend(names: Sequence[str]) -> str:
    """The names in the colours of `lines` and `bands`."""
    spans = (
        f'<span style="color:{COLORS[i % len(COLORS)]}">&#9632;</span> {escape(name)}'
        for i, name in enumerate(names)
    )
    return "<p>" + " &nbsp; ".join(spans) + "</p>"


def bands(rows: Sequence[tuple[str, Sequence[tuple[float, float, int]]]]) -> str:
    """A timeline: for each row a label and bars, from, to and the number of their colour."""
    end = max((bar[1] for _, bars in rows for bar in bars), default=0.0) or 1.0
    width, left, height = 380.0, 48.0, 28.0
    scale = (width - left - 4) / end
    parts = [f'<svg viewBox="0 0 {width:g} {height * len(rows) + 18:g}" role="img">']
    for number, (label, bars) in enumerate(rows):
        top = height * number
        parts.append(f'<text x="0" y="{top + 16:g}">{escape(label)}</text>')
        for start, stop, color in bars:
            parts.append(
                f'<rect x="{left + scale * start:.2f}" y="{top + 4:g}" '
                f'width="{max(0.2, scale * (stop - start)):.2f}" height="16" '
                f'fill="{COLORS[color % len(COLORS)]}"/>'
            )
    parts.append(f'<text x="{left:g}" y="{height * len(rows) + 12:g}">0</text>')
    parts.append(
        f'<text x="{width - 4:g}" y="{height * len(rows) + 12:g}" text-anchor="end">'
        f"{end:.4g} ms</text></svg>"
    )
    return "".join(parts)


def lines(curves: Sequence[Sequence[tuple[float, float]]], *, x: str, y: str) -> str:
    """Curves over one another, each in its colour; 0 is on the vertical axis.

    Args:
        curves: Points, by x.
        x: What the horizontal axis shows.
        y: What the vertical axis shows.
    """
    # A loss that became infinite, say, has no place.
    curves = [[point for point in curve if math.isfinite(point[1])] for curve in curves]
    points = [point for curve in curves for point in curve]
    most_x = max((point[0] for point in points), default=0.0) or 1.0
    heights = [0.0, *(point[1] for point in points)]
    least, most = min(heights), max(heights)
    width, height, left, bottom = 380.0, 200.0, 8.0, 22.0
    across, up = (width - left - 6) / most_x, (height - bottom - 18) / ((most - least) or 1.0)
    floor, span = height - bottom, f"from {_number(least)} to" if least else "up to"
    parts = [f'<svg viewBox="0 0 {width:g} {height:g}" role="img">']
    parts.append(
        f'<path d="M{left:g} 14V{floor:g}H{width - 6:g}" stroke="currentColor" fill="none"/>'
    )
    for number, curve in enumerate(curves):
        path = " ".join(f"{left + across * a:.1f},{floor - up * (b - least):.1f}" for a, b in curve)
        parts.append(
            f'<polyline points="{path}" fill="none" stroke-width="1.5" '
            f'stroke="{COLORS[number % len(COLORS)]}"/>'
        )
    parts.append(f'<text x="{left:g}" y="10">{escape(y)}, {span} {_number(most)}</text>')
    parts.append(
        f'<text x="{width - 6:g}" y="{height - 6:g}" text-anchor="end">'
        f"{escape(x)}, up to {_number(most_x)}</text></svg>"
    )
    return "".join(parts)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
