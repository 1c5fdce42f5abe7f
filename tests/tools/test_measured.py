"""Ranges of measured numbers, and how numbers are printed."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastload.tools.measured import Range, duration, mean_range, number

POSITIVE = st.floats(1e-6, 1e6)


@given(st.lists(POSITIVE, min_size=1, max_size=50))
def test_the_range_of_a_mean_holds_the_mean(values: list[float]) -> None:
    low, high = mean_range(values)
    mean = statistics.fmean(values)
    assert low <= mean * (1 + 1e-12)
    assert high >= mean * (1 - 1e-12)


def test_the_range_of_a_mean_holds_the_true_mean_in_most_cases() -> None:
    draw = random.Random(0)
    held = 0
    for _ in range(300):
        low, high = mean_range([draw.expovariate(1.0) for _ in range(40)])
        held += low <= 1 <= high
    assert 0.9 < held / 300 < 0.98


@given(POSITIVE, POSITIVE, POSITIVE, POSITIVE)
def test_a_quotient_of_ranges_holds_every_quotient(a: float, b: float, c: float, d: float) -> None:
    over, under = Range(*sorted((a, b))), Range(*sorted((c, d)))
    low, high = over.over(under)
    for x in over:
        for y in under:
            assert low * (1 - 1e-9) <= x / y <= high * (1 + 1e-9)


@given(st.floats(allow_nan=False, allow_infinity=False, width=32), st.integers(1, 4))
def test_a_number_is_printed_with_its_significant_digits(value: float, digits: int) -> None:
    printed = float(number(value, digits).replace(",", ""))
    assert math.isclose(printed, value, rel_tol=0.51 * 10.0 ** (1 - digits), abs_tol=1e-300)


@pytest.mark.parametrize(
    ("printed", "want"),
    [
        (number(math.nan), "not finite"),
        (number(1234567.0, 2), "1,200,000"),
        (number(0.999, 2), "1.0"),
        (number(1e15), "1e+15"),
        (Range(3.14159, 3.14160).text(), "3.1"),
        (Range(0.333, 0.5).percent(), "33 to 50 %"),
        (Range(0.0035, 0.0099).percent(), "0.4 to 1 %"),
        (Range(0.0, 1.0).percent(), "0 to 100 %"),
        (Range(0.00088, 0.0678).duration(), "0.88 to 68 ms"),
        (Range(0.0, 0.0).duration(), "0 s"),
        (duration(4e-9), "4.0 ns"),
        (duration(7200), "2.0 h"),
    ],
)
def test_numbers_have_units_and_few_digits(printed: str, want: str) -> None:
    assert printed == want
