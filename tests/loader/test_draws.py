"""A sample that comes again in an epoch is cropped and flipped anew."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from oracle import cropped_and_flipped, flat, repeat_draw
from packing import encoded
from PIL import Image
from ragged import ragged_dataset
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from fastload import (
    ArrayDataset,
    DecodeImage,
    FastLoader,
    RandomCrop,
    RandomHorizontalFlip,
    WeightedSampler,
    _core,
)
from fastload.formats.fields import Field
from fastload.order.torch_samplers import draw_order, is_stock, may_repeat

N, SIDE = 6, 200
IMAGES = np.arange(N * SIDE * SIDE).reshape(N, SIDE, SIDE)  # every pixel says where it is from
DATA = ArrayDataset({"image": IMAGES, "index": np.arange(N)})
WINDOW = [RandomCrop((1, 2)), RandomHorizontalFlip()]
TRANSFORMS = {"image": WINDOW}

Pair = list[int]  # the two pixels of a window


def windows(batch: Any) -> list[Pair]:
    found: list[Pair] = batch["image"].reshape(-1, 2).tolist()
    return found


def window(index: int, draw: int, seed: int, epoch: int, image: np.ndarray | None = None) -> Pair:
    """What must be cut out of a sample."""
    image = IMAGES[index] if image is None else image
    height, width = image.shape
    top, left, flip = cropped_and_flipped(seed, epoch, draw, height, width - 1)
    pair: Pair = image[top, left : left + 2].tolist()
    return pair[::-1] if flip else pair


def by_occurrence(batches: list[Any], seed: int, epoch: int) -> list[list[Pair]]:
    """What must be cut out of the samples of an epoch's batches."""
    seen: Counter[int] = Counter()
    want = []
    for batch in batches:
        want.append([])
        for index in batch["index"].tolist():
            want[-1].append(window(index, repeat_draw(index, seen[index]), seed, epoch))
            seen[index] += 1
    return want


def distinct(pairs: list[Pair]) -> bool:
    return len(set(map(tuple, pairs))) == len(pairs)


# --- By weight: the position of the epoch decides


def one_of_them(draws: int = 61, **options: Any) -> WeightedSampler:
    return WeightedSampler([0, 0, 1, 0, 0, 0], draws, seed=9, **options)


@pytest.mark.parametrize(
    ("world", "size", "workers"), [(1, 1, 0), (1, 7, 2), (1, 64, None), (2, 7, 0), (3, 8, 2)]
)
def test_each_position_draws_for_itself(world: int, size: int, workers: int | None) -> None:
    options: dict[str, Any] = {"tail": "mask", "num_workers": workers, "transforms": TRANSFORMS}
    loaders = [
        FastLoader(DATA, size, sampler=one_of_them(shard=(rank, world)), **options)
        for rank in range(world)
    ]
    for epoch in range(2):
        want = [window(2, position, 9, epoch) for position in range(61)]
        assert distinct(want)
        got: list[Pair] = []
        filled: list[Pair] = []
        for step in zip(*loaders, strict=True):
            for batch in step:
                real = int(batch["real"].sum())
                got += windows(batch)[:real]
                filled += windows(batch)[real:]
        assert got == want
        assert filled == want[: len(filled)]  # they repeat the start in every way
        assert (len(filled) > 0) == (world > 1)


def test_an_epoch_by_weight_goes_on_as_it_would_have() -> None:
    want = [window(2, position, 9, 0) for position in range(61)]
    loader = FastLoader(DATA, 8, sampler=one_of_them(), transforms=TRANSFORMS)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state = loader.state_dict()
    for size, world in ((8, 1), (5, 2)):
        got = []
        resumed = [
            FastLoader(DATA, size, sampler=one_of_them(shard=(r, world)), transforms=TRANSFORMS)
            for r in range(world)
        ]
        for one in resumed:
            one.load_state_dict(state)
        for step in zip(*resumed, strict=True):
            got += flat([windows(batch) for batch in step])
        assert got[: 61 - 24] == want[24:]


