"""Decodes named contents: images, sounds, text, numbers, JSON and arrays, otherwise bytes."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import Any

import numpy as np

from fastload.formats.npy import MAGIC
from fastload.packing.inputs import images
from fastload.packing.inputs.images import BadRecordError
from fastload.packing.inputs.json_values import parse_json
from fastload.packing.inputs.leaves import Leaf
from fastload.packing.inputs.wanted import ALL, Wanted

_TEXTS = frozenset(["txt", "text", "transcript"])
_NUMBERS = frozenset(["cls", "cls2", "class", "count", "index", "inx", "id"])
_JSON = frozenset(["json", "jsn"])
_SOUNDS = frozenset(["flac", "wav", "mp3", "ogg"])


@dataclass(frozen=True)
class Contents:
    """Decoder of named contents, such as the members of a tar file.

    Attributes:
        size: Size that images are resized to.
        encoded: Images keep their encoded bytes.
        wanted: Fields to read.
    """

    size: images.Size | None = None
    encoded: bool = False
    wanted: Wanted = ALL

    def value(self, name: str, content: bytes) -> Any:
        """Returns the decoded content; the suffix of its lower-case name selects the decoder.

        Raises:
            BadRecordError: the content does not match the suffix.
        """
        suffix = name.rpartition(".")[2]
        if f".{suffix}" in images.SUFFIXES:
            if self.encoded:
                images.check_image(content)
                return Leaf(content, "uint8", "image")
            return images.decode(content, self.size)
        try:
            if suffix in _TEXTS:
                return content.decode("utf-8")
            if suffix in _NUMBERS:
                return int(content)
            if suffix in _JSON:
                return parse_json(content, self.wanted, name)
            if suffix == "npy":
                file = io.BytesIO(content)
                array = np.load(file, allow_pickle=False)
                if content.startswith(MAGIC, file.tell()):
                    raise BadRecordError(f".{suffix}: there is a second array after the first")
                return array
        except BadRecordError:
            raise
        except (ValueError, EOFError, OSError) as error:
            raise BadRecordError(f".{suffix}: {error}") from error
        return Leaf(content, "uint8", "audio" if suffix in _SOUNDS else "bytes")
