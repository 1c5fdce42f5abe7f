"""Each benchmark runs once at toy size, so that none of them rots."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from paths import ROOT

import fastload

pytestmark = pytest.mark.slow

BENCHMARKS = ROOT / "benchmarks"


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module(name)


needs_compiler = pytest.mark.skipif(
    shutil.which(os.environ.get("CXX", "c++")) is None, reason="the limit needs a C++ compiler"
)


@needs_compiler
def test_loader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("bench_loader", monkeypatch)
    monkeypatch.setattr(module, "WORKERS", (0, 1))
    monkeypatch.setattr(module, "ROWS", {3_072: 0, 64: 0})
    result = module.measure(0, tmp_path, seconds=0.02, rounds=1)
    assert [size["row_bytes"] for size in result["sizes"]] == [3_072, 64]
    for size in result["sizes"]:
        assert set(size["ratios"]) == {"limit", "dataloader", "batched"}
        assert min(ratio["ratio"] for ratio in size["ratios"].values()) > 0
        assert size["fastload"]["main_us"] > 0


@needs_compiler
def test_loader_compares_with_another_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = load("bench_loader", monkeypatch)
    monkeypatch.setattr(module, "ROWS", {64: 0})
    other = tmp_path / "other"
    other.mkdir()
    (other / "fastload").symlink_to(Path(fastload.__file__).parent)
    [size] = module.measure(0, tmp_path, base=str(other), seconds="0.02", rounds="1")["sizes"]
    assert set(size["ratios"]) == {"limit", "base", "base/limit"}
    assert min(ratio["ratio"] for ratio in size["ratios"].values()) > 0
    assert size["base"]["main_us"] > 0


def test_transforms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("bench_transforms", monkeypatch)
    monkeypatch.setattr(module, "WORKERS", (0,))
    monkeypatch.setattr(module, "BATCH", 4)
    images = np.random.default_rng(0).integers(0, 256, (8, *module.SHAPE), np.uint8)
    [batch] = [batch for batch, _ in zip(module.fast_loader(images), range(1))]
    of_torch = module.transformed(torch.from_numpy(images)).view(torch.int16)
    rows = {image.numpy().tobytes() for image in of_torch}
    assert all(image.numpy().tobytes() in rows for image in batch["image"].view(torch.int16))
    result = module.measure(0, tmp_path, seconds=0.02, rounds=1)
    assert set(result["ratios"]) == {"bare", "loader"}
    assert min(ratio["ratio"] for ratio in result["ratios"].values()) > 0


def test_h2d(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("bench_h2d", monkeypatch)
    monkeypatch.setattr(module, "SIZES", (2,))
    monkeypatch.setattr(module, "ROW_BYTES", 3_072)
    monkeypatch.setattr(module, "BATCH", 2)
    monkeypatch.setattr(module, "PAUSE", 0)
    result = module.measure(0, tmp_path, seconds=0.01, rounds=1, device="cpu")
    assert result["sizes"][0]["ratio"] > 0
    assert set(result["next_us"]) == {"1", "4"}


def test_train_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("bench_train_step", monkeypatch)
    monkeypatch.setattr(module, "STEPS", 2)
    monkeypatch.setattr(module, "PRECISIONS", {"bf16": torch.bfloat16})
    monkeypatch.setattr(module, "WORKERS", 0)
    case = module.Images(0, tmp_path, torch.device("cpu"), "bf16", True)
    stored = torch.from_numpy(case._images[:].copy()), torch.from_numpy(case._labels[:].copy())
    by_torch = case.by_torch(stored)[0].view(torch.int16)
    for batch in case.fast():
        images, labels = case.by_fastload(batch)
        assert torch.equal(images.view(torch.int16), by_torch[labels])
        assert images.is_contiguous(memory_format=torch.channels_last)
    result = module.measure(0, tmp_path, rounds=1, device="cpu", small=True)
    assert [found["name"] for found in result["cases"]] == ["small images", "small tokens"]
    for found in result["cases"]:
        assert min(found["ratios"].values()) > 0


# Its processes are forks, which need not import torch again.
ARTICLE = """
import json, sys
from functools import partial
from pathlib import Path
import torch, torch._dynamo
sys.path.insert(0, sys.argv[1])
import bench_article
bench_article.system.core_count = lambda: 1
torch.multiprocessing.spawn = partial(
    torch.multiprocessing.start_processes, start_method="fork")
