"""Errors travel from worker processes to the process that packs."""

from __future__ import annotations

import pickle

import pytest

from fastload.packing.jobs.failures import Failure


class TwoPartsError(Exception):
    """Can be pickled, but not be unpickled: it is made of two arguments and has one."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(f"{what} at {where}")


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (KeyError("x"), KeyError, "'x'"),
        (TwoPartsError("no ink", "page 3"), RuntimeError, "TwoPartsError: no ink at page 3"),
    ],
)
def test_an_error_arrives_with_its_traceback_whatever_pickle_makes_of_it(
    error: Exception, kind: type[Exception], text: str
) -> None:
    try:
        raise error
    except Exception as raised:
        failure = Failure.of(raised)
    with pytest.raises(kind, match=text) as caught:
        pickle.loads(pickle.dumps(failure)).raise_here()
    assert "in test_an_error_arrives_with_its_traceback" in str(caught.value.__cause__)
