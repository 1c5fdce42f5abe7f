"""Loss and gradients of a step whose batches have different weights, possibly 0."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fastload.loader.groups import Group
from fastload.order.ranks import process_group

_FSDP2 = "set_requires_gradient_sync"  # a method of its models


class StepLoss:
    """Weights the batches of one step so that their gradients equal those of one large batch.

    A batch of weight 0 adds 0 to the loss and to the gradients, whatever its loss is, and
    participates in all communication. An object serves one step, batch by batch.

    Args:
        model: See `TrainStep`.
        parameters: Parameters of the optimizer.
        group: Group of the batches; None: one batch.
        device: Device of the parameters.

    Example:
        >>> model = torch.nn.Linear(2, 1)
        >>> loss = StepLoss(model, list(model.parameters()), None, torch.device("cpu"))
        >>> with loss.batch():
        ...     loss.part((model(torch.ones(3, 2)).sum() * float("nan"), 0)).backward()
        >>> loss.end(), model.weight.grad
        (tensor(0.), tensor([[0., 0.]]))
    """

    def __init__(
        self,
        model: nn.Module,
        parameters: Sequence[Tensor],
        group: Group[Any] | None,
        device: torch.device,
    ) -> None:
        self._model, self._parameters, self._group = model, parameters, group
        self._weights = [1.0] if group is None else group.weights
        self._number = -1  # of the current batch
        self._handles: list[Any] = []  # hooks that set its gradients to 0
        self._loss = torch.zeros((), device=device)
        self._counts: Tensor | None = None

    @property
    def is_last(self) -> bool:
        """True if the next batch is the last one."""
        return self._number + 2 >= len(self._weights)

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Context for forward and backward of the next batch."""
        self._number += 1
        try:
            if not self._weights[self._number]:
                self._zero_gradients()
            yield
        finally:
            for handle in self._handles:
                handle.remove()
            self._handles.clear()

    def part(self, found: Any) -> Tensor:
        """Adds the loss of the batch.

        Args:
            found: Result of `loss_fn`: a mean, or a sum and the count of its terms.

        Returns:
            The scalar to call `backward` on.

        Raises:
            TypeError: `found` is neither, or differs in kind from the previous batches.
            ValueError: the count is negative or NaN (checked only on the CPU); the loss of a batch
                of weight 0 does not depend on a model whose gradients are communicated.
        """
        loss, count = _loss_and_count(found)
        if self._number and (count is None) != (self._counts is None):
            raise TypeError("loss_fn must return (sum, count) for all batches of a group, or none")
        counts_nothing = not self._weights[self._number]
        if count is not None:
            counts_nothing = counts_nothing or (_is_on_host(count) and not count)
            part = self._counted(loss, count)
        else:
            part = loss * self._weights[self._number]
        if counts_nothing:
            self._zero_gradients()
            part = part.masked_fill(torch.ones_like(part, dtype=torch.bool), 0)
        self._loss += part.detach()
        return self._connected(part) if counts_nothing and not part.requires_grad else part

    def end(self) -> Tensor:
        """Scales the gradients by what is known only after the last batch.

        Returns:
            This rank's share of the mean loss.
        """
        counts, group = self._counts, self._group
        if counts is None:
            return self._loss
        if group is None:
            self._scale(None, counts)
            return self._loss
        ranks = _add_up(counts, None)
        copies = ranks / group.shares if ranks > 1 else 1.0  # of each sample (tensor parallelism)
        factor = _ratio(max(1, group.total) * copies, counts)
        self._scale(factor, counts)
        return self._loss * factor

    def _counted(self, loss: Tensor, count: Any) -> Tensor:
        """Returns a sum over `count` terms with the weight that is known before its backward."""
        # float32 has a relative error of 6e-8 for any number, and every device supports it.
        if isinstance(count, Tensor):
            count = count.to(loss.device, torch.float32, non_blocking=True, copy=True)
        else:
            count = torch.full((), count, dtype=torch.float32, device=loss.device)
        loss = torch.where(count == 0, 0.0, loss)
        if self._group is not None:
            part = loss * (self._group.shares / max(1, self._group.total))
        else:
            process = getattr(self._model, "process_group", None)
            part = loss * _ratio(_add_up(count, process) if self._communicates else 1, count)
        count = count.to(self._loss.device)
        self._counts = count if self._counts is None else self._counts + count
        return part

    def _connected(self, part: Tensor) -> Tensor:
        """Returns a differentiable 0 for a constant loss, on which `backward` would fail."""
        if self._communicates:
            raise ValueError(
                "the loss of a batch of weight 0 does not depend on the model, but "
                "under DDP and FSDP2 all ranks wait for its gradients: run the model, and return "
                "(output.sum() * 0, 0)"
            )
        return sum((p.sum() for p in self._parameters if p.requires_grad), part)

    @property
    def _communicates(self) -> bool:
        """True if backward communicates gradients."""
        return any(hasattr(self._model, name) for name in ("no_sync", _FSDP2))

    def _scale(self, factor: Tensor | None, counts: Tensor) -> None:
        """Multiplies all gradients by `factor`; sets them to 0 if `counts` is 0, also if NaN."""
        nothing = counts == 0
        may_be_nothing = not _is_on_host(nothing) or bool(nothing)
        for parameter in self._parameters:
            if parameter.grad is None or (factor is None and not may_be_nothing):
                continue
            gradient = _local(parameter.grad)
            if factor is not None:
                gradient.mul_(factor)
            if may_be_nothing:
                (gradient._values() if gradient.is_sparse else gradient).masked_fill_(nothing, 0)

    def _zero_gradients(self) -> None:
        """Adds hooks that set the gradients to 0; a loss of 0 gives NaN behind a division by 0.

        FSDP2 unshards parameters in the forward of their module only, so their hooks are added
        there.
        """
        if self._handles:
            return
        if hasattr(self._model, _FSDP2):
            hook = self._zero_unsharded
            self._handles += [m.register_forward_pre_hook(hook) for m in self._model.modules()]
        else:
            self._zero(self._parameters)

    def _zero_unsharded(self, module: nn.Module, _inputs: Any) -> None:
        self._zero(module.parameters(recurse=False))

    def _zero(self, parameters: Iterable[Tensor]) -> None:
        for parameter in parameters:
            if parameter.requires_grad:
                self._handles.append(parameter.register_hook(torch.zeros_like))  # type: ignore[no-untyped-call]


