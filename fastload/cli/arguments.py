"""Arguments that several commands take."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fastload.packing.inputs.kind import Option

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def add_source(parser: argparse.ArgumentParser) -> None:
    """Adds the input and its options."""
    parser.add_argument(
        "source",
        metavar="SRC",
        help="a file, a folder, or a map-style dataset as module:object "
        "(docs/reference/packing.md lists all kinds)",
    )
    add_reading(parser)


def add_reading(parser: argparse.ArgumentParser) -> None:
    """Adds the options for reading an input; `--from KIND --help` shows those of that kind."""
    from fastload.packing.inputs.kind import DTYPES
    from fastload.packing.kinds.registry import KINDS, OPTIONS

    declared = {
        option.name: _add_option(
            parser,
            option,
            [kind.name for kind in KINDS if option in kind.options or option is DTYPES],
        )
        for option in OPTIONS.values()
    }
    parser.add_argument(
        "--from",
        "--kind",
        dest="kind",
        action=_KindAction,
        declared=declared,
        metavar="KIND",
        help=f"kind of SRC (default: detected): {', '.join(kind.name for kind in KINDS)}; "
        "--from KIND --help shows its options",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="stop at the first bad record, or if a file that is not hidden would not be read",
    )
    parser.add_argument(
        "--ignore",
        action="append",
        metavar="GLOB",
        help="exclude files and folders whose path or name matches; repeatable",
    )


class _KindAction(argparse.Action):
    """Stores the kind, and limits the help to its options."""

    def __init__(self, *args: Any, declared: dict[str, argparse.Action], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._declared = declared

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, *_: Any
    ) -> None:
        from fastload.packing.inputs.kind import DTYPES
        from fastload.packing.kinds.registry import KINDS

        setattr(namespace, self.dest, value)
        for kind in KINDS:
            if kind.name == value:
                needs = f"; needs pip install {' '.join(kind.needs)}" if kind.needs else ""
                self.help = f"{value}: {kind.reads}{needs}"
                own = {option.name: option for option in kind.options}
                own[DTYPES.name] = DTYPES  # cast afterwards if the kind does not read with dtypes
                for name, action in self._declared.items():
                    action.help = own[name].help if name in own else argparse.SUPPRESS


def _add_option(
    parser: argparse.ArgumentParser, option: Option, kinds: list[str]
) -> argparse.Action:
    flag, text = f"--{option.name.replace('_', '-')}", f"{option.help} ({', '.join(kinds)})"
    if option.value == "flag":
        return parser.add_argument(flag, action="store_true", help=text)
    parse, metavar = _VALUES[option.value]
    return parser.add_argument(flag, type=parse, metavar=metavar, help=text)


def add_raw(parser: argparse.ArgumentParser) -> None:
    """Adds dtype and shape of raw files."""
    parser.add_argument("--dtype", help="dtype of a raw file, such as uint16")
    parser.add_argument(
        "--shape", type=shape, metavar="N,...", help="shape of a sample in a raw file"
    )


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Adds the options that select fields and samples of an input."""
    from fastload.packing.missing import POLICIES

    add = parser.add_argument
    add("--fields", type=_names, metavar="A,B", help="read only these fields")
    add(
        "--missing",
        choices=POLICIES,
        help="missing values: error (default), replace by NaN (floats only), replace by zero or "
        "empty values, or drop the sample",
    )
    add(
        "--cast",
        type=_pairs,
        metavar="X=DTYPE,...",
        help="change dtypes, such as x=bf16; integers must fit",
    )
    add("--shuffle", type=int, metavar="SEED", help="write the samples in a random order")
    add("--limit", type=int, metavar="N", help="write only the first N samples (after --shuffle)")


def add_writing(parser: argparse.ArgumentParser) -> None:
    """Adds the options for writing shards."""
    from fastload.packing.jobs.engines import ENGINES

    add = parser.add_argument
    add(
        "--shard-size",
        type=_size,
        metavar="SIZE",
        help="size of a shard, such as 64MiB (default: 256MiB)",
    )
    add("--workers", type=int, metavar="N", help="number of processes (default: one per CPU core)")
    add(
        "--engine",
        choices=ENGINES,
        help="where shards are written: on this host (default) or a cluster",
    )
    add(
        "--scheduler",
        metavar="ADDRESS",
        help="address of the Dask scheduler, such as tcp://head:8786, or its file",
    )
    add(
        "--address",
        metavar="ADDRESS",
        help="address of a Ray cluster, such as head:6379 (default: auto)",
    )
    add("--resume", action="store_true", help="continue an interrupted run")


def add_splits(parser: argparse.ArgumentParser) -> None:
    """Adds the splits of the rows."""
    parser.add_argument(
        "--split",
        type=_pairs,
        metavar="NAME=X,...",
        help="names and shares of the splits, such as train=0.9,val=0.1",
    )


def given(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the arguments on the command line, by name."""
    options = {key: value for key, value in vars(arguments).items() if value is not None}
    del options["command"], options["words"]
    return options


def engine(options: dict[str, Any]) -> dict[str, Any]:
    """Removes the options of the engine from the arguments, and returns them."""
    names = ("engine", "scheduler", "address")
    return {name: options.pop(name) for name in names if name in options}


def shape(text: str) -> tuple[int, ...]:
    """Parses the shape of a sample, such as 3,32,32."""
    if not re.fullmatch(r"[\d,\s]*", text):
        raise argparse.ArgumentTypeError(f"a shape such as 3,32,32 is needed, not {text!r}")
    return tuple(int(part) for part in text.split(",") if part.strip())


def output(text: str) -> Path:
    """Parses the path of an output file; fails early if its folder does not exist."""
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {str(path.parent)!r}")
    return path


def image_size(text: str) -> tuple[int, int]:
    """Parses a size of images: 224x224, height first, or 224 for both sides."""
    found = re.fullmatch(r"(\d+)(?:x(\d+))?", text.lower())
    if found is None or "0" in found.groups():
        raise argparse.ArgumentTypeError(f"a size such as 224x224 is needed, not {text!r}")
    return int(found[1]), int(found[2] or found[1])


def _size(text: str) -> int:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmg]?)(?:ib|b)?", text.strip().lower())
    if found is None:
        raise argparse.ArgumentTypeError(f"a size such as 64MiB is needed, not {text!r}")
    return int(float(found[1]) * _UNITS[found[2]])


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _pairs(text: str) -> dict[str, str]:
    pairs = [part.rpartition("=") for part in _names(text)]
    for name, sign, value in pairs:
        if not name or not sign or not value:
            raise argparse.ArgumentTypeError(f"pairs such as a=b,c=d are needed, not {text!r}")
    if len({name for name, _, _ in pairs}) < len(pairs):
        raise argparse.ArgumentTypeError(f"a name appears twice in {text!r}")
    return {name.strip(): value.strip() for name, _, value in pairs}


_VALUES: dict[str, tuple[Callable[[str], Any], str]] = {
    "text": (str, "TEXT"),
    "count": (int, "N"),
    "shape": (shape, "N,..."),
    "size": (image_size, "HxW"),
    "names": (_names, "A,B"),
    "pairs": (_pairs, "X=Y,..."),
}
"""Parser and metavar for each value type of an `Option`."""
