"""Draws the results of bench_loader.py as bars: the share of the limit that each loader reaches."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

LOADERS = {
    "fastload": ("FastLoader", "#2563eb"),
    "ffcv": ("FFCV 1.0.2", "#94a3b8"),
    "batched": ("DataLoader, batched fetch", "#94a3b8"),
    "dataloader": ("DataLoader", "#94a3b8"),
}
LEFT, WIDTH, BAR, GROUP = 190, 400, 15, 30  # pixels
STYLE = "font-family='system-ui, sans-serif' font-size='12' fill='#334155'"


def draw(result: dict[str, Any]) -> str:
    """Returns an SVG: a group of bars for each row size, 100 % is the limit."""
    elements: list[str] = []
    y = 34
    for size in result["sizes"]:
        elements.append(
            _text(8, y + 12, f"rows of {size['row_bytes']:,} bytes", "font-weight='bold'")
        )
        y += 20
        for name, share in shares(size):
            label, colour = LOADERS[name]
            speed = f"{share:.1%}" if share < 0.1 else f"{share:.0%}"
            if name == "fastload":
                speed += f", {size['fastload']['samples_per_s']:,.0f} samples/s"
            length = max(1.0, share * WIDTH)
            elements.append(_text(LEFT - 8, y + 11, label, "text-anchor='end'"))
            area = f"x='{LEFT}' y='{y}' width='{length:.1f}' height='{BAR - 3}'"
            elements.append(f"<rect {area} fill='{colour}'/>")
            elements.append(_text(LEFT + length + 6, y + 11, speed))
            y += BAR
        y += GROUP - BAR
    title = "Share of the memory limit that each loader reaches (files in the page cache)"
    head = (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{LEFT + WIDTH + 190}' height='{y}' "
        f"role='img' aria-label='{escape(title)}'>"
    )
    background = "<rect width='100%' height='100%' rx='6' fill='#ffffff'/>"
    lines = [head, background, _text(8, 20, title), *elements, "</svg>"]
    return "\n".join(lines) + "\n"


def shares(size: dict[str, Any]) -> Iterator[tuple[str, float]]:
    """Yields the loaders that were measured, with their speed relative to the limit."""
    own = size["ratios"]["limit"]["ratio"]
    for name in LOADERS:
        if name == "fastload":
            yield name, own
        elif name in size["ratios"]:
            yield name, own / size["ratios"][name]["ratio"]


def _text(x: float, y: float, text: str, attributes: str = "") -> str:
    return f"<text x='{x:.0f}' y='{y}' {STYLE} {attributes}>{escape(text)}</text>"
