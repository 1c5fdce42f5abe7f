"""The prelude of the re-enacted reports makes what it says."""

from __future__ import annotations

import tarfile

import numpy as np
from prelude import X, one_batch, packed, put, tar


def test_the_batch_holds_all_samples() -> None:
    np.testing.assert_array_equal(one_batch()["x"].numpy(), X)


def test_a_file_below_new_folders_is_packed() -> None:
    put("a/b/c.jsonl", b'{"x": 1}\n{"x": 2}\n')
    assert packed("a/b/c.jsonl") == [{"x": 1}, {"x": 2}]


def test_a_tar_file_holds_the_members() -> None:
    tar("t.tar", [("0.cls", b"1"), ("0.bin", b"ab")])
    with tarfile.open("t.tar") as archive:
        assert archive.getnames() == ["0.cls", "0.bin"]
