"""Writes the measured figures of the documentation from `benchmarks/results/*.json`.

    python benchmarks/report.py

It writes the marked part of docs/reference/performance.md and the picture in the README.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from picture import draw

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs/reference/performance.md"
PICTURE = HERE.parent / "docs/images/loader.svg"
BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"


def main(page: Path, picture: Path, results: Path = HERE / "results") -> None:
    """Rewrites the text between the markers of `page`, and `picture`."""
    documents = {path.stem: json.loads(path.read_text()) for path in results.glob("*.json")}
    text = page.read_text()
    marked = re.compile(f"{BEGIN}.*?{END}", re.DOTALL)
    if not marked.search(text):
        raise SystemExit(f"{page}: has no markers {BEGIN} and {END}")
    body = "\n".join([BEGIN, *lines(documents), END])
    page.write_text(marked.sub(lambda _: body, text))
    if "loader" in documents:
        picture.write_text(draw(documents["loader"]["result"]))


def lines(documents: dict[str, Any]) -> Iterator[str]:
    if "loader" in documents:
        yield from loader_lines(documents["loader"])
    facts = {
        "cold": cold_fact,
        "huge": huge_fact,
        "memory": memory_fact,
        "gil": gil_fact,
        "ragged": ragged_fact,
        "tokens": tokens_fact,
        "transforms": transforms_fact,
        "open": open_fact,
        "pack": pack_fact,
        "pack_encoded": pack_encoded_fact,
        "article": article_fact,
    }
    stated = [fact(documents[name]["result"]) for name, fact in facts.items() if name in documents]
    if stated:
        yield "Measured on the same machine:" if "loader" in documents else "Measured:"
        yield ""
        yield from (f"- {line}" for line in stated)
        yield ""


def loader_lines(document: dict[str, Any]) -> Iterator[str]:
    machine, result = document["machine"], document["result"]
    yield (
        f"Batches of {result['batch_size']} shuffled uint8 rows and an int64 label, files in the "
        f"page cache, {machine['cores']} cores ({machine['cpu']}, "
        f"{', '.join(machine['copy_kernels'])}), torch {machine['torch']}. Medians of "
        f"{result['rounds']} rounds in which all loaders take turns. The limit is the speed of "
        "threads that only gather such rows."
    )
    yield ""
    heads = ["row", "samples/s", "GB/s", "of the limit", "µs/batch", "µs/batch, main thread"]
    heads += ["× DataLoader", "× DataLoader, batched fetch", "× FFCV 1.0.2"]
    yield "| " + " | ".join(heads) + " |"
    yield "|" + "---:|" * len(heads)
    for size in result["sizes"]:
        speed, ratios = size["fastload"], size["ratios"]
        cells = [
            f"{size['row_bytes']:,} B",
            f"{speed['samples_per_s']:,.0f}",
            f"{speed['bytes_per_s'] / 1e9:.1f}",
            f"{ratios['limit']['ratio']:.0%}",
            microseconds(1e6 * result["batch_size"] / speed["samples_per_s"]),
            microseconds(speed.get("main_us")),
            *(times(ratios.get(kind)) for kind in ("dataloader", "batched", "ffcv")),
        ]
        yield "| " + " | ".join(cells) + " |"
    yield ""
    yield (
        "Microseconds on the main thread are CPU time of the thread that calls `next()`. "
        "DataLoader is the best of 0, 1, 2 and 4 workers over a memory-mapped dataset with "
        "`__getitem__`. Batched fetch is its fastest form: numpy gathers a whole batch in "
        "`__getitems__`, without a `collate_fn`."
    )
    yield ""


def microseconds(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def times(ratio: dict[str, Any] | None) -> str:
    return f"{ratio['ratio']:.3g}" if ratio else "–"


def cold_fact(result: dict[str, Any]) -> str:
    speed = result["fastload"]["bytes_per_s"] / 1e9
    text = f"Nothing cached, random rows of {result['row_bytes']:,} bytes: {speed:.2f} GB/s"
    ratios = result["ratios"]
    if "fio" in ratios:
        disk = result["fio"]["bytes_per_s"] / 1e9
        text += f", {ratios['fio']:.2f} of what fio reads at queue depth 32 ({disk:.2f} GB/s)"
    return f"{text}; {ratios['dataloader/4']:.3g} × DataLoader with 4 workers."


def huge_fact(result: dict[str, Any]) -> str:
    fresh, resumed = result["fresh"], result["resumed"]
    grown = max(case["resident_bytes"]["worst"] for case in (fresh, resumed)) / 1e6
    return (
        f"{result['rows']:,} rows of 8 bytes: {fresh['first_batch_ms']['median']:.1f} ms from "
        f"opening to the first shuffled batch, {resumed['first_batch_ms']['median']:.1f} ms when "
        f"resumed in the middle of an epoch; at most {grown:.1f} MB more resident memory after "
        f"{result['batches']} batches."
    )


def memory_fact(result: dict[str, Any]) -> str:
    return (
        f"{result['batches']:,} batches: anonymous memory grows by "
        f"{result['anonymous_growth_bytes'] / 1e6:.1f} MB, and "
        f"{result['slot_allocations_after_start']} buffers are allocated after the start."
    )


def gil_fact(result: dict[str, Any]) -> str:
    return (
        "A Python thread next to a consumer at a fixed pace reaches "
        f"{result['ratios']['memcpy']:.0%} of its speed next to a plain memcpy of the same size."
    )


def open_fact(result: dict[str, Any]) -> str:
    fixed, ragged = (result[kind]["open_ms"]["median"] for kind in ("fixed", "ragged"))
    return (
        f"A packed dataset of {result['shards']:,} shards is opened in {fixed:.0f} ms, one with "
        f"ragged fields in {ragged:.0f} ms."
    )


def ragged_fact(result: dict[str, Any]) -> str:
    best = result["ratios"]["dataloader"]
    return (
        f"Ragged fields, batches of {result['batch_size']}, padded: "
        f"{result['fastload']['samples_per_s']:,.0f} samples/s, {best['ratio']:.3g} × DataLoader "
        "at its best with a `pad_sequence` collate."
    )


def tokens_fact(result: dict[str, Any]) -> str:
    shapes = [
        f"{shape['batch_size']} × {shape['seq_len']} tokens {shape['ratios']['get_batch']:.3g} × "
        f"({shape['ratios']['limit']:.0%} of a bare converting gather)"
        for shape in result["shapes"]
    ]
    return f"Token windows, against nanoGPT's `get_batch`: {', '.join(shapes)}."


def transforms_fact(result: dict[str, Any]) -> str:
    ratios = result["ratios"]
    return (
        "Images of 224 × 224 × 3 uint8, normalised to bfloat16 (3, 224, 224) in the gather: "
        f"{result['fastload']['samples_per_s']:,.0f} samples/s, {times(ratios['loader'])} × "
        f"DataLoader with torchvision's steps; the kernel alone is {times(ratios['bare'])} × these "
        "steps on the same cores."
    )


def pack_fact(result: dict[str, Any]) -> str:
    return (
        f"Packing an `.npy` file of {result['bytes'] / 1e9:.1f} GB, checksums included: "
        f"{result['pack']['bytes_per_s'] / 1e9:.2f} GB/s including the flush to the disk, "
        f"{result['ratio']:.2f} × `cp --reflink=never`."
    )


def pack_encoded_fact(result: dict[str, Any]) -> str:
    warm = result["warm"]
    ratios = warm["ratios"]
    if "pack 1 / mds jpeg 1" not in ratios:
        others = "MosaicML's MDSWriter was not measured"
    else:
        others = "; ".join(
            f"{processes} {ratios[f'pack {n} / mds jpeg {n}']:.2g} × MosaicML's MDSWriter given "
            f"images, {ratios[f'pack {n} / mds bytes {n}']:.2g} × given their bytes"
            for n, processes in ((1, "one process"), (2, "two processes"))
        )
    return (
        f"Packing {result['images']:,} JPEG files ({result['bytes'] / 1e9:.1f} GB) without "
        f"decoding, including the flush to the disk: "
        f"{warm['bytes_per_s']['pack 1'] / 1e9:.2f} GB/s, "
        f"{ratios['pack 1 / cat']:.2f} × `cat`; {others}."
    )


def article_fact(result: dict[str, Any]) -> str:
    lines = []
    for found in result["worlds"]:
        own, ratios = found["cases"]["fastload"], found["ratios"]
        processes = "one process" if found["world"] == 1 else "two processes (DDP)"
        lines.append(
            f"{processes}: {own['samples_per_s']:,.0f} images/s, {ratios['dataloader']:.3g} × "
            f"DataLoader over PNG files, {ratios['tuned']:.3g} × a tuned one, "
            f"{ratios['packed']:.3g} × a tuned one over the packed dataset, and "
            f"{own['wait_share']:.1%} of a step is waiting"
        )
    same = all(found["losses_are_identical"] for found in result["worlds"])
    return f"A small ResNet on {result['images']:,} images of 32 × 32, {'; '.join(lines)}. " + (
        "The losses are identical, bit for bit." if same else "The losses differ."
    )


if __name__ == "__main__":
    main(PAGE, PICTURE)
