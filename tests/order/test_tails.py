"""The last step of an epoch over the ranks: dropped, padded, masked or short."""

from __future__ import annotations

import inspect
import itertools
import multiprocessing
from collections import OrderedDict, UserDict, namedtuple
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_gpu import FakeGpu, seen
from oracle import global_order, numbers
from plans import TAILS, planned
from ragged import photos, png
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
)

import fastload
from fastload import ArrayDataset, DecodeImage, FastLoader, KeyedSampler

Pair = namedtuple("Pair", "x y")


def data_of(kind: str, rows: int) -> Any:
    return numbers(rows) if kind == "native" else list(range(rows))


def pairs(batch: Any) -> list[tuple[int, bool]]:
    index, real = batch
    assert real.dtype == torch.bool
    return list(zip(index.tolist(), real.tolist(), strict=True))


@pytest.mark.filterwarnings("ignore:the epoch has no batches")
@pytest.mark.parametrize("kind", ["native", "by torch"])
@pytest.mark.parametrize("tail", TAILS)
def test_loaders_have_the_batches_and_the_length_of_their_share(kind: str, tail: str) -> None:
    for rows, world in itertools.product((0, 1, 5, 9, 12, 13), (1, 3, 4)):
        want = planned(global_order(rows, 1, 0, "sequential"), 2, world, tail, 0)
        for rank in range(world):
            loader = FastLoader(data_of(kind, rows), 2, seed=1, shard=(rank, world), tail=tail)
            assert loader.tail == tail
            assert loader.drop_last == (tail == "drop")
            batches = list(loader)
            assert len(loader) == len(batches) == len(want[rank]) == len(loader.batch_sampler)
            if tail == "mask":
                assert [pairs(batch) for batch in batches] == want[rank]
            else:
                assert [b.tolist() for b in batches] == [[i for i, _ in b] for b in want[rank]]


@pytest.mark.parametrize("options", [{"num_workers": 2}, {"num_workers": 2, "in_order": False}])
def test_masks_of_worker_processes_epoch_by_epoch(options: dict[str, Any]) -> None:
    for persistent in (False, True):
        loader = FastLoader(
            list(range(11)), 2, seed=1, shard=(3, 4), tail="mask", persistent_workers=persistent,
            **options,
        )  # fmt: skip
        for _epoch in range(2):
            batches = sorted(map(pairs, loader))
            assert batches == [[(0, False)], [(6, True), (7, True)]]


class Late(list[int]):
    """Sample 6 comes when it is told to."""

    def __init__(self, samples: Iterable[int]) -> None:
        super().__init__(samples)
        self.go = multiprocessing.get_context("fork").Event()

    def __getitem__(self, index: Any) -> Any:
        if index == 6:
            self.go.wait(60)
        return index


@pytest.mark.skipif(
    "in_order" not in inspect.signature(DataLoader).parameters, reason="this torch has no in_order"
)
def test_a_mask_goes_with_its_batch_when_batches_overtake_each_other() -> None:
    data = Late(range(11))
    loader = FastLoader(
        data, 2, seed=1, shard=(3, 4), tail="mask", num_workers=2, in_order=False,
        multiprocessing_context="fork",
    )  # fmt: skip
    batches = iter(loader)
    assert pairs(next(batches)) == [(0, False)]
    data.go.set()
    assert list(map(pairs, batches)) == [[(6, True), (7, True)]]


# --- Containers --------------------------------------------------------------------------------


class Row(tuple[Any, ...]):
    pass


BATCHES: list[tuple[Any, Any, Any]] = [
    # what a sample is, what becomes of a batch of them, the mask in it
    (lambda i: i, list, lambda b: b[1]),
    (lambda i: {"x": i}, dict, lambda b: b["real"]),
    (lambda i: OrderedDict(x=i), OrderedDict, lambda b: b["real"]),
    (lambda i: (i, -i), list, lambda b: b[2]),
    (lambda i: Pair(i, -i), tuple, lambda b: b.real),
]


