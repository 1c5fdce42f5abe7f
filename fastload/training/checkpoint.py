"""Checkpoint files: written atomically, readable by any number of ranks."""

from __future__ import annotations

import errno
import os
import pickle
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn

from fastload.errors import refuse_pipe
from fastload.order.ranks import find_rank, process_group
from fastload.training import plain_state

_KEYS = {"model", "optimizer", "step", "loader", "rng"}


def save(
    path: str | os.PathLike[str],
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    step: Callable[[], dict[str, Any]],
    loader: Any,
) -> None:
    """Writes a checkpoint; see `fastload.TrainStep.save`. `step` returns the state of the step."""
    # Imported here because it takes a second, which only saving needs.
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    writes = process_group() is None or dist.get_rank() == 0
    with _plain_extra_state(path, model):
        parameters = get_model_state_dict(model, options=options)
    content: dict[str, Any] = {
        "model": parameters,
        "optimizer": _whole(optimizer.state_dict(), kept=writes),
    }
    error: Exception | None = None
    try:
        content["step"] = step()
        content["loader"] = None if loader is None else loader.state_dict()
    except Exception as found:  # possibly on this rank only
        error = found
    _raise_on_all_ranks(error)
    content["rng"] = _of_all_ranks(_random_state())
    if writes:
        content = plain_state.encode(content)
        try:
            _write(Path(path), content)
        except OSError as found:
            error = OSError(found.errno, found.strerror, os.fspath(path))
        except RuntimeError as found:  # torch reports a full disk this way
            error = OSError(f"{path} could not be written: {found}")
        except Exception as found:
            error = _why_unloadable(path, content, found)
    # Other ranks continue only when the file exists, and must not wait for a failed rank.
    _raise_on_all_ranks(error)


def load(
    path: str | os.PathLike[str], model: nn.Module, optimizer: torch.optim.Optimizer, loader: Any
) -> dict[str, Any]:
    """Loads a checkpoint into model, optimizer and loader; returns the state of the step."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    try:
        content = plain_state.decode(_read(path))
    except _DamagedError as error:
        raise ValueError(f"{path} is damaged: {error}; take an earlier checkpoint") from None
    except Exception as error:  # damaged bytes may raise anything
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # an offset outside the file
            raise
        raise ValueError(f"{path} is no checkpoint: {error}") from error
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
    place = find_rank()
    if len(content["rng"]) == place.world:
        _set_random_state(content["rng"][place.rank])
    step: dict[str, Any] = content["step"]
    return step


@contextmanager
def _plain_extra_state(path: str | os.PathLike[str], model: nn.Module) -> Iterator[None]:
    """Makes extra state of modules plain, or refuses it, before torch gathers it."""

    def make_plain(_module: Any, state: dict[str, Any], *_: Any) -> None:
        for key, value in state.items():
            if not isinstance(value, torch.Tensor):
                state[key] = plain_state.encode(value)
                found = plain_state.find_unloadable(state[key], f"model.{key}")
                if found is not None:
                    raise _refusal(path, *found)

    of_older_torch = getattr(model, "_register_state_dict_hook", None)
    register: Any = getattr(model, "register_state_dict_post_hook", of_older_torch)
    handle = register(make_plain)
    try:
        yield
    finally:
        handle.remove()


class _DamagedError(Exception):
    """A member of the file does not match its checksum."""


def _read(path: str | os.PathLike[str], *, mmap: bool = False) -> Any:
    """Reads the content of a checkpoint; with `mmap`, tensors are read when they are used.

    Raises:
        _DamagedError: a member does not match its CRC-32, which torch.load does not check.
        Exception: any error of torch or zipfile.
    """
    refuse_pipe(path)
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if damaged:
        raise _DamagedError(f"{damaged} does not match its checksum")
    return torch.load(os.fspath(path), map_location="cpu", weights_only=True, mmap=mmap)


def _why_unloadable(path: str | os.PathLike[str], content: Any, error: Exception) -> Exception:
    """Returns the error for content that cannot be written, or not be loaded again."""
    found = plain_state.find_unloadable(content)
    if found is None:
        return OSError(f"{path} could not be written: {error}")
    return _refusal(path, *found)


def _refusal(path: str | os.PathLike[str], place: str, kind: str) -> TypeError:
    return TypeError(
        f"{path} was not written and is unchanged: {place} is a {kind}, which "
        "torch.load(weights_only=True) does not load; a state may hold tensors, arrays, numbers, "
        "strings, lists and dicts"
    )


def _whole(state: dict[str, Any], *, kept: bool) -> dict[str, Any]:
    """Returns the state of an optimizer with DTensors gathered into tensors.

    `get_optimizer_state_dict` is not used because it may make an optimizer step.

    Args:
        state: State of the optimizer. All ranks must call this function, since it gathers.
        kept: Keep the tensors. Only rank 0 does: the tensors of all ranks of a host may not fit
            into its memory.
    """

    def whole(value: Any) -> Any:
        value = value.full_tensor() if hasattr(value, "full_tensor") else value
        if not isinstance(value, torch.Tensor):
            return value
        return value.cpu() if kept else None

    entries = {number: {k: whole(v) for k, v in e.items()} for number, e in state["state"].items()}
    return {"state": entries, "param_groups": state["param_groups"]}


def _in_parts(state: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Returns the state with DTensors for the parameters that are DTensors."""
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
    if path.exists() and not path.is_file():  # /dev/null, for example, must not be replaced
        raise OSError(errno.EINVAL, "a checkpoint is a file", path)
    path = Path(os.path.realpath(path))  # keep a symbolic link, possibly to another disk
    temporary = path.with_name(f".{path.name}.part")
    try:
        with temporary.open("wb") as file, _checksums():
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        _read(temporary, mmap=True)  # never replace a good file by one that cannot be loaded
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


@contextmanager
def _checksums() -> Iterator[None]:
    """Enables torch's checksums, which the user may have disabled for speed."""
    if not hasattr(torch.serialization, "set_crc32_options"):  # always on before torch 2.6
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


def _raise_on_all_ranks(error: Exception | None) -> None:
    """Raises the error of the first rank that has one, on all ranks."""
    shared = error
    try:
        pickle.loads(pickle.dumps(shared))
    except Exception:  # its constructor needs more than the message
        shared = RuntimeError(f"{type(error).__name__}: {error}")
    errors: list[Exception | None] = _of_all_ranks(shared)
    found = next((other for other in errors if other is not None), None)
    if found is shared and error is not None:
        raise error
    if found is not None:
        raise found


def _random_state() -> dict[str, torch.Tensor]:
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _set_random_state(states: dict[str, torch.Tensor]) -> None:
    torch.set_rng_state(states["cpu"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
