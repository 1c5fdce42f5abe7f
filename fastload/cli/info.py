"""The command `fastload info`."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fastload.cli.arguments import add_raw
from fastload.cli.text import count, printable, readable
from fastload.formats import strict_json

if TYPE_CHECKING:
    from fastload.formats.columns import Column
    from fastload.formats.extents import Extents

_MAX_LISTED = 30  # of classes and of skipped files
_MAX_SIZES = 1 << 20  # images whose sizes are read


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("path", metavar="PATH", help="anything that FastLoader reads")
    add_raw(parser)
    parser.add_argument("--json", action="store_true", help="print everything as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Prints what the dataset holds; returns the exit code."""
    from fastload.cli import tokens

    if arguments.shape is None and tokens.are_tokens(arguments.path):
        facts, show = tokens.describe(arguments.path, arguments.dtype), tokens.show
    else:
        facts = describe(arguments.path, dtype=arguments.dtype, shape=arguments.shape)
        show = _show
    if arguments.json:
        sys.stdout.write(strict_json.dumps(facts, indent=1) + "\n")
    else:
        show(facts)
    return 0


def describe(path: str, *, dtype: Any = None, shape: Any = None) -> dict[str, Any]:
    """Describes a dataset in JSON types, as `fastload info --json` prints it.

    Args:
        path: A dataset that is read in place.
        dtype: Dtype of a raw file.
        shape: Shape of a sample in a raw file.
    """
    from fastload.formats import is_packed, open_extents, packed
    from fastload.formats.fields import schema
    from fastload.formats.files import absolute
    from fastload.formats.structure import to_json

    manifest = packed.read_manifest(path) if is_packed(path) else None
    extents = open_extents(path, dtype=dtype, shape=shape)
    sources = {str(source): source for column in extents.columns for source in column.sources}
    facts: dict[str, Any] = {
        "path": absolute(path),
        "rows": extents.rows,
        "shards": sum(len(group.shard_rows) for group in extents.groups),
        "bytes": sum(source.size_bytes for source in sources.values()),
        "fields": [
            {**entry, "bytes": _sample_bytes(extents, column)}
            for entry, column in zip(schema(extents.fields), extents.columns, strict=True)
        ],
        "image sizes": {
            field.name: sizes
            for field in extents.fields
            if (sizes := _sizes(extents, field.name)) is not None
        },
        "structure": to_json(extents.structure),
        "fingerprint": extents.fingerprint(),
        "packed": manifest is not None,
    }
    if manifest is not None:
        facts["generation"] = manifest.generation
        facts["older generations"] = _older(absolute(path), manifest.generation)
        facts["groups"] = {
            group.name: {"fields": [f.name for f in group.fields], "shards": len(group.rows)}
            for group in manifest.groups
        }
        facts["splits"] = manifest.splits
        facts["source"] = manifest.source
        facts["classes"] = {
            name: dict(zip(classes.names, classes.counts, strict=True))
            for name, classes in manifest.class_fields.items()
        }
        facts["missing"] = dataclasses.asdict(manifest.missing)
        facts["skipped"] = {skipped.path: skipped.reason for skipped in manifest.skipped}
        facts["not read"] = {
            of.reason: {"count": of.count, "paths": list(of.paths)} for of in manifest.leftovers
        }
    return facts


def _sample_bytes(extents: Extents, column: Column) -> int:
    """Returns the bytes of a field in a sample; the rounded mean for ragged fields."""
    if column.bounds is None or not extents.rows:
        return column.field.row_bytes if column.bounds is None else 0
    return round(column.field.row_bytes * int(column.bounds.totals.sum()) / extents.rows)


def _sizes(extents: Extents, name: str) -> dict[str, Any] | None:
    """Returns minimum, median and maximum height and width of images, if they are stored.

    If there are many images, a sample of them is read.
    """
    import numpy as np

    from fastload.formats.image_sizes import size_extents

    held = size_extents(extents, name)
    if held is None or extents.rows == 0:
        return None
    rows = np.linspace(0, held.rows - 1, min(held.rows, _MAX_SIZES)).astype(np.int64)
    sizes = np.empty((len(rows), 2), np.uint32)
    held.build().gather(rows, [sizes])
    known = sizes[sizes.all(1)]
    sides = known if len(known) else np.zeros((1, 2), np.uint32)
    facts = {
        side: {"min": int(of.min()), "median": int(np.median(of)), "max": int(of.max())}
        for side, of in zip(("height", "width"), sides.T, strict=True)
    }
    return {**facts, "looked at": len(rows), "unknown": len(rows) - len(known)}


