"""Transports the error of a job from one process to another."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass
from typing import NoReturn


class RemoteTraceback(Exception):
    """Traceback of an error in another process."""


@dataclass(frozen=True)
class Failure:
    """Error of a job, in a form that can be pickled.

    Attributes:
        error: The error that was raised; a RuntimeError with its name and text if it cannot be
            pickled.
        text: Traceback of the error.

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
        """Returns the failure for an error; called while the error is handled."""
        text = traceback.format_exc()
        try:
            pickle.loads(pickle.dumps(error))
        except Exception:  # for example an exception whose constructor takes other arguments
            return cls(RuntimeError(f"{type(error).__name__}: {error}"), text)
        return cls(error, text)

    def raise_here(self) -> NoReturn:
        """Raises the error, with the traceback of its process as the cause."""
        raise self.error from RemoteTraceback(f"\n{self.text}")
