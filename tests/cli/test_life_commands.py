"""The commands around the life of a dataset: options of pack, append, merge, export, head, info."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packing import column, encoded, noise, put

import fastload
import fastload.packing
from fastload.cli import main
from fastload.packing.shards import Progress

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.arange(30).reshape(10, 3))
    np.savez("a.npz", x=np.arange(10), y=np.arange(10.0))
    for number, name in enumerate(("cat/1.png", "cat/2.png", "dog/1.png")):
        put(Path("images", name), encoded(noise(6, 8, number), "PNG"))


def info(path: str, capsys: Captured) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["info", path, "--json"]) == 0
    facts: dict[str, Any] = json.loads(capsys.readouterr().out)
    return facts


def test_options_of_pack(capsys: Captured) -> None:
    options = "--fields x --cast x=u16 --shuffle 3 --limit 8 --split a=0.5,b=0.5"
    assert main(f"pack a.npz out {options}".split()) == 0
    fastload.pack(
        "a.npz",
        "same",
        fields=["x"],
        cast={"x": "u16"},
        shuffle=3,
        limit=8,
        split={"a": "0.5", "b": "0.5"},
    )
    for name in ("fastload.json", "shard-000000.safetensors"):
        assert Path("out", name).read_bytes() == Path("same", name).read_bytes()
    facts = info("out", capsys)
    assert facts["splits"] == {"a": [0, 4], "b": [4, 8]}
    assert facts["source"]["cast"] == {"x": "uint16"}
    assert main(["pack", "images", "coded", "--encoded"]) == 0
    images = [sample[0] for sample in fastload.open("coded")]  # type: ignore[attr-defined]
    assert info("coded", capsys)["fields"][0] == {
        "name": "image",
        "kind": "ragged",
        "dtype": "uint8",
        "shape": [],
        "logical": "image",
        "bytes": round(np.mean(list(map(len, images)))),
    }
    assert main(["info", "coded"]) == 0
    assert "on average" in capsys.readouterr().out


def test_a_complete_dataset_is_not_said_to_be_packed_again(capsys: Captured) -> None:
    assert main(["pack", "x.npy", "out"]) == 0
    capsys.readouterr()
    assert main(["pack", "x.npy", "out", "--resume"]) == 0
    said = capsys.readouterr().err
    assert "the dataset was already complete" in said
    assert "packed" not in said
    assert "rows/s" not in said


def test_what_a_refusal_advises_can_be_done_at_once(capsys: Captured) -> None:
    Path("lines.jsonl").write_text(
        '{"v": [1, 2]}\n' * 500 + '{"v": [1]}\n' + '{"v": [1, 2]}\n' * 500
    )
    assert main(["pack", "lines.jsonl", "out"]) == 1
    assert "--ragged (ragged=)" in capsys.readouterr().err
    assert main(["pack", "lines.jsonl", "out", "--ragged", "v"]) == 0


def test_an_incomplete_folder_tells_once_how_to_go_on(capsys: Captured) -> None:
    Path("lines.jsonl").write_text('{"v": [1, 2]}\n' * 1000)

    def interrupt(_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fastload.pack("lines.jsonl", "out", workers=1, progress=interrupt)
    assert main(["pack", "lines.jsonl", "out", "--ragged", "v"]) == 1
    said = capsys.readouterr().err
    assert said.count("0 of 1 shards are written") == 1
    assert "--overwrite" in said
    assert main(["pack", "lines.jsonl", "out", "--ragged", "v", "--overwrite"]) == 0


def test_dry_run(capsys: Captured) -> None:
    assert (
        main(
            ["pack", "images", "out", "--dry-run", "--split", "a=0.5,b=0.5", "--cast", "image=f16"]
        )
        == 0
    )
    err = capsys.readouterr().err
    for part in (
        "--shuffle SEED",
        "image: float16 [6, 8, 3]",
        "label: int64 []",
        "split b: 1 row, from row 2",
        "would write 3 rows into 1 shard, ",
        " are free",
    ):
        assert part in err
    assert not Path("out").exists()


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("pack x.npy out --resume --overwrite", "resume and overwrite are mutually exclusive"),
        ("pack x.npy out --fields y", "there is no field 'y'; the fields are data"),
        ("pack x.npy out --cast data=q8", "the dtypes are"),
        ("pack x.npy out --cast data=bool", "sample 0: field 'data': 2 does not fit bool"),
        ("pack x.npy out --split a=0.9", "must sum to 1"),
        ("append x.npy out", "no packed dataset"),
        ("add-column out x.npy", "no packed dataset"),
        ("merge out images", "no packed dataset"),
        ("merge out x.npy", "x.npy: no packed dataset"),
        ("export x.npy images --to npy", "already exists"),
        ("head nothing", "nothing: No such file or directory"),
        ("head x.npy --split a", "only folders that `fastload pack` wrote have splits"),
    ],
)
def test_errors_are_exit_code_1(command: str, text: str, capsys: Captured) -> None:
    assert main(command.split()) == 1
    err = capsys.readouterr().err
    assert text in err
    assert err.count("\n") == 1


def test_the_life_of_a_dataset(capsys: Captured) -> None:
    assert main(["pack", "a.npz", "one", "--split", "old=1"]) == 0
    assert main(["append", "a.npz", "one", "--split", "new"]) == 0
    assert "now 20 rows in 2 shards" in capsys.readouterr().err
    np.save("z.npy", np.arange(20).astype("M8[D]"))
    assert main(["add-column", "one", "z.npy"]) == 0
    assert main(["pack", "a.npz", "two"]) == 0
    assert (
        main(["add-column", "two", "z.npy", "--limit", "10", "--shuffle", "0", "--name", "z"]) == 0
    )
    assert main(["merge", "all", "one", "two"]) == 0
    assert "merged 30 rows into" in capsys.readouterr().err
    facts = info("one", capsys)
    assert (facts["generation"], facts["rows"]) == (3, 20)
    assert facts["older generations"] == {"fastload.1.json": 10, "fastload.2.json": 20}
    assert facts["splits"] == {"old": [0, 10], "new": [10, 20]}
    assert facts["groups"] == {
        "main": {"fields": ["x", "y"], "shards": 2},
        "z": {"fields": ["z"], "shards": 1},
    }
    assert main(["info", "one"]) == 0
    out = capsys.readouterr().out
    for part in (
        "datetime64[D]",
        "split new: 10 rows, from row 10",
        "column set z: z; 1 shard",
        "generation 3",
        "older generation fastload.1.json: 10 rows",
    ):
        assert part in out
    assert column(Path("all"), "x").tolist() == list(range(10)) * 3
    assert main(["export", "all", "new", "--to", "npy"]) == 0
    assert "wrote 30 rows into 3 files" in capsys.readouterr().err
    assert np.load("new/z.npy").dtype == "M8[D]"
    assert main(["export", "one", "tars", "--to", "tar", "--split", "old"]) == 0
    assert "wrote 10 rows into 1 file" in capsys.readouterr().err


def test_head(capsys: Captured) -> None:
    source = {
        "x": np.arange(40).reshape(2, 20),
        "few": np.array([[1.5, 2.5], [3.0, 4.0]]),
        "t": ["a\nb", "c" * 200],
        "raw": [b"\0\1", b""],
        "when": np.array(["2024-01-01", "2025-02-02"], "M8[D]"),
        "r": [np.arange(3), np.arange(0)],
    }
    fastload.pack(source, "out")
    assert main(["head", "out", "1"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "sample 0",
        "  x: int64 [20]: 0, 1, 2, 3, 4, 5, 6, 7, ... from 0 to 19",
        "  few: [1.5, 2.5]",
        "  t: a\\nb",
        "  raw: 2 bytes of bytes",
        "  when: 2024-01-01",
        "  r: [0, 1, 2]",
    ]
    assert main(["head", "out"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 14
    assert lines[10] == f"  t: {'c' * 100}..."
    fastload.pack("images", "pictures", split={"a": 0.6, "b": 0.4})
    assert main(["head", "pictures", "3", "--split", "b"]) == 0
    out = capsys.readouterr().out
    assert "sample 0" in out
    assert "sample 1" not in out
    assert "label: 1 (dog)" in out
    assert main(["head", "x.npy", "0"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("command", ["info", "head", "verify", "export"])
@pytest.mark.parametrize(("shape", "rows"), [("", 6), ("3", 2)])
def test_a_raw_file_is_read_as_it_is_described(
    command: str, shape: str, rows: int, capsys: Captured
) -> None:
    np.arange(6, dtype="u2").tofile("t.bin")
    rest = ["npys", "--to", "npy"] if command == "export" else []
    assert main([command, "t.bin", *rest, "--dtype", "uint16", "--shape", shape]) == 0
    if command == "export":
        assert len(np.load("npys/data.npy")) == rows
    elif command == "info":
        assert f"{rows} rows in 1 shard" in capsys.readouterr().out


def test_an_interrupt_is_reported_below_the_progress_bar(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rich.console import Console

    from fastload.cli import writing

    def interrupted(*_: Any, progress: Any, **__: Any) -> None:
        progress(Progress(3, 10, 8))
        raise KeyboardInterrupt

    terminal = lambda: Console(stderr=True, force_terminal=True, width=100)  # noqa: E731
    monkeypatch.setattr(writing, "console", terminal)
    monkeypatch.setattr(fastload.packing, "pack", interrupted)
    assert main(["pack", "x.npy", "out"]) == 130
    shown = capsys.readouterr().err
    assert "3 of 10 rows" in shown
    assert " left" in shown
    assert "fastload: interrupted" in shown.rstrip().splitlines()[-1]
    assert shown.rindex("3 of 10 rows") < shown.rindex("fastload: interrupted")
