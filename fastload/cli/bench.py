"""The command `fastload bench`."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path

from fastload.cli.arguments import add_raw, image_size, output
from fastload.datasets.file_datasets import Dataset
from fastload.datasets.file_datasets import open as open_dataset
from fastload.datasets.token_dataset import TokenDataset
from fastload.formats import strict_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("path", metavar="PATH", help="anything that FastLoader reads")
    add_raw(parser)
    parser.add_argument(
        "--batch-size",
        type=_positive(int),
        metavar="N",
        help="samples per batch (default: 256; 64 if images are decoded)",
    )
    parser.add_argument(
        "--image-size",
        type=image_size,
        metavar="HxW",
        help="height and width of decoded images (default: 224x224)",
    )
    parser.add_argument(
        "--seq-len",
        type=_positive(int),
        metavar="N",
        help="read PATH as tokens, in windows of N (see TokenDataset)",
    )
    parser.add_argument(
        "--workers", type=int, metavar="N", help="threads of FastLoader (default: automatic)"
    )
    parser.add_argument(
        "--torch-workers",
        type=_counts,
        metavar="N,...",
        help="worker counts to try with DataLoader (default: 0,1,2,4)",
    )
    parser.add_argument(
        "--seconds",
        type=_positive(float),
        metavar="S",
        help="time per loader and round (default: 1)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a single round of 0.2 s, DataLoader with 0 and 2 workers",
    )
    parser.add_argument(
        "--json", type=output, metavar="FILE", help="write all figures; - prints them"
    )
    parser.add_argument(
        "--plot",
        type=output,
        metavar="FILE",
        help="draw the speeds into an image: x.png, x.pdf, ...",
    )


def run(args: argparse.Namespace) -> int:
    """Measures, prints the table, writes the requested files; returns the exit code."""
    from rich.console import Console

    from fastload.tools import charts
    from fastload.tools.bench import report
    from fastload.tools.bench.measure import Settings, measure

    draws = charts.is_available()
    if args.plot and draws:
        charts.check(args.plot)  # refuse a wrong name before the measurement

    def opened() -> Dataset:
        if args.seq_len:
            return TokenDataset(args.path, args.seq_len, dtype=args.dtype)
        return open_dataset(args.path, dtype=args.dtype, shape=args.shape)

    console = Console(stderr=args.json == Path("-"))
    settings = Settings(
        batch_size=args.batch_size,
        seconds=args.seconds or (0.2 if args.quick else Settings.seconds),
        rounds=1 if args.quick else Settings.rounds,
        num_workers=args.workers,
        image_size=args.image_size or Settings.image_size,
        torch_workers=args.torch_workers or ((0, 2) if args.quick else Settings.torch_workers),
    )
    with console.status("opening") as status:
        result = measure(
            opened,
            settings,
            lambda step: status.update(f"measuring: {step}"),
        )
    figures = strict_json.dumps(result, indent=1) + "\n"
    if args.json == Path("-"):
        sys.stdout.write(figures)
    else:
        report.show(result, console)
    if args.json and args.json != Path("-"):
        args.json.write_text(figures)
        console.print(f"All figures are in {args.json}.")
    if not draws:
        console.print(f"No picture: {charts.MISSING}")
        return int(args.plot is not None)
    if args.plot:
        report.plot(result, args.plot)
        console.print(f"The picture is in {args.plot}.")
    return 0


def _counts(text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"[\d,\s]+", text):
        raise argparse.ArgumentTypeError(f"numbers such as 0,1,2 are needed, not {text!r}")
    return tuple(int(part) for part in text.split(",") if part.strip())


def _positive(kind: type[int] | type[float]) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = kind(text)
        if value <= 0:
            raise argparse.ArgumentTypeError("must be more than 0")
        return value

    parse.__name__ = kind.__name__  # argparse's messages name it
    return parse
