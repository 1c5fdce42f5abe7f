"""Loaders of a mixture: its own epochs, natively or by Python, on any ranks, resumed anywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_gpu import FakeGpu, assert_equal, host, seen
from native_data import assert_same
from oracle import flat, permuted, rank_batches
from packing import flip
from ragged import numbers_of_length, ragged_dataset
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    DistributedSampler,
    StackDataset,
    Subset,
    TensorDataset,
)

import fastload
from fastload import (
    ArrayDataset,
    FastLoader,
    Mixture,
    PadTo,
    RandomCrop,
    TokenDataset,
    WeightedSampler,
)
from fastload.formats.fields import Field

RANDOM = np.random.default_rng(0)


class ByPython(Mixture):
    """Another type, which only Python can load."""


def pictures(start: int, count: int, size: int = 6) -> ArrayDataset:
    x = RANDOM.integers(0, 256, (count, size, size, 3), dtype="uint8")
    return ArrayDataset({"x": x, "y": np.arange(start, start + count)})


def lists(start: int, count: int) -> ArrayDataset:
    fields = [Field("t", "int64", (), True), Field("y", "int64", ())]
    texts = numbers_of_length([(3 * i + start) % 5 for i in range(count)])
    return ragged_dataset({"t": 0, "y": 1}, fields, [texts, list(range(start, start + count))])


TENSORS = TensorDataset(torch.arange(100, 111), torch.randn(11, 3))
SOURCES: dict[str, Callable[[], list[Any]]] = {
    "pictures": lambda: [pictures(0, 13), pictures(100, 5), pictures(200, 9)],
    "ragged": lambda: [lists(0, 8), lists(100, 15), lists(200, 3)],
    "tensors and parts": lambda: [TENSORS, Subset(TENSORS, [4, 4, -1, 0]), TENSORS],
    "concatenated": lambda: [
        ConcatDataset([pictures(0, 4), pictures(10, 5)]),
        pictures(100, 11),
        Subset(pictures(200, 20), range(19, 4, -2)),
    ],
    "alone": lambda: [pictures(0, 7)],
}
OPTIONS: dict[str, dict[str, Any]] = {
    "stop": {"weights": [3, 1, 2], "seed": 1},
    "repeat": {"weights": [3, 1, 2], "seed": 1, "exhausted": "repeat"},
    "drop": {"weights": [3, 1, 2], "seed": 1, "exhausted": "drop"},
    "samples": {"weights": [0.2, 0.8, 0.3], "samples": 50},
    "by size": {},
}


def mixtures(sources: str, options: str) -> tuple[Mixture, Mixture]:
    """The same one for the core, and for Python."""
    datasets, chosen = SOURCES[sources](), dict(OPTIONS[options])
    if "weights" in chosen:
        chosen["weights"] = chosen["weights"][: len(datasets)]
    return Mixture(datasets, **chosen), ByPython(datasets, **chosen)


def places(batch: Any) -> list[int]:
    """The labels of a batch, which number the samples of all sources."""
    return (batch["y"] if isinstance(batch, dict) else batch[0]).tolist()


def labels(mixture: Mixture, indices: Any) -> list[int]:
    samples = mixture.__getitems__(indices)
    return [int(sample["y"] if isinstance(sample, dict) else sample[0]) for sample in samples]


def padded(samples: list[Any]) -> dict[str, torch.Tensor]:
    """What PadTo makes of them."""
    lengths = torch.tensor([len(sample["t"]) for sample in samples])
    values = torch.zeros(len(samples), int(lengths.max()), dtype=torch.int64)
    for row, sample in zip(values, samples, strict=True):
        row[: len(sample["t"])] = torch.from_numpy(sample["t"])
    numbers = torch.tensor([int(sample["y"]) for sample in samples])
    return {"t": values, "t_lengths": lengths, "y": numbers}


# --- The core and Python -----------------------------------------------------------------------


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("sources", SOURCES)
def test_the_core_gives_what_python_gives(sources: str, options: str) -> None:
    native, python = mixtures(sources, options)
    is_ragged = sources == "ragged"
    transforms = {"t": PadTo()} if is_ragged else None
    for shuffle in (False, True):
        fast = FastLoader(native, 4, seed=7, shuffle=shuffle, transforms=transforms)
        slow = FastLoader(
            python, 4, seed=7, shuffle=shuffle, collate_fn=padded if is_ragged else None
        )
        assert fast.is_native
        assert not slow.is_native
        for _epoch in range(3):
            for got, want in zip(fast, slow, strict=True):
                assert_same(got, want)
        length = len(native)
        for epoch in (0, 1, 5):
            order = [permuted(p, length, 7, epoch) if shuffle else p for p in range(length)]
            wanted = labels(native, [epoch * length + index for index in order])
            fast.set_epoch(epoch)
            assert flat([places(batch) for batch in fast]) == wanted


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("options", ["repeat", "drop"])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_ranks_share_each_epoch_of_a_mixture(world: int, options: str, drop_last: bool) -> None:
    for mixture in mixtures("pictures", options):
        length = len(mixture)
        ranks = [
            FastLoader(mixture, 3, seed=2, shuffle=True, shard=(r, world), drop_last=drop_last)
            for r in range(world)
        ]
        for epoch in range(2):
            order = [epoch * length + permuted(p, length, 2, epoch) for p in range(length)]
            for rank, loader in enumerate(ranks):
                want = list(rank_batches(order, 3, rank, world, drop_last))
                got = [places(batch) for batch in loader]
                assert got == [labels(mixture, indices) for indices in want]


@pytest.mark.parametrize("tail", ["mask", "short"])
def test_each_sample_of_an_epoch_comes_once_over_the_ranks(tail: str) -> None:
    for mixture in mixtures("pictures", "drop"):
        ranks = [FastLoader(mixture, 4, seed=2, shard=(r, 5), tail=tail) for r in range(5)]
        for epoch in range(2):
            got: list[int] = []
            for loader in ranks:
                for batch in loader:
                    got += batch["y"][batch["real"] if tail == "mask" else slice(None)].tolist()
            length = len(mixture)
            want = labels(mixture, range(epoch * length, (epoch + 1) * length))
            assert sorted(got) == sorted(want)


def test_drawn_by_weight_from_the_first_epoch() -> None:
    mixture, python = mixtures("pictures", "stop")
    heavy = np.arange(len(mixture)) % 3 == 0
    sampler = WeightedSampler(heavy, 30, seed=1)
    allowed = set(labels(mixture, np.flatnonzero(heavy).tolist()))
    for data in (mixture, python):
        for _epoch in range(2):
            drawn = flat([places(batch) for batch in FastLoader(data, 5, sampler=sampler)])
            assert len(drawn) == 30
            assert set(drawn) <= allowed


def test_blocks_are_those_of_the_epoch() -> None:
    mixture, _ = mixtures("pictures", "samples")
    loader = FastLoader(mixture, 4, seed=2, shuffle=True, order="block")
    for epoch in range(2):
        got = flat([places(batch) for batch in loader])
        assert sorted(got) == sorted(labels(mixture, range(50 * epoch, 50 * epoch + 50)))


@pytest.mark.parametrize("kind", ["native", "by Python"])
def test_resumed_after_each_batch_also_by_another_world(kind: str) -> None:
    mixture = mixtures("pictures", "repeat")[kind != "native"]
    options: dict[str, Any] = {"seed": 3, "shuffle": True}
    whole = flat([places(batch) for batch in FastLoader(mixture, 1, **options)])
    following = FastLoader(mixture, 1, **options)
    following.set_epoch(1)
    second = flat([places(batch) for batch in following])
    assert whole != second
    loader = FastLoader(mixture, 4, **options)
    batches = iter(loader)
    for taken in range(1, len(loader)):
        next(batches)
        for world in (1, 2, 3):
            rest: list[list[list[int]]] = []
            for rank in range(world):
                resumed = FastLoader(mixture, 2, shard=(rank, world), **options)
                resumed.load_state_dict(loader.state_dict())
                rest.append([places(batch) for batch in resumed])
                if world == 1:
                    assert flat([places(batch) for batch in resumed]) == second
            together = flat(flat([list(step) for step in zip(*rest, strict=True)]))
            assert together[: len(whole) - 4 * taken] == whole[4 * taken :]


def test_the_device_gets_the_same(gpu: FakeGpu) -> None:
    mixture = Mixture([pictures(0, 13, 90), pictures(100, 5, 90)], [1, 2], seed=0, samples=20)
    options: dict[str, Any] = {"seed": 2, "shuffle": True}
    options["transforms"] = {"x": [RandomCrop((80, 80), padding=2)]}
    on_device = FastLoader(mixture, 4, device="cuda:0", **options)
    on_cpu = FastLoader(mixture, 4, **options)
    for _epoch in range(2):
        got = [seen(gpu, batch) for batch in on_device]
        gpu.synchronise(gpu.now)
        assert_equal(got, [host(batch) for batch in on_cpu])


# --- What is told of a sample is told of its index ---------------------------------------------


def test_a_sample_that_comes_again_is_cropped_anew() -> None:
    image = RANDOM.integers(0, 256, (1, 40, 40, 3), dtype="uint8")
    mixture = Mixture([ArrayDataset({"x": image})], samples=64)
    options: dict[str, Any] = {"seed": 5, "transforms": {"x": RandomCrop((9, 9))}}
    loader = FastLoader(mixture, 64, **options)
    first, second = next(iter(loader))["x"], next(iter(loader))["x"]
    assert len({crop.numpy().tobytes() for crop in [*first, *second]}) > 100
    # What is drawn depends on the index: as if the samples lay one after the other.
    repeated = ArrayDataset({"x": np.repeat(image, 128, 0)})
    whole = FastLoader(repeated, 64, **options)
    assert torch.equal(next(iter(whole))["x"], first)


@pytest.mark.parametrize("told", ["datasets", "loader"])
def test_samples_that_are_left_out_are_named_by_the_mixture(tmp_path: Path, told: str) -> None:
    rows = 3000
    data = {"x": RANDOM.integers(0, 255, (rows, 1000), "uint8"), "y": np.arange(rows)}
    fastload.pack(data, tmp_path / "packed")
    flip(tmp_path / "packed/shard-000000.safetensors", 1_500_000)
    lazy: list[str | None] = ["lazy", None]
    bad = fastload.open(tmp_path / "packed", verify=lazy[told == "loader"])
    other = ArrayDataset({"x": np.zeros((7, 1000), "uint8"), "y": np.arange(-7, 0)})
    options: dict[str, Any] = {"weights": [10, 1], "seed": 1, "exhausted": "repeat"}
    mixture = Mixture([bad, other], **options)
    lazily = lazy[told == "datasets"]
    loader = FastLoader(mixture, 100, seed=0, shuffle=True, verify=lazily, on_error="skip")
    with pytest.warns(UserWarning, match="samples are left out"):
        epochs = [list(loader), list(loader)]
    length = len(mixture)
    there = [label for epoch in epochs for batch in epoch for label in places(batch)]
    missing = []
    for epoch, batches in enumerate(epochs):
        lost = flat([batch["missing"].tolist() for batch in batches])
        assert all(epoch * length <= index < (epoch + 1) * length for index in lost)
        missing += lost
    assert len(missing) > 1000
    assert len(there) + len(missing) == 2 * length
    unchecked = Mixture([fastload.open(tmp_path / "packed"), other], **options)
    lost_labels = labels(unchecked, missing)
    assert sorted(there + lost_labels) == sorted(labels(unchecked, range(2 * length)))
    first, last = min(lost_labels), max(lost_labels)
    assert 0 <= first < last < rows
    assert set(lost_labels) == set(range(first, last + 1)), "those of one block"


@pytest.mark.parametrize("io", ["mmap", "pread"])
def test_errors_name_the_index_of_the_mixture(tmp_path: Path, io: str) -> None:
    np.save(tmp_path / "x.npy", np.zeros((300, 2048)))
    memory = ArrayDataset(np.ones((1, 2048)))
    mixture = Mixture([memory, fastload.open(tmp_path / "x.npy")], [2, 1], samples=3)
    index = next(i for i in range(500, 600) if mixture.sources([i])[0][0] == 1)
    loader = FastLoader(mixture, batch_sampler=[[0, 1, 2], [3, index]], io=io, num_workers=0)
    batches = iter(loader)
    assert len(next(batches)) == 3
    with open(tmp_path / "x.npy", "r+b") as file:
        file.truncate(2_000_000)
    with pytest.raises(OSError, match=rf"cannot read field 'data' of sample {index}: .*x\.npy"):
        next(batches)


def test_ragged_samples_of_other_lengths_are_named_too() -> None:
    mixture, _ = mixtures("ragged", "samples")
    with pytest.raises(RuntimeError, match=r"sample 50 has shape .* sample 5[1-9] has shape"):
        list(FastLoader(mixture, 25, sampler=range(50, 60)))


# --- Samplers, groups, state -------------------------------------------------------------------


def test_other_orders_take_the_first_epoch() -> None:
    mixture, python = mixtures("pictures", "stop")
    for options in ({}, {"shuffle": True}, {"sampler": DistributedSampler(mixture, 2, 1)}):
        torch.manual_seed(1)
        fast = [list(FastLoader(mixture, 4, **options)) for _ in range(2)]
        torch.manual_seed(1)
        slow = [list(DataLoader(python, 4, **options)) for _ in range(2)]
        for got, want in zip(flat(fast), flat(slow), strict=True):
            assert_same(got, want)


def test_groups_count_the_samples_of_their_own_epoch() -> None:
    mixture, _ = mixtures("ragged", "repeat")
    loader = FastLoader(mixture, 3, seed=1, shuffle=True, transforms={"t": PadTo()})
    for _epoch in range(2):
        for group in loader.groups(2, count="t"):
            assert group.sizes == tuple(int(batch["t_lengths"].sum()) for batch in group)


def test_a_state_is_of_one_mixture() -> None:
    datasets = [pictures(0, 13), pictures(100, 5)]
    options: dict[str, Any] = {"weights": [3, 1], "seed": 1, "exhausted": "repeat"}
    state = FastLoader(Mixture(datasets, **options), 4, seed=0).state_dict()
    same = {"weights": [0.75, 0.25], "seed": 1, "exhausted": "repeat"}
    FastLoader(Mixture(datasets, **same), 4, seed=0).load_state_dict(state)
    FastLoader(Mixture(datasets, **same), 2, seed=0, shard=(1, 2)).load_state_dict(state)
    others = [
        Mixture(datasets, **options | {"weights": [3, 2]}),
        Mixture(datasets, **options | {"seed": 2}),
        Mixture(datasets, **options | {"exhausted": "stop"}),
        Mixture(datasets, **options | {"exhausted": "stop", "samples": 18}),
        Mixture(datasets[::-1], **options | {"weights": [1, 3]}),
        Mixture([datasets[0], pictures(100, 5)], **options),
    ]
    for other in others:
        with pytest.raises(ValueError, match="another fingerprint of the dataset"):
            FastLoader(other, 4, seed=0).load_state_dict(state)
    for kind in (Mixture, ByPython):
        python = kind([list(range(5)), list(range(3))], [1, 2])
        state = FastLoader(python, 4, seed=0).state_dict()
        FastLoader(python, 4, seed=0).load_state_dict(state)
        with pytest.raises(ValueError, match="another fingerprint"):
            FastLoader(kind(python.datasets, [2, 1]), 4, seed=0).load_state_dict(state)


def test_epochs_end_where_indices_do() -> None:
    mixture = Mixture([ArrayDataset(np.arange(5))])
    last = 2**62 // 5 - 1
    for data in (mixture, ByPython(mixture.datasets)):
        loader = FastLoader(data, 5, seed=0)
        loader.set_epoch(last)
        assert next(iter(loader)).tolist() == [int(mixture[last * 5 + i]) for i in range(5)]
        with pytest.raises(ValueError, match="lies beyond index"):
            next(iter(loader))


# --- What is made of a mixture -----------------------------------------------------------------


def test_folders_and_files_are_opened(tmp_path: Path) -> None:
    fastload.pack({"x": np.arange(6)}, tmp_path / "packed")
    fastload.pack({"x": np.arange(10, 13)}, tmp_path / "other")
    mixture = Mixture([tmp_path / "packed", str(tmp_path / "other")], [2, 1])
    loader = FastLoader(mixture, 9)
    assert loader.is_native
    assert next(iter(loader))["x"].tolist() == [int(sample["x"]) for sample in mixture]
    with pytest.raises(FileNotFoundError):
        Mixture([tmp_path / "nowhere"])


def test_tokens_of_several_files(tmp_path: Path) -> None:
    tokens = np.random.default_rng(1).integers(0, 999, (2, 500))
    files = []
    for number, (own, dtype) in enumerate(zip(tokens, ("uint16", "uint16"), strict=True)):
        own.astype(dtype).tofile(tmp_path / f"{number}.bin")
        files.append(TokenDataset(tmp_path / f"{number}.bin", 16, dtype=dtype))
    native, python = (kind(files, [3, 1], seed=1) for kind in (Mixture, ByPython))
    fast, slow = (FastLoader(data, 5, seed=1) for data in (native, python))
    assert fast.is_native
    for _epoch in range(2):
        for got, want in zip(fast, slow, strict=True):
            assert_same(got, want)


def test_a_part_of_a_mixture_and_what_holds_one() -> None:
    mixture, python = mixtures("pictures", "stop")
    chosen = [7, 0, -1, 3, 3]
    part = FastLoader(Subset(mixture, chosen), 5)
    assert part.is_native
    assert places(next(iter(part))) == labels(mixture, chosen)
    beyond = FastLoader(Subset(mixture, [len(mixture), 500]), 2)
    assert places(next(iter(beyond))) == labels(mixture, [len(mixture), 500])
    joined = [ConcatDataset([data, data]) for data in (mixture, python)]
    stacked = [StackDataset(data, data) for data in (mixture, python)]
    nested = [Mixture([data, data], [1, 2]) for data in (mixture, python)]
    for both in (joined, stacked, nested):
        for got, want in zip(*(FastLoader(data, 4) for data in both), strict=True):
            assert_same(got, want)


def test_a_source_that_changes_is_left_to_python() -> None:
    data = TensorDataset(torch.arange(6), torch.arange(6.0))
    mixture = Mixture([data, TensorDataset(torch.arange(10, 14), torch.arange(4.0))])
    loader = FastLoader(mixture, 10)
    want = labels(mixture, range(10))
    assert loader.is_native
    assert next(iter(loader))[0].tolist() == want
    data.tensors = torch.arange(20, 26), torch.arange(6.0)
    assert next(iter(loader))[0].tolist() == [n + 20 if n < 10 else n for n in want]
    data.tensors = torch.arange(3), torch.arange(3.0)
    assert not loader.is_native
    with pytest.raises(IndexError):
        next(iter(loader))
