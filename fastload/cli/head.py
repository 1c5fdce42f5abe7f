"""The command `fastload head`."""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from fastload.cli.arguments import add_raw
from fastload.cli.text import count, printable

_MAX_NUMBERS = 8
_MAX_TEXT = 100


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    add = parser.add_argument
    add("path", metavar="DATASET", help="anything that FastLoader reads")
    add(
        "samples",
        metavar="N",
        nargs="?",
        type=int,
        default=5,
        help="number of samples (default: 5)",
    )
    add("--split", metavar="NAME", help="one split of a packed dataset")
    add_raw(parser)


def run(arguments: argparse.Namespace) -> int:
    """Prints the first samples; returns the exit code."""
    from rich.console import Console

    from fastload.datasets.file_datasets import open as open_dataset
    from fastload.packing.reading import read_rows

    dataset = open_dataset(
        arguments.path, dtype=arguments.dtype, shape=arguments.shape, split=arguments.split
    )
    console = Console(soft_wrap=True, markup=False, highlight=False)
    manifest = getattr(dataset, "manifest", None)
    classes = manifest.class_fields if manifest is not None else {}
    for row in range(min(max(arguments.samples, 0), len(dataset))):
        console.print(f"sample {row}")
        columns = read_rows(dataset, np.array([row]))
        for field, column in zip(dataset.fields, columns, strict=True):
            text = _value(field, column)
            if field.name in classes:
                text += f" ({classes[field.name].name(int(text))})"
            console.print(printable(f"  {field.name}: {text}"))
    return 0


def _value(field: Any, column: Any) -> str:
    from fastload.formats.fields import BYTE_STRINGS
    from fastload.packing.cast import decoded

    values = column.values if field.ragged else column[0]
    if field.logical in BYTE_STRINGS:
        content = values.tobytes()
        if field.logical != "utf8":
            return f"{count(len(content), 'byte')} of {field.logical}"
        text = content.decode("utf-8", "replace")
        return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}..."
    values = np.asarray(decoded(values, field))
    if field.logical is not None:
        values = values.view(field.logical)
    if values.size <= _MAX_NUMBERS:
        return _text(values.tolist()) if field.logical is None else str(values)
    first = ", ".join(map(_text, values.reshape(-1)[:_MAX_NUMBERS].tolist()))
    described = f"{field.dtype} {list(values.shape)}: {first}, ..."
    if values.dtype.kind in "iuf":
        described += f" from {_text(values.min().item())} to {_text(values.max().item())}"
    return described


def _text(value: Any) -> str:
    """Returns a number, or nested lists of numbers, as text; floats with six digits."""
    if isinstance(value, list):
        return f"[{', '.join(map(_text, value))}]"
    if not isinstance(value, float):
        return str(value)
    text = f"{value:.6g}"
    return f"{text}.0" if text.lstrip("-").isdigit() else text
