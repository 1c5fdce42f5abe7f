"""FastLoader and datasets with verify= and on_error=: what a damaged block does to samples."""

from __future__ import annotations

import pickle
import warnings
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from oracle import repeat_draw
from packing import flip
from torch.utils.data import ConcatDataset, StackDataset, Subset

import fastload
from fastload import ArrayDataset, FastLoader, FormatError, PackedDataset, _core

ROWS = 5000
SHARD_ROWS = 2048
# Block 1 of shard 1 holds rows 1032 to 2047 of `x`, which are of 1000 bytes.
BAD = range(SHARD_ROWS + 1032, 2 * SHARD_ROWS)
GOOD = [row for row in range(ROWS) if row not in BAD]
Point = namedtuple("Point", "x y")


@pytest.fixture(scope="module")
def values() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 255, (ROWS, 1000), "uint8")


@pytest.fixture(scope="module")
def packed(values: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("verify") / "whole"
    fastload.pack({"x": values, "y": np.arange(ROWS)}, out, shard_size=2 << 20)
    return out


@pytest.fixture(scope="module")
def damaged(packed: Path) -> Path:
    out = packed.with_name("damaged")
    out.mkdir()
    for file in packed.iterdir():
        (out / file.name).write_bytes(file.read_bytes())
    flip(out / "shard-000001.safetensors", 1_500_000)
    return out


COMPLAINT = r"shard-000001\.safetensors: block 1 \(bytes 1052672 to 2068479\) does not fit its "
COMPLAINT += r"checksum; rows {} to {} of field '(0\.)?x'"
OF_ALONE = COMPLAINT.format(1032, 2047)
COMPLAINT = COMPLAINT.format(BAD[0], BAD[-1])


# --- Datasets ---------------------------------------------------------------------------------


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_a_lazy_dataset_refuses_exactly_the_samples_of_a_bad_block(damaged: Path, io: str) -> None:
    dataset = PackedDataset(damaged, io=io, verify="lazy")
    for row in [0, BAD[0] - 1, BAD[-1] + 1, ROWS - 1, *BAD[:3], BAD[-1], BAD[0] - 2]:
        if row in BAD:
            with pytest.raises(FormatError, match=COMPLAINT):
                dataset[row]
        else:
            assert dataset[row]["y"] == row
    assert [s["y"].item() for s in dataset.__getitems__([5, 6])] == [5, 6]
    with pytest.raises(FormatError, match=COMPLAINT):
        dataset.__getitems__([5, BAD[4]])
    assert len(dataset.table.bad_blocks) == 1


def test_without_verify_nothing_is_compared(damaged: Path, values: np.ndarray) -> None:
    for verify in (None, "open"):
        dataset = PackedDataset(damaged, verify=verify)
        read = np.stack([s["x"] for s in dataset.__getitems__(range(ROWS))])
        assert (read != values).sum() == 1


def test_open_checks_the_header(damaged: Path, packed: Path, tmp_path: Path) -> None:
    fastload.open(packed, verify="open")
    fastload.open(packed / "shard-000000.safetensors", verify="open")
    out = tmp_path / "headers"
    out.mkdir()
    for file in packed.iterdir():
        (out / file.name).write_bytes(file.read_bytes())
    shard = out / "shard-000002.safetensors"
    for at in (0, 100, 4095):
        flip(shard, at, at % 8)
        with pytest.raises(FormatError, match=r"shard-000002.*the header .*does not fit"):
            PackedDataset(out, verify="open")
        PackedDataset(out, verify="lazy")
        flip(shard, at, at % 8)
    PackedDataset(out, verify="open")


def test_a_shard_by_itself_is_checked_too(damaged: Path) -> None:
    dataset = fastload.open(damaged / "shard-000001.safetensors", verify="lazy")
    assert dataset[0]["y"] == SHARD_ROWS
    with pytest.raises(FormatError, match=OF_ALONE):
        dataset[1500]


def test_files_without_checksums_say_so(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(3))
    for verify in ("open", "lazy"):
        with pytest.warns(UserWarning, match=r"x\.npy has no checksums"):
            dataset = fastload.open(tmp_path / "x.npy", verify=verify)
        assert dataset[2] == 2
        with pytest.warns(UserWarning, match="memory has no checksums"):
            FastLoader(ArrayDataset(np.arange(3)), verify=verify)


def test_verify_is_kept_by_pickling(packed: Path) -> None:
    for dataset in (
        PackedDataset(packed, verify="lazy"),
        fastload.open(packed / "shard-000000.safetensors", verify="open"),
    ):
        again = pickle.loads(pickle.dumps(dataset))
        assert again.verify == dataset.verify
        assert again.extents.columns[0].sources == dataset.extents.columns[0].sources


def test_wrong_words_are_refused(packed: Path) -> None:
    for make in (PackedDataset, fastload.open, FastLoader):
        with pytest.raises(ValueError, match="verify must be None, 'open' or 'lazy', not 'full'"):
            make(packed, verify="full")
    with pytest.raises(ValueError, match="on_error must be 'raise' or 'skip', not 'mask'"):
        FastLoader(packed, verify="lazy", on_error="mask")


# --- Loaders that raise -----------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bad_block_raises_at_the_turn_of_each_batch_that_needs_it(
    damaged: Path, workers: int
) -> None:
    loader = FastLoader(damaged, 100, num_workers=workers, verify="lazy")
    batches = iter(loader)
    for first in range(0, ROWS, 100):
        if any(row in BAD for row in range(first, first + 100)):
            with pytest.raises(FormatError, match=COMPLAINT):
                next(batches)
        else:
            assert next(batches)["y"].tolist() == list(range(first, first + 100))
    with pytest.raises(StopIteration):
        next(batches)


