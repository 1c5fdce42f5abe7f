"""Image files of figures, with matplotlib if it is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def plotter(path: Path) -> Any:
    """Returns matplotlib's Figure.

    Args:
        path: Of the file that is to be drawn.

    Raises:
        ModuleNotFoundError: matplotlib is missing; says how to install it.
        ValueError: it draws no such files.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "plotting needs matplotlib: pip install matplotlib", name="matplotlib"
        ) from error
    known = Figure().canvas.get_supported_filetypes()
    if path.suffix and path.suffix[1:].lower() not in known:
        raise ValueError(f"{path}: matplotlib draws {', '.join(known)}")
    return Figure
