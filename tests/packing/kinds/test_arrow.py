"""`fastload.pack` of Arrow files, streams, Feather, and saved Hugging Face datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pytest
from arrow_tables import plain_rows, save_to_disk, table, write_stream
from packing import damaged, encoded, noise, refused, samples_of

import fastload
from fastload.formats import packed


def write_file(of: pa.Table, path: Path, rows: int, **options: Any) -> None:
    with pa.ipc.new_file(path, of.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(of, max_chunksize=rows)


def test_streams_that_were_joined_are_refused(tmp_path: Path) -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, pa.schema({"x": pa.int64()})) as writer:
        writer.write_batch(pa.record_batch({"x": [1]}))
    (tmp_path / "a.arrow").write_bytes(sink.getvalue().to_pybytes() * 2)
    assert "but there is data behind it" in refused(tmp_path / "a.arrow", tmp_path / "no")


@pytest.mark.parametrize("kind", ["file", "lz4", "stream", "feather"])
def test_every_type_comes_back_in_order(tmp_path: Path, kind: str) -> None:
    of = table()
    path = tmp_path / ("a.feather" if kind == "feather" else "a.arrow")
    if kind == "stream":  # dictionaries are read from files alone
        of = of.drop_columns(["word"])
        write_stream(of, path, 90)
    elif kind == "feather":
        pyarrow.feather.write_feather(of, path, chunksize=90)
    else:
        write_file(of, path, 90, compression="lz4" if kind == "lz4" else None)
    fastload.pack(path, tmp_path / "out", shard_size=9000, workers=1)
    assert samples_of(tmp_path / "out") == plain_rows(of)


# --- Hugging Face -----------------------------------------------------------------------------


def test_a_saved_dataset_keeps_images_and_classes(tmp_path: Path) -> None:
    images = [encoded(noise(5, 6 + n, n), "PNG") for n in range(11)]
    of = pa.table(
        {
            "image": [{"bytes": image, "path": None} for image in images],
            "label": [n % 3 for n in range(11)],
            "text": [f"t{n}" for n in range(11)],
        }
    )
    names = ["cat", "dog", "eel"]
    features = {
        "image": {"_type": "Image"},
        "label": {"_type": "ClassLabel", "names": names},
        "text": {"dtype": "string", "_type": "Value"},
    }
    save_to_disk(tmp_path / "in", of, features)
    (tmp_path / "in/cache-123.arrow").write_bytes(b"not named in state.json")
    fastload.pack(tmp_path / "in", tmp_path / "out")
    dataset = fastload.open(tmp_path / "out")
    assert dataset.classes == names
    assert [field.logical for field in dataset.fields] == ["image", None, "utf8"]
    want = [{"image": images[n], "label": n % 3, "text": f"t{n}"} for n in range(11)]
    assert samples_of(tmp_path / "out") == want
    assert packed.read_manifest(tmp_path / "out").class_fields["label"].counts == (4, 4, 3)
    of = of.set_column(1, "label", pa.array([0] * 9 + [-2, 0]))
    save_to_disk(tmp_path / "bad", of, features)
    damaged(tmp_path / "bad", tmp_path / "no", "00001-of-00002.arrow: row 3", "-2 is not a class")


def test_what_a_saved_dataset_says_must_be_there(tmp_path: Path) -> None:
    save_to_disk(tmp_path / "in", pa.table({"x": list(range(10))}), {})
    (tmp_path / "in/data-00001-of-00002.arrow").unlink()
    assert refused(tmp_path / "in", tmp_path / "out").startswith("FileNotFoundError")
    (tmp_path / "in/state.json").write_text('{"_data_files": [{"filename": "../x.arrow"}]}')
    damaged(tmp_path / "in", tmp_path / "out", "state.json", "next to it")
    (tmp_path / "in/state.json").write_text("{")
    damaged(tmp_path / "in", tmp_path / "out", "state.json: damaged")
    (tmp_path / "in/dataset_dict.json").write_text("{}")
    damaged(tmp_path / "in", tmp_path / "out", "several splits")


# --- Damage -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["file", "stream"])
def test_truncated_anywhere_is_an_error(tmp_path: Path, kind: str) -> None:
    path, out = tmp_path / "a.arrow", tmp_path / "out"
    (write_file if kind == "file" else write_stream)(pa.table({"x": list(range(40))}), path, 10)
    content = path.read_bytes()
    for size in range(0, len(content), 8):  # also between two batches of a stream
        path.write_bytes(content[:size])
        damaged(path, out, "a.arrow")


def test_a_stranger_and_odd_columns(tmp_path: Path) -> None:
    path, out = tmp_path / "a.arrow", tmp_path / "out"
    path.write_bytes(b"FEA1" + bytes(40))
    damaged(path, out, "a.arrow: Feather version 1")
    path.write_bytes(b"\x89PNG" + bytes(40))
    damaged(path, out, "a.arrow: neither an Arrow file nor a stream")
    write_stream(pa.table({"w": pa.array(["a", "b"]).dictionary_encode()}), path, 9)
    damaged(path, out, "a.arrow: a dictionary at byte")
    write_stream(pa.table([pa.array([1]), pa.array([2])], names=["x", "x"]), path, 9)
    assert "two columns have the same name" in refused(path, out)