def test_fields_of_a_sample_stay_together() -> None:
    data = ArrayDataset({"image": IMAGES, "other": IMAGES + 1})
    both = {"image": WINDOW, "other": WINDOW}
    for batch in FastLoader(data, 7, sampler=one_of_them(), transforms=both):
        assert torch.equal(batch["image"] + 1, batch["other"])


# --- Other orders: the time that it comes decides


def mapped(indices: list[Any], size: int = 4) -> list[Any]:
    return [indices[start : start + size] for start in range(0, len(indices), size)]


class Lazy:
    """Batches that can be read only once."""

    def __iter__(self) -> Iterator[Iterator[int]]:
        return (iter([number % N, 1, 1]) for number in range(9))

    def __len__(self) -> int:
        return 9


SAMPLERS: dict[str, Callable[[], dict[str, Any]]] = {
    "weighted": lambda: {"sampler": WeightedRandomSampler([0.0, 1.0, 9.0, 1.0, 0.0, 0.0], 40)},
    "replacement": lambda: {"sampler": RandomSampler(range(N), True, 40)},
    "more than there are": lambda: {"sampler": RandomSampler(range(N), num_samples=40)},
    "chosen twice": lambda: {"sampler": SubsetRandomSampler([1, -2, 4, 1, 1, 0, 4] * 6)},
    "as it goes": lambda: {
        "sampler": RandomSampler(range(N), True, 40, torch.Generator().manual_seed(3))
    },
    "a list": lambda: {"sampler": [3, 3, 0, 3, 5, 5, 3, 2, 1, 0, 0, 3, 3]},
    "within a batch": lambda: {"batch_sampler": [[1, 1, 1], [], [5, 1], [-5, 0, -1], [2] * 7]},
    "arrays": lambda: {"batch_sampler": [np.array([1, 1, 4]), torch.tensor([4, 4, 1])] * 3},
    "read once": lambda: {"batch_sampler": Lazy()},
    "around a keyed one": lambda: {"batch_sampler": BatchSampler(one_of_them(30), 4, False)},
}


def loader_of(name: str, workers: int | None = None, **more: Any) -> FastLoader[Any]:
    options = SAMPLERS[name]()
    if "batch_sampler" not in options:
        options["batch_size"] = 4
    return FastLoader(DATA, num_workers=workers, transforms=TRANSFORMS, **options, **more)


@pytest.mark.parametrize("workers", [None, 0, 2])
@pytest.mark.parametrize("name", SAMPLERS)
def test_each_time_that_it_comes_has_a_window_of_its_own(name: str, workers: int | None) -> None:
    loader = loader_of(name, workers, seed=9)
    for epoch in range(2):
        batches = list(loader)
        got = [windows(batch) for batch in batches]
        assert got == by_occurrence(batches, 9, epoch)
        assert distinct(flat(got))
        assert max(Counter(flat([b["index"].tolist() for b in batches])).values()) > 2


@pytest.mark.parametrize("taken", [1, 3])
@pytest.mark.parametrize("name", SAMPLERS)
def test_a_resumed_epoch_counts_what_came_before(name: str, taken: int) -> None:
    torch.manual_seed(4)
    loader = loader_of(name)
    for _ in loader:
        pass
    batches = iter(loader)
    for _ in range(taken):
        next(batches)
    state = copy.deepcopy(loader.state_dict())
    torch.manual_seed(5)
    resumed = loader_of(name)
    resumed.load_state_dict(state)
    for got, want in itertools.zip_longest(resumed, batches):
        assert got["index"].tolist() == want["index"].tolist()
        assert windows(got) == windows(want)


