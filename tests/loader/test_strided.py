"""Arrays in memory that are not contiguous are loaded as torch loads them, without a copy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, StackDataset, Subset, TensorDataset

from fastload import ArrayDataset, Cast, FastLoader, Normalize, RandomCrop, ToChannelsFirst, _core
from fastload.datasets.native import native_extents

ROWS = 40


def laid_out(kind: str, shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray[Any, Any]:
    """An array (ROWS, *shape) of random numbers, in memory as `kind` says."""
    rng, whole = np.random.default_rng(len(shape)), (ROWS, *shape)

    def some(*lengths: int) -> np.ndarray[Any, Any]:
        return rng.integers(0, 256, lengths).astype(dtype)

    if kind == "Fortran":
        return np.asfortranarray(some(*whole))
    if kind == "rows last":
        return np.moveaxis(some(*shape, ROWS), -1, 0)
    if kind == "strided":
        return some(*(2 * n for n in whole))[tuple(slice(1, None, 2) for _ in whole)]
    if kind == "backwards":
        return some(*whole)[tuple(slice(None, None, -1) for _ in whole)]
    if kind == "rows backwards":
        return some(*whole)[::-1]
    return np.broadcast_to(some(ROWS, *(1 for _ in shape)), whole)


KINDS = ["Fortran", "rows last", "strided", "backwards", "rows backwards", "broadcast"]
SHAPES = [(3,), (2, 5), (4, 4, 3), (2, 1, 3, 2)]


def tensors(batches: Any) -> list[torch.Tensor]:
    return [tensor for batch in batches for tensor in (*batch.values(),)]


def assert_as_torch(dataset: Any, **options: Any) -> None:
    loader = FastLoader(dataset, 7, num_workers=1, **options)
    assert loader.is_native
    got, want = tensors(loader), tensors(DataLoader(dataset, 7))
    assert len(got) == len(want)
    for mine, torchs in zip(got, want, strict=True):
        assert mine.dtype == torchs.dtype
        assert torch.equal(mine, torchs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_batches_are_those_of_torch(kind: str, shape: tuple[int, ...]) -> None:
    x = laid_out(kind, shape)
    whole = ArrayDataset({"x": x, "y": np.arange(ROWS)})
    assert_as_torch(whole)
    assert_as_torch(Subset(whole, [3, 0, -1, 3, *range(20, 30)]))
    parts = [whole, ArrayDataset({"x": np.ascontiguousarray(x), "y": np.arange(ROWS)[::-1]})]
    assert_as_torch(ConcatDataset([*parts, Subset(whole, [5, 1])]))  # type: ignore[arg-type]
    assert_as_torch(StackDataset(a=ArrayDataset(x), b=ArrayDataset(np.arange(ROWS)[::-1])))


@pytest.mark.parametrize("dtype", ["bool", "uint8", "float16", "int32", "float64", "complex128"])
def test_items_of_any_size(dtype: str) -> None:
    for kind in KINDS:
        assert_as_torch(ArrayDataset({"x": laid_out(kind, (6,), dtype)}))


@pytest.mark.parametrize("workers", [0, 2])
def test_changes_of_a_transposed_tensor_are_seen(workers: int) -> None:
    x = torch.zeros(3, 8).T
    loader = FastLoader(TensorDataset(x), 8, num_workers=workers)
    x[2] = 7
    assert [batch[0][2].tolist() for batch in loader] == [[7, 7, 7]]
    x[2] = 9
    assert [batch[0][2].tolist() for batch in loader] == [[9, 9, 9]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "steps",
    [[Cast("float32")], [Normalize((0.5,) * 3, (0.25,) * 3), ToChannelsFirst()], [RandomCrop(8)]],
    ids=["cast", "normalise", "crop"],
)
def test_images_are_transformed_as_if_they_were_contiguous(kind: str, steps: list[Any]) -> None:
    x = laid_out(kind, (12, 10, 3), "uint8")
    options: Any = {"transforms": {"x": steps}, "seed": 3, "num_workers": 1}
    if len(steps) == 1 and isinstance(steps[0], RandomCrop):
        options["transforms"] = {"x": [RandomCrop(8), Cast("float32")]}
    got, want = (
        tensors(FastLoader(ArrayDataset({"x": array}), 16, shuffle=True, **options))
        for array in (x, np.ascontiguousarray(x))
    )
    assert all(map(torch.equal, got, want))


@pytest.mark.parametrize("shape", [(0,), (2, 0), (0, 3)])
@pytest.mark.parametrize("kind", KINDS)
def test_samples_without_numbers_may_lie_anywhere(kind: str, shape: tuple[int, ...]) -> None:
    dataset = ArrayDataset({"x": laid_out(kind, shape), "y": np.arange(ROWS)[::-1]})
    assert_as_torch(dataset)
    assert dataset.column("x").shape == (ROWS, *shape)


def test_a_large_batch_is_gathered_in_pieces() -> None:
    x = np.arange(60 * 30_000, dtype="f4").reshape(60, -1).T
    [batch] = FastLoader(ArrayDataset({"x": x}), len(x), shuffle=True, seed=0, num_workers=2)
    assert sorted(batch["x"][:, 0].tolist()) == x[:, 0].tolist()
    torch.testing.assert_close(
        batch["x"][:, 59] - batch["x"][:, 0], torch.full((30_000,), 59 * 3e4)
    )


def test_a_loader_keeps_its_place_when_the_array_becomes_contiguous() -> None:
    x = laid_out("Fortran", (700,))
    loader = FastLoader(ArrayDataset(x), 8, seed=0, shuffle=True)
    batches = iter(loader)
    next(batches)
    other = FastLoader(ArrayDataset(np.ascontiguousarray(x)), 8, seed=0, shuffle=True)
    other.load_state_dict(loader.state_dict())
    assert torch.equal(next(batches), next(iter(other)))


def test_a_part_of_a_strided_array_is_a_slice_of_it() -> None:
    extents = native_extents(TensorDataset(torch.from_numpy(laid_out("Fortran", (6,)))))
    assert extents is not None
    for start, stop in ((0, 40), (7, 20), (39, 40), (5, 5)):
        out = np.empty((stop - start, 6), "f4")
        extents.slice(start, stop).build().gather(np.arange(stop - start), [out])
        np.testing.assert_array_equal(out, laid_out("Fortran", (6,))[start:stop])


def test_the_speed_of_the_memory_is_measured() -> None:
    extents = native_extents(ArrayDataset(laid_out("Fortran", (6,))))
    assert extents is not None
    assert _core.measure_gather(extents.build(), np.arange(ROWS), 8, 2, 0.01) > 0
