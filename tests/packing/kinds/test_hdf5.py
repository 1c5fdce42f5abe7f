"""`fastload.pack` of HDF5 files, compared with what h5py reads."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packing import column, damaged, same_bytes, samples_of

import fastload
from fastload import FormatError, _core
from fastload.packing.kinds import hdf5

h5py = pytest.importorskip("h5py", reason="pip install h5py")
ROWS = 100


def write(path: Path, rows: range = range(ROWS)) -> None:
    with h5py.File(path, "w") as file:
        random = np.random.default_rng(rows.start)
        x = random.integers(0, 9, (len(rows), 3, 2)).astype(">i2")
        file.create_dataset("x", data=x, chunks=(7, 3, 2), compression="gzip", fletcher32=True)
        file.create_dataset("group/ok", data=np.array([n % 3 == 0 for n in rows]))
        file.create_dataset("group/in/y", data=np.array(rows, "f4"))
        texts = file.create_dataset("text", (len(rows),), h5py.string_dtype())
        texts[:] = [f"é{n}" * (n % 3) for n in rows]
        file.create_dataset("short", data=np.array([f"{n}".encode() for n in rows], "S3"))
        lists = file.create_dataset("list", (len(rows),), h5py.vlen_dtype(np.int32))
        for place, n in enumerate(rows):
            lists[place] = np.arange(n % 4)


def wanted(n: int) -> dict[str, Any]:
    return {
        "group": {"in": {"y": float(n)}, "ok": n % 3 == 0},
        "list": list(range(n % 4)),
        "short": f"{n}".encode(),
        "text": f"é{n}" * (n % 3),
    }


def without_x(samples: list[Any]) -> list[Any]:
    return [{name: of for name, of in sample.items() if name != "x"} for sample in samples]


def test_datasets_and_groups_come_back_in_order(tmp_path: Path) -> None:
    write(tmp_path / "a.h5")
    for workers in (1, 2):
        out = tmp_path / f"{workers}"
        fastload.pack(tmp_path / "a.h5", out, workers=workers, shard_size=1000)
    assert same_bytes(tmp_path / "1", tmp_path / "2")
    assert without_x(samples_of(tmp_path / "1")) == [wanted(n) for n in range(ROWS)]
    with h5py.File(tmp_path / "a.h5") as file:
        np.testing.assert_array_equal(column(tmp_path / "1", "x"), file["x"][:])
    fastload.pack(tmp_path / "a.h5", tmp_path / "mixed", shuffle=4, shard_size=1000, workers=1)
    order = _core.Permutation(ROWS, 4, 0).indices(0, ROWS)
    assert without_x(samples_of(tmp_path / "mixed")) == [wanted(n) for n in order.tolist()]


def test_a_folder_of_files(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "in/x10.h5", range(40, ROWS))
    write(tmp_path / "in/x9.hdf5", range(40))
    fastload.pack(tmp_path / "in", tmp_path / "out", shard_size=1000, workers=1)
    assert without_x(samples_of(tmp_path / "out")) == [wanted(n) for n in range(ROWS)]
    with h5py.File(tmp_path / "in/x9.hdf5", "a") as file:
        del file["short"]
    damaged(tmp_path / "in", tmp_path / "no", "x9.hdf5", "x10.h5", "differ")


def test_damage_ends_in_one_error(tmp_path: Path) -> None:
    path, out = tmp_path / "a.h5", tmp_path / "out"
    write(path)
    content = path.read_bytes()
    for size in (8, 100, len(content) // 2, len(content) - 1):
        path.write_bytes(content[:size])
        damaged(path, out, "a.h5: no HDF5 file, or a damaged one")
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.zeros(3))
        file.create_dataset("y", data=np.zeros(4))
    damaged(path, out, "a.h5: datasets 'x' and 'y' have 3 and 4 samples")
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=1)
    damaged(path, out, "a.h5: dataset '/x' has no first axis")
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(1000), chunks=(100,), fletcher32=True)
        place = file["x"].id.get_chunk_info(3).byte_offset
    content = bytearray(path.read_bytes())
    content[place + 5] ^= 1
    path.write_bytes(content)
    damaged(path, out, "a.h5: dataset 'x' is damaged")


def test_an_error_that_is_kept_does_not_stop_other_threads(tmp_path: Path) -> None:
    for name, value in (("bad", 1), ("good", [1, 2, 3])):
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file.create_dataset("x", data=value)
            file.create_dataset("y", data=[1, 2, 3])
    with pytest.raises(FormatError, match="no first axis") as kept:
        fastload.pack(tmp_path / "bad.h5", tmp_path / "out")
    with ThreadPoolExecutor(1) as thread:
        made = thread.submit(fastload.pack, tmp_path / "good.h5", tmp_path / "out", workers=1)
        try:
            assert made.result(20).rows == 3
        finally:
            del kept


def test_text_that_is_not_utf_8_has_its_place(tmp_path: Path) -> None:
    """Among the samples that are looked at when the file is opened, and later."""
    path = tmp_path / "a.h5"
    for place in (0, ROWS - 1):
        with h5py.File(path, "w") as file:
            texts = file.create_dataset("text", (ROWS,), h5py.string_dtype())
            texts[place] = b"\xff\xfe"
        damaged(path, tmp_path / "out", "a.h5: dataset 'text': 'utf-8' codec")


def test_a_chunk_that_shards_share_stays_decompressed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, x = tmp_path / "a.h5", np.arange(64 * 96 * 256).reshape(64, 96, 256)
    with h5py.File(path, "w") as file:
        chunks = (64, 96, 128)
        file.create_dataset("x", data=x, chunks=chunks, compression="lzf")
        file.create_dataset("plain", data=x[:, 0], chunks=(64, 256))
    caches = []
    opened = hdf5._Opened.dataset

    def looked_at(self: hdf5._Opened, name: str) -> object:
        dataset = opened(self, name)
        caches.append((name, dataset.id.get_access_plist().get_chunk_cache()[1]))
        return dataset

    monkeypatch.setattr(hdf5._Opened, "dataset", looked_at)
    fastload.pack(path, tmp_path / "out", shard_size=x.nbytes // 8, workers=1)
    np.testing.assert_array_equal(column(tmp_path / "out", "x"), x)
    assert {size >= x.nbytes for name, size in caches if name == "x"} == {True}
    assert {size < x.nbytes for name, size in caches if name == "plain"} == {True}
    with h5py.File(path, "r+") as file:  # which is refused if it is still open
        file["x"][0] = 0


# --- Links --------------------------------------------------------------------------------------


def test_datasets_have_the_names_of_the_links_that_lead_to_them(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["g/d"] = np.arange(4) + 10
        file["t"] = ["a", "b", "c", "d"]
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["own"] = np.arange(4)
        file["hard"] = file["own"]
        file["soft"] = h5py.SoftLink("/own")
        file["data"] = h5py.ExternalLink("other.h5", "g/d")
        file["group"] = h5py.ExternalLink("other.h5", "/g")
        file["inner/text"] = h5py.ExternalLink("other.h5", "t")
        file["inner/up"] = h5py.SoftLink("/")
        file["inner/self"] = file["inner"]
    for options in ({"workers": 1}, {"workers": 2, "shard_size": 1}):
        report = fastload.pack(tmp_path / "in.h5", tmp_path / "out", overwrite=True, **options)
        assert samples_of(tmp_path / "out") == [
            {
                "data": n + 10, "group": {"d": n + 10}, "hard": n, "inner": {"text": "abcd"[n]},
                "own": n, "soft": n,
            }
            for n in range(4)
        ]  # fmt: skip
        (left,) = report.leftovers
        assert left.paths == ("in.h5: inner/self", "in.h5: inner/up")
    fastload.pack(tmp_path / "in.h5", tmp_path / "out", fields=["group.d"], overwrite=True)
    assert samples_of(tmp_path / "out")[0] == {"group": {"d": 10}}


@pytest.mark.parametrize(
    ("link", "text"),
    [
        (h5py.SoftLink("/gone"), "'x' is a link to '/gone', which cannot be opened"),
        (h5py.ExternalLink("gone.h5", "d"), "'x' is a link to 'd' of the file 'gone.h5'"),
        (h5py.ExternalLink("in.txt", "d"), "'x' is a link to 'd' of the file 'in.txt'"),
        (h5py.ExternalLink("pipe", "d"), "pipe: a pipe"),
    ],
)
def test_a_link_that_cannot_be_followed_is_refused_with_the_file(
    tmp_path: Path, link: Any, text: str
) -> None:
    (tmp_path / "in.txt").write_text("x")
    os.mkfifo(tmp_path / "pipe")
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["x"] = link
        file["y"] = np.arange(3)
    damaged(tmp_path / "in.h5", tmp_path / "out", str(tmp_path), text)
    fastload.pack(tmp_path / "in.h5", tmp_path / "out", fields=["y"])


def test_a_virtual_dataset_whose_part_is_not_there_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "part.h5", "w") as file:
        file["d"] = np.arange(3)
    layout = h5py.VirtualLayout(shape=(3,), dtype="i8")
    layout[:] = h5py.VirtualSource("part.h5", "d", shape=(3,))
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file.create_virtual_dataset("x", layout)
    fastload.pack(tmp_path / "in.h5", tmp_path / "out")
    assert samples_of(tmp_path / "out") == [{"x": n} for n in range(3)]
    (tmp_path / "part.h5").unlink()
    damaged(tmp_path / "in.h5", tmp_path / "out2", "in.h5", "'part.h5', which is not there")
