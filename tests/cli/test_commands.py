"""The command line: exit codes, messages, what `info` says."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from packing import encoded, noise, put
from rich.console import Console
from safetensors.numpy import save_file

import fastload
from fastload.cli import main
from fastload.packing import progress

Run = Callable[..., subprocess.CompletedProcess[str]]
Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.arange(30, dtype="f4").reshape(10, 3))
    for number, name in enumerate(("cat/1.png", "cat/2.png", "dog/[b].png")):
        put(Path("images", name), encoded(noise(6, 8, number), "PNG"))


def info(path: str, *options: str, capsys: Captured) -> dict[str, Any]:
    assert main(["info", path, "--json", *options]) == 0
    facts: dict[str, Any] = json.loads(capsys.readouterr().out)
    return facts


# --- pack -------------------------------------------------------------------------------------


def test_pack_then_info(capsys: Captured) -> None:
    assert main(["pack", "x.npy", "out"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "packed 10 rows into 1 shard" in captured.err
    assert "rows/s" in captured.err
    facts = info("out", capsys=capsys)
    assert (facts["rows"], facts["shards"], facts["packed"]) == (10, 1, True)
    assert facts["fields"] == [
        {"name": "data", "kind": "fixed", "dtype": "float32", "shape": [3], "bytes": 12}
    ]
    assert facts["fingerprint"] == fastload.open("out").fingerprint
    assert facts["bytes"] == Path("out/shard-000000.safetensors").stat().st_size


def test_skipped_images_give_exit_code_3_and_a_list(capsys: Captured) -> None:
    put(Path("images/cat/3.png"), b"no image")
    put(Path("images/dog/new\nline.png"), b"")
    put(Path("images/.DS_Store"), b"")
    assert main(["pack", "images", "out"]) == 3
    lines = capsys.readouterr().err.splitlines()
    assert lines[:4] == [
        "read as imagefolder: it reads 5 of 6 files, such as cat/1.png",
        "not read: 1 file, such as .DS_Store: hidden, or a file of the operating system",
        "skipped cat/3.png: not an image of a known kind",
        "skipped dog/new\\nline.png: empty file",
    ]
    assert lines[-1] == "fastload: 2 bad inputs left out; the manifest lists them"
    facts = info("out", capsys=capsys)
    assert facts["classes"] == {"label": {"cat": 2, "dog": 1}}
    assert facts["skipped"] == {
        "cat/3.png": "not an image of a known kind",
        "dog/new\nline.png": "empty file",
    }
    assert main(["pack", "images", "out", "--overwrite", "--strict"]) == 1
    assert "cat/3.png" in capsys.readouterr().err
    assert info("out", capsys=capsys) == facts  # the old one is still there


@pytest.mark.parametrize(
    ("options", "rows", "shape"),
    [
        (["images", "--resize", "4"], 3, [4, 4, 3]),
        (["images", "--resize", "4x5", "--workers", "2", "--shard-size", "60"], 3, [4, 5, 3]),
        (["x.bin", "--kind", "raw", "--dtype", "u1", "--shape", "4,2"], 15, [4, 2]),
        (["x.bin", "--kind", "raw", "--dtype", "u1", "--shape", ""], 120, []),
        (["x.npy", "--shard-size", "0.5KiB"], 10, [3]),
    ],
)
def test_options_of_pack(options: list[str], rows: int, shape: list[int]) -> None:
    np.load("x.npy").tofile("x.bin")
    assert main(["pack", options[0], "out", *options[1:]]) == 0
    dataset = fastload.open("out")
    assert (len(dataset), list(dataset.fields[0].shape)) == (rows, shape)


def test_a_dataset_in_the_current_folder_is_found(capsys: Captured) -> None:
    Path("mine_.py").write_text("data = [(i, float(i)) for i in range(7)]\n")
    assert main(["pack", "mine_:data", "out"]) == 0
    assert fastload.open("out")[3] == (3, 3.0)
    sys.modules.pop("mine_")
    assert main(["pack", "mine_:other", "new"]) == 1
    assert "other" in capsys.readouterr().err
    sys.modules.pop("mine_")


# --- Errors -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("info nothing", "nothing: No such file or directory"),
        ("info images", "no dataset in this folder"),
        ("pack nothing out", "nothing: No such file or directory"),
        ("pack x.npy images", "images: the folder is not empty and holds no packed dataset"),
        ("pack images images/out", "the output lies inside the input"),
        ("pack x.npy out --shape 2", "shape has no meaning for npy"),
        ("pack x.npy out --from paper", "kind must be one of"),
        ("pack x.npy out --workers 0", "workers must be a positive integer"),
        ("pack nothing:x out", "No module named 'nothing'"),
    ],
)
def test_an_error_is_one_line_and_exit_code_1(command: str, text: str, capsys: Captured) -> None:
    assert main(command.split()) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert text in captured.err
    assert captured.err.startswith("fastload: error: ")
    assert captured.err.count("\n") == 1
    assert not Path("out").exists()


@pytest.mark.parametrize(
    "command",
    [
        "",
        "nonsense",
        "pack",
        "pack x.npy",
        "info",
        "info x.npy --nonsense",
        "pack images out --resize 0",
        "pack images out --resize 3x4x5",
        "pack images out --shape a",
        "pack x.npy out --shard-size many",
        "pack x.npy out --workers two",
        "pack x.npy out --cast x",
        "pack x.npy out --cast x=f16,x=f32",
        "pack x.npy out --split =1",
        "pack x.npy out --limit many",
        "pack x.npy out --shuffle",
        "append x.npy",
        "add-column out",
        "merge out",
        "export out new",
        "export out new --to zip",
        "head x.npy many",
        "report x.jsonl --html nowhere/x.html",
        "report x.jsonl --plot nowhere/x.png",
        "doctor --html nowhere/x.html x.py",
    ],
)
def test_wrong_usage_is_exit_code_2(command: str, capsys: Captured) -> None:
    with pytest.raises(SystemExit) as raised:
        main(command.split())
    assert raised.value.code == 2
    assert "usage: fastload" in capsys.readouterr().err
    assert not Path("out").exists()


@pytest.mark.parametrize("command", ["--help", "pack --help", "info --help", "--version"])
def test_help_and_version(command: str, capsys: Captured) -> None:
    with pytest.raises(SystemExit) as raised:
        main(command.split())
    assert raised.value.code == 0
    out = capsys.readouterr().out
    if command == "--version":
        assert out == f"fastload {fastload.__version__}\n"
    else:
        assert out.startswith("usage: fastload")


# --- info -------------------------------------------------------------------------------------


def test_info_of_files_read_in_place(capsys: Captured) -> None:
    facts = info("x.npy", capsys=capsys)
    assert (facts["rows"], facts["shards"], facts["packed"]) == (10, 1, False)
    assert facts["bytes"] == Path("x.npy").stat().st_size
    Path("folder").mkdir()
    for number in range(3):
        np.save(f"folder/{number}.npy", np.zeros((number, 2)))
    facts = info("folder", capsys=capsys)
    assert (facts["rows"], facts["shards"]) == (3, 3)
    save_file({"a": np.zeros((4, 2)), "b": np.zeros(4, "i1")}, "y.safetensors")
    facts = info("y.safetensors", capsys=capsys)
    assert [field["name"] for field in facts["fields"]] == ["a", "b"]
    facts = info("x.npy", capsys=capsys)
    np.arange(12, dtype="u2").tofile("raw.bin")
    facts = info("raw.bin", "--dtype", "uint16", "--shape", "3", capsys=capsys)
    assert (facts["rows"], facts["fields"][0]["shape"]) == (4, [3])


def test_info_for_people(capsys: Captured) -> None:
    assert main(["pack", "images", "out [b]"]) == 0
    capsys.readouterr()
    assert main(["info", "out [b]"]) == 0
    out = capsys.readouterr().out
    for part in ("out [b]\n", "3 rows in 1 shard", "packed from imagefolder", "6 x 8 x 3"):
        assert part in out
    for line in out.splitlines():
        assert "cat" not in line or [word.strip() for word in line.split("│")][1:4] == [
            "cat",
            "0",
            "2",
        ]


def test_long_lists_are_cut(capsys: Captured) -> None:
    for number in range(40):
        put(Path(f"many/{number:03d}/a.png"), encoded(noise(2, 2), "PNG"))
        put(Path(f"many/{number:03d}/b.png"), b"")
    assert main(["pack", "many", "out"]) == 3
    capsys.readouterr()
    assert main(["info", "out"]) == 0
    out = capsys.readouterr().out
    assert "and 10 classes more, with --json" in out
    assert "and 10 skipped files more, with --json" in out
    facts = info("out", capsys=capsys)
    assert len(facts["classes"]["label"]) == len(facts["skipped"]) == 40


# --- The program ------------------------------------------------------------------------------


def test_module_and_script_are_the_same_program(tmp_path: Path) -> None:
    script = Path(sys.executable).parent / "fastload"
    for command in ([sys.executable, "-m", "fastload"], [str(script)]):
        done = subprocess.run([*command, "info", "x.npy"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert "10 rows in 1 shard" in done.stdout


def test_pack_and_info_leave_torch_alone(run_python: Run) -> None:
    run_python(
        "import sys\n"
        "from fastload.cli import main\n"
        "assert main(['pack', 'images', 'out']) == 0\n"
        "assert main(['pack', 'x.npy', 'out2']) == 0\n"
        "assert main(['info', 'out']) == 0\n"
        "assert 'torch' not in sys.modules\n"
    )


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    assert main(["pack", "images", "out", "--shard-size", "1"]) == 0
    err = capsys.readouterr().err
    assert "3 of 3 rows" in err
    assert "━" in err


def test_elsewhere_there_are_plain_lines(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setattr(progress, "_LINE_SECONDS", 0.0)
    assert main(["pack", "images", "out", "--shard-size", "1"]) == 0
    err = capsys.readouterr().err
    assert "2 of 3 rows, " in err
    assert "s left" in err
    assert "\x1b" not in err


def test_the_pace_is_of_what_this_run_has_read(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    display = progress.ProgressDisplay(Console(stderr=True))
    display(progress.Progress(100, 100, row_bytes=1_000_000, rows_kept=90))
    now[0] = 2.0
    assert display.pace == "5 rows/s, 5.0 MB/s"
