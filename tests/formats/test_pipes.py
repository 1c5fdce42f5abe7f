"""No place that opens a file waits for what is at the other end of a pipe."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from packing import encoded, noise, put

import fastload
from fastload import FormatError, TrainStep
from fastload.cli import main


@pytest.fixture(autouse=True)
def _patience() -> Iterator[None]:
    """Ends what waits, which would be forever."""

    def give_up(*_: object) -> None:
        raise TimeoutError("it waits for the other end of a pipe")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def _images(folder: Path) -> Path:
    put(folder / "images/i.png", encoded(noise(4, 4), "PNG"))
    return folder / "images"


def _dataset(folder: Path) -> Path:
    fastload.pack({"x": np.arange(4)}, folder / "packed")
    return folder / "packed"


def _step(path: Path) -> TrainStep:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return TrainStep(model, optimizer, lambda m, b: m(b).mean(), precision="fp32", log=path)


def _table_that_names_the_pipe(folder: Path, pipe: Path) -> Any:
    images = _images(folder)
    pipe.rename(images / "odd")
    put(folder / "l.csv", b"id,y\ni,1\nodd,2\n")
    return fastload.pack(images, folder / "out", labels=folder / "l.csv")


def _no_manifest(folder: Path, pipe: Path) -> Any:
    pipe.rename(_dataset(folder) / "new")
    os.replace(folder / "packed/new", folder / "packed/fastload.json")
    return fastload.open(folder / "packed")


def _tokenizer(folder: Path, pipe: Path) -> Any:
    put(folder / "t.jsonl", b'{"text": "a"}\n')
    return fastload.pack(folder / "t.jsonl", folder / "out", tokenizer=pipe)


PLACES: dict[str, Callable[[Path, Path], Any]] = {
    "a source": lambda folder, pipe: fastload.pack(pipe, folder / "out"),
    "a source of a kind": lambda folder, pipe: fastload.pack(pipe, folder / "out", kind="jsonl"),
    "append": lambda folder, pipe: fastload.append(pipe, _dataset(folder)),
    "add_column": lambda folder, pipe: fastload.add_column(_dataset(folder), pipe, name="y"),
    "labels": lambda folder, pipe: fastload.pack(_images(folder), folder / "out", labels=pipe),
    "an image that labels name": _table_that_names_the_pipe,
    "a tokenizer": _tokenizer,
    "a manifest": _no_manifest,
    "open": lambda folder, pipe: fastload.open(pipe, dtype="u1", shape=()),
    "tokens": lambda folder, pipe: fastload.TokenDataset(pipe, 8),
    "a log": lambda folder, pipe: _step(pipe),
    "the log of watch": lambda folder, pipe: list(
        fastload.watch(fastload.FastLoader(_dataset(folder), 2), log=pipe)
    ),
    "a checkpoint": lambda folder, pipe: _step(folder / "log").load(pipe),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_pipe_is_refused_at_once(tmp_path: Path, place: str) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises((FormatError, ValueError), match="a pipe"):
        PLACES[place](tmp_path, pipe)


def test_commands_refuse_pipes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    pipe = str(tmp_path / "pipe")
    for command in (["report", pipe], ["info", pipe], ["verify", pipe], ["head", pipe]):
        assert main(command) != 0
        assert "a pipe" in "".join(capsys.readouterr())
