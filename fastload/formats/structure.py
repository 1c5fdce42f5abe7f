"""The containers of a sample: dicts, lists, tuples and namedtuples around numbered columns.

A structure is nested freely and its leaves are column numbers: `0` (a bare array),
`{"x": 0, "y": 1}`, `(0, 1)`, `[0, {"a": 1}]` or a namedtuple instance. Everything that is not a
dict, list or tuple is a leaf, so the same functions also walk containers of arrays.
"""

from __future__ import annotations

import collections
import copy
import functools
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from operator import itemgetter
from typing import Any

Structure = Any
Builder = Callable[[Sequence[Any]], Any]

BARE_NAME = "data"
MISSING = "missing"
REAL = "real"
_ADDED_BY = {MISSING: "on_error='skip'", REAL: "tail='mask'"}


def is_leaf(structure: Structure) -> bool:
    """Tells whether `structure` is a leaf rather than a dict, list or tuple."""
    return not isinstance(structure, (dict, list, tuple))


def children(structure: Structure) -> list[Structure]:
    """The direct members of a container, in order."""
    return list(structure.values() if isinstance(structure, dict) else structure)


def flatten(structure: Structure) -> list[Any]:
    """The leaves, depth first.

    Example:
        >>> flatten({"x": 1, "y": (0, 2)})
        [1, 0, 2]
    """
    if is_leaf(structure):
        return [structure]
    return [leaf for child in children(structure) for leaf in flatten(child)]


def map_leaves(function: Callable[[Any], Any], structure: Structure) -> Structure:
    """Applies a function to all leaves, depth first; keeps the containers.

    Example:
        >>> map_leaves(str, {"x": 1, "y": (0, 2)})
        {'x': '1', 'y': ('0', '2')}
    """
    if is_leaf(structure):
        return function(structure)
    return rebuild(structure, [map_leaves(function, child) for child in children(structure)])


def rebuild(structure: Structure, members: Sequence[Any]) -> Structure:
    """The outermost container of `structure` around other direct members."""
    return _sample_maker(structure)(members)


def with_members(container: Structure, members: Any) -> Structure:
    """A container of the same kind around other members: a dict of them for a dict, else a list.

    Example:
        >>> with_members({"x": 1}, {"x": 1, "y": 2}), with_members((1, 2), [3, 4])
        ({'x': 1, 'y': 2}, (3, 4))
    """
    if not isinstance(container, dict):
        return rebuild(container, members)
    clone = copy.copy(container)
    clone.clear()
    for key, member in members.items():
        clone[key] = member
    return clone


def with_added(structure: Structure, name: str, leaf: Any) -> Structure:
    """A batch, or its structure, that tells more than its samples: with one more member, the last.

    Raises:
        ValueError: there is a member of this name already.

    Example:
        >>> with_added({"x": 0}, "real", 1), with_added((0, 1), "real", 2), with_added(0, "real", 1)
        ({'x': 0, 'real': 1}, (0, 1, 2), [0, 1])
    """
    keyed = isinstance(structure, MutableMapping)  # also others than dict
    if is_leaf(structure) and not keyed:
        return [structure, leaf]
    if name in (structure if keyed else getattr(structure, "_fields", ())):
        raise ValueError(f"the samples have a field {name!r}, which {_ADDED_BY[name]} adds")
    return with_member(structure, name, leaf)


def renumber(structure: Structure, by: int) -> Structure:
    """The structure with `by` added to every column number."""
    return map_leaves(lambda column: column + by, structure)


def with_member(structure: Structure, key: str, member: Structure) -> Structure:
    """The container with one more member, which lists and plain tuples have no key for.

    Raises:
        ValueError: a leaf can hold no other member.

    Example:
        >>> with_member((0, 1), "mask", 2)
        (0, 1, 2)
    """
    if isinstance(structure, MutableMapping):
        made = copy.copy(structure)
        made[key] = member
        return made
    if is_leaf(structure):
        raise ValueError("a bare array has no members")
    if fields := getattr(structure, "_fields", None):
        return _namedtuple_type(type(structure).__name__, (*fields, key))(*structure, member)
    return type(structure)([*structure, member])


def pruned(structure: Structure, keep: Callable[[Any], bool]) -> Structure:
    """The structure without the leaves that `keep` rejects, and without containers left empty.

    Returns None if nothing is left. A subclass of a container becomes the plain one where members
    go; a namedtuple keeps its name.

    Example:
        >>> pruned({"x": 0, "y": (1, 2)}, lambda leaf: leaf != 1)
        {'x': 0, 'y': (2,)}
    """
    if is_leaf(structure):
        return structure if keep(structure) else None
    members = [pruned(child, keep) for child in children(structure)]
    kept = [number for number, member in enumerate(members) if member is not None]
    if not kept:
        return None
    if len(kept) == len(members):
        return _sample_maker(structure)(members)
    left = [members[number] for number in kept]
    if isinstance(structure, dict):
        keys = list(structure)
        kind = collections.OrderedDict if isinstance(structure, collections.OrderedDict) else dict
        return kind((keys[number], members[number]) for number in kept)
    if fields := getattr(structure, "_fields", None):
        names = tuple(fields[number] for number in kept)
        return _namedtuple_type(type(structure).__name__, names)(*left)
    return left if isinstance(structure, list) else tuple(left)


def leaf_names(structure: Structure) -> list[str]:
    """A name for each leaf: its keys, positions and field names joined by dots; `data` if bare.

    Example:
        >>> leaf_names({"x": 0, "meta": (1, 2)})
        ['x', 'meta.0', 'meta.1']
    """
    if is_leaf(structure):
        return [BARE_NAME]
    keys: Iterable[Any]
    if isinstance(structure, dict):
        keys = structure
    else:
        keys = getattr(structure, "_fields", range(len(structure)))
    names = []
    for key, child in zip(keys, children(structure), strict=True):
        names += [str(key)] if is_leaf(child) else [f"{key}.{name}" for name in leaf_names(child)]
    return names


