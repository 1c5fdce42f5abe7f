"""Files and folders are found as they are named, and told apart by what they hold."""

from __future__ import annotations

import errno
import os
import random
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from samples import Array, all_samples, save_shards

import fastload
from fastload import FormatError
from fastload.formats import npy, raw, safetensors
from fastload.formats.files import natural_key


def test_shards_of_unequal_length_are_one_dataset(tmp_path: Path) -> None:
    save_shards(tmp_path, *(np.arange(n) + 10 * i for i, n in enumerate((5, 3, 1))))
    assert all_samples(tmp_path) == [0, 1, 2, 3, 4, 10, 11, 12, 20]
    assert fastload.open(tmp_path)[5] == 10


def test_empty_shards_contribute_nothing(tmp_path: Path) -> None:
    save_shards(tmp_path, *(np.full((n, 4), i, "f4") for i, n in enumerate((0, 2, 0, 3, 0))))
    assert [sample[0] for sample in all_samples(tmp_path)] == [1, 1, 3, 3, 3]
    save_shards(tmp_path / "empty", np.zeros((0, 4), "f4"))
    assert all_samples(tmp_path / "empty") == []


def test_shards_are_taken_in_natural_order(tmp_path: Path) -> None:
    for number in range(12):
        (tmp_path / "x").mkdir(exist_ok=True)
        (tmp_path / "y").mkdir(exist_ok=True)
        np.save(tmp_path / "x" / f"x_{number}.npy", np.array([number]))
        np.save(tmp_path / "y" / f"y_{number:02d}.npy", np.array([number]))
    assert all_samples(tmp_path / "x") == all_samples(tmp_path / "y") == list(range(12))


def test_natural_order_compares_numbers_by_value() -> None:
    names = ["a1b2", "a1b10", "a2", "a10", "a10b", "b", "1", "01", "2", "10", "²", "٣"]
    shuffled = names[:]
    random.shuffle(shuffled)
    assert sorted(["x10", "x2", "x1"], key=natural_key) == ["x1", "x2", "x10"]
    assert sorted(shuffled, key=natural_key) == sorted(names, key=natural_key)


def test_hidden_files_strangers_and_folders_in_a_folder_are_ignored(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(3))
    for name in (".DS_Store", ".hidden.npy", "Thumbs.db", "readme.txt"):
        (tmp_path / name).write_bytes(b"\0\1")
    (tmp_path / "folder.npy").mkdir()
    assert all_samples(tmp_path) == [0, 1, 2]


@pytest.mark.parametrize(
    "other", [np.zeros((2, 3), "f8"), np.zeros((2, 4), "f4"), np.zeros((2, 3, 1), "f4")]
)
def test_shards_that_disagree_are_refused_naming_both(tmp_path: Path, other: Array) -> None:
    paths = save_shards(tmp_path, np.zeros((2, 3), "f4"), np.zeros((5, 3), "f4"), other)
    shape = re.escape(str(list(other.shape[1:])))
    expected = rf"s0\.npy.*float32 \[3\].*s2\.npy of {other.dtype} {shape}"
    for path in (tmp_path, paths):
        with pytest.raises(FormatError, match=expected):
            fastload.open(path)


def test_a_sequence_of_files_is_read_in_its_order(tmp_path: Path) -> None:
    paths = save_shards(tmp_path, np.array([1]), np.array([2]), np.array([3]))
    assert all_samples([paths[2], str(paths[0]), os.fsencode(paths[1])]) == [3, 1, 2]
    with pytest.raises(FormatError, match="empty"):
        fastload.open([])


def test_an_empty_folder_is_refused_with_advice(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"no dataset in this folder.*fastload pack"):
        fastload.open(tmp_path)


