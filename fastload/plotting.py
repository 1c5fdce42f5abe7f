"""Image files of figures, with matplotlib if it is installed."""

from __future__ import annotations

from typing import Any


def plotter() -> Any:
    """Returns matplotlib's Figure.

    Raises:
        ModuleNotFoundError: matplotlib is missing; says how to install it.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "plotting needs matplotlib: pip install matplotlib", name="matplotlib"
        ) from error
    return Figure
