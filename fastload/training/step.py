"""The training step: mixed precision, weighted gradient accumulation, and delayed communication.

`TrainStep` makes one optimizer step. It is not a trainer: the caller owns the loop, the model, the
optimizer and the loader.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fastload.errors import warn
from fastload.loader.groups import Group
from fastload.training import checkpoint, gradients
from fastload.training.gradients import StepLoss
from fastload.training.log_writer import copy_to_host
from fastload.training.plain_state import plain_numbers
from fastload.training.schedules import check_steps
from fastload.training.stalls import Stalls
from fastload.training.step_log import StepLog

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}

Loss = Callable[[nn.Module, Any], Any]


class StepResult(NamedTuple):
    """Results of a step, as tensors on the device; creating them does not wait for the device.

    Attributes:
        loss: Scalar. This rank's share of the mean loss; its mean over the ranks is the loss of
            the whole group.
        grad_norm: Scalar. Norm of all gradients before clipping; None without `max_norm`.
        nonfinite: int64 scalar, 1 if the gradients (without `max_norm` and "fp16": the loss) were
            not finite. With "fp16" the optimizer has skipped the step then.
    """

    loss: Tensor
    grad_norm: Tensor | None
    nonfinite: Tensor


class TrainStep:
    """One optimizer step: forward and backward of one or more batches, then the update.

    Called with a `Group` of `FastLoader.groups`, it accumulates the gradients of its batches, each
    weighted by its number of samples. The step equals that of one large batch, also if the last
    batch is smaller or the ranks have different numbers of samples. Any other argument is one
    batch. Under DDP and FSDP2, gradients are communicated in the last batch only.

    The order is `zero_grad`, forward, backward, unscale, clip, step, update, `zero_grad`. Gradients
    that exist before the step (from another loss, for example) are cleared first. Each step uses
    the parameters that the optimizer has at that time: `add_param_group` may be called between two
    steps. The scheduler steps if the optimizer did.

    If no sample counts on any rank, the loss and all gradients are 0, and the optimizer steps with
    them. A rank without samples that count contributes 0 and participates in all communication.
    No call waits for the GPU: non-finite steps are detected one step later. (With "fp16", torch's
    GradScaler waits in each step, unless the optimizer is fused. With a fused optimizer the
    scheduler steps first, and skips one step for each step that the optimizer skipped.)

    Args:
        model: A module, DDP, FSDP2 (`fully_shard`) or compiled model, already on its device.
        optimizer: An optimizer over parameters of the model.
        loss_fn: `loss_fn(model, batch)` returns the mean loss of the batch, a scalar; or a tuple of
            its sum and the count of its terms, if the count is known only after the forward (masked
            labels, for example). Batches and ranks are then weighted by these counts, which costs
            one all-reduce of one number. A sum with count 0 is replaced by 0, also if it is NaN; on
            a GPU its gradient must be finite if other batches count, so return a sum, not a
            quotient. A mean that is NaN makes the step non-finite.
        precision: "bf16": autocast; "fp16": autocast and a GradScaler; "fp32": neither.
        max_norm: Norm to which gradients are clipped; None disables clipping.
        scheduler: `step()` is called after each optimizer step. The caller steps and saves
            `ReduceLROnPlateau`, whose `step` needs a metric.
        nonfinite_limit: Number of consecutive non-finite steps that raises.
        init_scale: Initial scale of the GradScaler.
        log: File to which one line of JSON per step is written, as by `fastload.watch`, without
            waiting for the device; with `loss`, `grad_norm` and `nonfinite`. `fastload report`
            reads it. After `load`, lines are appended; otherwise an existing file is replaced.
            For groups, the waiting time is measured in the `next` of the group; for single
            batches, it starts at the end of the previous step (and then includes a validation
            between two epochs).

    Attributes:
        steps: Number of steps so far.
        scaler: The GradScaler; None unless `precision` is "fp16".

    Raises:
        ValueError: `precision` is unknown, or "fp16" with float16 parameters; `max_norm` is not
            above 0; the group was used before; `step` of the optimizer or scheduler needs
            arguments; the scheduler belongs to another optimizer; a count is negative.
        TypeError: `loss_fn` does not return a loss; the scheduler has no `step`.
        RuntimeError: `nonfinite_limit` consecutive steps were not finite.

    Example:
        >>> data = ArrayDataset({"x": np.ones((8, 2), "float32"), "y": np.ones((8, 1), "float32")})
        >>> model = torch.nn.Linear(2, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> def loss_fn(model, batch):
        ...     return torch.nn.functional.mse_loss(model(batch["x"]), batch["y"])
        >>> step = TrainStep(model, optimizer, loss_fn, precision="fp32", max_norm=1.0)
        >>> for group in FastLoader(data, batch_size=2).groups(3):
        ...     result = step(group)
        >>> step.steps, result.nonfinite.item()
        (2, 0)
    """

    __module__ = "fastload"

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss_fn: Loss,
        *,
        precision: str = "bf16",
        max_norm: float | None = None,
        scheduler: Any = None,
        nonfinite_limit: int = 50,
        init_scale: float = 2.0**16,
        log: str | os.PathLike[str] | None = None,
    ) -> None:
        if precision not in _DTYPES:
            raise ValueError(f"precision must be one of {', '.join(_DTYPES)}, not {precision!r}")
        if max_norm is not None and not max_norm > 0:
            raise ValueError(f"max_norm must be above 0, or None, not {max_norm}")
        check_steps(optimizer, scheduler)
        self.model = model
        self.optimizer = optimizer
        self.loss_fn = loss_fn
        self.precision = precision
        self.max_norm = max_norm
        self.scheduler = scheduler
        self.nonfinite_limit = nonfinite_limit
        self.steps = 0
        self.scaler: torch.amp.GradScaler | None = None
        if precision == "fp16":
            self._check_dtypes()
            self.scaler = torch.amp.GradScaler(self._device.type, init_scale=init_scale)
        self._counts = torch.zeros(2, dtype=torch.int64, device=self._device)  # total, consecutive
        self._seen = 0  # total non-finite steps that the host has read
        self._unread: tuple[Tensor, Any, bool] | None = None
        self._owed = 0  # scheduler steps to skip: the optimizer skipped theirs
        self._warned_static = False
        about = {"precision": precision, "device": self._device.type}
        self._log = None if log is None else StepLog(log, about, Stalls(self._device))

    def __call__(self, group: Any) -> StepResult:
        """Makes one step with the batches of a group, or with one batch."""
        if self._log is None:
            return self._make(group)
        with self._log.step(self.steps, group):
            result = self._make(group)
            self._log.put(loss=result.loss, nonfinite=result.nonfinite)
            if result.grad_norm is not None:
                self._log.put(grad_norm=result.grad_norm)
        return result

    @property
    def _parameters(self) -> list[Tensor]:
        """Current parameters of the optimizer; `add_param_group` may have added some."""
        return [p for group in self.optimizer.param_groups for p in group["params"]]

    @property
    def _device(self) -> torch.device:
        for parameter in (*self._parameters[:1], *self.model.parameters()):
            return parameter.device
        return torch.device("cpu")

    def _check_dtypes(self) -> None:
        if any(p.dtype == torch.float16 for p in self._parameters):
            raise ValueError(
                'precision="fp16" needs parameters of float32, which autocast casts: gradients '
                "of float16 parameters cannot be unscaled; call model.float()"
            )

    def _make(self, group: Any) -> StepResult:
        if self.scaler is not None:
            self._check_dtypes()
        gradients.clear(self.model, self.optimizer)  # gradients of other losses
        try:
            loss = self._backward(group)
            with self._forgetting():
                if self.scaler is not None and self.max_norm is not None:
                    self.scaler.unscale_(self.optimizer)
                norm = None if self.max_norm is None else self._clip(self.max_norm)
                noted = self._step()
        finally:
            # Also after an error: the next group must start without gradients.
            self.optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        nonfinite = self._judge(loss if norm is None else norm, noted)
        return StepResult(loss, norm, nonfinite)

    # --- Gradients -----------------------------------------------------------------------------

    def _backward(self, group: Any) -> Tensor:
        is_group, device = isinstance(group, Group), self._device
        batches = group if is_group else (group,)
        if is_group and self._log is not None:
            batches = self._log.timed(group)
        mixed, dtype = self.precision != "fp32", _DTYPES[self.precision]
        loss = StepLoss(self.model, self._parameters, group if is_group else None, device)
        for batch in batches:
            with self._communicating(loss.is_last), loss.batch():
                with torch.autocast(device.type, dtype, enabled=mixed):
                    found = self.loss_fn(self.model, batch)
                part: Any = loss.part(found)
                (part if self.scaler is None else self.scaler.scale(part)).backward()
        return loss.end()

    @contextlib.contextmanager
    def _communicating(self, now: bool) -> Iterator[None]:
        """Context for forward and backward of a batch; DDP decides in the forward."""
        fsdp = getattr(self.model, "set_requires_gradient_sync", None)
        if fsdp is not None:
            fsdp(now)
            try:
                yield
            finally:
                fsdp(True)
            return
        if not now and getattr(self.model, "static_graph", False):
            now = True
            if not self._warned_static:
                self._warned_static = True
                warn(
                    "DDP(static_graph=True) does not support no_sync: gradients are communicated "
                    "in each batch; use static_graph=False to communicate once per step",
                )
        no_sync = None if now else getattr(self.model, "no_sync", None)
        with contextlib.nullcontext() if no_sync is None else no_sync():
            yield

    def _clip(self, max_norm: float) -> Tensor:
        norm = nn.utils.clip_grad_norm_(self._parameters, max_norm)
        whole: Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        return whole

    # --- The update ----------------------------------------------------------------------------

    @contextlib.contextmanager
    def _forgetting(self) -> Iterator[None]:
        """Resets the scaler's per-step state after an error, so that the next step can unscale."""
        try:
            yield
        except BaseException:
            if self.scaler is not None:
                self.scaler.update(self.scaler.get_scale())
            raise

    def _step(self) -> list[Tensor | None]:
        """Steps the optimizer.

        Returns:
            An empty list if the step was skipped; else one entry: `found_inf` of a fused optimizer,
            or None.
        """
        noted: list[Tensor | None] = []

        def note(optimizer: Any, args: Any, kwargs: Any) -> None:
            noted.append(getattr(optimizer, "found_inf", None))

        with self.optimizer.register_step_post_hook(note):
            if self.scaler is None:
                self.optimizer.step()
            else:
                self.scaler.step(self.optimizer)
                self.scaler.update()
        return noted

    def _judge(self, number: Tensor, noted: list[Tensor | None]) -> Tensor:
        """Counts a non-finite step, and steps the scheduler if the optimizer stepped."""
        guessed = bool(noted) and noted[0] is not None
        if self.scaler is None:
            bad = (~torch.isfinite(number)).long()
        elif noted and noted[0] is not None:
            bad = noted[0].reshape(()).long()
        else:
            bad = torch.full((), not noted, dtype=torch.int64, device=self._device)
        self._counts = torch.stack([self._counts[0] + bad, (self._counts[1] + 1) * bad])
        self._look_back()
        self._unread = (*copy_to_host(self._counts), guessed)
        if self.scheduler is not None and noted:
            if guessed and self._owed:
                self._owed -= 1
            else:
                self.scheduler.step()
        return bad

    def _look_back(self) -> None:
        """Reads the counts of the previous step, which the GPU has finished by now."""
        if self._unread is None:
            return
        counts, event, guessed = self._unread
        self._unread = None
        if event is not None:
            event.synchronize()
        all_bad, in_a_row = counts.tolist()
        self._owed += guessed and all_bad > self._seen
        self._seen = all_bad
        if in_a_row >= self.nonfinite_limit:
            scale = "" if self.scaler is None else f" (loss scale: {self.scaler.get_scale():g})"
            raise RuntimeError(
                f"{in_a_row} consecutive steps were not finite{scale}: the training has diverged; "
                "check the data and the learning rate, or load an earlier checkpoint"
            )

    @property
    def nonfinite(self) -> int:
        """Number of non-finite steps so far; reading it waits for the last step."""
        return int(self._counts[0])

    # --- State ---------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], loader: Any = None) -> None:
        """Writes a checkpoint; all ranks must call it, between two steps.

        The file holds model, optimizer, scaler, scheduler, number of steps, position of the loader,
        and the RNG state of torch on each rank, as plain tensors and numbers under the names of the
        unwrapped model. It can be loaded by any number of ranks, and with
        `torch.load(path, weights_only=True)`: numpy scalars are written as Python numbers of the
        same value. A temporary file is written, read back and then renamed; if that fails, the old
        file stays.

        Args:
            path: Written by rank 0.
            loader: A FastLoader, or anything with a `state_dict()`.

        Raises:
            OSError: the file cannot be written.
            TypeError: the state of model, optimizer, scheduler or loader has a member that
                `weights_only=True` does not load; the message names it and its type.

        All ranks raise the same error.
        """
        if self._log is not None:
            self._log.flush()  # first: a run resumed from the checkpoint writes no earlier lines
        checkpoint.save(path, self.model, self.optimizer, self.state_dict, loader)

    def load(self, path: str | os.PathLike[str], loader: Any = None) -> None:
        """Restores a checkpoint; all ranks must call it.

        RNG states are restored only if the number of ranks is the same.

        Raises:
            OSError: the file cannot be read.
            ValueError: the file is not a checkpoint of `save`, is damaged, or belongs to another
                model, optimizer, scheduler or loader.
        """
        self.load_state_dict(checkpoint.load(path, self.model, self.optimizer, loader))

    def state_dict(self) -> dict[str, Any]:
        """Returns counts, scaler and scheduler as a dict; waits for the GPU."""
        self._look_back()
        scheduler = None if self.scheduler is None else plain_numbers(self.scheduler.state_dict())
        return {
            "steps": self.steps,
            "nonfinite": self._counts.tolist(),
            "owed": self._owed,
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
            "scheduler": scheduler,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores a state. If it was saved without a scaler, the scaler keeps its own state.

        Raises:
            ValueError: the dict is not a state of TrainStep, or only one of the two has a
                scheduler.
        """
        missing = {"steps", "nonfinite", "owed", "scaler", "scheduler"} - set(state_dict)
        if missing:
            raise ValueError(f"the state has no {min(missing)!r}: it is not of a TrainStep")
        if (self.scheduler is None) != (state_dict["scheduler"] is None):
            here, there = ("none", "one") if self.scheduler is None else ("one", "none")
            raise ValueError(f"the scheduler: there is {here} here, but the state has {there}")
        self.steps, self._owed = state_dict["steps"], state_dict["owed"]
        self._counts = torch.tensor(state_dict["nonfinite"], device=self._device)
        self._seen, self._unread = state_dict["nonfinite"][0], None
        if self.scaler is not None and state_dict["scaler"] is not None:
            self.scaler.load_state_dict(state_dict["scaler"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state_dict["scheduler"])
        if self._log is not None:
            self._log.go_on()
