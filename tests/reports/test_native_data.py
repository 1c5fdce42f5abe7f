"""Public reports on data that load slower than expected, and on small arguments."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from prelude import DATA, put
from torch.utils.data import Subset, TensorDataset

from fastload import FastLoader, Mixture

pd = pytest.importorskip("pandas")


def test_tensors_of_a_data_frame_are_native_and_later_changes_are_seen() -> None:
    frame = pd.DataFrame({name: np.arange(50.0) for name in "abc"})
    array = np.array(frame.to_numpy(np.float32))  # pandas 3 returns one that cannot be written to
    x, y = torch.from_numpy(array), torch.arange(50)
    assert not x.is_contiguous()
    with pytest.warns(UserWarning, match=r"not contiguous in memory: .*\.contiguous\(\)"):
        loader = FastLoader(TensorDataset(x, y), 50)
    assert loader.is_native
    x[7] = -1
    [(batch, labels)] = loader
    assert torch.equal(batch, x)
    assert torch.equal(labels, y)


def test_a_transposed_tensor_is_native_as_it_is() -> None:
    x = torch.arange(12.0).reshape(3, 4).T
    with pytest.warns(UserWarning, match="not contiguous"):
        loader = FastLoader(TensorDataset(x), 4)
    assert (loader.is_native, loader.why_not_native) == (True, None)
    assert torch.equal(next(iter(loader))[0], x)


class Mine(TensorDataset):
    pass


class MySubset(Subset[Any]):
    pass


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: FastLoader(Mine(torch.zeros(4))), "type Mine, a subclass of TensorDataset"),
        (lambda: FastLoader(MySubset(DATA, [0])), "type MySubset, a subclass of Subset"),
        (lambda: FastLoader(DATA, collate_fn=list), "collate_fn=list makes the batches in Python"),
    ],
    ids=["subclass", "subclass of Subset", "collate_fn"],
)
def test_data_that_torch_loads_have_a_reason(make: Any, reason: str) -> None:
    with pytest.warns(UserWarning, match=reason):
        loader = make()
    assert not loader.is_native
    assert reason in loader.why_not_native
    assert reason in repr(loader)


def test_repr_shows_dataset_batch_size_and_that_it_is_native() -> None:
    assert repr(FastLoader(DATA, 3, shuffle=True, num_workers=2)) == (
        "FastLoader(ArrayDataset(8 samples of x: float32 [4]), batch_size=3, shuffled, native, "
        "2 threads)"
    )


def test_a_path_as_bytes_is_opened() -> None:
    np.save("x.npy", np.arange(6))
    [batch] = FastLoader(b"x.npy", 6)
    assert batch.tolist() == list(range(6))
    assert len(Mixture([b"x.npy", "x.npy"])) == 12
    with pytest.raises(FileNotFoundError):
        FastLoader(b"missing.npy")


@pytest.mark.parametrize("prefetch", [0, -1, True, 1.5])
def test_prefetch_factor_is_a_positive_integer_where_num_workers_is_left_out(
    prefetch: Any,
) -> None:
    with pytest.raises((ValueError, TypeError), match="prefetch_factor must be"):
        FastLoader(DATA, prefetch_factor=prefetch)
    assert FastLoader(DATA, prefetch_factor=1).prefetch_factor == 1
    with pytest.raises(ValueError, match="could only be specified in multiprocessing"):
        FastLoader(DATA, num_workers=0, prefetch_factor=1)


def test_shuffle_is_an_attribute() -> None:
    assert FastLoader(DATA, shuffle=True).shuffle is True
    assert FastLoader(DATA).shuffle is None


@pytest.mark.filterwarnings("error")
def test_threads_are_not_called_worker_processes() -> None:
    list(FastLoader(DATA, num_workers=3))


def test_a_daemon_thread_at_exit_prints_no_traceback() -> None:
    put(
        "daemon.py",
        b"""
import threading, time, numpy as np, fastload
loader = fastload.FastLoader(fastload.ArrayDataset(np.zeros((100_000, 4))), 4, num_workers=2)
def forever():
    while True:
        for batch in loader:
            pass
threading.Thread(target=forever, daemon=True).start()
time.sleep(0.2)
""",
    )
    done = subprocess.run(
        [sys.executable, "daemon.py"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
