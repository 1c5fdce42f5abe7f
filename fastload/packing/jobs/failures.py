"""Carries the error of a job from one process to another."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass
from typing import NoReturn


class RemoteTraceback(Exception):
    """Shows where in the other process an error arose."""


@dataclass(frozen=True)
class Failure:
    """What a job raised, in a form that can travel.

    Attributes:
        error: As it was raised; a RuntimeError with its name and text if it cannot be pickled.
        text: Its traceback.

    Example:
        >>> try:
        ...     raise KeyError("x")
        ... except KeyError as error:
        ...     failure = Failure.of(error)
        >>> failure.error
        KeyError('x')
    """

    error: Exception
    text: str

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """The failure that an error is; called while it is handled."""
        text = traceback.format_exc()
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # an exception with a constructor of its own
            return cls(RuntimeError(f"{type(error).__name__}: {error}"), text)
        return cls(error, text)

    def raise_here(self) -> NoReturn:
        """Raises the error, with the traceback of its process as the cause."""
        raise self.error from RemoteTraceback(f"\n{self.text}")
