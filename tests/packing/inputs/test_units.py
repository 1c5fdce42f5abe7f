"""Units of tables that are larger than a shard: read once, and right in whatever order."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packing import column

import fastload
from fastload.packing.inputs.source import Rows
from fastload.packing.inputs.tables import Reader, Unit
from fastload.packing.kinds.arrow import ArrowReader
from fastload.packing.kinds.csv import CsvReader
from fastload.packing.kinds.parquet import ParquetReader
from fastload.packing.opening import open_input

pa = pytest.importorskip("pyarrow", reason="pip install pyarrow")
pq = pytest.importorskip("pyarrow.parquet", reason="pip install pyarrow")
ROWS = 3000


def table(first: int = 0) -> Any:
    return pa.table({"x": np.arange(first, first + ROWS), "t": [f"{n:05}" for n in range(ROWS)]})


def write_parquet(path: Path, of: Any) -> None:
    pq.write_table(of, path)


def write_arrow(path: Path, of: Any) -> None:
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_file(path, of.schema, options=options) as writer:
        writer.write_table(of)


def write_csv(path: Path, of: Any) -> None:
    lines = (f"{row['x']},{row['t']}".ljust(16) + "\n" for row in of.to_pylist())
    path.write_text("x,t\n" + "".join(lines))


KINDS: dict[str, tuple[Callable[[Path, Any], None], type[Reader]]] = {
    "parquet": (write_parquet, ParquetReader),
    "arrow": (write_arrow, ArrowReader),
    "csv": (write_csv, CsvReader),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def file(kind: str, tmp_path: Path) -> Path:
    KINDS[kind][0](tmp_path / f"a.{kind}", table())
    return tmp_path / f"a.{kind}"


def first_column(rows: Rows) -> list[int]:
    column = rows.columns[0]
    assert isinstance(column, np.ndarray)
    return column.tolist()


def no_advance(_: int) -> None:
    pass


def test_a_unit_is_decoded_once(
    kind: str, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = KINDS[kind][1]
    own = reader.batches
    calls: list[int] = []

    def counted(
        self: Reader, unit: Unit, start: int, each: int, columns: Sequence[str]
    ) -> Iterator[Any]:
        calls.append(start)
        return own(self, unit, start, each, columns)

    monkeypatch.setattr(reader, "batches", counted)
    report = fastload.pack(file, tmp_path / "out", shard_size=2000, workers=1)
    assert report.shards > 20
    assert calls == [0, 0]  # once to see what the columns hold
    assert column(tmp_path / "out", "x").tolist() == list(range(ROWS))


def test_parts_come_in_any_order_and_in_several_threads(file: Path) -> None:
    source = open_input(file)
    spans = [(0, 10), (10, 500), (700, 900), (600, 950), (950, 951), (20, ROWS), (0, ROWS)]
    wrong: list[tuple[int, int]] = []

    def read(step: int) -> None:
        for start, stop in spans[::step]:
            got = first_column(source.part(start, stop).read(no_advance))
            wrong.extend([] if got == list(range(start, stop)) else [(start, stop)])

    threads = [threading.Thread(target=read, args=(step,)) for step in (1, -1, 2, -2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    source.close()
    assert not wrong


def test_a_file_that_was_replaced_is_read_anew(kind: str, file: Path) -> None:
    source = open_input(file)
    assert first_column(source.part(0, 10).read(no_advance)) == list(range(10))
    KINDS[kind][0](file.with_name("new"), table(100_000))
    os.replace(file.with_name("new"), file)
    got = first_column(source.part(10, 20).read(no_advance))
    source.close()
    assert got == list(range(100_010, 100_020))


def test_nothing_stays_open(file: Path, tmp_path: Path) -> None:
    fastload.pack(file, tmp_path / "out", limit=100, workers=1)
    with ThreadPoolExecutor(2) as threads:  # which live on
        options = {"limit": 1500, "shard_size": 2000}
        fastload.pack(file, tmp_path / "two", executor=threads, **options)
        check_closed(file)


def check_closed(file: Path) -> None:
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    assert str(file) not in [os.readlink(link) for link in links if os.path.lexists(link)]