def test_without_a_seed_torchs_base_seed_is_the_key() -> None:
    torch.manual_seed(4)
    base_seed = int(torch.empty((), dtype=torch.int64).random_())
    torch.manual_seed(4)
    batches = list(loader_of("weighted"))
    assert [windows(batch) for batch in batches] == by_occurrence(batches, base_seed, 0)


def test_persistent_workers_begin_each_epoch_anew() -> None:
    loader = loader_of("a list", 1, persistent_workers=True, seed=9)
    for epoch in range(3):
        batches = list(loader)
        assert [windows(batch) for batch in batches] == by_occurrence(batches, 9, epoch)


# --- Encoded images

GREYS = [np.arange(h * w, dtype=np.uint8).reshape(h, w) for h, w in ((10, 20), (16, 16), (15, 17))]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("order", ["by weight", "by occurrence"])
def test_encoded_images_too(order: str, workers: int) -> None:
    fields = [Field("image", "uint8", (), True, "image"), Field("index", "int64", ())]
    files = [encoded(Image.fromarray(grey), "PNG") for grey in GREYS]
    data = ragged_dataset({"image": 0, "index": 1}, fields, [files, [0, 1, 2]])
    own = order == "by weight"
    sampler: Any = WeightedSampler([1, 2, 3], 50, seed=9) if own else [0, 2, 2, 1, 2, 0, 2] * 7
    steps = [DecodeImage(mode="L"), *WINDOW]
    seed = {} if own else {"seed": 9}
    loader = FastLoader(
        data, 8, sampler=sampler, num_workers=workers, transforms={"image": steps}, **seed
    )
    for epoch in range(2):
        seen: Counter[int] = Counter()
        for batch in loader:
            want = []
            for index in batch["index"].tolist():
                draw = seen.total() if own else repeat_draw(index, seen[index])
                want.append(window(index, draw, 9, epoch, GREYS[index]))
                seen[index] += 1
            assert windows(batch) == want


# --- Where nobody counts


def stock_samplers(n: int) -> Iterator[Any]:
    data = range(n)
    yield SequentialSampler(data)
    if n:
        yield RandomSampler(data)
        yield RandomSampler(data, num_samples=n // 2 + 1)
        yield WeightedRandomSampler([1.0] * n, n, replacement=False)
    for world, drop_last in itertools.product(range(1, 5), (False, True)):
        for rank in range(world):
            yield DistributedSampler(data, world, rank, shuffle=n % 2 == 0, drop_last=drop_last)


def test_stock_samplers_that_are_not_counted_repeat_nothing() -> None:
    for n in range(10):
        for sampler in stock_samplers(n):
            assert is_stock(sampler)
            assert not may_repeat(sampler)
            indices = list(draw_order(sampler)[0])
            assert len(set(indices)) == len(indices)
    for name in ("weighted", "replacement", "more than there are", "chosen twice"):
        assert may_repeat(SAMPLERS[name]()["sampler"])
    shrinking = list(range(8))
    sampler = DistributedSampler(shrinking, 2, 0, shuffle=False)
    del shrinking[4:]
    assert list(draw_order(sampler)[0]) == [0, 2, 0, 2]
    assert may_repeat(sampler)


def test_nothing_is_counted_where_it_cannot_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "Occurrences", lambda rows: pytest.fail("somebody counts"))
    for sampler in stock_samplers(N):
        loader = FastLoader(DATA, 4, sampler=sampler, transforms=TRANSFORMS, seed=9)
        for batch in loader:
            want = [window(index, index, 9, 0) for index in batch["index"].tolist()]
            assert windows(batch) == want
    list(FastLoader(DATA, 4, seed=9, shuffle=True, transforms=TRANSFORMS))
    list(FastLoader(DATA, 4, sampler=one_of_them(), transforms=TRANSFORMS))
    for name in SAMPLERS:
        loader = loader_of(name)
        plain = FastLoader(DATA, batch_sampler=loader.batch_sampler)
        assert sum(len(batch["index"]) for batch in plain) > 9
