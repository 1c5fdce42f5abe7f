"""Every entry of an input is read, reported or refused, whatever the kind."""

from __future__ import annotations

import json
import os
import socket
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import pytest
from kind_files import KINDS, TABLE
from packing import encoded, noise, put, refused

import fastload
from fastload.cli import main
from fastload.formats.walk import walk
from fastload.packing.inputs.inventory import HIDDEN, IGNORED


def _one_of_everything(folder: Path, skip: str) -> None:
    """Files of each kind but one, links, hidden files, and a pipe and a socket no kind reads."""
    for kind, (suffix, make, _) in KINDS.items():
        if kind != skip:
            where = folder / "others" / "deep"
            where.mkdir(parents=True, exist_ok=True)
            make(where / f"o{suffix}", 0)
    put(folder / "notes.txt", b"x")
    put(folder / "others/no suffix", b"x")
    put(folder / "b/.hidden", b"x")
    put(folder / ".git/objects/1.csv", b"x")
    put(folder / "Thumbs.db", b"x")
    (folder / "link.txt").symlink_to("notes.txt")
    (folder / "gone.txt").symlink_to("nowhere.txt")
    (folder / "b/up").symlink_to(folder)
    (folder / "b/above").symlink_to(folder.parent)
    (folder / "b/here").symlink_to(".")
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(folder / "s"))


def _fill(kind: str, folder: Path) -> int:
    """Files of the kind at several depths, hidden ones and linked ones; how many it reads."""
    suffix, make, each = KINDS[kind]
    names = ["b/1", "b/c/2", "b/c/10"]
    names += [] if kind == "imagefolder" else ["0"]
    for number, name in enumerate(names):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        make(folder / f"{name}{suffix}", number)
    make(folder / f"b/.h{suffix}", 0)
    outside = folder.parent / "outside"
    outside.mkdir()
    make(outside / f"7{suffix}", 7)
    (folder / "b/linked").symlink_to(outside)
    make(folder.parent / f"8{suffix}", 8)
    for ending in {suffix} if each == 1 else {suffix, ".idx"}:
        (folder / f"b/8{ending}").symlink_to(folder.parent / f"8{ending}")
    return (len(names) + 2) * each


