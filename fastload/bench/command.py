"""The command `fastload bench`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from fastload.dataset import open as open_dataset


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the command's arguments."""
    parser.add_argument("path", help="a dataset: packed folder, .npy, folder of .npy, ...")
    parser.add_argument("--dtype", help="of a raw file, such as uint8")
    parser.add_argument("--shape", type=_counts, help="of a sample in a raw file, such as 32,32,3")
    parser.add_argument("--batch-size", type=_positive(int), default=256, help="default: 256")
    parser.add_argument(
        "--workers", type=int, help="threads of fastload (default: chosen by fastload)"
    )
    parser.add_argument(
        "--torch-workers",
        type=_counts,
        metavar="N,...",
        help="worker counts to try with DataLoader (default: 0,1,2,4)",
    )
    parser.add_argument(
        "--seconds", type=_positive(float), help="per contender and round (default: 1)"
    )
    parser.add_argument(
        "--quick", action="store_true", help="one round of 0.2 s, DataLoader with 0 and 2 workers"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw GB/s")


def run(args: argparse.Namespace) -> int:
    """Measures, prints the table, writes the files asked for; returns the exit code."""
    from rich.console import Console

    from fastload.bench import report
    from fastload.bench.measure import Settings, measure

    if args.plot:
        report.plotter()  # missing matplotlib is told before the measurement, not after it
    console = Console()
    settings = Settings(
        batch_size=args.batch_size,
        seconds=args.seconds or (0.2 if args.quick else Settings.seconds),
        rounds=1 if args.quick else Settings.rounds,
        num_workers=args.workers,
        torch_workers=args.torch_workers or ((0, 2) if args.quick else Settings.torch_workers),
    )
    with console.status("opening") as status:
        result = measure(
            lambda: open_dataset(args.path, dtype=args.dtype, shape=args.shape),
            settings,
            lambda step: status.update(f"measuring: {step}"),
        )
    report.show(result, console)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    if args.plot:
        report.plot(result, args.plot)
    return 0


def _counts(text: str) -> tuple[int, ...]:
    counts = tuple(int(part) for part in text.split(",") if part.strip())
    if any(count < 0 for count in counts):
        raise argparse.ArgumentTypeError("a count is negative")
    return counts


def _positive(kind: type[int] | type[float]) -> Callable[[str], float]:
    def parse(text: str) -> float:
        value = kind(text)
        if value <= 0:
            raise argparse.ArgumentTypeError("must be more than 0")
        return value

    parse.__name__ = kind.__name__  # argparse's messages name it
    return parse
