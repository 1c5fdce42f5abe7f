"""DeepSpeed: an engine made without training_data, over a loader of the user's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import deepspeed
import deepspeed.ops
import torch
from deepspeed.pipe import PipelineModule
from deepspeed.runtime.dataloader import RepeatingLoader
from small_training import (
    BATCH,
    ROWS,
    dataset,
    in_ranks,
    loss_of,
    model,
    native_batches,
    numbers_of,
    optimizer,
)
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from fastload import FastLoader, KeyedSampler

SEED = 3
STEPS = -(-ROWS // (2 * BATCH))
MIDDLE = STEPS + 2  # in the second of two epochs


def engine(stage: int) -> Any:
    # Else it compiles an operator of its own first; gloo does the same.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    net = model()
    config = {
        "train_micro_batch_size_per_gpu": BATCH,
        "gradient_accumulation_steps": 1,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
    }
    made, _, loader, _ = deepspeed.initialize(model=net, optimizer=optimizer(net), config=config)
    assert loader is None
    torch.manual_seed(SEED)
    return made


def losses(trained: Any, batches: Iterable[Any]) -> list[float]:
    values = []
    for batch in batches:
        loss = loss_of(trained, batch)
        trained.backward(loss)
        trained.step()
        values.append(loss.item())
    return values


def two_epochs(loader: Any) -> Iterator[Any]:
    for epoch in range(2):
        if not isinstance(loader.sampler, KeyedSampler) and hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        yield from loader


def distributed(kind: Any) -> Any:
    return kind(dataset(), BATCH, sampler=DistributedSampler(dataset(), seed=SEED))


def keyed(micro_batch: int = BATCH) -> FastLoader[Any]:
    return FastLoader(dataset(), micro_batch, shuffle=True, seed=SEED)


def compare(stage: int, folder: str) -> dict[str, Any]:
    """In one rank of two: losses by torch's loader, by fastload's, and of a resumed run."""
    found = {"by_torch": losses(engine(stage), two_epochs(distributed(DataLoader)))}
    with native_batches() as seen:
        found["native"] = losses(engine(stage), two_epochs(distributed(FastLoader)))
        assert len(seen) == len(found["native"]) == 2 * STEPS

        sampler = KeyedSampler(dataset(), batch_size=BATCH, seed=SEED)
        by_torch = DataLoader(dataset(), BATCH, sampler=sampler)
        found["keyed by torch"] = losses(engine(stage), two_epochs(by_torch))
        assert len(seen) == 2 * STEPS

        whole = engine(stage)
        found["keyed"] = losses(whole, two_epochs(keyed(whole.train_micro_batch_size_per_gpu())))
        assert len(seen) == 4 * STEPS

    first, loader = engine(stage), keyed()
    found["first"] = losses(first, islice(two_epochs(loader), MIDDLE))
    first.save_checkpoint(folder, client_state={"loader": loader.state_dict()})
    second, loader = engine(stage), keyed()
    _, client_state = second.load_checkpoint(folder)
    loader.load_state_dict(client_state["loader"])
    found["second"] = losses(second, loader)
    return found


def compare_stages(folder: str) -> list[dict[str, Any]]:
    return [compare(stage, f"{folder}/zero{stage}") for stage in (1, 2)]


def test_zero_on_two_ranks(tmp_path: Path) -> None:
    for rank in in_ranks(compare_stages, 2, tmp_path / "ranks", str(tmp_path)):
        for found in rank:
            assert found["native"] == found["by_torch"]
            assert found["keyed"] == found["keyed by torch"]
            assert found["first"] + found["second"] == found["keyed"]


def test_repeating_loader_goes_on_to_new_epochs() -> None:
    steps = ROWS // BATCH
    endless = islice(RepeatingLoader(keyed()), 2 * steps)
    batches, loader = numbers_of(endless), keyed()
    assert batches == numbers_of(loader) + numbers_of(loader)
    assert batches[:steps] != batches[steps:]


def pipeline_losses() -> list[list[float]]:
    """By torch's loader and by fastload's, of two stages, one on each rank, that share samples."""

    def trained(make: Callable[[Any], Any]) -> list[float]:
        net = PipelineModule(list(model()), num_stages=2, loss_fn=nn.functional.mse_loss)
        made, _, _, _ = deepspeed.initialize(
            model=net,
            optimizer=optimizer(net),
            config={
                "train_micro_batch_size_per_gpu": BATCH,
                "gradient_accumulation_steps": 2,
                "zero_allow_untested_optimizer": True,
            },
        )
        batches = iter(make(made.grid.get_data_parallel_group()))
        return [made.train_batch(data_iter=batches).item() for _ in range(ROWS // BATCH // 2)]

    data = TensorDataset(*dataset().tensors[:2])
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    deepspeed.init_distributed("gloo")
    sampler = KeyedSampler(data, batch_size=BATCH, seed=SEED, shard=False)
    with native_batches() as seen:
        by_torch = trained(lambda group: DataLoader(data, BATCH, sampler=sampler))
        assert not seen
        native = trained(
            lambda group: FastLoader(data, BATCH, shuffle=True, seed=SEED, shard=group)
        )
        assert len(seen) == ROWS // BATCH // 2 * 2
    return [by_torch, native]


def test_a_pipeline_of_two_stages(tmp_path: Path) -> None:
    for by_torch, native in in_ranks(pipeline_losses, 2, tmp_path):
        assert native == by_torch
        assert len(set(native)) == len(native)
