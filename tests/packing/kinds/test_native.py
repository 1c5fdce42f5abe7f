"""`fastload.pack` of what is also read in place: safetensors, and Megatron's token files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from packing import damaged, same_bytes, samples_of
from token_files import write_megatron

import fastload
from fastload import _core

ROWS = 60


def tensors(rows: range) -> dict[str, torch.Tensor]:
    return {
        "x": torch.tensor([[n, -n] for n in rows], dtype=torch.int16),
        "b": torch.tensor(list(rows)).to(torch.bfloat16),
        "ok": torch.tensor([n % 2 == 0 for n in rows]),
        "r::values": torch.tensor([n for n in rows for _ in range(n % 3)]),
        "r::offsets": torch.tensor(np.cumsum([0, *(n % 3 for n in rows)])),
    }


def test_safetensors_come_back_in_order(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    safetensors.torch.save_file(tensors(range(20)), tmp_path / "in/x9.safetensors")
    safetensors.torch.save_file(tensors(range(20, ROWS)), tmp_path / "in/x10.safetensors")
    for workers in (1, 2):
        out = tmp_path / f"{workers}"
        fastload.pack(tmp_path / "in", out, shard_size=500, workers=workers)
    assert same_bytes(tmp_path / "1", tmp_path / "2")
    want = [
        {"x": [n, -n], "b": float(n), "ok": n % 2 == 0, "r": [n] * (n % 3)} for n in range(ROWS)
    ]
    dataset = fastload.open(tmp_path / "1")
    got = [{name: of.tolist() for name, of in dataset[n].items()} for n in range(ROWS)]
    names = {field.name for field in dataset.fields}
    assert [sorted(sample.items()) for sample in got] == [sorted(w.items()) for w in want]
    assert {field.name: field.dtype for field in dataset.fields}["b"] == "bfloat16"
    assert names == {"x", "b", "ok", "r"}
    fastload.pack(tmp_path / "in", tmp_path / "mixed", shuffle=2, shard_size=500, workers=1)
    order = _core.Permutation(ROWS, 2, 0).indices(0, ROWS).tolist()
    mixed = fastload.open(tmp_path / "mixed")
    assert [mixed[n]["x"].tolist() for n in range(ROWS)] == [[n, -n] for n in order]
    path = tmp_path / "in/x9.safetensors"
    content = path.read_bytes()
    for size in (0, 7, 100, len(content) - 1):
        path.write_bytes(content[:size])
        damaged(tmp_path / "in", tmp_path / "no", "x9.safetensors")


@pytest.mark.parametrize("dtype", ["uint16", "int32"])
def test_megatron_documents_keep_their_dtype(tmp_path: Path, dtype: str) -> None:
    documents = [[[n] * (n % 5), [n, 1]] for n in range(ROWS)]
    (tmp_path / "in").mkdir()
    write_megatron(tmp_path / "in/x10", documents[40:], dtype)
    write_megatron(tmp_path / "in/x9", documents[:40], dtype)
    want = [[token for sequence in document for token in sequence] for document in documents]
    for workers in (1, 2):
        out = tmp_path / f"{workers}"
        fastload.pack(tmp_path / "in", out, shard_size=200, workers=workers)
    assert same_bytes(tmp_path / "1", tmp_path / "2")
    assert [sample["tokens"] for sample in samples_of(tmp_path / "1")] == want
    assert str(fastload.open(tmp_path / "1").fields[0]) == f"{dtype} [-1]"
    for name in ("x9.bin", "x9.idx"):
        fastload.pack(tmp_path / "in" / name, tmp_path / name, shuffle=1)
        order = _core.Permutation(40, 1, 0).indices(0, 40).tolist()
        assert [sample["tokens"] for sample in samples_of(tmp_path / name)] == [
            want[n] for n in order
        ]
    data = (tmp_path / "in/x9.bin").read_bytes()
    (tmp_path / "in/x9.bin").write_bytes(data[:-2])
    damaged(tmp_path / "in", tmp_path / "no", "x9.bin", "x9.idx describes")
    (tmp_path / "in/x9.bin").write_bytes(data)
    index = (tmp_path / "in/x9.idx").read_bytes()
    (tmp_path / "in/x9.idx").write_bytes(index[:-8])
    damaged(tmp_path / "in", tmp_path / "no", "x9.idx")
    (tmp_path / "in/x9.idx").write_bytes(b"MMIDIDY" + index[7:])
    damaged(tmp_path / "in", tmp_path / "no", "x9.idx: no Megatron index")