result = bench_article.measure(
    0, Path("two"), rounds=1, device="cpu", worlds=(2,), batch=8)
Path("result.json").write_text(json.dumps(result))
"""


def test_article(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_torch: Any) -> None:
    module = load("bench_article", monkeypatch)
    monkeypatch.setattr(module.system, "core_count", lambda: 1)
    one = module.measure(0, tmp_path / "one", rounds=1, device="cpu", worlds=(1,), batch=8)
    run_torch(ARTICLE, str(BENCHMARKS))
    two = json.loads((tmp_path / "result.json").read_text())
    for result, world in ((one, 1), (two, 2)):
        assert result["images"] == 32
        [found] = result["worlds"]
        assert found["world"] == world
        assert found["steps"] == 2 * 4
        assert found["losses_are_identical"]
        assert set(found["ratios"]) == {"dataloader", "tuned", "packed", "fastload"}
        for case in found["cases"].values():
            assert 0 < case["wait_share"] < 1
            assert case["samples_per_s"] > 0


def test_models(monkeypatch: pytest.MonkeyPatch) -> None:
    models = load("models", monkeypatch)
    count = {
        model: sum(p.numel() for p in getattr(models, model)().parameters())
        for model in ("resnet", "GPT")
    }
    assert count["resnet"] == 25_557_032  # as everybody's ResNet-50 has
    assert count["GPT"] == 124_475_904  # 124 M: GPT-2 small, its vocabulary padded to 50 304
    model = models.GPT(64, 16, 1, 64).eval()
    tokens = torch.randint(64, (2, 16))
    changed = tokens.clone()
    changed[:, -1] += 1
    early = [model.norm(model.blocks(model.tokens(x % 64)))[:, :-1] for x in (tokens, changed)]
    assert torch.equal(*early)  # nothing sees what comes later


def test_contenders_give_the_same_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = load("harness", monkeypatch)
    datasets = load("torch_datasets", monkeypatch)
    x = harness.write_rows(tmp_path / "x.npy", 100, 64)
    y = harness.write_labels(tmp_path / "y.npy", 100)
    plain, batched = datasets.MemmapDataset(x, y), datasets.BatchedDataset(x, y)
    assert len(plain) == len(batched) == 100
    both = batched.__getitems__([3, 99])
    for place, index in enumerate((3, 99)):
        assert plain[index]["y"] == both["y"][place] == index
        assert plain[index]["x"].tolist() == both["x"][place].tolist()


def test_ffcv_runs_in_a_process_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("bench_loader", monkeypatch)
    interpreter = tmp_path / "python"
    interpreter.write_text(
        f"#!{sys.executable}\nimport sys\n"
        "open(sys.argv[4], 'w').close()\nprint('ready', flush=True)\n"
        "for line in sys.stdin: print(2 * float(line), flush=True)\n"
    )
    interpreter.chmod(0o755)
    with module.Ffcv(str(interpreter), tmp_path / "x.npy", tmp_path / "y.npy") as ffcv:
        assert ffcv.rate(1.5) == 3
    assert ffcv.process.returncode == 0


def test_cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("bench_cold", monkeypatch)
    monkeypatch.setattr(module.system, "drop_from_cache", lambda files: 0.0)  # may be a tmpfs
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    result = module.measure(0, tmp_path, rounds=1)
    assert result["fastload"]["bytes_per_s"] > 0
    assert set(result["ratios"]) == {"dataloader/4"}


def test_huge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = load("bench_huge", monkeypatch).measure(0, tmp_path, rounds=1)
    assert result["fresh"]["first_batch_ms"]["median"] > 0
    assert result["resumed"]["resident_bytes"]["worst"] < 60e6


def test_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("bench_memory", monkeypatch)
    monkeypatch.setattr(module, "ROW_BYTES", 3_072)
    result = module.measure(0, tmp_path)
    assert result["batches"] == 80
    assert result["slot_allocations"][-1] > 0


def test_gil(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("bench_gil", monkeypatch)
    monkeypatch.setattr(module, "ROWS", 600)
    result = module.measure(0.05, tmp_path, rounds=1)
    assert set(result["counts_per_s"]) == {"alone", "memcpy", "fastload"}
    assert result["ratios"]["memcpy"] > 0


def test_strided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("bench_strided", monkeypatch)
    monkeypatch.setattr(module, "WORKERS", (0,))
    result = module.measure(0, tmp_path, rounds=1)
    for batch in result["batches"]:
        assert batch["ratios"]["dataloader/0"] > 0
        assert batch["fortran"]["cpu_us_per_sample"] > 0


def test_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = load("bench_open", monkeypatch).measure(0, tmp_path, rounds=2)
    for name in ("fixed", "ragged"):
        assert 0 < result[name]["open_ms"]["best"] <= result[name]["open_ms"]["median"]
    assert list(tmp_path.iterdir()) == []


def test_pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = load("bench_pack", monkeypatch).measure(0, tmp_path, rounds=1)
    assert min(result["pack"]["bytes_per_s"], result["cp"]["bytes_per_s"], result["ratio"]) > 0


def test_ragged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("bench_ragged", monkeypatch)
    monkeypatch.setattr(module, "WORKERS", (0,))
    monkeypatch.setattr(module, "LENGTHS", (1, 9))
    result = module.measure(0, tmp_path, seconds=0.02, rounds=1)
    assert result["ratios"]["dataloader"]["against"] == "dataloader/0"
    assert result["ratios"]["dataloader"]["ratio"] > 0


def test_contenders_pad_the_same_sequences(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("bench_ragged", monkeypatch)
    file, lengths = module.write_sequences(tmp_path / "s.safetensors", 300)
    dataset = module.SequenceDataset(file, lengths)
    assert len(dataset) == 300
    [batch] = fastload.FastLoader(file, 300, transforms={"t": fastload.PadTo()})
    want = module.padded([dataset[index] for index in range(300)])
    assert list(batch) == list(want)
    assert all(torch.equal(batch[key], want[key]) for key in want)


def test_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("bench_tokens", monkeypatch)
    monkeypatch.setattr(module, "SHAPES", ((4, 16), (2, 64)))
    result = module.measure(0, tmp_path, seconds=0.02, rounds=1)
    assert [(shape["batch_size"], shape["seq_len"]) for shape in result["shapes"]] == [
        (4, 16),
        (2, 64),
    ]
    for shape in result["shapes"]:
        assert set(shape["ratios"]) == {"limit", "get_batch"}
        assert min(shape["ratios"].values()) > 0
    x, y = module.get_batch(tmp_path / "train.bin", 3, 16)
    assert torch.equal(x[:, 1:], y[:, :-1])


def test_benchmark_is_a_program(tmp_path: Path) -> None:
    target = tmp_path / "huge.json"
    command = [sys.executable, BENCHMARKS / "bench_huge.py", "--scale", "0.001", "--json", target]
    subprocess.run([*command, "--folder", tmp_path], check=True, capture_output=True)
    document = json.loads(target.read_text())
    assert document["benchmark"] == "huge"
    assert document["machine"]["cores"] >= 1
    assert list(tmp_path.iterdir()) == [target]


# --- The report ---------------------------------------------------------------------------------


def example_results() -> dict[str, Any]:
    machine = {"cores": 2, "cpu": "Some CPU", "copy_kernels": ["avx2"], "torch": "2.13.0"}
    speed = {"samples_per_s": 128_000, "bytes_per_s": 18.2e9, "main_us": 5.04}
    ratios = {kind: {"ratio": 9.5, "against": kind} for kind in ("limit", "dataloader", "batched")}
    size = {"row_bytes": 150_528, "fastload": speed, "ratios": ratios}
    loader = {"batch_size": 256, "rounds": 5, "sizes": [size]}
    memory = {
        "batches": 2_000,
        "anonymous_growth_bytes": 1e5,
        "slot_allocations_after_start": 0,
    }
    opened = {kind: {"open_ms": {"median": 40.2}} for kind in ("fixed", "ragged")}
    images = {kind: {"ratio": 12.5, "against": "x"} for kind in ("loader", "bare")}
    cases = {"fastload": {"samples_per_s": 4_000, "wait_share": 0.002}}
    worlds = [
        {
            "world": world,
            "cases": cases,
            "ratios": {"dataloader": 2.5, "tuned": 1.25, "packed": 1.1},
            "losses_are_identical": True,
        }
        for world in (1, 2)
    ]
    pack = {"bytes": 1.5e9, "pack": {"bytes_per_s": 1.21e9}, "ratio": 1.02}
    article = {"images": 50_000, "batch_size": 128, "worlds": worlds}
    return {
        "article": {"machine": machine, "result": article},
        "loader": {"machine": machine, "result": loader},
        "memory": {"machine": machine, "result": memory},
        "open": {"machine": machine, "result": {"shards": 10_000, **opened}},
        "pack": {"machine": machine, "result": pack},
        "transforms": {"machine": machine, "result": {"fastload": speed, "ratios": images}},
    }


def test_report_replaces_what_is_between_the_markers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = load("report", monkeypatch)
    page, picture = tmp_path / "page.md", tmp_path / "picture.svg"
    page.write_text(f"before\n{module.BEGIN}\nold\n{module.END}\nafter\n")
    for name, document in example_results().items():
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    module.main(page, picture, tmp_path)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| 150,528 B | 128,000 | 18.2 | 950% | 2,000 | 5.04 | 9.5 | 9.5 | – |" in text
    assert "2,000 batches" in text
    assert "the kernel alone is 12.5 × these steps" in text
    assert "10,000 shards is opened in 40 ms" in text
    assert "4,000 images/s, 2.5 × DataLoader over PNG files, 1.25 × a tuned one" in text
    assert "0.2% of a step is waiting; two processes (DDP): 4,000 images/s" in text
    assert text.count("The losses are identical, bit for bit.") == 1
    assert "1.21 GB/s including the flush to the disk, 1.02 ×" in text
    module.main(page, picture, tmp_path)
    assert page.read_text() == text


def test_report_refuses_a_file_without_markers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text("nothing here")
    with pytest.raises(SystemExit, match="no markers"):
        load("report", monkeypatch).main(page, tmp_path / "picture.svg", tmp_path)


def test_picture_has_a_bar_for_each_loader_whose_length_is_its_share_of_the_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = load("picture", monkeypatch)
    ratios = {"limit": {"ratio": 0.8}, "dataloader": {"ratio": 10.0}, "batched": {"ratio": 2.0}}
    sizes = [{"row_bytes": 64, "fastload": {"samples_per_s": 2e6}, "ratios": ratios}]
    assert dict(module.shares(sizes[0])) == {"fastload": 0.8, "batched": 0.4, "dataloader": 0.08}
    root = ElementTree.fromstring(module.draw({"sizes": sizes}))
    space = "{http://www.w3.org/2000/svg}"
    lengths = [float(bar.get("width", "")) for bar in root.iter(f"{space}rect") if bar.get("x")]
    assert lengths == [pytest.approx(module.WIDTH * share) for share in (0.8, 0.4, 0.08)]
    texts = [text.text for text in root.iter(f"{space}text")]
    assert {"80%, 2,000,000 samples/s", "40%", "8.0%"} <= set(texts)


def test_pages_show_the_committed_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("report", monkeypatch)
    page, picture = tmp_path / "page.md", tmp_path / "picture.svg"
    page.write_text(module.PAGE.read_text())
    module.main(page, picture)
    assert page.read_text() == module.PAGE.read_text(), "run benchmarks/report.py"
    assert picture.read_text() == module.PICTURE.read_text(), "run benchmarks/report.py"
    assert str(module.PICTURE.relative_to(ROOT)) in (ROOT / "README.md").read_text()


def test_pack_encoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = load("bench_pack_encoded", monkeypatch)
    monkeypatch.setattr(module, "CLASSES", 3)
    monkeypatch.setattr(module, "DIFFERENT", 2)
    result = module.measure(0, tmp_path, rounds=1)
    assert result["images"] == 3
    for cache in ("warm", "cold"):
        assert set(result[cache]["ratios"]) == {"pack 1 / cat", "pack 2 / cat"}
        assert min(result[cache]["ratios"].values()) > 0
