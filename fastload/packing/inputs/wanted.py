"""Selection of the fields to read; the others are not opened, decoded or checked."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fastload.formats.structure import BARE_NAME, is_leaf, rebuild, with_members

_MAX_NAMES = 20  # in an error
_PLACEHOLDER = 0  # keeps the positions of the following members
_LEFT_OUT = object()


@dataclass(frozen=True)
class Wanted:
    """Names of the fields to read.

    Attributes:
        names: Names of fields, or of containers for all fields in them; None for all fields.

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
        """Returns the fields that the caller named.

        Raises:
            TypeError: `fields` is not a list of names.
            ValueError: `fields` is empty.
        """
        if fields is None:
            return ALL
        if isinstance(fields, str) or not all(isinstance(name, str) for name in fields):
            raise TypeError(f"fields must be a list of names, not {fields!r}")
        if not fields:
            raise ValueError("fields must not be empty")
        return cls(tuple(fields))

    def takes(self, field: str) -> bool:
        """Returns whether a field, or every field in a container, is read."""
        return self.names is None or any(_is_in(field, name) for name in self.names)

    def without(self, fields: Collection[str]) -> Wanted:
        """Returns the selection without some fields; it may become empty."""
        if self.names is None:
            return self
        return Wanted(tuple(name for name in self.names if name not in fields))

    def enters(self, container: str) -> bool:
        """Returns whether any field in a container is read."""
        return self.takes(container) or any(_is_in(name, container) for name in self.names or ())

    def check(self, fields: Iterable[str], containers: Sequence[str] = ()) -> None:
        """Raises ValueError if a name is neither a field nor a container of fields.

        Args:
            fields: Names of all fields.
            containers: Names of containers that may have further fields.
        """
        known = list(fields)
        for name in self.names or ():
            there = any(_is_in(field, name) for field in known)
            if not there and not any(_is_in(name, above) for above in containers):
                raise ValueError(missing(name, known))

    def prune(self, sample: Any, above: str = "") -> Any:
        """Returns the wanted part of a sample.

        Dicts keep only wanted keys. In lists and tuples, 0 replaces unwanted members, so that the
        other members keep their positions. A member of a larger sample becomes None if no wanted
        field is in it. Some wanted fields may be absent.

        Args:
            sample: Containers around leaves.
            above: The name of the sample, if it is a member of a larger one.

        Raises:
            AbsentError: no wanted field is in the sample.
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
    """Raised for a sample that has none of the wanted fields."""


ALL = Wanted()
"""All fields."""


def missing(name: str, known: Sequence[str]) -> str:
    """Returns the message about a field that does not exist."""
    more = ", ..." if len(known) > _MAX_NAMES else ""
    return f"there is no field {name!r}; the fields are {', '.join(known[:_MAX_NAMES])}{more}"


def _is_in(field: str, name: str) -> bool:
    return field == name or field.startswith(f"{name}.")


def _members(value: Any, above: str) -> list[str]:
    if is_leaf(value):
        return [above or BARE_NAME]
    default = value if isinstance(value, dict) else range(len(value))
    keys = getattr(value, "_fields", default)
    return [f"{above}.{key}" if above else str(key) for key in keys]
