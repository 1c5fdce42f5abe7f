"""The command `fastload`: pack, info, bench, demo.

Exit codes: 0 done; 1 failed, with one line that says why; 2 wrong usage; 3 packed, but some inputs
were left out; 130 broken off by Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

SKIPPED = 3
INTERRUPTED = 130

Run = Callable[[argparse.Namespace], int]

_COMMANDS = {
    "pack": "convert a dataset into shards, once",
    "info": "show what a dataset holds",
    "verify": "look for damage in a dataset",
    "bench": "measure how fast a dataset loads, beside the machine's limit and DataLoader",
    "demo": "tell the whole story on real data, in two minutes",
}
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_LONGEST_LIST = 30  # of classes and of skipped files


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line and returns its exit code.

    Args:
        arguments: Without the program's name; None takes those of the process.

    Raises:
        SystemExit: help was asked for, or the usage is wrong.

    Example:
        >>> main(["info", "data/train"])  # doctest: +SKIP
        0
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    parser, run = _parser(next((word for word in words if not word.startswith("-")), ""))
    parsed = parser.parse_args(words)
    try:
        return run(parsed)
    except KeyboardInterrupt:
        return _complain("interrupted", INTERRUPTED)
    except OSError as error:
        path = f"{os.fsdecode(error.filename)}: " if error.filename is not None else ""
        return _complain(f"error: {path}{error.strerror or error}", 1)
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        ImportError,
        RuntimeError,
        MemoryError,
    ) as error:
        text = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
        return _complain(f"error: {text or type(error).__name__}", 1)


def _complain(message: str, code: int) -> int:
    sys.stderr.write(f"fastload: {_printable(message)}\n")
    return code


def _printable(text: str) -> str:
    """The text in one line, with what cannot be printed written out."""
    escaped = (c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    return "".join(escaped)


def _parser(command: str) -> tuple[argparse.ArgumentParser, Run]:
    """The parser with the arguments of one command; the others would import what they need."""
    parser = argparse.ArgumentParser(
        prog="fastload", description="A data loading engine for PyTorch."
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    parsers = {
        name: subparsers.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        for name, text in _COMMANDS.items()
    }
    if command == "pack":
        _add_pack_arguments(parsers[command])
        return parser, _pack
    if command == "info":
        _add_info_arguments(parsers[command])
        return parser, _info
    if command not in parsers:
        return parser, lambda _: 2
    module = import_module(f"fastload.{command}")
    module.add_arguments(parsers[command])
    return parser, module.run


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from fastload import _core

        sys.stdout.write(f"fastload {_core.__version__}\n")
        parser.exit()


# --- pack -------------------------------------------------------------------------------------


def _add_pack_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "source",
        metavar="SRC",
        help="a folder of class folders of images, a .npy file or a folder of them, an .npz file, "
        "a raw file, or a map-style dataset as module:object",
    )
    add("out", metavar="OUT", help="the folder to write")
    add("--kind", help="imagefolder, npy, npz, raw or dataset (default: found out)")
    add(
        "--resize",
        type=_image_size,
        metavar="HxW",
        help="height and width for all images, one number for both; the aspect ratio is not kept",
    )
    add("--allow-empty", action="store_true", help="keep classes without images")
    add("--strict", action="store_true", help="stop at the first bad image")
    add("--dtype", help="of a raw file, such as uint16; '>i4' is big-endian")
    add("--shape", type=_shape, metavar="N,...", help="of a sample in a raw file: 3,32,32")
    add("--shard-size", type=_size, metavar="SIZE", help="such as 64MiB (default: 256MiB)")
    add("--workers", type=int, metavar="N", help="processes (default: one per CPU core)")
    add("--overwrite", action="store_true", help="replace the packed dataset in OUT")


def _pack(arguments: argparse.Namespace) -> int:
    from rich.console import Console

    from fastload.pack import pack
    from fastload.pack.progress import ProgressDisplay, speed

    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # for module:object, as `python -m` does
    options = {key: value for key, value in vars(arguments).items() if value is not None}
    del options["command"]
    console = Console(stderr=True, soft_wrap=True, markup=False, highlight=False)
    start = time.monotonic()
    with ProgressDisplay(console) as display:
        try:
            report = pack(**options, progress=display)
        except KeyboardInterrupt:
            return _complain(
                f"interrupted: {arguments.out} is incomplete; run the same command again",
                INTERRUPTED,
            )
    took = max(time.monotonic() - start, 1e-3)
    for notice in report.notices:
        console.print(_printable(notice))
    for skipped in report.skipped:
        console.print(_printable(f"skipped {skipped.path}: {skipped.reason}"))
    shards = _count(report.shards, "shard")
    console.print(
        f"packed {_count(report.rows, 'row')} into {shards}, {_readable(report.bytes)}, in "
        f"{took:.1f} s: {speed(report.rows, report.bytes, took)}"
    )
    if not report.skipped:
        return 0
    skipped_count = _count(len(report.skipped), "bad input")
    return _complain(f"{skipped_count} left out; the manifest lists them", SKIPPED)


def _image_size(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)(?:x(\d+))?", text.lower())
    if found is None or "0" in found.groups():
        raise argparse.ArgumentTypeError(f"a size such as 224x224 is needed, not {text!r}")
    return int(found[1]), int(found[2] or found[1])


def _shape(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[\d,\s]*", text):
        raise argparse.ArgumentTypeError(f"a shape such as 3,32,32 is needed, not {text!r}")
    return tuple(int(part) for part in text.split(",") if part.strip())


def _size(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?)(?:ib|b)?", text.strip().lower())
    if found is None:
        raise argparse.ArgumentTypeError(f"a size such as 64MiB is needed, not {text!r}")
    return int(float(found[1]) * _UNITS[found[2]])


# --- info -------------------------------------------------------------------------------------


def _add_info_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help="anything that FastLoader reads")
    parser.add_argument("--dtype", help="of a raw file, such as uint16")
    parser.add_argument("--shape", type=_shape, metavar="N,...", help="of a sample in a raw file")
    parser.add_argument("--json", action="store_true", help="print all of it as JSON")


def _info(arguments: argparse.Namespace) -> int:
    facts = describe(arguments.path, dtype=arguments.dtype, shape=arguments.shape)
    if arguments.json:
        sys.stdout.write(json.dumps(facts, indent=1) + "\n")
    else:
        _show(facts)
    return 0


def describe(path: str, *, dtype: Any = None, shape: Any = None) -> dict[str, Any]:
    """What `fastload info --json` prints: a dataset in JSON's types.

    Args:
        path: Anything that is read in place.
        dtype: Of a raw file.
        shape: Of a sample in a raw file.
    """
    from fastload.formats import is_packed, open_extents, packed
    from fastload.formats.files import absolute
    from fastload.structure import to_json

    manifest = packed.read_manifest(path) if is_packed(path) else None
    extents = open_extents(path, dtype=dtype, shape=shape)
    sources = {str(source): source for column in extents.columns for source in column.sources}
    fields = [
        {"name": f.name, "dtype": f.dtype, "shape": list(f.shape), "bytes": f.row_bytes}
        for f in extents.fields
    ]
    facts: dict[str, Any] = {
        "path": absolute(path),
        "rows": extents.rows,
        "shards": len(extents.groups[0].shard_rows),
        "bytes": sum(source.size_bytes for source in sources.values()),
        "fields": fields,
        "structure": to_json(extents.structure),
        "fingerprint": extents.fingerprint(),
        "packed": manifest is not None,
    }
    if manifest is not None:
        facts["source"] = manifest.source
        facts["classes"] = {
            name: dict(zip(classes.names, classes.counts, strict=True))
            for name, classes in manifest.class_fields.items()
        }
        facts["skipped"] = {skipped.path: skipped.reason for skipped in manifest.skipped}
    return facts


def _show(facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(soft_wrap=True, markup=False, highlight=False)
    kind = f"packed from {facts['source']['kind']}" if facts["packed"] else "read in place"
    console.print(_printable(facts["path"]))
    console.print(
        f"{_count(facts['rows'], 'row')} in {_count(facts['shards'], 'shard')}, "
        f"{_readable(facts['bytes'])}, {kind}"
    )
    table = Table("field", "dtype", "shape", "bytes")
    for field in facts["fields"]:
        shape = " x ".join(map(str, field["shape"])) or "number"
        name = Text(_printable(field["name"]))
        table.add_row(name, field["dtype"], shape, f"{field['bytes']:,}")
    console.print(table)
    for field_name, classes in facts.get("classes", {}).items():
        table = Table("class", field_name, "rows")
        for number, (name, count) in enumerate(list(classes.items())[:_LONGEST_LIST]):
            table.add_row(Text(_printable(name)), str(number), f"{count:,}")
        console.print(table)
        _show_rest(console, len(classes), "class", "classes")
    skipped = list(facts.get("skipped", {}).items())
    for path, reason in skipped[:_LONGEST_LIST]:
        console.print(_printable(f"skipped {path}: {reason}"))
    _show_rest(console, len(skipped), "skipped file", "skipped files")


def _show_rest(console: Any, count: int, one: str, many: str) -> None:
    if count > _LONGEST_LIST:
        console.print(f"and {_count(count - _LONGEST_LIST, one, many)} more, with --json")


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _readable(size_bytes: int) -> str:
    size, unit = float(size_bytes), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.1f} {unit}" if unit != "bytes" else _count(size_bytes, "byte")
