from __future__ import annotations

import math
import re
from datetime import timedelta
from typing import Any

import pytest
from django.utils.safestring import mark_safe

from cairnq_django.arguments import MAX_SECONDS, fraction, integer, seconds, text


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, 0.0), (5, 5.0), (0.25, 0.25), (timedelta(minutes=2), 120.0), (timedelta(0), 0.0), (MAX_SECONDS, MAX_SECONDS)],
)
def test_a_duration_is_a_number_of_seconds_or_a_timedelta(value: Any, expected: float) -> None:
    result = seconds(value, "delay")
    assert (type(result), result) == (float, expected)


def test_a_duration_may_be_none_where_that_means_something() -> None:
    assert seconds(None, "max_run", allow_none=True) is None
    with pytest.raises(TypeError, match="delay must be a number of seconds or a timedelta, got NoneType"):
        seconds(None, "delay")


@pytest.mark.parametrize(
    ("value", "got"), [(True, r"bool \(True\)"), ("5", "str"), ([], "list"), (5j, "complex")], ids=repr
)
def test_a_duration_of_another_type_is_refused(value: Any, got: str) -> None:
    with pytest.raises(TypeError, match=f"^delay must be a number of seconds or a timedelta, got {got}$"):
        seconds(value, "delay")
    with pytest.raises(TypeError, match=f"^delay must be a number of seconds, a timedelta or None, got {got}$"):
        seconds(value, "delay", allow_none=True)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (-5, "delay must not be negative, got -5"),
        (-0.5, "delay must not be negative, got -0.5"),
        (timedelta(seconds=-1), "delay must not be negative, got -1.0"),
        (math.nan, "delay must be a finite number of seconds, got nan"),
        (math.inf, "delay must be a finite number of seconds, got inf"),
        (-math.inf, "delay must be a finite number of seconds, got -inf"),
        (1e300, "delay must be at most 3,153,600,000 seconds, got 1e+300"),
        (10**5000, "delay must be at most 3,153,600,000 seconds, got an integer of over 100 digits"),
        (timedelta.max, "delay must be at most 3,153,600,000 seconds, got 86400000000000.0"),
    ],
    ids=lambda value: str(value)[:30] if not isinstance(value, int) else "int",
)
def test_a_duration_out_of_range_is_refused(value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        seconds(value, "delay")


@pytest.mark.parametrize("value", [0, 0.0009, -1])
def test_a_duration_under_its_minimum_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match=f"^lease must be at least 0.001 seconds, got {value}$"):
        seconds(value, "lease", minimum=0.001)
    assert seconds(0.001, "lease", minimum=0.001) == 0.001


def test_an_integer_is_an_integer_within_its_range() -> None:
    assert integer(3, "priority", minimum=3, maximum=3) == 3
    assert integer(10**5000, "priority") == 10**5000


@pytest.mark.parametrize(
    ("value", "got"), [(True, r"bool \(True\)"), (1.0, r"float \(1.0\)"), ("1", "str"), (None, "NoneType")], ids=repr
)
def test_an_integer_of_another_type_is_refused(value: Any, got: str) -> None:
    with pytest.raises(TypeError, match=f"^priority must be an integer, got {got}$"):
        integer(value, "priority")


def test_an_integer_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^max_attempts must be at least 1, got 0$"):
        integer(0, "max_attempts", minimum=1)
    with pytest.raises(ValueError, match=r"^max_attempts must be at most 1,000, got an integer of over 100 digits$"):
        integer(10**5000, "max_attempts", maximum=1_000)


def test_a_fraction_is_a_number_from_0_to_1() -> None:
    assert [fraction(value, "value") for value in (0, 0.5, 1)] == [0.0, 0.5, 1.0]
    with pytest.raises(TypeError, match=r"^value must be a number from 0 to 1, got str$"):
        fraction("50%", "value")
    for value in (-0.1, 1.1, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"^value must be from 0 to 1, got {value}$"):
            fraction(value, "value")


def test_a_text_is_a_plain_string_that_fits() -> None:
    result = text(mark_safe("größe"), "queue", maximum=5)
    assert (type(result), result) == (str, "größe")
    assert text("x" * 1_000, "queue") == "x" * 1_000


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("", "queue must not be empty"),
        (" ", "queue must not be blank, got ' '"),
        ("\t\n\u00a0\u3000", r"queue must not be blank, got '\t\n\xa0\u3000'"),
        ("x" * 11, "queue must have at most 10 characters, got 11: 'xxxxxxxxxxx'…"),
        ("a\x00", r"queue must not hold a NUL character, got 'a\x00'"),
        ("\ud800", r"queue must not hold a lone surrogate, got '\ud800'"),
    ],
    ids=ascii,
)
def test_a_text_that_does_not_fit_is_refused(value: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        text(value, "queue", maximum=10)


def test_a_text_of_another_type_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^queue must be a string, got int \(7\)$"):
        text(7, "queue", maximum=10)
