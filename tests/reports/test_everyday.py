"""What users type every day does what it says."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from PIL import Image
from prelude import DATA, X, packed

import fastload
from fastload import ArrayDataset, DecodeImage, FastLoader, Normalize
from fastload.cli import main

Captured = pytest.CaptureFixture[str]


def test_options_of_head_may_stand_before_the_number(capsys: Captured) -> None:
    fastload.pack({"y": np.arange(4)}, "d", split={"train": 0.5, "val": 0.5}, workers=1)
    orders = ("d --split val 1", "d 1 --split val", "--split val d 1", "--split=val d 1")
    for words in orders:
        assert main(["head", *words.split()]) == 0
        assert capsys.readouterr().out == "sample 0\n  y: 2\n"


def test_a_star_import_leaves_open_alone() -> None:
    names: dict[str, object] = {}
    exec("from fastload import *\nfile = open", names)
    assert names["file"] is open
    assert "open" in dir(fastload)


def test_a_second_array_is_refused_with_what_to_write() -> None:
    for second in (np.arange(8), torch.arange(8), [1, 2]):
        with pytest.raises(TypeError, match=r'ArrayDataset\(\{"x": x, "y": y\}\)'):
            ArrayDataset(X, second)  # type: ignore[arg-type]


def test_floats_are_shown_with_six_digits(capsys: Captured) -> None:
    fastload.pack({"x": np.array([[0.1, 1 / 3]], "f4"), "y": np.array([2.0])}, "d", workers=1)
    fastload.pack({"x": np.linspace(0, 1, 20, dtype="f4")[None]}, "long", workers=1)
    assert main(["head", "d"]) == 0
    assert capsys.readouterr().out == "sample 0\n  x: [0.1, 0.333333]\n  y: 2.0\n"
    assert main(["head", "long"]) == 0
    assert "0.0526316, 0.105263, " in capsys.readouterr().out


def test_a_token_file_is_shown(capsys: Captured) -> None:
    np.arange(100, dtype="u2").tofile("tokens.bin")
    assert main(["info", "tokens.bin"]) == 0
    assert "100 tokens of uint16" in capsys.readouterr().out


def test_a_remote_path_is_no_missing_local_file() -> None:
    with pytest.raises(ValueError, match="s3://bucket/x: remote paths are not supported yet"):
        fastload.open("s3://bucket/x")


def test_a_resumed_loader_tells_its_position() -> None:
    loader = FastLoader(DATA, 2, seed=0)
    batches = iter(loader)
    next(batches)
    resumed = FastLoader(DATA, 2, seed=0)
    resumed.load_state_dict(loader.state_dict())
    assert (loader.position, resumed.position, len(resumed)) == (1, 1, 4)


def test_means_of_0_to_255_are_refused_with_those_of_0_to_1() -> None:
    images = ArrayDataset({"x": np.zeros((4, 8, 8, 3), np.uint8)})
    habit = Normalize((123.675, 116.28, 103.53), (58.395, 57.12, 57.375))
    said = r"divided by 255 they are Normalize\(\(0.485, 0.456, 0.406\), \(0.229, 0.224, 0.225\)\)"
    with pytest.raises(ValueError, match=said):
        FastLoader(images, 2, transforms={"x": habit})


def test_a_16_bit_image_is_not_white() -> None:
    os.makedirs("d/k")
    grey = np.arange(16, dtype=np.uint16).reshape(4, 4) * 4096
    for suffix in ("png", "tif"):
        Image.fromarray(grey).save(f"d/k/x.{suffix}")
    for image, _ in packed("d"):
        assert image[..., 0].tolist() == (grey >> 8).tolist()


def test_a_truncated_jpeg_is_left_out_and_counted() -> None:
    os.makedirs("d/k")
    for number in range(4):
        Image.fromarray(np.full((8, 8, 3), number, "u1")).save(f"d/k/{number}.jpg")
    with open("d/k/2.jpg", "r+b") as file:
        file.truncate(os.path.getsize("d/k/2.jpg") // 2)
    fastload.pack("d", "out", encoded=True, workers=1)
    loader = FastLoader("out", 4, transforms={"image": DecodeImage()}, on_error="skip")
    with pytest.warns(UserWarning, match="the first is sample 2"):
        [(images, _, missing)] = loader
    assert (len(images), missing.tolist(), loader.stats()["missing"]) == (3, [2], 1)


def test_the_error_of_a_truncated_jpeg_names_its_file() -> None:
    os.makedirs("d/k")
    for number in range(4):
        Image.fromarray(np.full((8, 8, 3), number, "u1")).save(f"d/k/{number}.jpg")
    with open("d/k/2.jpg", "r+b") as file:
        file.truncate(os.path.getsize("d/k/2.jpg") // 2)
    fastload.pack("d", "out", encoded=True, workers=1)
    with pytest.raises(ValueError, match=r"shard-000000\.safetensors: row 2, packed from k/2\.jpg"):
        list(FastLoader("out", 4, transforms={"image": DecodeImage()}))
