"""Files of tokens: what is read of each layout, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from token_files import llmc_file, megatron_index, write_megatron

from fastload import FormatError
from fastload.formats.columns import Column
from fastload.formats.extents import Extents
from fastload.formats.tokens import DTYPES, TokenFile, document_extents, read_files, window_extents


def tokens_of(file: TokenFile) -> list[int]:
    return np.fromfile(file.source.path, file.dtype, file.count, offset=file.offset).tolist()


def rows_of(column: Column, shard_rows: np.ndarray) -> list[list[int]]:
    """The rows of a column of windows, read byte by byte."""
    rows = []
    for shard, count in enumerate(shard_rows.tolist()):
        for row in range(count):
            start = int(column.offsets[shard]) + row * column.row_stride
            data = column.sources[shard].read(start, column.row_bytes)
            assert len(data) == column.row_bytes
            rows.append(np.frombuffer(data, column.stored or "int64").tolist())
    return rows


def windows(tokens: list[int], length: int, stride: int) -> list[list[int]]:
    starts = range(0, max(0, len(tokens) - length), stride)
    return [tokens[start : start + length + 1] for start in starts]


# --- layouts


@pytest.mark.parametrize("dtype", DTYPES)
def test_raw_and_npy_files_of_every_dtype(tmp_path: Path, dtype: str) -> None:
    info = np.iinfo(dtype)
    tokens = np.array([info.min, 1, 2, info.max], dtype)
    tokens.tofile(tmp_path / "t.bin")
    np.save(tmp_path / "t.npy", tokens)
    for path, given in ((tmp_path / "t.bin", dtype), (tmp_path / "t.npy", None)):
        [file] = read_files(path, given)
        assert (file.dtype, file.count, file.documents) == (dtype, 4, None)
        assert tokens_of(file) == tokens.tolist()


def test_a_raw_file_is_uint16_unless_told(tmp_path: Path) -> None:
    np.arange(4, dtype="<u2").tofile(tmp_path / "train.bin")
    assert tokens_of(read_files(tmp_path / "train.bin")[0]) == [0, 1, 2, 3]
    assert tokens_of(read_files(tmp_path / "train.bin", np.uint32)[0]) == [0x10000, 0x30002]
    (tmp_path / "empty.bin").touch()
    assert read_files(tmp_path / "empty.bin")[0].count == 0


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_llmc_files(tmp_path: Path, dtype: str) -> None:
    tokens = np.arange(7, dtype=dtype)
    (tmp_path / "t.bin").write_bytes(llmc_file(tokens))
    [file] = read_files(tmp_path / "t.bin")
    assert (file.dtype, file.offset, tokens_of(file)) == (dtype, 1024, tokens.tolist())


@pytest.mark.parametrize("dtype", DTYPES)
def test_megatron_files_by_any_of_their_names(tmp_path: Path, dtype: str) -> None:
    documents = [[], [[1, 2], []], [[3], [4, 5]], [[6]], []]
    tokens = write_megatron(tmp_path / "corpus_text_document", documents, dtype)
    for name in ("corpus_text_document", "corpus_text_document.bin", "corpus_text_document.idx"):
        [file] = read_files(tmp_path / name)
        assert (file.dtype, tokens_of(file)) == (dtype, tokens.tolist())
        assert file.documents.tolist() == [0, 0, 2, 5, 6, 6]


def test_megatron_indices_with_modes_and_of_fairseq(tmp_path: Path) -> None:
    np.arange(5, dtype="u2").tofile(tmp_path / "t.bin")
    for index, documents in (
        (megatron_index("uint16", [2, 3], [0, 2], modes=b"\0\1"), [0, 5]),
        (megatron_index("uint16", [2, 0, 3], None), [0, 2, 2, 5]),
    ):
        (tmp_path / "t.idx").write_bytes(index)
        assert read_files(tmp_path / "t.bin")[0].documents.tolist() == documents


def test_folders_and_sequences(tmp_path: Path) -> None:
    for number in (10, 2, 1):
        np.full(3, number, "u2").tofile(tmp_path / f"s{number}.bin")
    write_megatron(tmp_path / "s3", [[[3, 3]]])
    np.save(tmp_path / "s4.npy", np.full(1, 4, "u2"))
    (tmp_path / ".hidden.bin").write_bytes(b"x")
    (tmp_path / "notes.txt").touch()
    assert [tokens_of(file)[0] for file in read_files(tmp_path)] == [1, 2, 3, 4, 10]
    listed = [tmp_path / "s3.idx", str(tmp_path / "s1.bin"), tmp_path / "s3.bin"]
    assert [tokens_of(file)[0] for file in read_files(listed)] == [1, 3]


# --- what is refused


def index_of(*args: Any, change: tuple[int, bytes] | None = None, **options: Any) -> bytes:
    made = bytearray(megatron_index(*args, **options))
    if change:
        made[change[0] : change[0] + len(change[1])] = change[1]
    return bytes(made)


def test_damaged_megatron_files(tmp_path: Path) -> None:
    np.arange(5, dtype="u2").tofile(tmp_path / "t.bin")
    good = megatron_index("uint16", [2, 3], [0, 2])
    for index, text in (
        (b"", "no Megatron index"),
        (b"TNTIDX\0\0" + good[8:], "older layout"),
        (good[:20], "truncated"),
        (index_of("uint16", [2, 3], [0, 2], version=2), "version 2"),
        (good[:-1], "73 bytes"),
        (good + b"\0", "75 bytes"),
        (index_of("uint16", [2, 3], [0, 2], change=(17, b"\x63")), "dtype code 99"),
        (index_of("uint16", [2, 3], [0, 2], change=(18, b"\xff" * 8)), "18446744073709551615"),
        (index_of("uint16", [-2, 7], [0, 2]), "sequence 0 has a negative length"),
        (index_of("uint16", [2, 3], [0, 2], change=(50, b"\2")), "sequence 1 starts at byte 2"),
        (index_of("uint16", [2, 4], [0, 2]), "has 10 bytes, .* 6 uint16 tokens, 12 bytes"),
        (index_of("uint16", [2, 2], [0, 2]), "has 10 bytes, .* 4 uint16 tokens, 8 bytes"),
        (index_of("uint16", [2, 3], [0, 1]), "the documents do not go upwards"),
        (index_of("uint16", [2, 3], [1, 2]), "the documents do not go upwards"),
        (index_of("uint16", [2, 3], [0, 2, 1, 2]), "the documents do not go upwards"),
        (index_of("uint16", [2, 3], [0, -1, 2]), "the documents do not go upwards"),
        (index_of("uint16", [2, 3], []), "the documents do not go upwards"),
    ):
        (tmp_path / "t.idx").write_bytes(index)
        with pytest.raises(FormatError, match=text) as caught:
            read_files(tmp_path / "t.bin")
        assert str(tmp_path / "t.") in str(caught.value)
    (tmp_path / "t.idx").write_bytes(megatron_index("float32", [], [0]))
    (tmp_path / "t.bin").write_bytes(b"")
    with pytest.raises(FormatError, match="holds float32; tokens are"):
        read_files(tmp_path / "t.bin")


def test_every_truncation_of_an_index_is_noticed(tmp_path: Path) -> None:
    np.arange(5, dtype="u2").tofile(tmp_path / "t.bin")
    good = megatron_index("uint16", [2, 3], [0, 2])
    for size in range(len(good)):
        (tmp_path / "t.idx").write_bytes(good[:size])
        with pytest.raises(FormatError):
            read_files(tmp_path / "t.bin")


def test_an_index_with_any_byte_changed_is_refused_or_stays_inside_the_file(tmp_path: Path) -> None:
    np.arange(5, dtype="u2").tofile(tmp_path / "t.bin")
    good = megatron_index("uint16", [2, 3], [0, 1, 2])
    for place in range(len(good)):
        for value in (0, 1, 2, 127, 128, 255):
            changed = good[:place] + bytes([value]) + good[place + 1 :]
            (tmp_path / "t.idx").write_bytes(changed)
            try:
                [file] = read_files(tmp_path / "t.bin")
            except FormatError:
                continue
            bounds = file.documents.tolist()
            assert file.count * np.dtype(file.dtype).itemsize == 10
            assert bounds == sorted(bounds)
            assert (bounds[0], bounds[-1]) == (0, file.count)


def test_damaged_llmc_files(tmp_path: Path) -> None:
    tokens = np.arange(7, dtype="u2")
    for data, text in (
        (llmc_file(tokens)[:1000], "truncated: llm.c's header"),
        (llmc_file(tokens)[:-2], "7 uint16 tokens, 1038 bytes .* but the file has 1036"),
        (llmc_file(tokens) + b"\0\0", "but the file has 1040"),
        (llmc_file(tokens, count=-1), "the header says -1"),
        (llmc_file(tokens, version=2), "with version 2, not 1"),
    ):
        (tmp_path / "t.bin").write_bytes(data)
        with pytest.raises(FormatError, match=text):
            read_files(tmp_path / "t.bin")


def test_other_files_that_hold_no_tokens(tmp_path: Path) -> None:
    (tmp_path / "odd.bin").write_bytes(b"123")
    with pytest.raises(FormatError, match=r"odd.bin: 3 bytes is not a multiple of 2.*1 bytes"):
        read_files(tmp_path / "odd.bin")
    for array, text in (
        (np.zeros((2, 3), "u2"), "one axis"),
        (np.array(3), "one axis"),
        (np.zeros(3, ">u2"), "big-endian"),
        (np.zeros(3, "f4"), "holds float32"),
        (np.zeros(3, "u8"), "holds uint64"),
        (np.zeros(3, bool), "holds bool"),
    ):
        np.save(tmp_path / "t.npy", array)
        with pytest.raises(FormatError, match=text):
            read_files(tmp_path / "t.npy")
    with pytest.raises(FileNotFoundError):
        read_files(tmp_path / "none.bin")


def test_dtypes_must_agree(tmp_path: Path) -> None:
    np.save(tmp_path / "1.npy", np.zeros(3, "u2"))
    np.save(tmp_path / "2.npy", np.zeros(3, "u4"))
    with pytest.raises(FormatError, match=r"1.npy holds uint16, but .*2.npy uint32"):
        read_files(tmp_path)
    with pytest.raises(ValueError, match=r"1.npy: holds uint16, not dtype='int32'"):
        read_files(tmp_path / "1.npy", "int32")
    for dtype in ("float32", "uint64", "nonsense", ">u2"):
        with pytest.raises(ValueError, match="dtype"):
            read_files(tmp_path / "1.npy", dtype)


def test_folders_without_tokens(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"no \.bin or \.npy files"):
        read_files(tmp_path)
    with pytest.raises(FormatError, match="sequence of paths is empty"):
        read_files([])
    (tmp_path / "t.idx").write_bytes(megatron_index("uint16", [], [0]))
    with pytest.raises(FormatError, match=r"t.idx: the .bin file"):
        read_files(tmp_path)


# --- extents


@pytest.mark.parametrize("stride", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("seq_len", [1, 3, 4])
def test_windows_of_every_count(tmp_path: Path, seq_len: int, stride: int) -> None:
    everything: list[list[int]] = []
    paths = []
    for count in range(12):
        tokens = [100 * count + i for i in range(count)]
        paths.append(tmp_path / f"{count}.bin")
        np.array(tokens, "u2").tofile(paths[-1])
        everything += windows(tokens, seq_len, stride)
    files = read_files(paths)
    pairs = window_extents(files, seq_len, stride, targets=True)
    assert pairs.rows == len(everything)
    x, y = (rows_of(column, pairs.groups[0].shard_rows) for column in pairs.columns)
    assert x == [window[:-1] for window in everything]
    assert y == [window[1:] for window in everything]
    whole = window_extents(files, seq_len, stride, targets=False)
    assert rows_of(whole.columns[0], whole.groups[0].shard_rows) == everything


def test_the_number_of_windows(tmp_path: Path) -> None:
    def rows(count: int, stride: int) -> int:
        np.zeros(count, "u2").tofile(tmp_path / "t.bin")
        return window_extents(read_files(tmp_path / "t.bin"), 8, stride, targets=True).rows

    assert {n: rows(n, 8) for n in (0, 8, 9, 10, 17)} == {0: 0, 8: 0, 9: 1, 10: 1, 17: 2}
    assert [rows(n, 1) for n in (8, 9, 17)] == [0, 1, 9]


def test_documents(tmp_path: Path) -> None:
    np.arange(10, dtype="u2").tofile(tmp_path / "1.bin")
    np.arange(4, dtype="u2").tofile(tmp_path / "2.bin")
    files = read_files(tmp_path)
    bounds = [np.array([0, 0, 3, 10]), np.array([0, 4], np.int32)]
    extents: Extents = document_extents(files, bounds)
    [column] = extents.columns
    assert (extents.rows, extents.structure) == (4, {"tokens": 0})
    assert (str(column.field), column.field.name) == ("int64 [-1]", "tokens")
    assert (column.stored, column.row_stride) == ("uint16", 2)
    assert column.bounds.totals.tolist() == [10, 4]
    read = [np.frombuffer(s.read(0, s.size_bytes), "i8").tolist() for s in column.bounds.sources]
    assert read == [[0, 0, 3, 10], [0, 4]]
