"""Members of tar files: the fields of samples, and the targets of links."""

from __future__ import annotations

import posixpath
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass

from fastload.errors import FormatError
from fastload.packing.inputs.inventory import HIDDEN, Inventory

KEY = "key"
"""The field with what the members of a sample have in common in their names."""

_BLOCK = 512
_PIECE_BYTES = 1 << 20
_MAX_LINKS = 40  # in a chain, the maximum of Linux

Place = tuple[int, int]
"""Offset and size of some content in an archive."""


@dataclass(frozen=True)
class Member:
    """A field of a sample.

    Attributes:
        key: Key of the sample.
        name: Name of the field.
        start: The offset of its first header.
        end: The offset behind its content.
        linked: Where its content lies, if that is elsewhere in the archive.
    """

    key: str
    name: str
    start: int
    end: int
    linked: Place | None = None


def fields_in(archive: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, str, str]]:
    """Yields the members that may be fields, each with the key of its sample and its own name.

    Links are among them, also those that `list_members` leaves out.
    """
    for member in archive:
        key, name = _split(member.name)
        if key and name and (member.isreg() or member.islnk() or member.issym()):
            yield member, key, name


def list_members(path: str, inventory: Inventory) -> list[Member]:
    """All fields in an archive; other members are noted in the inventory.

    Raises:
        FormatError: it is damaged; or a member of such a name holds no content, is a link whose
            target is not in the archive, or is named as the key is.
    """
    found: list[tarfile.TarInfo] = []
    end = 0
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                found.append(member)
                end = _end(member)
            finish = archive.offset
    except tarfile.TarError as error:
        raise FormatError(
            f"{path}: no tar file, compressed, or damaged behind byte {end}: {error}"
        ) from error
    _check_end(path, finish)
    links = _Links(path, found)
    fields = (_field(path, member, links, inventory) for member in found)
    return [field for field in fields if field is not None]


def _field(
    path: str, member: tarfile.TarInfo, links: _Links, inventory: Inventory
) -> Member | None:
    where = f"{path}: {member.name}"
    if member.isdir():
        return None  # holds nothing itself
    shown = f"{inventory.below(path)}: {member.name}"
    key, name = _split(member.name)
    if not key or not name:
        parts = member.name.split("/")
        is_hidden = any(part.startswith(".") and part.strip(".") for part in parts)
        inventory.leave(shown, HIDDEN if is_hidden else "tar does not read members of this name")
        return None
    if name == KEY:
        raise FormatError(
            f"{where}: a field {KEY!r} would take the place of the sample's own name; rename the "
            "members"
        )
    target = links.target(member)
    if target.isdir():
        inventory.leave(shown, "a link to a folder")
        return None
    if not target.isreg():
        raise FormatError(f"{where}: is no file (type {target.type!r}), but named as a field is")
    if target.issparse():
        raise FormatError(f"{where} is a sparse file; unpack it first")
    linked = None if target is member else (target.offset_data, target.size)
    return Member(key, name, member.offset, _end(member), linked)


def _split(path: str) -> tuple[str, str]:
    """Returns the key of a member's sample, and the name of the field; both may be empty."""
    folder, _, name = path.rpartition("/")
    stem, _, rest = name.partition(".")
    return (f"{folder}/{stem}" if folder and stem else stem), rest.lower()


def _end(member: tarfile.TarInfo) -> int:
    size = member.size if member.isreg() else 0
    return member.offset_data + -(-size // _BLOCK) * _BLOCK


class _Links:
    """Finds the targets of links in an archive."""

    def __init__(self, path: str, members: list[tarfile.TarInfo]) -> None:
        self._path = path
        self._named: dict[str, list[tarfile.TarInfo]] = {}
        if any(member.islnk() or member.issym() for member in members):
            for member in members:
                self._named.setdefault(posixpath.normpath(member.name), []).append(member)

    def target(self, member: tarfile.TarInfo) -> tarfile.TarInfo:
        """Returns the member, or for a link the member that holds its content.

        Raises:
            FormatError: there is none in the archive.
        """
        target = member
        for _ in range(_MAX_LINKS):
            if not (target.islnk() or target.issym()):
                return target
            name = target.linkname
            if target.issym():
                name = posixpath.join(posixpath.dirname(target.name), name)
            candidates = self._named.get(posixpath.normpath(name), [])
            if target.islnk():  # to what was written before it
                candidates = [of for of in candidates if of.offset < target.offset]
            if not candidates:
                break
            target = candidates[-1]
        raise FormatError(
            f"{self._path}: {member.name}: a link to {member.linkname!r}, whose content is not in "
            "the archive; tar --dereference packs contents instead of links"
        )


def _check_end(path: str, end: int) -> None:
    """Raises FormatError unless the archive ends with its end mark and no data follows.

    The module takes a damaged header, and the end of the file, for the archive's end.
    """
    with open(path, "rb") as file:
        for offset in (end - _BLOCK, end):  # it has read the first block of the mark, or has not
            file.seek(max(offset, 0))
            block = file.read(_BLOCK)
            if len(block) == _BLOCK and not any(block):
                break
        else:
            what = "truncated: there is no end mark" if len(block) < _BLOCK else "a damaged header"
            raise FormatError(f"{path}: {what} at byte {end}")
        while block := file.read(_PIECE_BYTES):
            if block.count(0) < len(block):
                raise FormatError(
                    f"{path}: there is data behind its end mark at byte {end}, as in archives that "
                    "were joined by cat; take these one by one, or join them by tar --concatenate"
                )