def _older(folder: str, generation: int) -> dict[str, int]:
    """Returns the rows of earlier generations whose manifests exist, by file name."""
    from fastload.formats.packed import old_manifest

    rows = {}
    for name in map(old_manifest, range(1, generation)):
        with contextlib.suppress(OSError, ValueError, KeyError):
            with open(os.path.join(folder, name), "rb") as file:
                rows[name] = int(json.load(file)["rows"])
    return rows


def _show(facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(soft_wrap=True, markup=False, highlight=False)
    kind = f"packed from {facts['source']['kind']}" if facts["packed"] else "read in place"
    console.print(printable(facts["path"]))
    console.print(
        f"{count(facts['rows'], 'row')} in {count(facts['shards'], 'shard')}, "
        f"{readable(facts['bytes'])}, {kind}"
    )
    table = Table("field", "dtype", "shape", "bytes")
    for field in facts["fields"]:
        name = Text(printable(field["name"]))
        is_guessed = field["name"] in facts.get("source", {}).get("guessed", ())
        dtype = Text(
            f"{field.get('logical') or field['dtype']}{' (guessed)' if is_guessed else ''}"
        )
        mean = "" if field["kind"] == "fixed" else " on average"
        table.add_row(name, dtype, _shape(field), f"{field['bytes']:,}{mean}")
    console.print(table)
    for line in (*_about_sizes(facts), *_life(facts)):
        console.print(printable(line))
    for field_name, classes in facts.get("classes", {}).items():
        table = Table("class", field_name, "rows")
        for number, (name, rows) in enumerate(list(classes.items())[:_MAX_LISTED]):
            table.add_row(Text(printable(name)), str(number), f"{rows:,}")
        if left := facts["rows"] - sum(classes.values()):
            table.add_row("no class", "-1", f"{left:,}")
        console.print(table)
        _show_rest(console, len(classes), "class", "classes")
    skipped = list(facts.get("skipped", {}).items())
    for path, reason in skipped[:_MAX_LISTED]:
        console.print(printable(f"skipped {path}: {reason}"))
    _show_rest(console, len(skipped), "skipped file", "skipped files")
    for reason, of in facts.get("not read", {}).items():
        console.print(
            printable(f"not read: {count(of['count'], 'file')}, such as {of['paths'][0]}: {reason}")
        )


def _shape(field: dict[str, Any]) -> str:
    ragged = [] if field["kind"] == "fixed" else ["any"]
    return " x ".join(map(str, [*ragged, *field["shape"]])) or "number"


def _about_sizes(facts: dict[str, Any]) -> Iterator[str]:
    for name, sizes in facts["image sizes"].items():
        sides = (
            f"{side} {of['min']} to {of['max']}, median {of['median']}"
            for side, of in sizes.items()
            if isinstance(of, dict)
        )
        unknown = f"; {sizes['unknown']} unknown" if sizes["unknown"] else ""
        seen = f" ({sizes['looked at']} checked)" if sizes["looked at"] < facts["rows"] else ""
        yield f"{name}: {'; '.join(sides)}{unknown}{seen}"


def _life(facts: dict[str, Any]) -> Iterator[str]:
    """Yields lines about missing values, splits, column sets and generations."""
    missing = facts.get("missing", {"dropped_rows": 0, "dropped": {}, "filled": {}})
    if missing["dropped"]:
        yield f"left out {count(missing['dropped_rows'], 'row')} with missing values:"
    for name, rows in missing["dropped"].items():
        yield f"  {name} is missing in {count(rows, 'row')}"
    for name, rows in missing["filled"].items():
        yield f"filled in missing values of {name} in {count(rows, 'row')}"
    for name, (start, stop) in facts.get("splits", {}).items():
        yield f"split {name}: {count(stop - start, 'row')}, from row {start:,}"
    groups = facts.get("groups", {})
    for name, group in groups.items() if len(groups) > 1 else ():
        fields = ", ".join(group["fields"])
        yield f"column set {name}: {fields}; {count(group['shards'], 'shard')}"
    if facts.get("generation", 1) > 1:
        yield f"generation {facts['generation']}"
    for name, rows in facts.get("older generations", {}).items():
        yield f"older generation {name}: {count(rows, 'row')}"


def _show_rest(console: Any, length: int, one: str, many: str) -> None:
    if length > _MAX_LISTED:
        console.print(f"and {count(length - _MAX_LISTED, one, many)} more, with --json")
