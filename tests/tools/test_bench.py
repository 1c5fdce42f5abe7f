"""`fastload bench`, and the parts that all measurements are made of."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ragged import numbers_of_length, ragged_dataset

from fastload import ArrayDataset, FastLoader, PadTo, TokenDataset, pack
from fastload.cli import bench
from fastload.formats.fields import Field
from fastload.tools.bench import report, system, timing, torch_side
from fastload.tools.bench.measure import Settings, measure

QUICK = Settings(batch_size=16, seconds=0.02, rounds=1, torch_workers=(0, 1))


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    x = np.arange(100 * 48, dtype=np.uint8).reshape(100, 4, 4, 3)
    np.savez(tmp_path / "data.npz", image=x, label=np.arange(100))
    pack(tmp_path / "data.npz", tmp_path / "packed")
    return tmp_path / "packed"


@pytest.fixture
def disk_file() -> Iterator[Path]:
    """A file on a disk, whose pages can leave memory."""
    with tempfile.NamedTemporaryFile(dir=Path(__file__).parent, suffix=".bin") as file:
        file.write(bytes(1 << 20))
        file.flush()
        yield Path(file.name)


def run(*arguments: str | Path) -> int:
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return bench.run(parser.parse_args([*map(str, arguments)]))


# --- The command --------------------------------------------------------------------------------


def test_command_shows_a_table_and_writes_its_files(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    figures, picture = tmp_path / "figures.json", tmp_path / "picture.png"
    options = ["--quick", "--seconds", "0.02", "--batch-size", "16", "--torch-workers", "0,1"]
    assert run(packed, *options, "--json", figures, "--plot", picture) == 0
    shown = capsys.readouterr().out
    for expected in (
        "limit, ",
        "fastload",
        "DataLoader, 0 workers",
        "DataLoader, 1 worker ",
        "Warm (files in the page cache)",
    ):
        assert expected in shown
    assert picture.read_bytes().startswith(b"\x89PNG")
    result = json.loads(figures.read_text())
    assert result["schema"] == 2
    assert {"others", "load_average"} <= set(result["load"])
    assert result["delivers"] == {"image": "uint8 [4, 4, 3]", "label": "int64"}
    assert result["data"]["samples"] == 100
    assert result["data"]["sample_bytes"] == 48 + 8
    assert str(packed) not in figures.read_text()
    for speed in (result["warm"]["fastload"], *result["warm"]["dataloader"].values()):
        assert min(speed.values()) > 0
    for ratio in ("of_limit", "times_dataloader"):
        low, median, high = (result["warm"][ratio][name] for name in ("low", "median", "high"))
        assert 0 < low <= median <= high
    assert set(result["warm"]["dataloader"]) == {"0", "1"}


def test_batch_larger_than_the_dataset_is_cut(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((3, 2), np.float32))
    figures = tmp_path / "figures.json"
    options = ["--quick", "--seconds", "0.01", "--torch-workers", "0"]
    assert run(tmp_path / "x.npy", *options, "--json", figures) == 0
    assert json.loads(figures.read_text())["settings"]["batch_size"] == 3


def test_figures_can_be_printed_instead(packed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--quick", "--seconds", "0.01", "--batch-size", "50", "--torch-workers", "0"]
    assert run(packed, *options, "--json", "-") == 0
    assert json.loads(capsys.readouterr().out)["data"]["samples"] == 100
    assert run(packed, *options) == 0
    assert "only 2 full batches" in capsys.readouterr().out.replace("\n", " ")


def test_raw_file_needs_and_takes_dtype_and_shape(tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(bytes(600))
    options = ["--quick", "--seconds", "0.01", "--torch-workers", "0"]
    assert run(tmp_path / "x.bin", *options, "--dtype", "uint16", "--shape", "5,2") == 0
    with pytest.raises(ValueError, match="dtype"):
        run(tmp_path / "x.bin", *options)


@pytest.mark.parametrize(
    "wrong",
    [
        ["--batch-size", "0"],
        ["--seconds", "-1"],
        ["--torch-workers", "-1"],
        ["--torch-workers", "a"],
        ["--json", "nowhere/x.json"],
        ["--plot", "nowhere/x.png"],
    ],
)
def test_wrong_usage_is_told_before_measuring(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run("x", *wrong)
    assert wrong[0] in capsys.readouterr().err


def test_without_matplotlib_the_table_is_printed_and_how_to_install_it(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    picture = tmp_path / "picture.png"
    options = ["--quick", "--seconds", "0.01", "--torch-workers", "0", "--plot", picture]
    assert run(packed, *options) == 1
    shown = capsys.readouterr().out
    assert "samples/s" in shown
    assert "pip install matplotlib" in shown
    assert not picture.exists()


def test_a_kind_of_picture_that_nobody_draws_is_told_before_measuring(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"picture\.xyz: matplotlib draws .*png"):
        run(tmp_path / "not there", "--plot", tmp_path / "picture.xyz")


# --- The measurement ----------------------------------------------------------------------------


def test_data_in_memory_has_no_cold_figures() -> None:
    dataset = ArrayDataset({"x": np.zeros((64, 8), np.uint8)})
    result = measure(lambda: dataset, QUICK)
    assert "skipped" in result["cold"]
    report.show(result, _console())


def test_nothing_to_measure_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="0 samples"):
        measure(lambda: ArrayDataset({"x": np.zeros((0, 8), np.uint8)}), QUICK)
    with pytest.raises(ValueError, match="0 bytes"):
        measure(lambda: ArrayDataset({"x": np.zeros((8, 0), np.uint8)}), QUICK)


def test_very_long_datasets_are_not_given_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastload.tools.bench.measure._MAX_TORCH_ROWS", 10)
    dataset = ArrayDataset({"x": np.zeros((64, 8), np.uint8)})
    result = measure(lambda: dataset, QUICK)
    assert result["warm"]["dataloader"] == {}
    console = _console()
    report.show(result, console)
    assert "DataLoader was not measured" in console.file.getvalue()


def _console() -> Any:
    import io

    from rich.console import Console

    return Console(file=io.StringIO(), width=120)


def test_torch_side_reads_what_fastload_reads(packed: Path) -> None:
    from fastload import PackedDataset

    dataset = PackedDataset(packed)
    rows = torch_side.RowDataset(dataset.extents)
    assert len(rows) == len(dataset)
    for index in (0, 41, 99):
        sample = rows[index]
        np.testing.assert_array_equal(sample["image"].numpy(), dataset[index]["image"])
        assert sample["label"] == index
        assert sample["image"].is_contiguous()


def test_torch_side_crosses_shards_and_index_maps() -> None:
    parts = [ArrayDataset((np.arange(n) + 10 * n, np.ones((n, 2)))) for n in (3, 0, 4)]
    from fastload.formats.combine import concatenate

    extents = concatenate([part.extents for part in parts]).take(np.array([6, 2, 3, 0]))
    rows = torch_side.RowDataset(extents)
    assert [rows[i][0] for i in range(4)] == [43, 32, 40, 30]
    assert isinstance(rows[0], tuple)


def ragged() -> ArrayDataset:
    texts = [b"a", b"", b"\xc3\xa9", b"b" * 50] * 10
    fields = [
        Field("t", "int64", (2,), ragged=True),
        Field("s", "uint8", (), ragged=True, logical="utf8"),
        Field("b", "uint8", (), ragged=True, logical="bytes"),
        Field("y", "int64", ()),
    ]
    samples = [numbers_of_length([3, 0, 1, 7] * 10, shape=(2,)), texts, texts, list(range(40))]
    return ragged_dataset({"t": 0, "s": 1, "b": 2, "y": 3}, fields, samples, [13, 0, 27])


def test_torch_side_reads_ragged_fields() -> None:
    dataset = ragged()
    rows = torch_side.RowDataset(dataset.extents)
    for index in range(40):
        sample, want = rows[index], dataset[index]
        assert sample["t"].tolist() == want["t"].tolist()
        assert (sample["s"], sample["b"]) == (want["s"], want["b"])
        assert sample["y"] == index
    [batch] = torch.utils.data.DataLoader(rows, 40, collate_fn=torch_side.padded)
    [padded] = FastLoader(dataset, 40, transforms={"t": PadTo()})
    assert torch.equal(batch["t"], padded["t"])
    assert batch["s"] == padded["s"]


def test_measure_pads_ragged_fields() -> None:
    settings = Settings(batch_size=8, seconds=0.01, rounds=1, torch_workers=(0,))
    result = measure(ragged, settings)
    assert result["warm"]["fastload"]["samples_per_s"] > 0
    assert result["delivers"]["t"] == "int64, padded with zeros to the longest of the batch"
    assert result["delivers"]["s"] == "a list of str"
    assert result["data"]["fields"]["t"] == "int64 [-1, 2]"


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed dataset of 12 PNG files of different sizes."""
    image = pytest.importorskip("PIL.Image")
    folder = tmp_path_factory.mktemp("encoded")
    draw = np.random.default_rng(0)
    for number in range(12):
        path = folder / "images" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        shape = (*draw.integers(5, 20, 2), 3)
        image.fromarray(draw.integers(0, 256, shape, np.uint8)).save(path)
    pack(folder / "images", folder / "packed", encoded=True)
    return folder / "packed"


