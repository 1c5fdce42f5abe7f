"""Lists the datasets in HDF5 files, including the targets of links."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from fastload.errors import FormatError
from fastload.formats.files import file_source
from fastload.packing.inputs.inventory import Inventory
from fastload.packing.inputs.wanted import Wanted


def list_datasets(
    h5py: Any, path: str, file: Any, wanted: Wanted, inventory: Inventory
) -> Iterator[tuple[str, Any]]:
    """Lists the requested datasets below a file or group, each with its path in the file.

    Links are followed, and a dataset has the name of the link that leads to it. Those to groups
    above are noted in the inventory: they would lead into a circle.

    Raises:
        FormatError: the target of a link cannot be opened.
    """
    yield from _walk(h5py, path, [file], "", wanted, inventory)


def _walk(
    h5py: Any, path: str, above: Sequence[Any], below: str, wanted: Wanted, inventory: Inventory
) -> Iterator[tuple[str, Any]]:
    for name in list(above[-1]):  # its iterator holds h5py's lock
        inner = f"{below}{name}"
        if not wanted.enters(inner.replace("/", ".")):
            continue
        member = _member(h5py, path, above[-1], name, inner)
        if isinstance(member, h5py.Group):
            if any(member == group for group in above):
                inventory.leave(f"{inventory.below(path)}: {inner}", "a link to a group above")
            else:
                yield from _walk(h5py, path, [*above, member], f"{inner}/", wanted, inventory)
        elif isinstance(member, h5py.Dataset):
            yield inner, member


def _member(h5py: Any, path: str, group: Any, name: str, inner: str) -> Any:
    """Returns a member of a group; for a link, its target."""
    link = group.get(name, getlink=True)
    if isinstance(link, h5py.ExternalLink):
        target = os.path.join(os.path.dirname(group.file.filename), link.filename)
        if os.path.exists(target):
            file_source(target)  # opening a pipe would block
    try:
        return group[name]
    except (KeyError, OSError, RuntimeError) as error:
        if isinstance(link, h5py.ExternalLink):
            where = f"{link.path!r} of the file {link.filename!r}"
        elif isinstance(link, h5py.SoftLink):
            where = repr(link.path)
        else:
            raise FormatError(f"{path}: {inner!r} is damaged: {error}") from error
        raise FormatError(
            f"{path}: {inner!r} is a link to {where}, which cannot be opened: {error}"
        ) from error


def files_behind(path: str, datasets: Iterable[Any]) -> Iterator[str]:
    """Returns the other files that hold samples of the datasets.

    Raises:
        FormatError: one is not there: HDF5 would give fill values in its place.
    """
    for dataset in datasets:
        own = os.path.abspath(dataset.file.filename)
        if own != os.path.abspath(path):
            yield own
        if not dataset.is_virtual:
            continue
        for source in dataset.virtual_sources():
            if source.file_name == "." or "%b" in source.file_name:
                continue
            beside = os.path.join(os.path.dirname(own), source.file_name)
            found = [of for of in (beside, os.path.abspath(source.file_name)) if os.path.exists(of)]
            if not found:
                raise FormatError(
                    f"{path}: the virtual dataset {dataset.name!r} has a part in the file "
                    f"{source.file_name!r}, which is not there"
                )
            yield file_source(found[0]).path
