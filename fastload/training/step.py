"""The training step: mixed precision, accumulation by weight, and communication only where needed.

`TrainStep` is one step of the optimizer, not a trainer: the loop, the model, the optimizer and the
loader stay the caller's, and each can be used without it.
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
from fastload.training.log_writer import on_its_way
from fastload.training.plain_state import plain_numbers
from fastload.training.schedules import check_steps
from fastload.training.stalls import Stalls
from fastload.training.step_log import StepLog

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}

Loss = Callable[[nn.Module, Any], Any]


class StepResult(NamedTuple):
    """What a step found, as tensors on the device: nobody has waited for them.

    Attributes:
        loss: This rank's part of the mean loss; the mean of it over the ranks is the loss of the
            whole group. Scalar.
        grad_norm: The norm of all gradients before they were clipped; None without `max_norm`.
        nonfinite: int64 scalar, 1 if the gradients (without `max_norm` and "fp16": the loss) were
            not finite. With "fp16" the optimizer has made no step then.
    """

    loss: Tensor
    grad_norm: Tensor | None
    nonfinite: Tensor


class TrainStep:
    """One step of the optimizer: forward and backward of some batches, then the update.

    Called with a `Group` of `FastLoader.groups`, it accumulates the gradients of its batches, each
    weighted by its samples, so that the step is that of one large batch, also where the last batch
    is smaller or the ranks have unequally many. Called with anything else, that is one batch. Under
    DDP and FSDP2 gradients are communicated in the last batch only.

    The order is `zero_grad`, forward, backward, unscale, clip, step, update, `zero_grad`. Gradients
    that are there before a step (another model's loss was sent backward through these parameters,
    say) do not enter it. All of this concerns the parameters that the optimizer has at that time:
    `add_param_group` may be called between two steps. The scheduler steps when the optimizer did.

    Where nothing counts in the batches of all ranks, the loss and all gradients are 0, and the
    optimizer steps with these. A rank without samples that count adds 0, and takes part in all
    communication. Nothing here waits for the GPU: whether steps were finite is looked at
    one step late. (With "fp16", torch's GradScaler waits in each step, unless the optimizer is a
    fused one. With that, the scheduler steps first and stands still once for each step that turns
    out to have been skipped.)

    Args:
        model: Plain, DDP, FSDP2 (`fully_shard`) or compiled; on its device.
        optimizer: Over parameters of the model, as torch's are.
        loss_fn: `loss_fn(model, batch)` returns the mean loss of the batch, a scalar; or a tuple of
            its sum and the count of its terms, where that is known after the forward only (masked
            labels, say): batches and ranks are then weighted by these counts, at the price of one
            number that is added up over the ranks. The sum of a count of 0 is taken as 0, also if
            it is NaN; on a GPU its gradient must be finite where other batches count, so sum
            rather than divide. A mean that is NaN is a step that is not finite.
        precision: "bf16", or "fp16" with a GradScaler: autocast; "fp32": neither.
        max_norm: Gradients are clipped to this norm; None: not at all.
        scheduler: `step()` is called after each step of the optimizer. `ReduceLROnPlateau`, whose
            `step` needs a metric, is stepped and saved by the caller.
        nonfinite_limit: So many steps in a row that are not finite raise.
        init_scale: Of the GradScaler.
        log: A file that gets a line of JSON for each step, as `fastload.watch` writes them, without
            stopping the device; also `loss`, `grad_norm` and `nonfinite`. `fastload report` reads
            it. After `load` the lines are added to those of before, else an old file is replaced.
            Batches of groups are waited for in their `next`; a batch that comes alone, since the
            step before (a validation between two epochs is of the first step, then).

    Attributes:
        steps: How often it was called.
        scaler: The GradScaler; None unless "fp16".

    Raises:
        ValueError: `precision` is unknown, or "fp16" with parameters of float16; a `max_norm` that
            is not above 0; a group that was taken before; the `step` of optimizer or scheduler
            needs arguments; the scheduler is of another optimizer; a count is negative.
        TypeError: `loss_fn` returns no loss; the scheduler has no `step`.
        RuntimeError: `nonfinite_limit` steps in a row were not finite.

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
        self._counts = torch.zeros(2, dtype=torch.int64, device=self._device)  # all, in a row
        self._seen = 0  # of `_counts`, as the host knows them
        self._unread: tuple[Tensor, Any, bool] | None = None
        self._owed = 0  # steps that the scheduler has made too many
        self._said_static = False
        about = {"precision": precision, "device": self._device.type}
        self._log = None if log is None else StepLog(log, about, Stalls(self._device))

    def __call__(self, group: Any) -> StepResult:
        """Takes the batches of a group, or one batch, and makes a step."""
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
        """Those that the optimizer has now: groups may have been added."""
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
        gradients.clear(self.model, self.optimizer)  # what others have left
        try:
            loss = self._backward(group)
            with self._forgetting():
                if self.scaler is not None and self.max_norm is not None:
                    self.scaler.unscale_(self.optimizer)
                norm = None if self.max_norm is None else self._clip(self.max_norm)
                noted = self._step()
        finally:
            # Also after an error: nothing of a broken group may be left for the next one.
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
        """Around the forward and backward of a batch: DDP looks at the forward."""
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
            if not self._said_static:
                self._said_static = True
                warn(
                    "DDP(static_graph=True) cannot leave gradients unsynchronised: they are "
                    "communicated in each batch; static_graph=False saves that",
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
        """After an error the scaler takes the next gradients for new ones, too."""
        try:
            yield
        except BaseException:
            if self.scaler is not None:
                self.scaler.update(self.scaler.get_scale())
            raise

    def _step(self) -> list[Tensor | None]:
        """Empty if the optimizer made no step; else what a fused one was told of infinities."""
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
        """Counts a step that was not finite, and steps the scheduler if the optimizer did."""
        guessed = bool(noted) and noted[0] is not None
        if self.scaler is None:
            bad = (~torch.isfinite(number)).long()
        elif noted and noted[0] is not None:
            bad = noted[0].reshape(()).long()
        else:
            bad = torch.full((), not noted, dtype=torch.int64, device=self._device)
        self._counts = torch.stack([self._counts[0] + bad, (self._counts[1] + 1) * bad])
        self._look_back()
        self._unread = (*on_its_way(self._counts), guessed)
        if self.scheduler is not None and noted:
            if guessed and self._owed:
                self._owed -= 1
            else:
                self.scheduler.step()
        return bad

    def _look_back(self) -> None:
        """Learns how the step before went; by now the GPU has finished it."""
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
                f"{in_a_row} steps in a row were not finite{scale}: the training has diverged; "
                "look at the data and the learning rate, or go back to an earlier checkpoint"
            )

    @property
    def nonfinite(self) -> int:
        """Steps so far that were not finite; reading it waits for the last one."""
        return int(self._counts[0])

    # --- State ---------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str], loader: Any = None) -> None:
        """Writes a checkpoint of all there is; every rank has to call it, between two steps.

        It holds model, optimizer, scaler, scheduler, the number of steps, the loader's place, and
        the state of torch's random numbers on each rank, as plain tensors and numbers under the
        names of the model without its wrappers: another number of ranks can load it, and
        `torch.load(path, weights_only=True)` reads it: numbers of numpy are written as Python's,
        which takes nothing from them. The file is put in place when it is whole and has been read
        again; else the old one stays.

        Args:
            path: Written by rank 0.
            loader: A FastLoader, or anything with a `state_dict()`.

        Raises:
            OSError: it could not be written.
            TypeError: model, optimizer, scheduler or loader have something in their state that
                cannot be loaded with `weights_only=True`; says where and what it is.

        All ranks raise the same.
        """
        if self._log is not None:
            self._log.flush()  # first: a training that goes on from there writes no earlier line
        checkpoint.save(path, self.model, self.optimizer, self.state_dict, loader)

    def load(self, path: str | os.PathLike[str], loader: Any = None) -> None:
        """Goes on where the checkpoint was written; every rank has to call it.

        With another number of ranks the random numbers are left as they are.

        Raises:
            OSError: it cannot be read.
            ValueError: it is no checkpoint that `save` wrote, or a damaged one, or not of a model,
                an optimizer, a scheduler or a loader like these.
        """
        self.load_state_dict(checkpoint.load(path, self.model, self.optimizer, loader))

    def state_dict(self) -> dict[str, Any]:
        """What belongs to the step itself: counts, scaler and scheduler; it waits for the GPU."""
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
        """Goes on where the state was taken; with another `precision`, with a scaler of its own.

        Raises:
            ValueError: it is no state of a TrainStep, or was saved with a scheduler and there is
                none here, or the other way round.
        """
        missing = {"steps", "nonfinite", "owed", "scaler", "scheduler"} - set(state_dict)
        if missing:
            raise ValueError(f"the state has no {min(missing)!r}: it is not of a TrainStep")
        if (self.scheduler is None) != (state_dict["scheduler"] is None):
            here = "none" if self.scheduler is None else "one"
            raise ValueError(f"the scheduler: there is {here} here, the state says otherwise")
        self.steps, self._owed = state_dict["steps"], state_dict["owed"]
        self._counts = torch.tensor(state_dict["nonfinite"], device=self._device)
        self._seen, self._unread = state_dict["nonfinite"][0], None
        if self.scaler is not None and state_dict["scaler"] is not None:
            self.scaler.load_state_dict(state_dict["scaler"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state_dict["scheduler"])
        if self._log is not None:
            self._log.go_on()
