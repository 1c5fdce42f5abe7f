"""on_error="skip" leaves out samples whose images cannot be decoded, and tells which."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fake_gpu import FakeGpu, assert_equal, host, seen
from ragged import png
from torch.utils.data import Subset, WeightedRandomSampler

import fastload
from fastload import (
    ArrayDataset,
    DecodeImage,
    FastLoader,
    FormatError,
    Jagged,
    Mixture,
    Normalize,
    PadTo,
    RandomCrop,
    RandomHorizontalFlip,
    ToChannelsFirst,
)

COUNT = 23
BAD = (0, 7, 8, 22)


def image(index: int) -> bytes:
    content = png(index, 6, 8)
    return content[: len(content) // 2] if index in BAD else content


def sample(index: int) -> dict[str, Any]:
    return {
        "label": index,
        "image": image(index),
        "text": f"text {index}",
        "padded": np.arange(index % 5 + (20 if index in BAD else 0)),
        "jagged": np.arange(index % 4),
        "mask": (np.arange(48).reshape(6, 8) * (index + 1) % 251).astype("u1"),
        "half": torch.tensor([float(index)]).to(torch.bfloat16),
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Packed samples, of which some have truncated images."""
    out = tmp_path_factory.mktemp("undecodable") / "out"
    fastload.pack([sample(index) for index in range(COUNT)], out, workers=1)
    return out


TRANSFORMS: dict[str, Any] = {"padded": PadTo(2), "jagged": Jagged(nested=False)}


def transforms(fields: Any, *steps: Any) -> dict[str, Any]:
    chosen = {name: step for name, step in TRANSFORMS.items() if name in fields}
    return {**chosen, "image": [DecodeImage(), *steps]}


def loader_of(data: Any, batch_size: int = 4, *steps: Any, **options: Any) -> Any:
    names = ("padded", "jagged")
    options.setdefault("on_error", "skip")
    return FastLoader(data, batch_size, transforms=transforms(names, *steps), **options)


