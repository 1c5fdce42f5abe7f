"""What the tests of the training step share: data, a model, and the large batch in plain torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fastload import ArrayDataset

FEATURES = 5


def dataset(rows: int) -> ArrayDataset:
    """Features, targets, and how much a sample counts."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(rows, FEATURES, generator=generator)
    y = x.sum(1, keepdim=True) + 0.1 * torch.randn(rows, 1, generator=generator)
    return ArrayDataset({"x": x, "y": y, "n": torch.arange(rows) % 4 + 1, "i": torch.arange(rows)})


def make_model() -> nn.Module:
    """Always with the same weights; draws nothing from the global generator."""
    with torch.random.fork_rng():
        torch.manual_seed(2)
        return nn.Sequential(nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 1))


def adam(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, **options)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """Its steps are as exact as its gradients, unlike Adam's."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def mse(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.mse_loss(model(batch["x"]), batch["y"])


def counted_losses(model: nn.Module, batch: Any) -> Tensor:
    """What each sample adds to a sum of losses over what it counts."""
    return (model(batch["x"]) - batch["y"]).square().squeeze(1) * batch["n"]


def mean_of_counted(model: nn.Module, batch: Any) -> Tensor:
    return counted_losses(model, batch).sum() / batch["n"].sum()


def sum_and_count(model: nn.Module, batch: Any) -> tuple[Tensor, Tensor]:
    return counted_losses(model, batch).sum(), batch["n"].sum()


def joined(batches: Iterable[Any]) -> dict[str, Tensor]:
    """One large batch of several."""
    held = list(batches)
    return {name: torch.cat([batch[name] for batch in held]) for name in held[0]}


def plain_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Any,
    loss_fn: Callable[..., Tensor] = mse,
    max_norm: float | None = None,
) -> float:
    """The step that everybody writes; gives the loss."""
    loss = loss_fn(model, batch)
    optimizer.zero_grad()
    loss.backward()
    if max_norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    return loss.item()


def distance(one: nn.Module, other: nn.Module) -> float:
    """The largest difference between two models' parameters."""
    pairs = zip(one.parameters(), other.parameters(), strict=True)
    return max(float((a.detach() - b.detach()).abs().max()) for a, b in pairs)


class HostReads(TorchDispatchMode):
    """Counts how often a number of the device is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))
