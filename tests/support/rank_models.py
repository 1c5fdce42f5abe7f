"""Models in each of torch's wrappers, and data, for the checks that run on several ranks."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from steps import dataset, joined, make_model
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fastload import FastLoader
from fastload.loader.groups import Group

try:
    from torch.distributed.fsdp import fully_shard
except ImportError:  # it came with torch 2.6
    fully_shard = None

WRAPPERS = ("ddp", "fsdp2") if fully_shard else ("ddp",)
ROWS, SIZE = 22, 4  # three global batches of 8, 8 and 6
WRAPS: dict[str, dict[str, Any]] = {
    "ddp": {},
    "gradient_as_bucket_view": {"gradient_as_bucket_view": True},
    "batched_grad_copy": {"batched_grad_copy": True},
    "static_graph": {"static_graph": True},
    "find_unused_parameters": {"find_unused_parameters": True},
}


def loader(rows: int = ROWS, **options: Any) -> FastLoader[Any]:
    return FastLoader(dataset(rows), SIZE, shuffle=True, seed=1, num_workers=0, **options)


def wrapped(model: nn.Module, name: str) -> nn.Module:
    if name == "fsdp2":
        for layer in model:  # type: ignore[union-attr]
            if isinstance(layer, nn.Linear):
                fully_shard(layer)
        return fully_shard(model)
    return DistributedDataParallel(model, **WRAPS[name])


def whole(model: nn.Module) -> nn.Module:
    """The same parameters in a model without wrappers."""
    found = make_model()
    with torch.no_grad():
        for to, parameter in zip(found.parameters(), model.parameters(), strict=True):
            sharded = hasattr(parameter, "full_tensor")
            to.copy_(parameter.full_tensor() if sharded else parameter)
    return found


def global_batch(group: Group[Any]) -> dict[str, Tensor]:
    """All samples that the ranks have in a group."""
    mine = joined(group)
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, mine)
    return joined(parts)
