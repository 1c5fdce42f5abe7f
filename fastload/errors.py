"""The exceptions fastload adds to Python's own."""


class FormatError(ValueError):
    """A file is not what it says it is.

    The message names the file, the field and, where there is one, the sample, and says what to do.

    Example:
        >>> import fastload
        >>> issubclass(fastload.FormatError, ValueError)
        True
    """


class StoppedError(RuntimeError):
    """An iterator was used after it was stopped, or in a process forked from its owner.

    Example:
        >>> import fastload
        >>> issubclass(fastload.StoppedError, RuntimeError)
        True
    """