def test_data_made_of_others_are_checked_as_they_were_opened(damaged: Path) -> None:
    lazy, plain = PackedDataset(damaged, verify="lazy"), PackedDataset(damaged)
    bad = [BAD[7]]
    for dataset, rows in (
        (Subset(lazy, bad), COMPLAINT),
        (ConcatDataset([Subset(plain, [0]), Subset(lazy, bad)]), "rows 8080 to 9095"),
    ):
        with pytest.raises(FormatError, match=rows):
            list(FastLoader(dataset, 8, num_workers=0))
    for dataset in (plain, Subset(plain, bad), StackDataset(Subset(plain, bad))):
        list(FastLoader(dataset, 500))
        with pytest.raises(FormatError, match=COMPLAINT):
            list(FastLoader(dataset, 500, num_workers=0, verify="lazy"))


def test_a_collate_function_gets_checked_samples(damaged: Path) -> None:
    loader = FastLoader(
        damaged, 1, sampler=[0, BAD[3]], collate_fn=lambda s: s[0]["y"].item(), verify="lazy"
    )
    batches = iter(loader)
    assert next(batches) == 0
    with pytest.raises(FormatError, match=COMPLAINT):
        next(batches)
    for options in ({"verify": "lazy"}, {"on_error": "skip"}):
        with pytest.raises(ValueError, match="native data"):
            FastLoader(PackedDataset(damaged), collate_fn=list, **options)


# --- Loaders that skip ------------------------------------------------------------------------


def skipping(dataset: Any, *arguments: Any, **options: Any) -> FastLoader[Any]:
    return FastLoader(dataset, *arguments, verify="lazy", on_error="skip", **options)


@pytest.mark.filterwarnings("ignore:samples are left out")
@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"shuffle": True, "seed": 3}])
def test_skip_leaves_out_what_is_damaged_and_says_so(
    damaged: Path, values: np.ndarray, workers: int, options: dict[str, Any]
) -> None:
    loader = skipping(damaged, 96, num_workers=workers, **options)
    for _ in range(2):
        rows, missing = [], []
        for batch in loader:
            assert list(batch) == ["x", "y", "missing"]
            assert batch["missing"].dtype == torch.int64
            assert len(batch["x"]) + len(batch["missing"]) in (96, ROWS % 96)
            np.testing.assert_array_equal(batch["x"].numpy(), values[batch["y"].numpy()])
            rows += batch["y"].tolist()
            missing += batch["missing"].tolist()
        assert sorted(rows) == GOOD
        assert sorted(missing) == list(BAD)


@pytest.mark.filterwarnings("ignore:samples are left out")
def test_what_is_left_is_cast_and_keeps_its_indices(damaged: Path, values: np.ndarray) -> None:
    rows = []
    for batch in skipping(damaged, 640, transforms={"x": fastload.Cast("float16")}):
        assert batch["x"].dtype == torch.float16
        np.testing.assert_array_equal(batch["x"].numpy(), values[batch["y"].numpy()])
        rows += batch["y"].tolist()
    assert rows == GOOD
    table = PackedDataset(damaged, verify="lazy").table
    wanted = np.r_[3070:3100, 3000:3100]
    order = _core.ArrayOrder(wanted, 130, False, _core.Occurrences(4000))
    fields = [(np.dtype(np.uint8), (1000,)), (np.dtype(np.int64), ())]
    engine = _core.Engine(
        table, _core.SlotPool(), fields, order, 0, 2, on_error="skip", with_samples=True
    )
    _, labels, missing, (indices, draws) = engine.next()
    assert labels.tolist() == indices.tolist() == [*range(3070, 3080), *range(3000, 3080)]
    again = [repeat_draw(index, 1) - 2**64 for index in range(3070, 3080)]
    assert draws.tolist() == [*range(3070, 3080), *range(3000, 3070), *again]
    assert missing.tolist() == list(range(3080, 3100)) * 2


@pytest.mark.filterwarnings("ignore:samples are left out")
def test_skip_keeps_the_order_and_the_number_of_batches(damaged: Path) -> None:
    whole = [b["y"].tolist() for b in FastLoader(damaged, 64, seed=1, shuffle=True)]
    left = list(skipping(damaged, 64, seed=1, shuffle=True))
    assert len(left) == len(whole)
    for planned, batch in zip(whole, left, strict=True):
        assert batch["y"].tolist() == [row for row in planned if row not in BAD]
        assert batch["missing"].tolist() == [row for row in planned if row in BAD]


