"""fastload: a data loading engine for PyTorch.

Pack a dataset once, or read files where they lie, and replace ``DataLoader`` by ``FastLoader``::

    fastload pack imagenet/train data/train

    loader = FastLoader("data/train", batch_size=256, shuffle=True, seed=0)

The public names are those of this package, ``fastload.packing.connected`` and
``fastload.integrations``. All other modules may change without notice.

Importing this package does not import torch; using :class:`FastLoader` does.
"""

import pkgutil
import re
from importlib import import_module
from typing import Any

try:
    from fastload._core import __version__ as __version__
except ImportError as error:
    if error.name != "fastload._core":
        raise
    raise ImportError(
        f"{__path__[0]} is the source of fastload, not the installed package: it hides that one "
        "while Python runs in this folder; change to another folder, or install with `pip install "
        "-e .` (CONTRIBUTING.md)",
        name="fastload",
    ) from None

# The module of each public name; the module is imported when the name is first used. The stub next
# to this file lists the names, so that type checkers and this module agree.
_STUB = pkgutil.get_data(__name__, "__init__.pyi")
assert _STUB is not None
_MODULES = {
    name: module
    for module, name in re.findall(r"^from (\S+) import (\w+) as", _STUB.decode(), re.MULTILINE)
}

# `open` is left out because a star import would replace Python's own.
__all__ = sorted(_MODULES.keys() - {"open"})  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'fastload' has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(_MODULES)
