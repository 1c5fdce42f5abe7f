"""The core's checks of blocks, against what numpy says each sample touches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fastload import FormatError, _core

BLOCK = 64
HEADER = 40
ROW_BYTES = 12
ELEMENT_BYTES = 3


class Checked:
    """A file with a fixed and a ragged column, whose blocks of 64 bytes have checksums."""

    def __init__(self, path: Path, rows: int, seed: int) -> None:
        self.path, self.rows = path, rows
        random = np.random.default_rng(seed)
        lengths = random.integers(0, 30, rows) * random.integers(0, 2, rows)
        self.bounds = np.cumsum([0, *lengths]).astype("<i8")
        total = int(self.bounds[-1])
        self.fixed = random.integers(0, 256, (rows, ROW_BYTES), "uint8")
        self.values = random.integers(0, 256, (total, ELEMENT_BYTES), "uint8")
        self.starts = np.cumsum([HEADER, self.fixed.nbytes, self.bounds.nbytes])
        data = self.fixed.tobytes() + self.bounds.tobytes() + self.values.tobytes() + bytes(30)
        self.end = HEADER + len(data)
        crcs = [_core.crc32c(data[at : at + BLOCK]) for at in range(0, len(data), BLOCK)]
        path.write_bytes(bytes(HEADER) + data + np.array(crcs, "<u4").tobytes())

    def table(self, io: str = "auto") -> _core.Table:
        builder = _core.TableBuilder(io)
        group = builder.add_group(np.array([self.rows]))
        source = builder.add_file(str(self.path), self.path.stat().st_size)
        builder.add_checksums(source, HEADER, self.end, BLOCK, self.end)
        at, (fixed, bounds, values) = np.array([source]), (np.array([s]) for s in self.starts)
        builder.add_column(group, "fixed", ROW_BYTES, ROW_BYTES, at, fixed)
        totals = np.array([len(self.values)])
        builder.add_ragged_column(group, "r", ELEMENT_BYTES, at, values, at, bounds, totals)
        return builder.build()

    def flip(self, at: int) -> None:
        data = bytearray(self.path.read_bytes())
        data[at] ^= 8
        self.path.write_bytes(data)

    def touched(self, row: int) -> set[int]:
        """The blocks that a sample lies in."""
        spans = [
            (self.starts[0] + row * ROW_BYTES, ROW_BYTES),
            (self.starts[1] + row * 8, 16),
            (
                self.starts[2] + self.bounds[row] * ELEMENT_BYTES,
                (self.bounds[row + 1] - self.bounds[row]) * ELEMENT_BYTES,
            ),
        ]
        blocks: set[int] = set()
        for begin, size in spans:
            first, last = (begin - HEADER) // BLOCK, (begin + size - 1 - HEADER) // BLOCK
            blocks |= set(range(first, last + 1)) if size else set()
        return blocks

    def bad_rows(self, blocks: set[int]) -> list[int]:
        return [row for row in range(self.rows) if self.touched(row) & blocks]


def sample(table: _core.Table, row: int) -> tuple[np.ndarray, np.ndarray]:
    index = np.array([row])
    out = np.empty((int(table.lengths(1, index)[0]), ELEMENT_BYTES), "uint8")
    fixed = np.empty((1, ROW_BYTES), "uint8")
    table.gather(index, [fixed, out])
    return fixed[0], out


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_each_sample_raises_exactly_if_it_touches_a_bad_block(tmp_path: Path, io: str) -> None:
    data = Checked(tmp_path / "data", 60, 0)
    for block in range((data.end - HEADER) // BLOCK):
        at = HEADER + block * BLOCK + block % BLOCK
        data.flip(at)
        table, bad = data.table(io), data.bad_rows({block})
        for row in range(data.rows):
            if row in bad:
                with pytest.raises(FormatError, match=rf"data: block {block} \(bytes "):
                    sample(table, row)
                continue
            fixed, values = sample(table, row)
            np.testing.assert_array_equal(fixed, data.fixed[row])
            span = slice(data.bounds[row], data.bounds[row + 1])
            np.testing.assert_array_equal(values, data.values[span])
        assert len(table.bad_blocks) == bool(bad)
        data.flip(at)


def test_a_complaint_names_the_rows_of_each_part(tmp_path: Path) -> None:
    data = Checked(tmp_path / "data", 60, 0)
    for block in range((data.end - HEADER - 30) // BLOCK):
        data.flip(HEADER + block * BLOCK)
        table = data.table()
        with pytest.raises(FormatError) as raised:
            for row in range(data.rows):
                sample(table, row)
        begin, end = HEADER + block * BLOCK, HEADER + (block + 1) * BLOCK
        parts = []
        for start, edges, what in (
            (data.starts[0], ROW_BYTES * np.arange(data.rows + 1), "field 'fixed'"),
            (data.starts[1], None, "the bounds of field 'r'"),
            (data.starts[2], ELEMENT_BYTES * data.bounds, "field 'r'"),
        ):
            rows = np.arange(data.rows)
            begins = start + (8 * rows if edges is None else edges[:-1])
            ends = begins + 16 if edges is None else start + edges[1:]
            inside = rows[(begins < end) & (ends > begin) & (begins < ends)]
            # Only bounds that are good tell which rows the values are of.
            if len(inside) and not (what == "field 'r'" and parts and "bounds" in parts[-1]):
                parts.append(f"rows {inside[0]} to {inside[-1]} of {what}")
        for part in parts:
            assert part in str(raised.value)
        data.flip(HEADER + block * BLOCK)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("padded", [False, True])
def test_an_engine_that_skips_delivers_the_rest(
    tmp_path: Path, workers: int, io: str, padded: bool
) -> None:
    random = np.random.default_rng(5)
    for seed in range(8):
        data = Checked(tmp_path / f"data{seed}", 200, seed)
        blocks = (data.end - HEADER) // BLOCK
        bad_blocks = set(random.choice(blocks, seed, replace=False).tolist())
        for block in bad_blocks:
            data.flip(HEADER + block * BLOCK + int(random.integers(BLOCK)))
        bad = set(data.bad_rows(bad_blocks))
        order = random.permutation(data.rows)
        byte = np.dtype("uint8")
        padding = (4, b"\1\2\3") if padded else None
        engine = _core.Engine(
            data.table(io),
            _core.SlotPool(),
            [(byte, (ROW_BYTES,)), (byte, (ELEMENT_BYTES,), padding)],
            _core.ArrayOrder(order, 16, False),
            workers,
            3,
            "skip",
        )
        for first in range(0, data.rows, 16):
            planned = order[first : first + 16].tolist()
            fixed, values, spans, missing = engine.next()
            kept = [row for row in planned if row not in bad]
            assert sorted(missing.tolist()) == sorted(row for row in planned if row in bad)
            np.testing.assert_array_equal(fixed, data.fixed[kept])
            pieces = [data.values[data.bounds[row] : data.bounds[row + 1]] for row in kept]
            if padded:
                assert spans.tolist() == list(map(len, pieces))
                for piece, row in zip(pieces, values, strict=True):
                    np.testing.assert_array_equal(row[: len(piece)], piece)
                    assert (row[len(piece) :] == [1, 2, 3]).all()
            else:
                assert spans.tolist() == np.cumsum([0, *map(len, pieces)]).tolist()
                np.testing.assert_array_equal(values, np.concatenate([data.values[:0], *pieces]))
        assert engine.next() is None
        assert engine.stats()["missing"] == len(bad)
        engine.stop()


def test_an_engine_refuses_other_words(tmp_path: Path) -> None:
    table = Checked(tmp_path / "data", 3, 0).table()
    byte = np.dtype("uint8")
    fields = [(byte, (ROW_BYTES,)), (byte, (ELEMENT_BYTES,))]
    order = _core.ArrayOrder(np.arange(3), 1, False)
    with pytest.raises(ValueError, match="on_error must be 'raise' or 'skip', got 'mask'"):
        _core.Engine(table, _core.SlotPool(), fields, order, 0, 2, "mask")


def test_checksums_must_belong_to_a_file_and_lie_in_it() -> None:
    memory = np.zeros(100, "uint8")
    builder = _core.TableBuilder()
    with pytest.raises(IndexError, match="source 0 is out of range for 0 sources"):
        builder.add_checksums(0, 0, 10, 64, 10)
    source = builder.add_memory(memory, memory.ctypes.data, memory.nbytes)
    builder.add_checksums(source, 0, 10, 64, 10)
    builder.add_group(np.array([3]))
    builder.add_column(0, "x", 1, 1, np.array([source]), np.array([0]))
    with pytest.raises(ValueError, match="memory has no checksums"):
        builder.build()