def test_a_batch_may_be_empty(damaged: Path) -> None:
    with pytest.warns(UserWarning, match=COMPLAINT):
        (batch,) = skipping(Subset(PackedDataset(damaged), list(BAD[:5])), 8)
    assert batch["x"].shape == (0, 1000)
    assert batch["y"].shape == (0,)
    assert batch["missing"].tolist() == [0, 1, 2, 3, 4]  # of the subset


def test_one_warning_tells_of_each_bad_block(damaged: Path) -> None:
    loader = skipping(damaged, 50)
    with pytest.warns(UserWarning, match="samples are left out: .*" + COMPLAINT) as caught:
        assert len([*loader, *loader]) == 2 * len(loader)
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_without_damage_nothing_is_missing(packed: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batches = list(skipping(packed, 1000))
    assert [len(b["y"]) for b in batches] == [1000] * 5
    assert all(b["missing"].shape == (0,) for b in batches)


@pytest.mark.filterwarnings("ignore:samples are left out")
@pytest.mark.parametrize(
    ("wrap", "take"),
    [
        (lambda x, y: x, lambda b: (b[0], None, b[1])),
        (lambda x, y: (x, y), lambda b: b),
        (lambda x, y: Point(x, y), lambda b: (b.x, b.y, b.missing)),
        (lambda x, y: {"a": {"x": x}, "y": y}, lambda b: (b["a"]["x"], b["y"], b["missing"])),
        (lambda x, y: OrderedDict(x=x, y=y), lambda b: (b["x"], b["y"], b["missing"])),
    ],
)
def test_missing_is_the_last_member_of_any_container(
    tmp_path: Path, wrap: Callable[..., Any], take: Callable[..., Any]
) -> None:
    x = np.arange(300_000).reshape(300, 1000)
    fastload.pack(wrap(x, np.arange(300)), tmp_path / "out")
    flip(tmp_path / "out/shard-000000.safetensors", 2_000_000)
    dataset = PackedDataset(tmp_path / "out")
    (batch,) = skipping(dataset, 300)
    read, numbers, missing = take(batch)
    kept = sorted(set(range(300)) - set(missing.tolist()))
    assert 0 < len(kept) < 300
    np.testing.assert_array_equal(read.numpy(), x[kept])
    assert numbers is None or numbers.tolist() == kept


@pytest.mark.filterwarnings("ignore:samples are left out")
@pytest.mark.parametrize("workers", [0, 2])
def test_ragged_fields_of_damaged_samples_are_left_out(tmp_path: Path, workers: int) -> None:
    random = np.random.default_rng(0)
    data = {
        "t": [random.integers(1, 99, n % 500) for n in range(2000)],
        "text": [f"sample {n}" for n in range(2000)],
    }
    fastload.pack(data, tmp_path / "out")
    path = tmp_path / "out/shard-000000.safetensors"
    flip(path, path.stat().st_size // 2)
    loader = skipping(
        tmp_path / "out",
        64,
        shuffle=True,
        num_workers=workers,
        transforms={"t": fastload.PadTo(value=-1), "text": fastload.AsList()},
    )
    seen: list[int] = []
    for batch in loader:
        assert list(batch) == ["t", "t_lengths", "text", "missing"]
        for text, values, length in zip(
            batch["text"], batch["t"], batch["t_lengths"].tolist(), strict=True
        ):
            number = int(text.split()[1])
            np.testing.assert_array_equal(values[:length].numpy(), data["t"][number])
            assert (values[length:] == -1).all()
            seen.append(number)
        seen += batch["missing"].tolist()
    assert sorted(seen) == list(range(2000))
    assert len(loader.dataset.table.bad_blocks) == 1


def test_a_field_named_missing_is_in_the_way(tmp_path: Path) -> None:
    fastload.pack({"missing": np.arange(3)}, tmp_path / "out")
    with pytest.raises(ValueError, match="field 'missing'"):
        skipping(tmp_path / "out", 2)


def test_skip_needs_checksums_that_are_looked_at(packed: Path) -> None:
    for verify in (None, "open"):
        with pytest.raises(ValueError, match="needs packed data and verify='lazy'"):
            FastLoader(packed, verify=verify, on_error="skip")
    FastLoader(PackedDataset(packed, verify="lazy"), on_error="skip")
    with pytest.raises(ValueError, match="needs packed data"):
        FastLoader(ArrayDataset(np.arange(3)), verify="lazy", on_error="skip")
    with pytest.raises(ValueError, match="native data"):
        FastLoader([1, 2, 3], on_error="skip")


@pytest.mark.filterwarnings("ignore:samples are left out")
def test_a_loader_can_be_rebuilt_from_its_attributes(damaged: Path) -> None:
    first = skipping(damaged, 100)
    again = FastLoader(
        first.dataset, first.batch_size, verify=first.verify, on_error=first.on_error
    )
    pickled = pickle.loads(pickle.dumps(first))
    for loader in (again, pickled):
        assert sum(len(b["missing"]) for b in loader) == len(BAD)
    with pytest.raises(ValueError, match="should not be set"):
        first.on_error = "raise"