@pytest.mark.parametrize(("sample", "kind", "mask_of"), BATCHES)
def test_the_mask_is_the_last_member_of_any_container(sample: Any, kind: Any, mask_of: Any) -> None:
    of_python = FastLoader([sample(i) for i in range(3)], 2, seed=0, shard=(1, 2), tail="mask")
    native = FastLoader(ArrayDataset(sample(np.arange(3))), 2, seed=0, shard=(1, 2), tail="mask")
    assert native.is_native
    for loader in (of_python, native):
        (batch,) = loader
        assert isinstance(batch, kind)
        assert mask_of(batch).tolist() == [True, False]
        last = list(batch.values())[-1] if isinstance(batch, dict) else batch[-1]
        assert last is mask_of(batch)


@pytest.mark.parametrize(
    ("collate", "real"),
    [
        (lambda samples: "text", lambda b: b[1] if b[0] == "text" else None),
        (lambda samples: UserDict(x=samples), lambda b: b["real"] if type(b) is UserDict else None),
        (lambda samples: Row(samples), lambda b: b[2] if type(b) is Row else None),
        (lambda samples: Pair(1, 2), lambda b: b.real if b[:2] == (1, 2) else None),
        (lambda samples: np.zeros(2), lambda b: b[1] if type(b) is list else None),
    ],
)
@pytest.mark.parametrize("data", [list(range(3)), numbers(3)], ids=["python", "native data"])
def test_the_mask_is_added_to_what_any_collate_fn_makes(data: Any, collate: Any, real: Any) -> None:
    kept: list[Any] = []

    def keeping(samples: list[Any]) -> Any:
        kept.append(collate(samples))
        return kept[-1]

    (batch,) = FastLoader(data, 2, seed=0, shard=(1, 2), tail="mask", collate_fn=keeping)
    assert real(batch).tolist() == [True, False]
    assert not hasattr(kept[0], "keys") or "real" not in kept[0]  # it is a copy that has it


def test_batch_transform_and_device_see_the_mask() -> None:
    def count(batch: Any) -> int:
        return int(batch["real"].sum())

    for data in (ArrayDataset({"x": np.arange(3)}), [{"x": i} for i in range(3)]):
        options: dict[str, Any] = {"seed": 0, "shard": (1, 2), "tail": "mask"}
        assert list(FastLoader(data, 2, batch_transform=count, **options)) == [1]
        (batch,) = FastLoader(data, 2, device="meta", **options)
        assert batch["real"].is_meta


@pytest.mark.parametrize("static", [False, True])
def test_masks_on_a_gpu(gpu: FakeGpu, static: bool) -> None:
    x = np.arange(11 * 500).reshape(11, 500)
    for data in (ArrayDataset({"x": x}), [{"x": torch.from_numpy(row)} for row in x]):
        loader = FastLoader(
            data, 2, seed=0, shard=(3, 4), tail="mask", device="cuda:0", static_buffers=static
        )
        batches = [seen(gpu, batch) for batch in loader]
        gpu.synchronise(gpu.now)
        assert [batch["real"].tolist() for batch in batches] == [[True, True], [False]]


def test_masks_beside_decoded_images_and_fields_of_any_length() -> None:
    loader = FastLoader(
        photos([png(i) for i in range(5)]), 2, seed=0, shard=(1, 2), tail="mask",
        transforms={"image": DecodeImage((4, 6))},
    )  # fmt: skip
    batches = list(loader)
    assert [list(batch) for batch in batches] == [["image", "label", "real"]] * 2
    assert [batch["label"].tolist() for batch in batches] == [[2, 3], [0]]
    assert [batch["real"].tolist() for batch in batches] == [[True, True], [False]]


