"""Kinds of input: how they are known, what they say of themselves, what they ask for."""

from __future__ import annotations

import importlib
import multiprocessing
import re
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from packing import put, refused
from paths import ROOT

import fastload
from fastload.cli import main
from fastload.packing.inputs.half_read import latest
from fastload.packing.inputs.kind import Kind
from fastload.packing.kinds.registry import KINDS, OPTIONS


def test_each_module_with_a_kind_is_registered() -> None:
    found = []
    for path in sorted((ROOT / "fastload/packing/kinds").glob("*.py")):
        module = importlib.import_module(f"fastload.packing.kinds.{path.stem}")
        kind = getattr(module, "KIND", None)
        if kind is not None:
            found.append(kind.name)
    assert sorted(kind.name for kind in KINDS) == sorted(found)
    assert len(set(found)) == len(found)


def test_an_option_means_the_same_for_each_kind() -> None:
    for kind in KINDS:
        for option in kind.options:
            assert OPTIONS[option.name] == option, kind.name


@pytest.mark.parametrize("kind", KINDS, ids=[kind.name for kind in KINDS])
def test_help_shows_the_options_of_the_kind_alone(
    kind: Kind, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in ("pack", "append"):
        with pytest.raises(SystemExit):
            main([command, "--from", kind.name, "--help"])
        text = capsys.readouterr().out
        shown = set(re.findall(r"^  --([a-z-]+)", text, re.M))
        own = {option.name.replace("_", "-") for option in kind.options} | {"dtypes"}
        assert shown & {name.replace("_", "-") for name in OPTIONS} == own
        words = " ".join(text.split())
        assert f"{kind.name}: {kind.reads}" in words
        assert ("needs pip install" in words) == bool(kind.needs)
        assert f"needs pip install {' '.join(kind.needs)}" in words or not kind.needs


def test_help_without_a_kind_shows_all(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["pack", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    for kind in KINDS:
        assert kind.name in text
    for name in OPTIONS:
        assert f"--{name.replace('_', '-')}" in text


def test_each_extra_is_declared() -> None:
    project = (ROOT / "pyproject.toml").read_text()
    for extra in {"zstd", *(kind.extra for kind in KINDS if kind.extra is not None)}:
        assert re.search(rf"^{extra} = \[", project, re.M), extra


@pytest.mark.parametrize(
    ("name", "package", "extra", "options"),
    [
        ("a/1.png", "PIL", "images", {}),
        ("x.parquet", "pyarrow", "parquet", {}),
        ("x.arrow", "pyarrow", "parquet", {}),
        ("x.csv", "pyarrow", "parquet", {}),
        ("x.h5", "h5py", "hdf5", {}),
        ("data.mdb", "lmdb", "lmdb", {}),
        ("x.jsonl", "tokenizers", "tokenizers", {"tokenizer": "x.jsonl"}),
        ("x.jsonl", "tiktoken", "tokenizers", {"tokenizer": "tiktoken:gpt2"}),
    ],
)
def test_a_missing_package_is_named_with_the_command_that_installs_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    package: str,
    extra: str,
    options: dict[str, str],
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    put(tmp_path / "in" / name, b"x")
    monkeypatch.chdir(tmp_path / "in")
    text = refused(tmp_path / "in", tmp_path / "out", **options)
    assert text.startswith("ImportError")
    assert f"pip install {'pillow' if package == 'PIL' else package}" in text
    assert f"pip install '.[{extra}]'" in text


def test_the_table_of_the_documentation_lists_each_kind_with_its_options() -> None:
    lines = (ROOT / "docs/reference/packing.md").read_text().splitlines()
    rows = {line.split("`")[1]: line.split("|") for line in lines if line.startswith("| `")}
    assert sorted(rows) == sorted(kind.name for kind in KINDS)
    for kind in KINDS:
        options, needs = rows[kind.name][4:6]
        names = {f"--{option.name.replace('_', '-')}" for option in kind.options}
        assert set(re.findall(r"`(--[a-z-]+)`", options)) == names, kind.name
        assert all(f"`{name}`" in needs for name in kind.needs), kind.name
        assert ("`" in needs) == bool(kind.needs), kind.name


def test_options_that_nobody_knows(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(bytes(8))
    assert "no option 'colour'" in refused(tmp_path / "x.bin", tmp_path / "out", colour=1)
    text = refused(tmp_path / "x.bin", tmp_path / "out", kind="paper")
    assert all(kind.name in text for kind in KINDS)
    options = {"dtype": "uint8", "shape": (), "resize": 3}
    assert "resize has no meaning for raw; it is an option of " in refused(
        tmp_path / "x.bin", tmp_path / "out", **options
    )


def test_from_and_kind_are_one(tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(bytes(8))
    for word in ("--from", "--kind"):
        out = str(tmp_path / word)
        command = ["pack", str(tmp_path / "x.npy"), out, word, "raw", "--dtype", "i4", "--shape="]
        assert main(command) == 0
        assert len(fastload.open(out)) == 2


def test_what_a_process_keeps_is_made_once_and_the_old_goes_first() -> None:
    events: list[str] = []

    class Opened:
        def __init__(self, name: str) -> None:
            self.name = name
            time.sleep(0.02)
            events.append(f"{name} opened")

        def __del__(self) -> None:
            events.append(f"{self.name} closed")

    opened = latest(Opened)
    with ThreadPoolExecutor(4) as threads:
        for name in "aab":
            assert [found.name for found in threads.map(opened, [name] * 4)] == [name] * 4
    assert events == ["a opened", "a closed", "b opened"]


def test_a_child_that_is_forked_while_a_thread_makes_it() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def opened(name: str) -> str:
        if name == "slow":
            begun.set()
            assert go_on.wait(60)
        return name

    give = latest(opened)
    thread = threading.Thread(target=give, args=("slow",))
    thread.start()
    assert begun.wait(60)
    child = multiprocessing.get_context("fork").Process(target=give, args=("quick",))
    child.start()
    child.join(120)
    code = child.exitcode
    child.kill()
    go_on.set()
    thread.join()
    assert code == 0