def all_batches(loader: Any) -> list[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return list(loader)


def as_lists(batch: Any) -> dict[str, Any]:
    return {
        key: value.float().tolist() if isinstance(value, torch.Tensor) else value
        for key, value in batch.items()
        if key != "missing"
    }


@pytest.mark.parametrize("workers", [None, 0, 1, 3])
@pytest.mark.parametrize("steps", [(), (Normalize(0.5, 0.5), ToChannelsFirst())], ids=["", "steps"])
def test_batches_are_those_of_the_other_samples(folder: Path, workers: Any, steps: Any) -> None:
    data = fastload.open(folder)
    loader = loader_of(data, 4, *steps, num_workers=workers)
    batches = all_batches(loader)
    assert len(batches) == len(loader) == 6
    for number, batch in enumerate(batches):
        asked = range(4 * number, min(4 * number + 4, COUNT))
        kept = [index for index in asked if index not in BAD]
        assert batch["missing"].tolist() == [index for index in asked if index in BAD]
        assert batch["missing"].dtype == torch.int64
        subset = Subset(data, kept)  # type: ignore[arg-type]
        [want] = loader_of(subset, 4, *steps, on_error="raise")
        assert as_lists(batch) == as_lists(want)
        assert {key: getattr(batch[key], "dtype", None) for key in want} == {
            key: getattr(value, "dtype", None) for key, value in want.items()
        }
    stats = loader.stats()
    assert (stats["missing"], stats["samples"], stats["batches"]) == (4, COUNT - 4, 6)


def test_random_transforms_are_those_of_the_samples_that_stay(folder: Path) -> None:
    data = fastload.open(folder)
    steps = RandomCrop(4, padding=1), RandomHorizontalFlip()
    options = {"seed": 5, "shuffle": True}
    found = {}
    for batch in all_batches(loader_of(data, 5, *steps, **options)):
        found |= dict(zip(batch["label"].tolist(), batch["image"], strict=True))
    for batch in all_batches(loader_of(data, 2, *steps, **options)):
        for label, pixels in zip(batch["label"].tolist(), batch["image"], strict=True):
            assert torch.equal(found[label], pixels)
    assert sorted(found) == [index for index in range(COUNT) if index not in BAD]


@pytest.mark.parametrize(
    "options", [{"seed": 1, "shuffle": True}, {"shuffle": True}, {"num_workers": 0}], ids=str
)
def test_a_state_counts_what_was_left_out(folder: Path, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    loader = loader_of(folder, 3, **options)
    batches = iter(loader)
    seen: list[int] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(4):
            batch = next(batches)
            seen += batch["label"].tolist() + batch["missing"].tolist()
    assert loader.position == 4
    resumed = loader_of(folder, 3, **options)
    resumed.load_state_dict(loader.state_dict())
    for batch in all_batches(resumed):
        seen += batch["label"].tolist() + batch["missing"].tolist()
    assert sorted(seen) == list(range(COUNT))


def test_a_batch_may_be_empty_and_samples_may_be_missing_twice(folder: Path) -> None:
    data = fastload.open(folder)
    [batch] = all_batches(loader_of(data, sampler=[7, 8, 7]))
    assert batch["missing"].tolist() == [7, 8, 7]
    assert len(batch["label"]) == len(batch["image"]) == len(batch["text"]) == 0
    sampler = WeightedRandomSampler([float(n in BAD) for n in range(COUNT)], 10)
    for batch in all_batches(loader_of(data, 5, sampler=sampler)):
        assert (len(batch["label"]), len(batch["missing"])) == (0, 5)


def test_tuples_mixtures_and_masks_have_the_missing_last(folder: Path) -> None:
    pairs = [(image(index), index) for index in range(COUNT)]
    fastload.pack(pairs, folder.parent / "pairs", workers=1)
    data = fastload.open(folder.parent / "pairs")
    step = {data.fields[0].name: DecodeImage()}
    for made in (data, Mixture([data, fastload.open(folder.parent / "pairs")])):
        batches = all_batches(FastLoader(made, 8, transforms=step, on_error="skip"))
        missing = sum(len(batch[-1]) for batch in batches)
        assert missing == len(BAD) * (1 if made is data else 2)
        assert all(len(batch[0]) == len(batch[1]) for batch in batches)
    masked = loader_of(folder, 8, seed=0, shard=(1, 2), tail="mask")
    for batch in all_batches(masked):
        assert len(batch["real"]) == len(batch["label"])


def test_damaged_blocks_and_images_are_left_out_together(tmp_path: Path) -> None:
    rows = [{"label": n, "image": image(n), "fill": np.zeros(1 << 17, "f4")} for n in range(8)]
    fastload.pack(rows, tmp_path / "out", workers=1)
    shard = next((tmp_path / "out").glob("shard-*"))
    with shard.open("r+b") as file:
        file.seek(3 << 20)
        file.write(b"\1")
    loader: Any = FastLoader(
        fastload.open(tmp_path / "out", verify="lazy"),
        8,
        transforms={"image": DecodeImage()},
        on_error="skip",
        verify="lazy",
    )
    [batch] = all_batches(loader)
    left_out = batch["missing"].tolist()
    assert {0, 7} < set(left_out)
    assert sorted([*left_out, *batch["label"].tolist()]) == list(range(8))
    assert loader.stats()["missing"] == len(left_out)


def test_one_warning_names_the_first_and_raise_still_raises(folder: Path) -> None:
    with pytest.warns(
        UserWarning, match=r"sample 0 \(.*shard-000000.safetensors: row 0\): .*truncated"
    ) as caught:
        list(loader_of(folder, 4))
    assert len(caught) == 1
    with pytest.raises(
        FormatError, match=r"field 'image': sample 0.*: the image cannot be decoded"
    ):
        list(loader_of(folder, 4, on_error="raise"))


def test_what_is_no_fault_of_an_image_is_raised(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(FormatError, match="sample"):  # a window that no image has
        all_batches(loader_of(folder, 4, RandomCrop(100)))

    def fails(*arguments: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("fastload.batch.decode.decode_image", fails)
    with pytest.raises(MemoryError):
        all_batches(loader_of(folder, 4))


def test_skip_needs_something_that_can_be_left_out(folder: Path) -> None:
    with pytest.raises(ValueError, match="needs DecodeImage in transforms="):
        FastLoader(folder, 4, on_error="skip")
    with pytest.raises(ValueError, match="needs DecodeImage in transforms="):
        FastLoader(ArrayDataset(np.zeros(4)), 4, on_error="skip")
    with pytest.raises(ValueError, match="static_buffers=True does not allow"):
        loader_of(folder, 4, device="cuda", static_buffers=True)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_device_gets_the_batches_of_the_cpu(folder: Path, gpu: FakeGpu, workers: int) -> None:
    data = fastload.open(folder)
    steps = [RandomCrop(4, padding=1), RandomHorizontalFlip(), ToChannelsFirst()]
    chosen = {**transforms(TRANSFORMS, *steps), "mask": steps[:2]}
    for batch_size in (4, 9):
        options: dict[str, Any] = {"transforms": chosen, "seed": 3, "on_error": "skip"}
        on_device: Any = FastLoader(
            data, batch_size, device="cuda:0", num_workers=workers, **options
        )
        want = all_batches(FastLoader(data, batch_size, **options))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got = [seen(gpu, batch) for batch in on_device]
        gpu.synchronise(gpu.now)
        assert_equal(got, [host(batch) for batch in want])
        assert sum(len(batch["missing"]) for batch in got) == len(BAD)