@pytest.mark.filterwarnings("ignore:samples are left out")
def test_samples_that_are_left_out_leave_the_mask_too(tmp_path: Path) -> None:
    rows, bad = 300, range(130, 262)
    seed = next(s for s in range(99) if global_order(rows, s, 0, "full")[0] in bad)  # it pads
    fastload.pack({"x": np.zeros((rows, 1000)), "y": np.arange(rows)}, tmp_path / "out")
    path = tmp_path / "out/shard-000000.safetensors"
    data = bytearray(path.read_bytes())
    data[1_300_000] ^= 1  # in the second block of 1 MiB
    path.write_bytes(data)
    options = {"shuffle": True, "seed": seed, "tail": "mask"}
    kept: list[int] = []
    for rank in range(7):
        whole = FastLoader(ArrayDataset(np.arange(rows)), 32, shard=(rank, 7), **options)
        left = FastLoader(
            path.parent, 32, shard=(rank, 7), verify="lazy", on_error="skip", **options
        )
        for whole_batch, batch in zip(whole, left, strict=True):
            assert list(batch) == ["x", "y", "missing", "real"]
            good = [(i, is_real) for i, is_real in pairs(whole_batch) if i not in bad]
            assert pairs((batch["y"], batch["real"])) == good
            assert len(batch["missing"]) == len(whole_batch[0]) - len(good)
            kept += [i for i, is_real in good if is_real]
    assert sorted(kept) == sorted(set(range(rows)) - set(bad))


# --- Arguments ---------------------------------------------------------------------------------


class OddKeys(KeyedSampler):
    def __iter__(self) -> Iterator[int]:
        return iter([index for index in super().__iter__() if index % 2])


def test_tails_are_said_in_one_way() -> None:
    data: Any = numbers(8)
    assert KeyedSampler(data).tail == "pad"
    assert KeyedSampler(data, drop_last=True).tail == "drop"
    assert KeyedSampler(data, tail="drop").drop_last
    distributed: Any = DistributedSampler(data, 2, 0)
    assert FastLoader(data, 3, seed=0).tail is None
    bad: list[tuple[dict[str, Any], str]] = [
        ({"tail": "mask"}, "tail='mask' needs seed="),
        ({"tail": "wrap", "seed": 0}, "tail must be one of 'drop', 'pad', 'mask', 'short'"),
        ({"tail": "pad", "seed": 0, "drop_last": True}, "drop_last=True .* tail='pad' does not"),
        ({"tail": "mask", "seed": 0, "batch_size": None}, "needs batch_size"),
        (
            {"tail": "mask", "seed": 0, "sampler": distributed},
            "DistributedSampler does not report which of its samples are real",
        ),
        ({"tail": "mask", "sampler": OddKeys(data, tail="mask")}, "OddKeys does not report"),
    ]
    for options, message in bad:
        with pytest.raises(ValueError, match=message):
            FastLoader(data, **{"batch_size": 2} | options)
    with pytest.raises(ValueError, match=r"drop_last=True .* tail='mask' does not"):
        KeyedSampler(data, tail="mask", drop_last=True)
    loader = FastLoader(data, 2, seed=0, tail="mask")
    with pytest.raises(ValueError, match="tail attribute should not be set"):
        loader.tail = "pad"


def test_a_member_that_is_named_real_is_in_the_way() -> None:
    with pytest.raises(ValueError, match="field 'real', which tail='mask' adds"):
        FastLoader(ArrayDataset({"real": np.arange(3)}), 2, seed=0, tail="mask")
    with pytest.raises(ValueError, match="field 'real', which tail='mask' adds"):
        list(FastLoader([{"real": 1}], 2, seed=0, tail="mask"))


def test_a_sampler_with_a_tail_brings_it_along() -> None:
    data: Any = numbers(5)
    sampler = KeyedSampler(data, batch_size=2, seed=0, shuffle=False, shard=(1, 2), tail="mask")
    for size in (2, 3):
        loader = FastLoader(data, size, sampler=sampler)
        assert isinstance(loader.sampler, KeyedSampler)
        assert loader.sampler.tail == "mask"
        assert not list(loader)[-1][1].all()
    assert len(list(FastLoader(data, 2, sampler=sampler, tail="pad"))[-1]) == 1
    with pytest.raises(ValueError, match="drop_last=True"):
        FastLoader(data, 2, sampler=sampler, drop_last=True)


