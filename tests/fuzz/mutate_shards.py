"""Reads damaged shards and manifests: nothing but FormatError and OSError may come of it.

    python tests/fuzz/mutate_shards.py --asan               # 10 000 cases, the core under ASan
    python tests/fuzz/mutate_shards.py --first 4711 --count 1   # one case again

Each case is a small dataset with a few mutations: flipped bits, numbers that are edges, cuts,
splices, and changed values in the JSON of manifests and headers, which are made to fit again
(lengths, fingerprints, checksums) so that the damage gets past the first check. It is opened in
every way, gathered by the core, and looked at by `fastload.verify`. `--asan` builds the core with
AddressSanitizer and UndefinedBehaviorSanitizer in build/fuzz-asan and runs in it.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
SECONDS = 300  # fifty cases take one or two; then one of them hangs

EDGES = [0, 1, -1, 2, 7, 8, 255, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, -(2**63)]
ODD_VALUES: list[Any] = [*EDGES, 2**64, 10**30, 1.5, 1e300, True, None, "", "x", "\0", "é" * 40]
ODD_VALUES += ["../x", "x" * 5000, [], {}, [[]], [-1], {"a": 1}, [0] * 100]
ODD_VALUES += ["utf8", "ragged", "sized", "fixed", "float8_e5m2", "complex128", "bool"]
ODD_VALUES += ["datetime64[ns]"]


# --- What is damaged --------------------------------------------------------------------------


def write_seeds(folder: Path) -> list[Path]:
    """Writes the sound datasets and gives their folders."""
    import fastload

    rng = np.random.default_rng(0)
    rows = 40
    everything = {
        "x": rng.integers(0, 255, (rows, 5), "uint8"),
        "flag": np.arange(rows) % 2 == 0,
        "text": [f"{'é' * (n % 9)}{n}" for n in range(rows)],
        "path": [rng.normal(size=(n % 4, 3)) for n in range(rows)],
        "time": np.arange(rows).astype("datetime64[us]"),
    }
    fastload.pack(everything, folder / "mixed", shard_size=1500)
    fastload.pack((np.arange(rows), np.arange(rows) + 0.5j), folder / "tuple", shard_size=512)
    large = rng.integers(0, 255, (40, 30_000), "uint8")
    fastload.pack(large, folder / "large")
    (folder / "alone").mkdir()
    shutil.copy(folder / "mixed/shard-000001.safetensors", folder / "alone")
    return [folder / name for name in ("mixed", "mixed", "mixed", "tuple", "large", "alone")]


def flip_bits(data: bytearray, choose: random.Random) -> None:
    for _ in range(choose.choice([1, 1, 1, 4, 64])):
        data[choose.randrange(len(data))] ^= 1 << choose.randrange(8)


def write_edge(data: bytearray, choose: random.Random) -> None:
    at = choose.randrange(len(data)) & -8
    data[at : at + 8] = (choose.choice(EDGES) & (2**64 - 1)).to_bytes(8, "little")[: len(data) - at]


def cut(data: bytearray, choose: random.Random) -> None:
    del data[choose.randrange(len(data)) :]


def splice(data: bytearray, choose: random.Random) -> None:
    start, size = choose.randrange(len(data)), choose.choice([1, 8, 64, 4096])
    piece = data[start : start + size]
    at = choose.randrange(len(data))
    how = choose.randrange(3)
    data[at : at + (len(piece) if how == 0 else 0)] = piece if how < 2 else bytes(size)


def delete(data: bytearray, choose: random.Random) -> None:
    at = choose.randrange(len(data))
    del data[at : at + choose.choice([1, 8, 64, 4096])]


BYTE_MUTATIONS: list[Callable[[bytearray, random.Random], None]] = [
    flip_bits,
    flip_bits,
    write_edge,
    write_edge,
    cut,
    splice,
    delete,
]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a JSON value with one of its keys."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value)
    for key, member in list(pairs):
        yield value, key
        if isinstance(member, (dict, list)):
            yield from places(member)


def change_json(value: Any, choose: random.Random) -> None:
    for _ in range(choose.choice([1, 1, 1, 2, 3])):
        found = list(places(value))
        if not found:
            return
        container, key = choose.choice(found)
        how = choose.randrange(6)
        if how == 0:
            del container[key]
        elif how == 1 and isinstance(container, list):
            container.insert(key, container[key])
        elif how == 2 and type(container[key]) is int:
            container[key] += choose.choice([-1, 1, 8, -8, 64, 2**32, 2**63])
        elif how == 3:
            other, name = choose.choice(found)
            with contextlib.suppress(KeyError, IndexError):
                container[key] = json.loads(json.dumps(other[name]))
        else:
            container[key] = choose.choice(ODD_VALUES)


def mutate_manifest(path: Path, choose: random.Random) -> None:
    from fastload.formats import packed
    from fastload.formats.manifest import Manifest

    data = bytearray(path.read_bytes())
    if choose.random() < 0.3:
        choose.choice(BYTE_MUTATIONS)(data, choose)
        path.write_bytes(data)
        return
    entries = json.loads(data)
    change_json(entries, choose)
    path.write_text(json.dumps(entries))
    # The fingerprint of what the manifest says now, so that it is believed.
    with contextlib.suppress(Exception):
        decoded = Manifest.fingerprint.fget  # type: ignore[attr-defined]
        seen: list[str] = []

        def note(manifest: Any) -> str:
            seen.append(decoded(manifest))
            return seen[-1]

        Manifest.fingerprint = property(note)  # type: ignore[assignment,method-assign]
        try:
            with contextlib.suppress(ValueError):
                packed.read_manifest(path.parent)
        finally:
            Manifest.fingerprint = property(decoded)  # type: ignore[assignment,method-assign]
        if seen:
            entries["fingerprint"] = seen[-1]
            path.write_text(json.dumps(entries))


def mutate_header(data: bytearray, choose: random.Random) -> None:
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change_json(header, choose)
    if choose.random() < 0.3 and "__metadata__" in header:
        with contextlib.suppress(Exception):
            schema = json.loads(header["__metadata__"]["fastload.schema"])
            change_json(schema, choose)
            header["__metadata__"]["fastload.schema"] = json.dumps(schema)
    text = json.dumps(header).encode()
    text = text.ljust(max(length, -(-(8 + len(text)) // 4096) * 4096 - 8))
    data[: 8 + length] = len(text).to_bytes(8, "little") + text


def mutate_bounds(data: bytearray, choose: random.Random) -> None:
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    ragged = [entry for name, entry in header.items() if name.endswith("::offsets")]
    if not ragged:
        write_edge(data, choose)
        return
    begin, end = choose.choice(ragged)["data_offsets"]
    for _ in range(choose.choice([1, 2, 5])):
        at = 8 + length + begin + 8 * choose.randrange((end - begin) // 8)
        value = int.from_bytes(data[at : at + 8], "little", signed=True)
        value = choose.choice([*EDGES, value - 1, value + 1, value + 8, -value, value * 2**40])
        data[at : at + 8] = (value & (2**64 - 1)).to_bytes(8, "little")


def fit_checksums(data: bytearray) -> None:
    """Makes the checksums of a shard those of its bytes."""
    from fastload import _core

    with contextlib.suppress(Exception):
        start = 8 + int.from_bytes(data[:8], "little")
        begin, end = json.loads(data[8:start])["__crc__"]["data_offsets"]
        blocks = data[start : start + begin]
        crcs = [_core.crc32c(data[:start])]
        crcs += [_core.crc32c(blocks[at : at + 2**20]) for at in range(0, len(blocks), 2**20)]
        data[start + begin : start + end] = np.array(crcs, "<u4").tobytes()[: end - begin]


def mutate(folder: Path, choose: random.Random) -> None:
    """Damages a dataset in one to three places."""
    for _ in range(choose.choice([1, 1, 2, 3])):
        path = choose.choice(sorted(folder.iterdir()))
        if path.suffix == ".json":
            with contextlib.suppress(ValueError, IndexError):  # broken by an earlier mutation
                mutate_manifest(path, choose)
            continue
        data = bytearray(path.read_bytes())
        changes = [*BYTE_MUTATIONS, mutate_header, mutate_header, mutate_bounds, mutate_bounds]
        with contextlib.suppress(ValueError, IndexError, KeyError, TypeError, AttributeError):
            choose.choice(changes)(data, choose)
        if choose.random() < 0.5:
            fit_checksums(data)
        path.write_bytes(data)


# --- How it is read ---------------------------------------------------------------------------


def read(folder: Path, choose: random.Random) -> int:
    """Reads a dataset in every way; gives how many times it was refused.

    Raises:
        Exception: anything but FormatError and OSError.
    """
    import fastload

    shards = sorted(folder.glob("*.safetensors"))
    ways: list[Callable[[], object]] = [
        lambda: fastload.verify(folder, full=True, threads=1),
        lambda: fastload.verify(shards, full=True, threads=1),
        lambda: fastload.open(folder, verify="open"),
    ]
    io = choose.choice(["mmap", "pread"])
    for path in (folder, *shards[:2]):
        ways.append(lambda path=path: gather(fastload.open(path, io=io), choose, "raise"))
        ways.append(
            lambda path=path: gather(fastload.open(path, io=io, verify="lazy"), choose, "skip")
        )
    refused = 0
    for way in ways:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                way()
        except (fastload.FormatError, OSError):
            refused += 1
    return refused


def gather(dataset: Any, choose: random.Random, on_error: str) -> None:
    """Reads all samples one by one, and batches of them through the engine."""
    import fastload
    from fastload import _core

    count = min(len(dataset), 200)
    rows = [choose.randrange(len(dataset)) for _ in range(count)]
    for row in rows[:20]:
        with contextlib.suppress(fastload.FormatError, OSError):
            dataset[row]
    fields = [(field.storage, field.shape) for field in dataset.fields]
    order = _core.ArrayOrder(np.array(rows, np.int64), 7, False)
    engine = _core.Engine(dataset.table, _core.SlotPool(), fields, order, 0, 2, on_error)
    while True:
        try:
            batch = engine.next()
        except (fastload.FormatError, OSError):
            continue
        if batch is None:
            return
        for array in batch:
            array.sum()  # every byte was written


def run(first: int, count: int, seed: int) -> int:
    """Runs cases; gives how many were refused in at least one way."""
    refused = 0
    with tempfile.TemporaryDirectory(prefix="fastload-fuzz-") as name:
        work = Path(name)
        seeds = write_seeds(work)
        for number in range(first, first + count):
            choose = random.Random(f"{seed} {number}")
            case = work / "case"
            shutil.copytree(choose.choice(seeds), case)
            if number % 50 == 0 or number == first:
                faulthandler.dump_traceback_later(SECONDS, exit=True)
            try:
                mutate(case, choose)
                refused += read(case, choose) > 0
            except Exception:
                sys.stderr.write(f"case {number} of seed {seed}:\n")
                raise
            shutil.rmtree(case)
            if (number + 1) % 1000 == 0:
                sys.stderr.write(f"{number + 1} cases\n")
        faulthandler.cancel_dump_traceback_later()
    return refused


def in_asan(arguments: list[str]) -> int:
    """Builds the core with sanitizers and runs this program in it."""
    site = ROOT / "build" / "fuzz-asan"
    options = ["cmake.define.FASTLOAD_SANITIZE=address", "cmake.build-type=RelWithDebInfo"]
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--upgrade"]
    install += ["--no-build-isolation", "--target", str(site), str(ROOT)]
    for option in (*options, f"build-dir={ROOT / 'build' / 'fuzz-asan-objects'}"):
        install += ["-C", option]
    subprocess.run(install, check=True)
    compiler = os.environ.get("CXX", "c++")
    runtime = [
        subprocess.run(
            [compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for name in ("libasan.so", "libstdc++.so")
    ]
    environment = os.environ | {
        "LD_PRELOAD": ":".join(runtime),
        "ASAN_OPTIONS": "detect_leaks=0",
    }
    again = [sys.executable, __file__, *arguments, "--package", str(site)]
    done = subprocess.run(again, env=environment, check=False)
    return done.returncode


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--asan", action="store_true")
    parser.add_argument("--package", help="the folder that `fastload` is installed in")
    arguments = parser.parse_args()
    if arguments.asan:
        return in_asan([word for word in sys.argv[1:] if word != "--asan"])
    if arguments.package:
        # An editable install would be found first.
        sys.meta_path[:] = [f for f in sys.meta_path if "Redirecting" not in type(f).__name__]
        sys.path.insert(0, arguments.package)
    from fastload import _core

    sys.stderr.write(f"the core is {_core.__file__}\n")
    faulthandler.enable()
    refused = run(arguments.first, arguments.count, arguments.seed)
    print(f"{arguments.count} cases, {refused} refused, no crash")  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() != ROOT]
    sys.exit(main())
