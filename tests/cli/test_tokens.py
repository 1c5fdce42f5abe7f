"""`fastload info` shows files of token ids without a dtype and a shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from token_files import megatron_index

from fastload.cli import main

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.arange(3000, dtype="u2").tofile("tokens.bin")


def info(capsys: Captured, *words: str) -> dict[str, Any]:
    assert main(["info", *words, "--json"]) == 0
    facts: dict[str, Any] = json.loads(capsys.readouterr().out)
    return facts


def test_a_raw_file_is_shown_as_tokens_of_an_assumed_dtype(capsys: Captured) -> None:
    facts = info(capsys, "tokens.bin")
    assert (facts["tokens"], facts["dtype"], facts["files"], facts["bytes"]) == (
        3000,
        "uint16",
        1,
        6000,
    )
    assert facts["assumed"]
    assert facts["documents"] is None
    assert facts["ids"] == {"min": 0, "max": 2999, "looked at": 3000}
    assert main(["info", "tokens.bin"]) == 0
    shown = capsys.readouterr().out
    assert "3,000 tokens of uint16 in 1 file, 5.9 KiB, read by TokenDataset" in shown
    assert "uint16 is assumed" in shown
    assert "ids from 0 to 2999\n" in shown


def test_a_dtype_is_taken_and_with_a_shape_the_numbers_are_samples(capsys: Captured) -> None:
    facts = info(capsys, "tokens.bin", "--dtype", "int32")
    assert (facts["tokens"], facts["dtype"], facts["assumed"]) == (1500, "int32", False)
    facts = info(capsys, "tokens.bin", "--dtype", "uint16", "--shape", "10")
    assert (facts["rows"], facts["fields"][0]["shape"]) == (300, [10])


def test_folders_and_indices_are_shown_with_their_documents(capsys: Captured) -> None:
    Path("m").mkdir()
    np.arange(10, dtype="i4").tofile("m/a.bin")
    Path("m/a.idx").write_bytes(megatron_index("int32", [4, 6], range(3)))
    for path in ("m", "m/a", "m/a.bin", "m/a.idx"):
        facts = info(capsys, path)
        assert (facts["tokens"], facts["documents"], facts["assumed"]) == (10, 2, False)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"\x1f\x8b\x08\0" + bytes(9), "is a gzip file"), (bytes(3), "not a multiple of 2")],
)
def test_other_files_are_refused_with_the_reason(
    capsys: Captured, content: bytes, reason: str
) -> None:
    Path("x.bin").write_bytes(content)
    assert main(["info", "x.bin"]) == 1
    assert reason in capsys.readouterr().err
    Path("empty.bin").write_bytes(b"")
    assert info(capsys, "empty.bin")["ids"] is None