def test_encoded_images_are_decoded_alike_on_both_sides(encoded: Path) -> None:
    from fastload import DecodeImage, PackedDataset

    dataset = PackedDataset(encoded)
    rows = torch_side.RowDataset(dataset.extents, (8, 6))
    [of_torch] = torch.utils.data.DataLoader(rows, 12)
    [ours] = FastLoader(dataset, 12, transforms={"image": DecodeImage((8, 6))})
    assert ours[0].shape == (12, 8, 6, 3)
    assert all(map(torch.equal, of_torch, ours))


def test_bench_of_encoded_images_measures_decoded_batches_and_says_so(
    encoded: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    seen = set()
    drive = timing.drive

    def looking(make_loader: Any, batch_size: int, seconds: float) -> timing.Speed:
        seen.update(tuple(batch[0].shape) for batch in make_loader())
        return drive(make_loader, batch_size, seconds)

    monkeypatch.setattr("fastload.tools.bench.measure.drive", looking)
    options = ["--quick", "--seconds", "0.01", "--torch-workers", "0", "--batch-size", "4"]
    assert run(encoded, *options, "--image-size", "10x8") == 0
    assert seen == {(4, 10, 8, 3)}
    shown = " ".join(capsys.readouterr().out.split())
    assert "image: decoded to RGB and scaled to 10 x 8 by Pillow, uint8; label: int64." in shown
    assert "images are decoded by Pillow" in shown
    assert "limit" not in shown, "a copy of the encoded bytes is no limit of decoding"


def test_torch_side_reads_windows_of_tokens_and_arrays_with_strides(tmp_path: Path) -> None:
    np.arange(100, dtype=np.uint16).tofile(tmp_path / "t.bin")
    fortran = np.asfortranarray(np.arange(24.0).reshape(4, 3, 2))
    for dataset in (TokenDataset(tmp_path / "t.bin", 8), ArrayDataset((fortran, fortran[:, ::-1]))):
        rows = torch_side.RowDataset(dataset.extents)
        assert len(rows) == len(dataset)
        for index in range(len(dataset)):
            for found, want in zip(rows[index], dataset[index], strict=True):
                np.testing.assert_array_equal(found.numpy(), want)
                assert found.numpy().dtype == want.dtype


def test_tokens_are_measured_in_windows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.arange(1000, dtype=np.uint16).tofile(tmp_path / "t.bin")
    options = ["--quick", "--seconds", "0.01", "--torch-workers", "0", "--batch-size", "4"]
    assert run(tmp_path / "t.bin", *options, "--seq-len", "16") == 0
    assert "0: int64 [16]; 1: int64 [16]" in capsys.readouterr().out


# --- Timing -------------------------------------------------------------------------------------


class Paced:
    """A loader that needs so many seconds a batch, three batches an epoch; and its clock."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.now = 0.0

    def __iter__(self) -> Iterator[int]:
        for batch in range(3):
            self.sleep(self.seconds)
            yield batch

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_drive_measures_over_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    paced = Paced(0.004)
    monkeypatch.setattr(timing, "time", paced)
    speed = timing.drive(lambda: paced, 10, 0.2)
    figures = (speed.samples_per_s, speed.batch_us, speed.first_batch_ms, speed.next_us)
    assert figures == pytest.approx((2_500, 4_000, 4, 4_000))


def test_drive_once_ends_with_the_epoch_or_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for seconds, limit, want in ((0.002, 100.0, 0.006), (0.05, 0.01, 0.05), (0.05, 0.06, 0.1)):
        paced = Paced(seconds)
        monkeypatch.setattr(timing, "time", paced)
        assert timing.drive_once(paced, 10, limit) == pytest.approx(10 / seconds)
        assert paced.now == pytest.approx(want)


def test_contenders_take_turns() -> None:
    order: list[str] = []
    contenders = {"a": lambda: order.append("a") or 1.0, "b": lambda: order.append("b") or 2.0}
    assert timing.take_turns(contenders, 2) == {"a": [1.0, 1.0], "b": [2.0, 2.0]}
    assert order == ["a", "b", "a", "b"]


def test_ratio_is_taken_within_rounds() -> None:
    assert timing.median_ratio([2, 20, 200], [1, 10, 50]) == 2


# --- The system ---------------------------------------------------------------------------------


def test_machine_is_described_without_its_name() -> None:
    import platform

    described = system.describe()
    assert described["cores"] >= 1
    assert described["memory_bytes"] > 1 << 28
    assert described["last_level_cache_bytes"] >= 0
    assert torch.__version__.startswith(described["torch"])  # PyPI's is without +cu130
    assert platform.node() not in json.dumps(described).split('"')


def test_resident_memory_follows_an_allocation(run_torch: Any) -> None:
    code = """
import numpy as np
from fastload.tools.bench import system
before = system.Resident.now()
held = np.ones(64 << 20, np.uint8)
grown = system.Resident.now().anonymous_bytes - before.anonymous_bytes
assert 60 << 20 < grown < 80 << 20, grown
"""
    run_torch(code)  # a process of its own: what other tests leave may be freed meanwhile


def test_files_leave_and_enter_the_page_cache(disk_file: Path) -> None:
    if system.drop_from_cache([disk_file]) > 0:
        pytest.skip("this file system keeps its pages")
    assert system.cached_share(disk_file) == 0
    system.read_into_cache([disk_file])
    assert system.cached_share(disk_file) == 1


def test_mapped_pages_stay_and_are_told(disk_file: Path) -> None:
    mapped = np.memmap(disk_file, np.uint8, mode="r")
    assert int(mapped.sum()) == 0
    assert system.drop_from_cache([disk_file]) > 0.5
    del mapped


def test_empty_file_has_nothing_cached(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    assert system.cached_share(tmp_path / "empty") == 0
    assert system.drop_from_cache([tmp_path / "empty"]) == 0