@pytest.mark.parametrize("kind", KINDS)
def test_entries_read_and_entries_reported_are_the_entries_there(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    read = _fill(kind, folder)
    _one_of_everything(folder, kind)
    there = {entry.path for entry in walk(str(folder))}
    # An oracle that knows nothing of the walk: find, which does not follow links to folders.
    found = {
        os.path.relpath(os.path.join(above, name), folder)
        for above, folders, names in os.walk(folder)
        for name in [*names, *(n for n in folders if os.path.islink(os.path.join(above, n)))]
    }
    linked = {f"b/linked/{name}" for name in os.listdir(tmp_path / "outside")}
    assert there == found - {"b/linked"} | linked
    options = {"allow_empty": True} if kind == "imagefolder" else {}
    report = fastload.pack(folder, tmp_path / "out", kind=kind, **options)
    reported = [path for left in report.leftovers for path in left.paths]
    assert sum(left.count for left in report.leftovers) == len(reported) == len(set(reported))
    assert set(reported) <= there
    assert len(reported) + read == len(there)
    reasons = {path: left.reason for left in report.leftovers for path in left.paths}
    assert (reasons["pipe"], reasons["s"]) == ("a pipe", "a socket")
    assert {reasons[f"b/{name}"] for name in ("up", "above", "here")} == {
        "a link to a folder above"
    }
    assert reasons["gone.txt"].startswith("a link whose target cannot be resolved")
    assert {reasons[n] for n in (".git/objects/1.csv", "Thumbs.db", "b/.hidden")} == {HIDDEN}
    manifest = json.loads((tmp_path / "out/fastload.json").read_text())
    assert manifest["leftovers"] == {
        left.reason: {"count": left.count, "paths": list(left.paths)} for left in report.leftovers
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["pipe", "socket", "broken link"])
def test_what_is_no_file_and_has_a_name_that_the_kind_reads_is_refused(
    tmp_path: Path, kind: str, what: str
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    _fill(kind, folder)
    path = folder / f"b/c/odd{KINDS[kind][0]}"
    if what == "pipe":
        os.mkfifo(path)
    elif what == "socket":
        short = Path(os.path.relpath(path))
        with socket.socket(socket.AF_UNIX) as server:  # paths of sockets must be short
            here = os.getcwd()
            os.chdir(short.parent)
            try:
                server.bind(short.name)
            finally:
                os.chdir(here)
    else:
        path.symlink_to("nowhere")
    text = refused(folder, tmp_path / "out", kind=kind)
    assert text.startswith("FormatError")
    assert str(path) in text
    assert {"pipe": "a pipe", "socket": "a socket", "broken link": "cannot be resolved"}[
        what
    ] in text
    report = fastload.pack(folder, tmp_path / "out", kind=kind, ignore="odd*")
    (ignored,) = [left for left in report.leftovers if left.reason == IGNORED]
    assert ignored.paths == (f"b/c/odd{KINDS[kind][0]}",)


def test_strict_refuses_what_is_left_over_but_hidden_and_ignored_entries(tmp_path: Path) -> None:
    for name in ("0.npy", ".hidden", "notes/a.txt", "notes/b.txt"):
        put(tmp_path / "in" / name, b"x")
    np.save(tmp_path / "in/0.npy", np.arange(3))
    text = refused(tmp_path / "in", tmp_path / "out", strict=True)
    assert "2 entries of the input are not read" in text
    assert "notes/a.txt, notes/b.txt" in text
    for ignore in ("*.txt", "notes", "notes/", "./notes/*", ["a.txt", "notes/b.*"]):
        report = fastload.pack(
            tmp_path / "in", tmp_path / "out", strict=True, ignore=ignore, overwrite=True
        )
        assert {left.reason: left.count for left in report.leftovers} == {HIDDEN: 1, IGNORED: 2}
    command = ["pack", str(tmp_path / "in"), str(tmp_path / "o"), "--strict", "--ignore"]
    assert main([*command, "a.txt"]) == 1
    assert main([*command, "a.txt", "--ignore", "b.txt"]) == 0


def test_append_adds_up_what_is_left_over_and_add_column_is_strict_about_records_only(
    tmp_path: Path,
) -> None:
    for name in ("a", "b"):
        put(tmp_path / name / "notes.txt", b"x")
        np.save(tmp_path / name / "0.npy", np.arange(3))
    out = tmp_path / "out"
    fastload.pack({"x": np.arange(3)}, out)
    report = fastload.add_column(out, tmp_path / "a", name="y")
    assert [left.paths for left in report.leftovers] == [("notes.txt",)]
    with pytest.raises(ValueError, match="not read"):
        fastload.add_column(out, tmp_path / "b", name="z", strict=True)
    report = fastload.pack(tmp_path / "a", tmp_path / "bare")
    report = fastload.append(tmp_path / "b", tmp_path / "bare")
    assert [(left.count, left.paths) for left in report.leftovers] == [(1, ("notes.txt",))]
    manifest = json.loads((tmp_path / "bare/fastload.json").read_text())
    (left,) = manifest["leftovers"].values()
    assert left == {"count": 2, "paths": ["notes.txt", "notes.txt"]}
    fastload.merge(tmp_path / "merged", [tmp_path / "bare", tmp_path / "bare"])
    manifest = json.loads((tmp_path / "merged/fastload.json").read_text())
    assert manifest["leftovers"]["npy does not read files of this name"]["count"] == 4


def test_a_hundred_paths_are_kept_of_each_reason(tmp_path: Path) -> None:
    for number in range(120):
        put(tmp_path / f"in/{number}.txt", b"")
    np.save(tmp_path / "in/0.npy", np.arange(3))
    (left,) = fastload.pack(tmp_path / "in", tmp_path / "out").leftovers
    assert (left.count, len(left.paths), left.paths[:2]) == (120, 100, ("0.txt", "1.txt"))


# --- Kinds that find their files in other ways --------------------------------------------------


def _lmdb(folder: Path) -> dict[str, Any]:
    with lmdb.open(str(folder)) as made, made.begin(write=True) as entries:
        entries.put(b"k", b"v")
    return {"files": 2}  # lock.mdb belongs to it


def _mds(folder: Path) -> dict[str, Any]:
    shard = (1).to_bytes(4, "little") + (12).to_bytes(4, "little") + (16).to_bytes(4, "little")
    (folder / "shard.0.mds").write_bytes(shard + b"\1\0\0\0")
    columns = {"column_names": ["x"], "column_encodings": ["int32"], "column_sizes": [4]}
    data = {"basename": "shard.0.mds", "bytes": 16}
    entry = {**columns, "format": "mds", "compression": None, "samples": 1, "raw_data": data}
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": [entry]}))
    return {"files": 2}


def _imagelist(folder: Path) -> dict[str, Any]:
    for name in ("b/1", "2", "3", ".h"):
        put(folder / f"{name}.png", encoded(noise(4, 4), "PNG"))
    put(folder / "labels.csv", b"id,y\nb/1.png,0\n2,1\n")
    return {"files": 3, "labels": folder / "labels.csv"}


def _saved(folder: Path) -> dict[str, Any]:
    from arrow_tables import save_to_disk

    folder.rmdir()
    save_to_disk(folder, TABLE, {})
    return {"files": len(os.listdir(folder)), "kind": "arrow"}


@pytest.mark.parametrize("make", [_lmdb, _mds, _imagelist, _saved])
def test_entries_add_up_for_kinds_with_an_index(
    tmp_path: Path, make: Callable[[Path], dict[str, Any]]
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    options = {"kind": make.__name__[1:], **make(folder)}
    files = options.pop("files")
    kinds = {"_imagelist": "imagefolder", "_saved": "arrow"}  # whose files they would read
    _one_of_everything(folder, kinds.get(make.__name__, ""))
    report = fastload.pack(folder, tmp_path / "out", **options)
    reported = [path for left in report.leftovers for path in left.paths]
    assert len(set(reported)) == sum(left.count for left in report.leftovers)
    assert len(reported) + files == len(list(walk(str(folder))))


def test_members_of_npz_archives_that_are_no_arrays_are_reported(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(3))
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr("notes.txt", "x")
        archive.writestr("__MACOSX/._x.npy", "no array")
    left, hidden = fastload.pack(tmp_path / "a.npz", tmp_path / "out").leftovers
    assert left.paths == ("a.npz: notes.txt",)
    assert (hidden.reason, hidden.count) == ("hidden, or a file of the operating system", 1)
    text = refused(tmp_path / "a.npz", tmp_path / "no", strict=True)
    assert "1 entry of the input is not read" in text
    fastload.pack(tmp_path / "a.npz", tmp_path / "yes", strict=True, ignore="notes.txt")


@pytest.mark.parametrize("kind", ["npz", "raw", "beton"])
def test_a_folder_where_a_single_file_is_needed(tmp_path: Path, kind: str) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(3))
    text = refused(tmp_path, tmp_path.parent / "out", kind=kind)
    assert f"{kind} is read from a single file, no folder" in text
    text = refused(tmp_path, tmp_path.parent / "out")
    assert "no kind of input is a folder of files of such names (.npz)" in text


# --- Which kind -------------------------------------------------------------------------------


def test_two_possible_kinds_are_an_error_that_names_both(tmp_path: Path) -> None:
    for number in range(4):
        put(tmp_path / f"in/a/{number}.png", encoded(noise(4, 4, number), "PNG"))
    put(tmp_path / "in/t.csv", b"x\n1\n")
    text = refused(tmp_path / "in", tmp_path / "out")
    assert "imagefolder (4 files, such as a/0.png) or csv (1 file, such as t.csv)" in text
    assert "--from" in text
    for kind, rows in (("csv", 1), ("imagefolder", 4)):
        report = fastload.pack(tmp_path / "in", tmp_path / "out", kind=kind, overwrite=True)
        assert (report.rows, report.kind, report.reason) == (rows, kind, "set by --from")
    report = fastload.pack(tmp_path / "in", tmp_path / "out", resize=3, overwrite=True)
    assert report.kind == "imagefolder"  # csv has no such option


def test_the_report_says_which_kind_was_taken_and_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put(tmp_path / "x.csv", b"x\n1\n")
    np.save(tmp_path / "y.npy", np.arange(3))
    (tmp_path / "y.npy").rename(tmp_path / "y")
    put(tmp_path / "z.bin", b"1234")
    for name, options, kind, reason in (
        ("x.csv", {}, "csv", "detected from its name"),
        ("y", {}, "npy", "detected from its first bytes"),
        ("z.bin", {"dtype": "u1", "shape": ()}, "raw", "--dtype and --shape are given"),
    ):
        report = fastload.pack(tmp_path / name, tmp_path / "out", overwrite=True, **options)
        assert (report.kind, report.reason) == (kind, reason)
    assert main(["pack", str(tmp_path / "x.csv"), str(tmp_path / "o")]) == 0
    assert "read as csv: detected from its name" in capsys.readouterr().err
    assert main(["pack", str(tmp_path / "x.csv"), str(tmp_path / "o2"), "--dry-run"]) == 0
    assert "read as csv: detected from its name" in capsys.readouterr().err
