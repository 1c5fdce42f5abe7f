"""A GPU that reads PTX: slowly, one thread after the other, and only what our kernels say."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

import numpy as np

MEMORY, PARAMETERS = 1 << 40, 1 << 50  # where these two address spaces begin
_WIDTHS = {"pred": 1, "8": 8, "16": 16, "32": 32, "64": 64}
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    name: getattr(operator, name) for name in ("lt", "gt", "ge", "eq", "ne")
}
_INTEGERS: dict[str, Callable[..., int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "and": operator.and_,
    "or": operator.or_,
    "min": min,
    "max": max,
    "div": operator.floordiv,
    "mul.lo": operator.mul,
    "mul.wide": operator.mul,
    "mad.lo": lambda a, b, c: a * b + c,
    "shl": lambda a, n: a << min(n, 64),
    "shr": lambda a, n: a >> min(n, 64),
    "not": operator.invert,
}
_FLOATS: dict[str, Callable[[Any, Any], Any]] = {
    "mul.rn": np.multiply,
    "sub.rn": np.subtract,
    "div.rn": np.divide,
}


class Kernel:
    """One kernel of a text.

    Args:
        text: PTX.
        name: Of the kernel.
    """

    def __init__(self, text: str, name: str) -> None:
        start = text.index(f".visible .entry {name}(")
        body = text[text.index("{", start) + 1 : text.index("\n}", start)]
        self._steps: list[tuple[str, str, list[str]]] = []  # predicate, instruction, operands
        self._labels: dict[str, int] = {}
        for line in map(str.strip, body.splitlines()):
            if line.endswith(":"):
                self._labels[line[:-1]] = len(self._steps)
            elif line and not line.startswith("."):
                found = re.match(r"(?:@(!?%p\d+)\s+)?([a-z0-9_.]+)\s*(.*);", line)
                assert found, line
                operands = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^\s,]+", found[3])
                self._steps.append((found[1] or "", found[2], operands))

    def run(self, parameters: bytes, memory: bytearray, special: dict[str, int]) -> None:
        """Runs one thread.

        Args:
            parameters: The kernel's argument.
            memory: What lies at `MEMORY`; changed.
            special: `%tid.x` and the like.
        """
        thread = _Thread(parameters, memory, dict(special))
        at = 0
        while True:
            predicate, name, operands = self._steps[at]
            at += 1
            if predicate and thread.registers[predicate.lstrip("!")] == (predicate[0] == "!"):
                continue
            if name == "ret":
                return
            if name.startswith("bra"):
                at = self._labels[operands[0]]
            else:
                thread.step(name, operands)


class _Thread:
    def __init__(self, parameters: bytes, memory: bytearray, registers: dict[str, int]) -> None:
        self._spaces = {"global": (memory, MEMORY), "param": (parameters, PARAMETERS)}
        self.registers = registers  # all of them as integers without a sign

    def step(self, name: str, operands: list[str]) -> None:
        parts = name.split(".")
        kind, width = parts[-1][0], _WIDTHS[parts[-1].lstrip("usbf")]
        if parts[0] in ("ld", "st"):
            self._move(parts[0], parts[1], width // 8, operands)
        else:
            self.registers[operands[0]] = self._value(parts, kind, width, operands[1:])

    def _value(self, parts: list[str], kind: str, width: int, sources: list[str]) -> int:
        first = parts[0]
        if first == "selp":
            return self._read(sources[0 if self.registers[sources[2]] else 1], width)
        if first == "cvt":
            value = self._read(sources[0], width, kind == "s")
            if parts[1] != "rn":
                return value % (1 << _WIDTHS[parts[1].lstrip("us")])
            return int(np.float32(value).view(np.uint32))
        if first in ("mov", "cvta"):
            return self._read(sources[0], width)
        if first == "setp":
            return _COMPARE[parts[1]](*(self._read(s, width, kind == "s") for s in sources))
        if first == "prmt":
            low, high, which = (self._read(s, 32) for s in sources)
            chosen = (low | high << 32).to_bytes(8, "little")
            return int.from_bytes(bytes(chosen[which >> 4 * i & 7] for i in range(4)), "little")
        values = [self._read(s, width, kind == "s") for s in sources]
        operation = ".".join(parts[:-1])
        if kind == "f":
            a, b = (np.uint32(value).view(np.float32) for value in values)
            return int(_FLOATS[operation](a, b).view(np.uint32))
        wide = 2 if operation == "mul.wide" else 1
        return _INTEGERS[operation](*values) % (1 << width * wide)

    def _read(self, source: str, width: int, signed: bool = False) -> int:
        if source in self.registers:
            value = self.registers[source]
        elif source.startswith("0f"):
            value = int(source[2:], 16)
        else:
            value = PARAMETERS if source.endswith("_param_0") else int(source)
        value %= 1 << width
        return value - (1 << width) if signed and value >> width - 1 else value

    def _move(self, verb: str, space: str, size: int, operands: list[str]) -> None:
        place, other = operands if verb == "st" else operands[::-1]
        base, _, offset = place.strip("[]").partition("+")
        content, begin = self._spaces[space]
        at = self._read(base, 64) + int(offset or 0) - begin
        names = other.strip("{}").replace(",", " ").split()
        for name in names:
            assert 0 <= at <= len(content) - size, f"{verb} of {size} bytes at {at}"
            assert at % size == 0
            if verb == "st":
                assert isinstance(content, bytearray)
                value = self._read(name, 8 * size)
                content[at : at + size] = value.to_bytes(size, "little")
            else:
                self.registers[name] = int.from_bytes(content[at : at + size], "little")
            at += size