def skeleton(structure: Structure) -> object:
    """A value that is equal for two structures with the same containers and keys, in order."""
    if is_leaf(structure):
        return None
    keys = tuple(structure) if isinstance(structure, dict) else ()
    return type(structure), keys, tuple(skeleton(child) for child in children(structure))


def sample_builder(structure: Structure) -> Builder:
    """A function from the columns of one sample to the sample, in the very same containers."""
    return _compile(structure, _sample_maker)


def batch_builder(structure: Structure) -> Builder:
    """A function from the columns of a batch to what `default_collate` makes of such samples.

    Tuples become lists; dicts, lists and namedtuples keep their type.
    """
    return _compile(structure, container_maker)


def _compile(structure: Structure, maker: Callable[[Structure], Builder]) -> Builder:
    if is_leaf(structure):
        return itemgetter(structure)
    make, members = maker(structure), children(structure)
    if len(members) > 1 and all(is_leaf(child) for child in members):
        pick = itemgetter(*members)  # the common flat sample costs two calls
        return lambda columns: make(pick(columns))
    builders = [_compile(child, maker) for child in members]
    return lambda columns: make([build(columns) for build in builders])


def _sample_maker(structure: Structure) -> Builder:
    kind = type(structure)
    if kind is dict:
        keys = tuple(structure)
        return lambda values: dict(zip(keys, values, strict=True))
    if kind is list or kind is tuple:
        return kind
    if isinstance(structure, tuple):
        return (lambda values: kind(*values)) if hasattr(kind, "_fields") else kind
    return functools.partial(_refill, structure)


def container_maker(structure: Structure) -> Builder:
    """A function from the members of the outermost container to that container in a batch."""
    if isinstance(structure, tuple) and not hasattr(structure, "_fields"):
        return list
    return _sample_maker(structure)


def _refill(template: Any, values: Sequence[Any]) -> Any:
    # A subclass may carry more than its items, so it is copied, as default_collate does.
    clone = copy.copy(template)
    keys = list(clone) if isinstance(clone, dict) else range(len(clone))
    for key, value in zip(keys, values, strict=True):
        clone[key] = value
    return clone


def to_json(structure: Structure) -> Any:
    """The structure in JSON's types. Other dict, list and tuple subclasses become the plain ones.

    Raises:
        TypeError: a dict's key is neither a str nor an int.

    Example:
        >>> to_json({"x": 0, "y": (1, 2)})
        {'kind': 'dict', 'items': [['x', 0], ['y', {'kind': 'tuple', 'items': [1, 2]}]]}
    """
    if is_leaf(structure):
        return structure
    if isinstance(structure, dict):
        for key in structure:
            if type(key) not in (str, int):
                raise TypeError(f"the keys of a sample must be str or int, not {key!r}")
        kind = "ordered_dict" if isinstance(structure, collections.OrderedDict) else "dict"
        return {"kind": kind, "items": [[key, to_json(v)] for key, v in structure.items()]}
    items = [to_json(child) for child in structure]
    if isinstance(structure, list):
        return {"kind": "list", "items": items}
    if fields := getattr(structure, "_fields", None):
        name = type(structure).__name__
        return {"kind": "namedtuple", "name": name, "fields": list(fields), "items": items}
    return {"kind": "tuple", "items": items}


def from_json(value: Any) -> Structure:
    """The structure that `to_json` wrote.

    Raises:
        ValueError: `value` is no structure.
    """
    if type(value) is int and value >= 0:
        return value
    kind = value.get("kind") if isinstance(value, dict) else None
    items = value.get("items") if isinstance(value, dict) else None
    if not isinstance(kind, str) or not isinstance(items, list):
        raise ValueError(f"not the structure of a sample: {value!r:.200}")
    if kind in ("dict", "ordered_dict"):
        for item in items:
            if not (isinstance(item, list) and len(item) == 2 and type(item[0]) in (str, int)):
                raise ValueError(f"not a key and a member: {item!r:.200}")
        pairs = [(key, from_json(member)) for key, member in items]
        made = dict(pairs) if kind == "dict" else collections.OrderedDict(pairs)
        if len(made) != len(pairs):
            raise ValueError(f"a key appears twice in {[key for key, _ in pairs]!r:.200}")
        return made
    members = [from_json(item) for item in items]
    if kind == "list":
        return members
    if kind == "tuple":
        return tuple(members)
    name, fields = value.get("name"), value.get("fields")
    if kind != "namedtuple" or not isinstance(name, str) or not isinstance(fields, list):
        raise ValueError(f"unknown kind of container: {kind!r:.200}")
    if not all(isinstance(field, str) for field in fields) or len(fields) != len(members):
        raise ValueError(f"not the field names of a namedtuple: {fields!r:.200}")
    return _namedtuple_type(name, tuple(fields))(*members)


@functools.cache
def _namedtuple_type(name: str, fields: tuple[str, ...]) -> Any:
    plain: Any = collections.namedtuple(name, fields)  # type: ignore[misc]
    return type(name, (plain,), {"__slots__": (), "__reduce__": _reduce_namedtuple})


def _reduce_namedtuple(value: Any) -> tuple[Any, ...]:
    # No module holds the class under its name, so its instances are pickled by its recipe.
    return _namedtuple, (type(value).__name__, value._fields, tuple(value))


def _namedtuple(name: str, fields: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    return _namedtuple_type(name, fields)(*values)
