"""The last steps of a batch: `batch_transform`, and what says whether a loader is native."""

from __future__ import annotations

import copy
import pickle
import threading
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from fastload import ArrayDataset, FastLoader
from fastload.loader.native_iterator import _NativeIterator


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


DATA: dict[str, Any] = {
    "native": ArrayDataset(np.arange(8)),
    "python": list(range(8)),
    "iterable": Stream(),
}


@pytest.fixture(params=[(kind, workers) for kind in DATA for workers in (0, 1)], ids=str)
def make(request: pytest.FixtureRequest) -> Any:
    """Makes a loader of 0 ... 7 in batches of two."""
    kind, workers = request.param
    return lambda **options: FastLoader(DATA[kind], 2, num_workers=workers, **options)


def test_it_gives_what_is_handed_out_in_the_thread_that_asks(make: Any) -> None:
    threads = set()

    def name(batch: torch.Tensor) -> str:
        threads.add(threading.current_thread())
        return "-".join(map(str, batch.tolist()))

    loader = make(batch_transform=name)
    assert loader.batch_transform is name
    assert list(loader) == ["0-1", "2-3", "4-5", "6-7"]
    assert threads == {threading.current_thread()}
    loader.batch_transform = None
    assert [batch.tolist() for batch in loader][-1] == [6, 7]
    loader.batch_transform = torch.sum
    assert [batch.item() for batch in loader] == [1, 5, 9, 13]


def test_an_assignment_acts_at_the_next_iterator(make: Any) -> None:
    loader = make()
    batches = iter(loader)
    next(batches)
    loader.batch_transform = len
    assert next(batches).tolist() == [2, 3]
    assert next(iter(loader)) == 2


def test_its_error_is_that_of_the_batch(make: Any) -> None:
    def picky(batch: torch.Tensor) -> torch.Tensor:
        if 2 in batch:
            raise LookupError("two", 2)
        return batch

    loader = make(batch_transform=picky)
    batches = iter(loader)
    next(batches)
    with pytest.raises(LookupError) as caught:
        next(batches)
    assert caught.value.args == ("two", 2)
    assert traceback.extract_tb(caught.tb)[-1].name == "picky"
    assert next(batches).tolist() == [4, 5]
    assert next(batches).tolist() == [6, 7]
    with pytest.raises(StopIteration):
        next(batches)
    assert len(list(make())) == 4


def test_a_batch_whose_transform_failed_was_not_handed_out(make: Any) -> None:
    def failing(batch: torch.Tensor) -> torch.Tensor:
        if 2 in batch:
            raise LookupError
        return batch

    loader = make(batch_transform=failing)
    batches = iter(loader)
    next(batches)
    with pytest.raises(LookupError):
        next(batches)
    resumed = make()
    resumed.load_state_dict(loader.state_dict())
    assert next(iter(resumed)).tolist() == [2, 3]


def test_a_slow_transform_in_another_thread_takes_no_turn_back() -> None:
    reached, go_on = threading.Event(), threading.Event()

    def slow(batch: torch.Tensor) -> torch.Tensor:
        if 0 in batch:
            reached.set()
            go_on.wait()
        return batch

    loader = FastLoader(DATA["native"], 2, batch_transform=slow)
    batches = iter(loader)
    thread = threading.Thread(target=next, args=(batches,))
    thread.start()
    reached.wait()
    next(batches)
    go_on.set()
    thread.join()
    resumed = FastLoader(DATA["native"], 2)
    resumed.load_state_dict(loader.state_dict())
    assert next(iter(resumed)).tolist() == [4, 5]


def test_stop_iteration_does_not_end_the_epoch(make: Any) -> None:
    loader = make(batch_transform=lambda batch: next(iter(())))
    batches = iter(loader)
    for _ in range(4):
        with pytest.raises(RuntimeError, match="batch_transform raised StopIteration") as caught:
            next(batches)
        assert isinstance(caught.value.__cause__, StopIteration)
    with pytest.raises(StopIteration):
        next(batches)


def test_without_automatic_batches() -> None:
    loader = FastLoader([1, 2], batch_size=None, batch_transform=lambda sample: sample * 10)
    assert list(loader) == [10, 20]


def test_persistent_workers_take_it_at_the_next_epoch() -> None:
    for data in (DATA["native"], DATA["python"], DATA["iterable"]):
        loader = FastLoader(data, 4, num_workers=1, persistent_workers=True)
        assert [len(batch) for batch in loader] == [4, 4]
        loader.batch_transform = torch.sum
        assert [batch.item() for batch in loader] == [6, 22]
        del loader


def test_what_is_no_function_is_refused(make: Any) -> None:
    with pytest.raises(TypeError, match="batch_transform must be a function of a batch, not 3"):
        make(batch_transform=3)


def test_a_copy_has_it() -> None:
    loader = FastLoader(DATA["native"], 4, batch_transform=torch.sum)
    for clone in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert [batch.item() for batch in clone] == [6, 22]


# --- Native or not ------------------------------------------------------------------------------


def test_is_native_says_what_the_next_iterator_is() -> None:
    native, rows = DATA["native"], torch.arange(8)

    class Own(TensorDataset):
        pass

    for data, options, want in [
        (native, {}, True),
        (native, {"seed": 1, "num_workers": 2}, True),
        (native, {"batch_sampler": [[1], [2]]}, True),
        (native, {"collate_fn": list}, False),
        (native, {"batch_size": None}, False),
        (TensorDataset(rows), {}, True),
        (Own(rows), {}, False),
        (DATA["python"], {}, False),
        (DATA["iterable"], {}, False),
    ]:
        loader = FastLoader(data, **options)
        assert loader.is_native is want
        assert isinstance(iter(loader), _NativeIterator) is want
    loader = FastLoader(native)
    loader.collate_fn = list
    assert not loader.is_native


def test_is_native_touches_nothing() -> None:
    loader, state = FastLoader(DATA["native"], shuffle=True), torch.get_rng_state()
    before = loader.state_dict()
    assert loader.is_native
    assert loader.state_dict() == before
    assert torch.equal(torch.get_rng_state(), state)
    assert "is_native" not in vars(loader)
    assert not hasattr(DataLoader, "is_native")
