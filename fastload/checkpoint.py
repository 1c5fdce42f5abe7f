"""A training in one file: written whole or not at all, and read by any number of ranks."""

from __future__ import annotations

import errno
import os
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn

from fastload.ranks import find_place, process_group

_KEYS = {"model", "optimizer", "step", "loader", "rng"}


def save(
    path: str | os.PathLike[str],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    step: dict[str, Any],
    loader: Any,
) -> None:
    """Writes the file; see `fastload.TrainStep.save`."""
    # Costs a second to import, and only those who save need it.
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    writes = process_group() is None or dist.get_rank() == 0
    content = {
        "model": get_model_state_dict(model, options=options),
        "optimizer": _whole(optimizer.state_dict(), kept=writes),
        "step": step,
        "loader": None if loader is None else loader.state_dict(),
        "rng": _of_all_ranks(_random_state()),
    }
    error: OSError | None = None
    if writes:
        try:
            _write(Path(path), content)
        except OSError as found:
            error = OSError(found.errno, found.strerror, os.fspath(path))
        except Exception as found:  # torch tells a full disk by a RuntimeError
            error = OSError(f"{path} could not be written: {found}")
    # The others must not go on before it is there, nor wait for one that failed.
    errors = _of_all_ranks(error)
    if errors[0] is not None:
        raise errors[0]


def load(
    path: str | os.PathLike[str], model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any
) -> dict[str, Any]:
    """Reads the file into model, optimizer and loader; gives the state of the step."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    try:
        damaged = _damaged_part(path)
        content = None if damaged else torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged bytes may raise anything
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # a place outside the file
            raise
        raise ValueError(f"{path} is no checkpoint: {error}") from error
    if damaged:
        raise ValueError(
            f"{path} is damaged: {damaged} does not fit its checksum; take an earlier checkpoint"
        )
    if not isinstance(content, dict) or set(content) != _KEYS:
        raise ValueError(f"{path} is no checkpoint that fastload.TrainStep.save wrote")
    if loader is not None:
        if content["loader"] is None:
            raise ValueError(f"{path} was saved without a loader")
        loader.load_state_dict(content["loader"])
    options = StateDictOptions(full_state_dict=True)
    try:
        set_model_state_dict(model, content["model"], options=options)
        optimizer.load_state_dict(_in_parts(content["optimizer"], optimizer))
    except (KeyError, RuntimeError, ValueError) as error:
        raise ValueError(f"{path} is of another model or optimizer: {error}") from error
    place = find_place()
    if len(content["rng"]) == place.world:
        _set_random_state(content["rng"][place.rank])
    step: dict[str, Any] = content["step"]
    return step


def _damaged_part(path: str | os.PathLike[str]) -> str | None:
    """The first part that does not fit its CRC-32, which torch.load does not look at."""
    with zipfile.ZipFile(path) as archive:
        return archive.testzip()


def _whole(state: dict[str, Any], *, kept: bool) -> dict[str, Any]:
    """The state of an optimizer without DTensors; get_optimizer_state_dict may make a step.

    Args:
        state: Of the optimizer. All ranks have to ask, as their parts are gathered.
        kept: Else no tensors are in it: those of all ranks on one host may not fit in its memory.
    """

    def whole(value: Any) -> Any:
        value = value.full_tensor() if hasattr(value, "full_tensor") else value
        if not isinstance(value, torch.Tensor):
            return value
        return value.cpu() if kept else None

    entries = {number: {k: whole(v) for k, v in e.items()} for number, e in state["state"].items()}
    return {"state": entries, "param_groups": state["param_groups"]}


def _in_parts(state: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The same with DTensors where the parameters are some."""
    parameters: list[Any] = [p for group in optimizer.param_groups for p in group["params"]]
    if not any(hasattr(parameter, "device_mesh") for parameter in parameters):
        return state
    try:
        from torch.distributed.tensor import distribute_tensor
    except ImportError:  # torch 2.4
        from torch.distributed._tensor import distribute_tensor  # type: ignore[attr-defined]

    def part(value: Any, parameter: Any) -> Any:
        if getattr(value, "shape", None) != parameter.shape or not hasattr(parameter, "placements"):
            return value
        value = value.to(parameter.device)
        return distribute_tensor(value, parameter.device_mesh, parameter.placements)

    entries = {
        number: {k: part(v, parameters[number]) for k, v in entry.items()}
        for number, entry in state["state"].items()
    }
    return state | {"state": entries}


def _write(path: Path, content: dict[str, Any]) -> None:
    if path.exists() and not path.is_file():  # /dev/null, say, must not be replaced
        raise OSError(errno.EINVAL, "a checkpoint is a file", path)
    path = Path(os.path.realpath(path))  # a link stays one, to perhaps another disk
    temporary = path.with_name(f".{path.name}.part")
    try:
        with temporary.open("wb") as file, _checksums():
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


@contextmanager
def _checksums() -> Iterator[None]:
    """Whoever has switched them off, for speed, has not done so for these files."""
    if not hasattr(torch.serialization, "set_crc32_options"):  # before torch 2.6: always on
        yield
        return
    before = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(True)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(before)


def _of_all_ranks(value: Any) -> list[Any]:
    if process_group() is None:
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def _random_state() -> dict[str, torch.Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _set_random_state(states: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
