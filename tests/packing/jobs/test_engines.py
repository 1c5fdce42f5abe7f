"""What the command says of clusters, before one is asked."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import fastload
from fastload.cli import main


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--engine", "dask"],
            "--engine dask needs --scheduler ADDRESS, or DASK_SCHEDULER_ADDRESS",
        ),
        (
            ["--engine", "dask", "--scheduler", "x.json"],
            "--scheduler 'x.json' is neither an existing file nor an address such as "
            "tcp://head:8786",
        ),
        (["--scheduler", "tcp://head:1"], "--scheduler needs --engine dask"),
        (["--engine", "dask", "--address", "auto"], "--address needs --engine ray"),
    ],
)
def test_engines_are_told_what_is_theirs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    np.save(tmp_path / "x.npy", np.arange(3))
    command = ["pack", str(tmp_path / "x.npy"), str(tmp_path / "out")]
    assert main([*command, *words]) == 1
    assert capsys.readouterr().err == f"fastload: error: {message}\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("engine", "package"), [("dask", "distributed"), ("ray", "ray")])
def test_an_engine_that_is_not_installed(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    engine: str,
    package: str,
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    np.save(tmp_path / "x.npy", np.arange(3))
    command = ["pack", str(tmp_path / "x.npy"), str(tmp_path / "out"), "--engine", engine]
    assert main(command) == 1
    message = f"--engine {engine} needs {package}, which is not installed: pip install"
    assert f"fastload: error: {message} {package}" in capsys.readouterr().err
    assert main([*command, "--dry-run"]) == 0  # nobody is needed
    assert main([*command[:-1], "local"]) == 0
    assert len(fastload.open(tmp_path / "out")) == 3
