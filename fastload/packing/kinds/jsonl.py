"""JSON Lines: one sample per line, nested freely, or the tokens of its text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastload.formats.columns import Int64Array
from fastload.formats.files import AnyPath
from fastload.packing.inputs.compressed import blocks, byte_of, or_compressed, text_files
from fastload.packing.inputs.images import BadRecordError
from fastload.packing.inputs.inventory import Inventory, Names
from fastload.packing.inputs.json_values import parse_json
from fastload.packing.inputs.kind import DTYPE, DTYPES, ENCODING, RAGGED, Kind, Option
from fastload.packing.inputs.records import Decoder, FileRecords, RecordsSource, open_records
from fastload.packing.inputs.text_encoding import Utf8Check, encoding_named
from fastload.packing.inputs.tokenizer import Tokenizer, open_tokenizer
from fastload.packing.inputs.wanted import ALL, Wanted

_SUFFIXES = (".jsonl", ".ndjson")  # also with .gz or .zst
_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class JsonDecoder(Decoder):
    """Parses a line; `wanted` are the fields that are read."""

    wanted: Wanted = ALL

    def decode(self, content: bytes) -> Any:
        """Returns the value of a line."""
        return parse_json(content, self.wanted)


@dataclass(frozen=True)
class TokensDecoder(Decoder):
    """Parses a line and returns the tokens of its text.

    Attributes:
        field: The key of the text.
        tokenizer: Makes tokens of it.
    """

    field: str
    tokenizer: Tokenizer

    def decode(self, content: bytes) -> Any:
        """`{"tokens": [...]}`, of the tokenizer's dtype; None where the text is missing."""
        value = parse_json(content)
        text = value.get(self.field) if isinstance(value, dict) else value
        if text is None:
            return {"tokens": None}
        if not isinstance(text, str) or not isinstance(value, dict):
            raise BadRecordError(f"it has no text {self.field!r}")
        return {"tokens": self.tokenizer.encode(text)}


def open_jsonl(
    inventory: Inventory,
    *,
    tokenizer: AnyPath | None = None,
    text_field: str = "text",
    eos: str | None = None,
    dtype: Any = None,
    dtypes: Mapping[str, Any] | None = None,
    ragged: Sequence[str] = (),
    encoding: str | None = None,
    strict: bool = False,
    wanted: Wanted = ALL,
) -> RecordsSource:
    """Opens a file, or all `.jsonl` and `.ndjson` files below a folder in natural order.

    Compressed files are detected from the suffixes `.gz` and `.zst`.

    Args:
        inventory: The file or folder.
        tokenizer: Samples are the tokens of a text, instead of the values of the lines.
        text_field: The key of that text.
        eos: The token that ends each text.
        dtype: Dtype of the tokens; None: the narrowest unsigned dtype that holds the vocabulary.
        dtypes: Dtypes of numbers, by the names of fields; others are int64, float64 and bool.
        ragged: Fields whose lists vary in length, though the 64 lines checked have one length.
        encoding: Encoding of the text; None is UTF-8.
        strict: A line that cannot be parsed is an error.
        wanted: The fields that are read.

    Raises:
        FormatError: lines differ, or none can be read.
        ValueError: options of tokens without a tokenizer, or a dtype too narrow for it.
        ImportError: the package of the tokenizer, or of Zstandard, is not installed.
    """
    paths = text_files(inventory)
    encoding = encoding_named(encoding)
    indexed = [_lines(file, encoding) for file in paths]
    places = [(offsets, sizes) for offsets, sizes, _ in indexed]
    decoder: Decoder = JsonDecoder(wanted)
    shaping: dict[str, Any] = {} if encoding is None else {"encoding": encoding}
    if tokenizer is not None:
        if dtypes:
            raise ValueError("dtypes has no meaning for tokens; dtype is theirs")
        made = open_tokenizer(tokenizer, eos=eos, dtype=dtype)
        decoder = TokensDecoder(text_field, made)
        shaping |= {"tokenizer": made.describe(), "text_field": text_field}
    elif dtype is not None or eos is not None:
        raise ValueError("dtype and eos are of tokens: a --tokenizer (tokenizer=) is needed")
    lines = [numbers for _, _, numbers in indexed]
    records = FileRecords.of(inventory.root, paths, places, decoder, "line", lines, encoding)
    ragged = ("tokens",) if tokenizer is not None else ragged
    return open_records(
        "jsonl", records, strict=strict, dtypes=dtypes, ragged=ragged, shaping=shaping
    )


def _lines(path: str, encoding: str | None) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Returns start offsets, sizes and numbers (from 1) of the lines that are not blank."""
    ends, lasts, base, last = [], [], 0, ord("\n")
    check = Utf8Check(lambda byte: f"{path}: {byte_of(path, byte, encoding)}")
    for block in blocks(path, _BLOCK_BYTES, 0, encoding):
        check.add(block)
        codes = np.frombuffer(block, np.uint8)
        found = np.flatnonzero(codes == ord("\n"))
        ends.append(found + base)
        lasts.append(np.where(found, codes[found - 1], last))
        base, last = base + len(codes), int(codes[-1])
    check.end()
    if last != ord("\n"):
        ends.append(np.array([base]))
        lasts.append(np.array([last]))
    stops = np.concatenate([np.zeros(0, np.int64), *ends])
    starts = np.concatenate([[0], stops[:-1] + 1]).astype(np.int64)[: len(stops)]
    sizes = stops - starts
    spaces = np.isin(np.concatenate([np.zeros(0, np.uint8), *lasts]), list(b" \t\r\v\f"))
    kept = np.flatnonzero((sizes > 1) | ((sizes == 1) & ~spaces))
    return starts[kept], sizes[kept], kept + 1


KIND = Kind(
    "jsonl",
    "a .jsonl file (.gz, .zst) or a folder of them: the values of lines, or a text's tokens",
    open_jsonl,
    lambda path: path.holds(*or_compressed(*_SUFFIXES)),
    (
        DTYPES,
        RAGGED,
        ENCODING,
        Option("tokenizer", "tokenize texts with this tokenizer.json or tiktoken:NAME"),
        Option("text_field", "key of the text to tokenize (default: text)"),
        Option("eos", "token to append to each text, such as '<|endoftext|>'"),
        DTYPE,
    ),
    ("tokenizers", "tiktoken"),
    "tokenizers",
    Names(or_compressed(*_SUFFIXES)),
)
