"""Datasets made of others: one after the other, or side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fastload.formats.columns import Bounds, Column, FileSource, Group, Int64Array
from fastload.formats.extents import Extents
from fastload.formats.structure import flatten, is_leaf, leaf_names, map_leaves, renumber, skeleton


def concatenate(parts: Sequence[Extents]) -> Extents:
    """The samples of all parts, one after the other.

    Raises:
        ValueError: the parts differ in structure, dtype, shape or row stride, or one is mixed.
    """
    _check_unmixed(parts)
    first = parts[0]
    if any(skeleton(part.structure) != skeleton(first.structure) for part in parts):
        raise ValueError("the parts have different structures")
    # For each part and leaf, in the order of the structure: the number of its group, its column.
    places = []
    for part in parts:
        located = [(g, column) for g, group in enumerate(part.groups) for column in group.columns]
        places.append([located[leaf] for leaf in flatten(part.structure)])
    # Leaves that share a group in every part share one in the result.
    members: dict[tuple[int, ...], list[int]] = {}
    for leaf, place in enumerate(zip(*places, strict=True)):
        members.setdefault(tuple(group for group, _ in place), []).append(leaf)
    groups = []
    for key, leaves in members.items():
        columns = [_join_columns([place[leaf][1] for place in places]) for leaf in leaves]
        joined = _join_groups([part.groups[g] for part, g in zip(parts, key, strict=True)])
        groups.append(replace(joined, columns=tuple(columns)))
    order = [leaf for leaves in members.values() for leaf in leaves]
    numbers = iter(np.argsort(order).tolist())
    return Extents(tuple(groups), map_leaves(lambda _: next(numbers), first.structure))


def _check_unmixed(parts: Sequence[Extents]) -> None:
    if any(part.mixed is not None for part in parts):
        raise ValueError("a mixture's samples are not places that could be combined")


def _join_columns(columns: list[Column]) -> Column:
    first = columns[0]
    strided = _need_strides(columns)
    for other in columns[1:]:
        if replace(other.field, name=first.field.name) != first.field:
            raise ValueError(f"field {first.field.name!r} is {first.field} and {other.field}")
        if other.stored != first.stored:
            raise ValueError(f"field {first.field.name!r} is stored in different dtypes")
        if not strided and other.row_stride != first.row_stride:
            raise ValueError(f"field {first.field.name!r} has different row strides")
    sources = tuple(source for column in columns for source in column.sources)
    offsets = np.concatenate([column.offsets for column in columns])
    held = [column.bounds for column in columns if column.bounds is not None]
    bounds = (
        Bounds(
            tuple(source for part in held for source in part.sources),
            np.concatenate([part.offsets for part in held]),
            np.concatenate([part.totals for part in held]),
            np.concatenate([_ends(part) for part in held]),
        )
        if held
        else None
    )
    known = [column.sizes for column in columns if column.sizes is not None]
    sizes = np.concatenate(known) if len(known) == len(columns) else None
    if strided:
        strides = np.array(
            [c.shard_strides(shard) for c in columns for shard in range(len(c.sources))], np.int64
        )
        first = replace(first, row_stride=first.row_bytes, strides=strides)
    return replace(first, sources=sources, offsets=offsets, bounds=bounds, sizes=sizes)


def _ends(bounds: Bounds) -> Int64Array:
    return np.full((len(bounds.sources), 2), -1) if bounds.ends is None else bounds.ends


def _need_strides(columns: list[Column]) -> bool:
    """Returns True if the parts differ in their row stride, or rows are not contiguous."""
    first = columns[0]
    different = any(column.row_stride != first.row_stride for column in columns)
    if all(column.strides is None for column in columns) and not different:
        return False
    in_files = [c for c in columns if any(isinstance(s, FileSource) for s in c.sources)]
    if in_files and any(column.strides is not None for column in columns):
        raise ValueError(
            f"field {first.field.name!r} is not contiguous in memory in one part and lies in files "
            "in another: make the arrays contiguous"
        )
    return not in_files and first.bounds is None and first.stored is None


def _join_groups(groups: list[Group]) -> Group:
    shard_rows = np.concatenate([group.shard_rows for group in groups])
    index_map = None
    if any(group.index_map is not None for group in groups):
        maps, start = [], 0
        for group in groups:
            rows = int(group.shard_rows.sum())
            own = np.arange(rows) if group.index_map is None else group.index_map
            maps.append(own + start)
            start += rows
        index_map = np.concatenate(maps).astype(np.int64, copy=False)
    return Group(shard_rows, (), index_map)


def stack(parts: Any) -> Extents:
    """Samples that hold one sample of each part, in the containers of `parts`.

    Fields are named by their place in them.

    Args:
        parts: A structure whose leaves are `Extents` of equally many samples.

    Raises:
        ValueError: there is no part, the lengths differ, or one is mixed.
    """
    _check_unmixed(flatten(parts))
    groups: list[Group] = []
    order: list[tuple[int, int]] = []  # group and place in it, for each column as it is met
    structures: list[Any] = []
    for name, bare in zip(leaf_names(parts), flatten(parts), strict=True):
        part = renamed(bare, name)
        start = len(order)
        structures.append(renumber(part.structure, start))
        for group in part.groups:
            at = next((i for i, g in enumerate(groups) if _same_rows(g, group)), len(groups))
            if at == len(groups):
                groups.append(replace(group, columns=()))
            held = groups[at].columns
            order += [(at, len(held) + i) for i in range(len(group.columns))]
            groups[at] = replace(groups[at], columns=held + group.columns)
    starts = np.cumsum([0] + [len(group.columns) for group in groups])
    remaining = iter(structures)
    structure = map_leaves(lambda _: next(remaining), parts)
    numbered = map_leaves(lambda leaf: int(starts[order[leaf][0]]) + order[leaf][1], structure)
    return Extents(tuple(groups), numbered)


def _same_rows(a: Group, b: Group) -> bool:
    return a.index_map is b.index_map and np.array_equal(a.shard_rows, b.shard_rows)


def renamed(extents: Extents, prefix: str) -> Extents:
    """Returns the extents with fields named as members of `prefix`."""

    def rename(column: Column) -> Column:
        name = prefix if is_leaf(extents.structure) else f"{prefix}.{column.field.name}"
        return replace(column, field=replace(column.field, name=name))

    groups = [replace(g, columns=tuple(map(rename, g.columns))) for g in extents.groups]
    return replace(extents, groups=tuple(groups))