class Told:
    """What trainers put around a batch sampler, to see its indices."""

    def __init__(self, inner: BatchSampler, every: int = 1) -> None:
        self.inner, self.sampler, self.batch_size = inner, inner.sampler, inner.batch_size
        self.drop_last, self.every = False, every

    def __iter__(self) -> Iterator[list[int]]:
        return itertools.islice(self.inner, 0, None, self.every)

    def __len__(self) -> int:
        return len(self.inner)


@pytest.mark.parametrize("kind", ["native", "by torch"])
def test_a_batch_sampler_around_ours_keeps_the_masks(kind: str) -> None:
    first = FastLoader(data_of(kind, 11), 2, seed=1, shard=(3, 4), tail="mask")
    options: dict[str, Any] = {"seed": 1, "shard": (3, 4), "tail": "mask"}
    again = FastLoader(data_of(kind, 11), batch_sampler=Told(first.batch_sampler), **options)  # type: ignore[arg-type]
    assert list(map(pairs, again)) == list(map(pairs, first))
    batches = iter(again)
    next(batches)
    state = again.state_dict()
    again = FastLoader(data_of(kind, 11), batch_sampler=Told(first.batch_sampler), **options)  # type: ignore[arg-type]
    again.load_state_dict(state)
    assert list(map(pairs, again)) == [[(0, False)]]


class Plain(Told):  # integers do not say whether their samples are real
    def __iter__(self) -> Iterator[list[int]]:
        return ([int(index) for index in batch] for batch in super().__iter__())


@pytest.mark.parametrize("kind", ["native", "by torch"])
def test_a_batch_sampler_that_leaves_batches_out_has_the_masks_of_the_others(kind: str) -> None:
    options: dict[str, Any] = {"seed": 1, "shard": (3, 4), "tail": "mask"}
    first = FastLoader(data_of(kind, 30), 2, **options)
    want = list(map(pairs, first))
    first.set_epoch(0)
    other = FastLoader(data_of(kind, 30), batch_sampler=Told(first.batch_sampler, 2), **options)  # type: ignore[arg-type]
    assert list(map(pairs, other)) == want[::2]
    plain = FastLoader(data_of(kind, 30), batch_sampler=Plain(first.batch_sampler, 2), **options)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="it is unknown which samples are real"):
        list(plain)


@pytest.mark.parametrize("kind", ["native", "by torch"])
@pytest.mark.parametrize("workers", [0, 2])
def test_with_another_sampler_in_its_place_all_samples_are_real(kind: str, workers: int) -> None:
    """As trainers put one there; the tail of the keyed order says nothing of that."""
    data = data_of(kind, 7)
    for sampler in ([3, 1, 2], SequentialSampler(range(7)), RandomSampler(range(7))):
        for tail in TAILS:
            loader = FastLoader(data, 2, sampler=sampler, seed=0, tail=tail, num_workers=workers)
            for _epoch in range(2):
                batches = list(loader)
                assert (
                    len(batches)
                    == len(loader)
                    == len(sampler) // 2 + (tail != "drop" and len(sampler) % 2)
                )
                if tail == "mask":
                    assert all(real for batch in batches for _, real in pairs(batch))
    rows = TensorDataset(torch.arange(8))
    for odd in ([[slice(0, 2), slice(2, 4)]], SubsetRandomSampler([[0, 1]])):
        options: dict[str, Any] = {"sampler": odd[0]} if type(odd) is list else {"sampler": odd}
        ((_, real),) = FastLoader(rows, 2, seed=0, tail="mask", num_workers=workers, **options)
        assert real.all()


def test_rebuilt_from_its_attributes_it_has_the_same_tail() -> None:
    names = ("batch_size", "sampler", "batch_sampler", "drop_last", "seed", "shard", "tail")
    for tail in TAILS:
        loader = FastLoader(numbers(7), 2, seed=2, shard=(1, 2), tail=tail)
        again = FastLoader(numbers(7), **{name: getattr(loader, name) for name in names})
        assert again.sampler is loader.sampler
        assert (again.tail, again.drop_last) == (loader.tail, loader.drop_last)
