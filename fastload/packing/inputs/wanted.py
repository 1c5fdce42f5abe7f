"""Which fields of an input are read: the others are not opened, decoded or checked."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fastload.formats.structure import BARE_NAME, is_leaf, rebuild, with_members

_MOST_NAMES = 20  # in an error
_PLACEHOLDER = 0  # keeps the positions of the members behind it
_LEFT_OUT = object()


@dataclass(frozen=True)
class Wanted:
    """The names of the fields that are read.

    Attributes:
        names: Of fields, or of containers for all fields in them; None for all fields.

    Example:
        >>> wanted = Wanted(("x", "meta.id"))
        >>> wanted.takes("x"), wanted.takes("meta"), wanted.enters("meta")
        (True, False, True)
        >>> wanted.prune({"x": 1, "y": None, "meta": {"id": 2, "bad": {}}})
        {'x': 1, 'meta': {'id': 2}}
    """

    names: tuple[str, ...] | None = None

    @classmethod
    def of(cls, fields: Sequence[str] | None) -> Wanted:
        """The fields that the caller named.

        Raises:
            TypeError: these are no names.
            ValueError: there is none.
        """
        if fields is None:
            return ALL
        if isinstance(fields, str) or not all(isinstance(name, str) for name in fields):
            raise TypeError(f"fields must be a list of names, not {fields!r}")
        if not fields:
            raise ValueError("no fields are chosen")
        return cls(tuple(fields))

    def takes(self, field: str) -> bool:
        """Whether a field, or everything in a container, is read."""
        return self.names is None or any(_is_in(field, name) for name in self.names)

    def without(self, fields: Collection[str]) -> Wanted:
        """The same but for some fields, which come from elsewhere; perhaps none are left."""
        if self.names is None:
            return self
        return Wanted(tuple(name for name in self.names if name not in fields))

    def enters(self, container: str) -> bool:
        """Whether something in a container is read."""
        return self.takes(container) or any(_is_in(name, container) for name in self.names or ())

    def check(self, fields: Iterable[str], containers: Sequence[str] = ()) -> None:
        """Raises ValueError if a name is that of no field and of no container of fields.

        Args:
            fields: The names of all fields.
            containers: Names below which there may be others.
        """
        known = list(fields)
        for name in self.names or ():
            there = any(_is_in(field, name) for field in known)
            if not there and not any(_is_in(name, above) for above in containers):
                raise ValueError(missing(name, known))

    def prune(self, sample: Any, above: str = "") -> Any:
        """The wanted part of a sample, which may lack some of it.

        Dicts lose their other keys. In lists and tuples a number takes the place of other members,
        so that the rest keeps its positions. A member of a larger sample becomes None if nothing
        of it is wanted.

        Args:
            sample: Containers around leaves.
            above: The name of the sample, if it is a member of a larger one.

        Raises:
            AbsentError: no wanted field is there.
        """
        if sample is None:
            return None
        if self.names is None or (above and self.takes(above)):
            return sample
        if not above and self.takes(BARE_NAME) and not isinstance(sample, dict):
            return sample
        found: list[str] = []
        pruned = self._pruned(sample, above, found)
        if found:
            return pruned
        if above:
            return None
        names = _members(sample, above)
        lacking = (name for name in self.names if not any(_is_in(name, of) for of in names))
        raise AbsentError(missing(next(lacking, self.names[0]), names))

    def _pruned(self, value: Any, name: str, found: list[str]) -> Any:
        if name and self.takes(name):
            found.append(name)
            return value
        if (name and not self.enters(name)) or is_leaf(value):
            return _LEFT_OUT
        names = _members(value, name)
        members = value.values() if isinstance(value, dict) else value
        kept = [self._pruned(*pair, found) for pair in zip(members, names, strict=True)]
        if isinstance(value, dict):
            pairs = zip(value, kept, strict=True)
            return with_members(value, {key: of for key, of in pairs if of is not _LEFT_OUT})
        return rebuild(value, [_PLACEHOLDER if of is _LEFT_OUT else of for of in kept])


class AbsentError(KeyError):
    """A sample has none of the wanted fields."""


ALL = Wanted()
"""All fields."""


def missing(name: str, known: Sequence[str]) -> str:
    """The error about a field that is not there."""
    more = ", ..." if len(known) > _MOST_NAMES else ""
    return f"there is no field {name!r}; the fields are {', '.join(known[:_MOST_NAMES])}{more}"


def _is_in(field: str, name: str) -> bool:
    return field == name or field.startswith(f"{name}.")


def _members(value: Any, above: str) -> list[str]:
    if is_leaf(value):
        return [above or BARE_NAME]
    default = value if isinstance(value, dict) else range(len(value))
    keys = getattr(value, "_fields", default)
    return [f"{above}.{key}" if above else str(key) for key in keys]