def clear(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Clears the gradients of the optimizer's parameters.

    FSDP2 keeps gradients that are not yet communicated (after an error within a group) outside the
    parameters; these are cleared as well.
    """
    optimizer.zero_grad(set_to_none=True)
    if not hasattr(model, _FSDP2):
        return
    for module in model.modules():
        get_state: Any = getattr(module, "_get_fsdp_state", lambda: None)
        state = get_state()
        groups = getattr(state, "_fsdp_param_groups", None)
        if groups is None:  # before torch 2.13
            groups = [getattr(state, "_fsdp_param_group", None)]
        for sharded in (one for group in groups if group for one in group.fsdp_params):
            sharded.unsharded_accumulated_grad = None
            whole = getattr(sharded, "unsharded_param", None)  # exists after the first forward
            if whole is not None:
                whole.grad = None


def _loss_and_count(found: Any) -> tuple[Tensor, Any]:
    """Returns the loss and its count, a number or a tensor of shape (); None for a mean."""
    count: Any = None
    loss, count = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
    if not isinstance(loss, Tensor) or loss.dim():
        what = f"a tensor {tuple(loss.shape)}" if isinstance(loss, Tensor) else repr(loss)
        raise TypeError(
            "loss_fn must return a mean loss, a tensor of shape (), or such a tensor and a count, "
            f"not {what}"
        )
    if not isinstance(found, tuple):
        return loss, None
    if isinstance(count, Tensor) and count.numel() == 1:
        count = count.detach().reshape(())
    elif isinstance(count, Tensor):
        shape = tuple(count.shape)
        raise TypeError(f"the count of a loss must be one number, not a tensor {shape}")
    elif hasattr(count, "item"):  # numpy's
        count = count.item()
    if not isinstance(count, (int, float, Tensor)):
        raise TypeError(f"the count of a loss must be a number, not {count!r}")
    if _is_on_host(count) and not 0 <= count < float("inf"):
        raise ValueError(f"the count of a loss must be finite and not negative, got {count}")
    return loss, count


def _is_on_host(count: Any) -> bool:
    """True if the number can be read without waiting for a device."""
    return not isinstance(count, Tensor) or count.device.type == "cpu"


def _add_up(counts: Tensor, process: Any) -> int:
    """Sums over the ranks in place; returns the number of ranks."""
    dist = process_group()
    if dist is None:
        return 1
    dist.all_reduce(counts, group=process)
    return int(dist.get_world_size(process))


def _ratio(total: float, counts: Tensor) -> Tensor:
    """Returns `total / counts`, or 0 where `counts` is 0."""
    return torch.where(counts == 0, 0.0, total / counts)


def _local(gradient: Tensor) -> Tensor:
    """Returns this rank's shard of a gradient, sharing its memory."""
    part: Tensor = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    return part
