"""safetensors files are read in place, or refused where safetensors itself would."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.numpy import load as load_safetensors
from safetensors.numpy import save as encode_safetensors
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch_file
from samples import NUMPY_DTYPES, TORCH_ONLY

import fastload
from fastload import FormatError


@pytest.mark.parametrize("dtype", [*NUMPY_DTYPES[:-1], *TORCH_ONLY])
def test_safetensors_samples_are_dicts_of_the_rows_torch_loads(tmp_path: Path, dtype: str) -> None:
    column = torch.arange(12).reshape(4, 3).to(getattr(torch, dtype))
    save_torch_file({"x": column, "y": torch.arange(4)}, tmp_path / "x.safetensors")
    dataset = fastload.open(tmp_path / "x.safetensors")
    assert len(dataset) == 4
    for row in range(4):
        sample = dataset[row]
        got = torch.as_tensor(sample["x"])
        assert got.dtype == column.dtype
        assert got.view(torch.uint8).tolist() == column[row].contiguous().view(torch.uint8).tolist()
        assert sample["y"] == row


def encode(entries: dict[str, Any], data: bytes = b"", pad: int = 0) -> bytes:
    header = json.dumps(entries).encode() + b" " * pad
    return len(header).to_bytes(8, "little") + header + data


def tensor(shape: Any, begin: Any, end: Any, dtype: Any = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def test_fields_come_in_the_order_of_the_first_header(tmp_path: Path) -> None:
    entries = {"b": tensor([2], 2, 4), "a": tensor([2], 0, 2)}
    (tmp_path / "1.safetensors").write_bytes(encode(entries, b"\1\2\3\4"))
    entries = {"a": tensor([1], 0, 1), "b": tensor([1], 1, 2)}
    (tmp_path / "2.safetensors").write_bytes(encode(entries, b"\5\6"))
    dataset = fastload.open(tmp_path)
    samples = [list(dataset[row].items()) for row in range(3)]
    assert samples == [[("b", 3), ("a", 1)], [("b", 4), ("a", 2)], [("b", 6), ("a", 5)]]


@pytest.mark.parametrize("pad", range(8))
def test_safetensors_data_may_start_at_any_byte(tmp_path: Path, pad: int) -> None:
    column = np.arange(4, dtype="f8")
    content = encode({"x": tensor([4], 0, 32, "F64")}, column.tobytes(), pad)
    (tmp_path / "x.safetensors").write_bytes(content)
    dataset = fastload.open(tmp_path / "x.safetensors")
    assert [dataset[row]["x"] for row in range(4)] == [0, 1, 2, 3]


def entries_of(text: str) -> bytes:
    return len(text.encode()).to_bytes(8, "little") + text.encode()


DAMAGED_SAFETENSORS = {
    "empty": b"",
    "short": b"\1\0\0",
    "length 2**63": (2**63).to_bytes(8, "little") + b"{}",
    "length 2**64-1": b"\xff" * 8 + b"{}",
    "length over the file": (100).to_bytes(8, "little") + b"{}",
    "no header": bytes(8),
    "no JSON": entries_of("{nonsense"),
    "no object": entries_of("[]"),
    "no text": (1).to_bytes(8, "little") + b"\xff",
    "deep": entries_of('{"a":' * 20_000),
    "twice": entries_of('{"x":1,"x":1}'),
    "entry is a number": encode({"x": 3}),
    "entry is a list": encode({"x": [3]}),
    "no dtype": encode({"x": {"shape": [0], "data_offsets": [0, 0]}}),
    "unknown dtype": encode({"x": tensor([0], 0, 0, "F3")}),
    "dtype is a list": encode({"x": tensor([0], 0, 0, ["U8"])}),
    "sub-byte dtype": encode({"x": tensor([2], 0, 1, "F4")}, b"\0"),
    "shape is a number": encode({"x": tensor(1, 0, 1)}, b"\0"),
    "shape is an object": encode({"x": tensor({}, 0, 1)}, b"\0"),
    "shape of floats": encode({"x": tensor([1.0], 0, 1)}, b"\0"),
    "shape of booleans": encode({"x": tensor([True], 0, 1)}, b"\0"),
    "negative shape": encode({"x": tensor([-1], 0, 1)}, b"\0"),
    "overflow": encode({"x": tensor([2**32, 2**32], 0, 0)}),
    "overflow hidden by zero": encode({"x": tensor([0, 2**63, 2], 0, 0)}),
    "huge number": encode({"x": tensor([10**400], 0, 1)}, b"\0"),
    "offsets of three": encode(
        {"x": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1, 2]}}, b"\0"
    ),
    "negative offset": encode({"x": tensor([1], -1, 0)}, b"\0"),
    "backwards": encode({"x": tensor([1], 1, 0)}, b"\0"),
    "size does not fit": encode({"x": tensor([2], 0, 1)}, b"\0"),
    "gap at the start": encode({"x": tensor([1], 1, 2)}, b"\0\0"),
    "gap": encode({"x": tensor([1], 0, 1), "y": tensor([1], 2, 3)}, b"\0\0\0"),
    "overlap": encode({"x": tensor([2], 0, 2), "y": tensor([2], 1, 3)}, b"\0\0\0"),
    "truncated data": encode({"x": tensor([4], 0, 4)}, b"\0\0\0"),
    "trailing byte": encode({"x": tensor([4], 0, 4)}, b"\0" * 5),
    "metadata of numbers": encode({"__metadata__": {"a": 1}, "x": tensor([1], 0, 1)}, b"\0"),
    "metadata is a list": encode({"__metadata__": ["a"], "x": tensor([1], 0, 1)}, b"\0"),
}


@pytest.mark.parametrize("kind", DAMAGED_SAFETENSORS)
def test_what_safetensors_refuses_is_refused(tmp_path: Path, kind: str) -> None:
    content = DAMAGED_SAFETENSORS[kind]
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"x\.safetensors: "):
        fastload.open(path)
    if kind != "sub-byte dtype":
        with pytest.raises((SafetensorError, ValueError)):
            load_safetensors(content)


def test_truncation_names_both_byte_counts(tmp_path: Path) -> None:
    whole = encode_safetensors({"x": np.arange(100.0)})
    path = tmp_path / "x.safetensors"
    path.write_bytes(whole[:-8])
    with pytest.raises(FormatError, match=r"truncated: its tensors end at 800 of 792 bytes"):
        fastload.open(path)
    path.write_bytes(whole[:20])
    with pytest.raises(FormatError, match=r"truncated.*a header of \d+ bytes expected, has 20"):
        fastload.open(path)


@given(st.binary(max_size=60), st.integers(0, 200))
def test_damage_anywhere_is_refused_or_harmless(
    tmp_path_factory: pytest.TempPathFactory, damage: bytes, at: int
) -> None:
    whole = encode_safetensors({"x": np.arange(6.0), "y": np.arange(6)})
    path = tmp_path_factory.mktemp("fuzz") / "x.safetensors"
    path.write_bytes(whole[:at] + damage + whole[at + len(damage) :])
    try:
        dataset = fastload.open(path)
    except FormatError:
        return
    assert len(dataset.__getitems__(range(len(dataset)))) == len(dataset)


def test_tensors_that_do_not_share_their_first_dimension_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"a": np.zeros((3, 2)), "b": np.zeros((4, 2))}, path)
    with pytest.raises(FormatError, match="'a' and 'b' have 3 and 4 samples"):
        fastload.open(path)
    save_file({"a": np.zeros((3, 2)), "b": np.zeros(())}, path)
    with pytest.raises(FormatError, match=r"tensor 'b' of shape \(\) has no sample axis"):
        fastload.open(path)
    path.write_bytes(encode({"__metadata__": {}}))
    with pytest.raises(FormatError, match="holds no tensors"):
        fastload.open(path)


def test_safetensors_shards_must_agree_naming_both(tmp_path: Path) -> None:
    first, second = tmp_path / "1.safetensors", tmp_path / "2.safetensors"
    save_file({"x": np.zeros((3, 2), "f4")}, first)
    save_file({"x": np.zeros((4, 2), "f4")}, second)
    assert len(fastload.open(tmp_path)) == 7
    save_file({"x": np.zeros((3, 2), "f8")}, second)
    expected = r"1\.safetensors holds 'x' as samples of float32 \[2\], but .*2\.safetensors of"
    with pytest.raises(FormatError, match=expected):
        fastload.open(tmp_path)
    save_file({"x": np.zeros((3, 2), "f4"), "y": np.zeros(3)}, second)
    with pytest.raises(FormatError, match=r"1\.safetensors and .*2\.safetensors: only one.*'y'"):
        fastload.open(tmp_path)


def test_metadata_is_no_field_and_our_own_columns_are_hidden(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    arrays = {"x": np.arange(3), "__crc__": np.arange(9, dtype="u4"), "__pad__.0": np.zeros(7)}
    save_file(arrays, path, {"fastload": "1"})
    assert [field.name for field in fastload.open(path).fields] == ["x"]
    save_file({"x": np.arange(3), "__mine__": np.arange(3)}, path, {"by": "somebody"})
    assert sorted(field.name for field in fastload.open(path).fields) == ["__mine__", "x"]