def test_mixed_kinds_are_refused_naming_one_of_each(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    save_file({"x": np.arange(3)}, tmp_path / "b.safetensors")
    for path in (tmp_path, [tmp_path / "a.npy", tmp_path / "b.safetensors"]):
        with pytest.raises(FormatError, match=r"a\.npy \(npy\) and .*b\.safetensors"):
            fastload.open(path)


def test_a_begun_pack_is_called_incomplete(tmp_path: Path) -> None:
    (tmp_path / ".fastload").mkdir()
    np.save(tmp_path / "x.npy", np.arange(3))
    with pytest.raises(FormatError, match="incomplete"):
        fastload.open(tmp_path)


def test_an_npz_is_refused_with_advice(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.arange(3))
    with pytest.raises(FormatError, match=r"x\.npz: .*fastload pack"):
        fastload.open(tmp_path / "x.npz")


AWKWARD = [
    "with space",
    "[a]{b}*?",
    "naïve-日本",
    "-dash",
    "a\\b",
    "new\nline",
    "sub/deeper",
    "~",
    "%d",
    "$HOME",
    "x.npy",
]


@pytest.mark.parametrize("name", AWKWARD)
def test_awkward_paths_are_taken_literally(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / name
    folder.mkdir(parents=True)
    np.save(folder / "x.npy", np.arange(3))
    for path in (folder, str(folder), os.fsencode(folder), folder / "x.npy"):
        assert all_samples(path) == [0, 1, 2]
    monkeypatch.chdir(tmp_path)
    assert all_samples(name) == [0, 1, 2]


def test_names_that_are_no_text_are_read(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/\xff\xfe"
    os.mkdir(folder)
    np.save(os.fsdecode(folder) + "/x.npy", np.arange(3))
    assert all_samples(folder) == [0, 1, 2]
    assert all_samples(os.fsdecode(folder)) == [0, 1, 2]


def test_relative_paths_are_made_absolute_at_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "x.npy", np.arange(3))
    monkeypatch.chdir(tmp_path)
    dataset = fastload.open("x.npy")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert dataset[2] == 2


def test_symlinks_are_followed(tmp_path: Path) -> None:
    save_shards(tmp_path / "real", np.arange(3))
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "x.npy").symlink_to("../real/s0.npy")
    assert all_samples(tmp_path / "link") == all_samples(tmp_path / "files") == [0, 1, 2]
    # `..` behind a link means the folder above its target.
    (tmp_path / "files" / "deep").symlink_to("../real")
    assert all_samples(tmp_path / "files" / "deep" / ".." / "real") == [0, 1, 2]


@pytest.mark.parametrize("name", ["gone.npy", "gone", "gone.safetensors", "gone.bin"])
def test_a_missing_file_keeps_errno_and_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        fastload.open(tmp_path / name)
    assert caught.value.errno == errno.ENOENT
    assert caught.value.filename == str(tmp_path / name)


def test_a_broken_link_among_shards_is_an_error(tmp_path: Path) -> None:
    save_shards(tmp_path, np.arange(3))
    (tmp_path / "t.npy").symlink_to("gone.npy")
    with pytest.raises(FileNotFoundError, match=r"t\.npy"):
        fastload.open(tmp_path)


def test_a_forbidden_file_keeps_errno_and_path() -> None:
    with tempfile.TemporaryDirectory() as folder:  # pytest's own lets nobody else in
        os.chmod(folder, 0o755)
        path = os.path.join(folder, "x.npy")
        np.save(path, np.arange(3))
        os.chmod(path, 0)
        user = os.geteuid()
        os.seteuid(user or 65534)  # root may read everything
        try:
            with pytest.raises(PermissionError) as caught:
                fastload.open(path)
        finally:
            os.seteuid(user)
    assert (caught.value.errno, caught.value.filename) == (errno.EACCES, path)


def test_a_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.npy")
    with pytest.raises(FormatError, match=r"x\.npy: a pipe"):
        fastload.open(tmp_path / "x.npy")


# --- kinds


def test_files_are_known_by_their_content_when_the_suffix_says_nothing(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(3))
    (tmp_path / "x.npy").rename(tmp_path / "plain")
    assert all_samples(tmp_path / "plain") == [0, 1, 2]
    save_file({"x": np.arange(3)}, tmp_path / "other")
    assert fastload.open(tmp_path / "other")[1] == {"x": 1}


def test_readers_of_one_format_do_not_guess(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(4))
    with pytest.raises(FormatError, match="safetensors"):
        safetensors.read_extents(tmp_path / "x.npy")
    with pytest.raises(FormatError, match=r"is a \.npy file, and is not read as raw numbers"):
        raw.read_extents(tmp_path / "x.npy", "uint8", ())
    with pytest.raises(FormatError, match=r"does not start like a \.npy"):
        (tmp_path / "y.npy").write_bytes(bytes(200))
        npy.read_extents(tmp_path / "y.npy")
