"""Checks of what callers and settings pass in, with errors that name the argument."""

from __future__ import annotations

from datetime import timedelta
from enum import Enum
from math import isfinite
from typing import Any, Final, Literal, TypeVar, overload

from .serialization import unstorable

E = TypeVar("E", bound=Enum)

#: A duration, as callers and settings give it.
Seconds = float | timedelta

#: Durations end where threads can no longer wait for them, nor databases add them to a date.
MAX_SECONDS: Final = 100 * 365 * 86_400


@overload
def seconds(value: Any, name: str, *, minimum: float = 0, allow_none: Literal[False] = False) -> float: ...


@overload
def seconds(value: Any, name: str, *, minimum: float = 0, allow_none: bool) -> float | None: ...


def seconds(value: Any, name: str, *, minimum: float = 0, allow_none: bool = False) -> float | None:
    """
    Return a duration in seconds, given as a number of seconds or as a `timedelta`.

    Raises `TypeError` for anything else, `ValueError` for NaN, infinity and durations outside of `minimum` seconds to
    100 years; both name the argument.
    """
    if value is None and allow_none:
        return None
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if not _is_number(number):
        expected = "a number of seconds, a timedelta or None" if allow_none else "a number of seconds or a timedelta"
        raise _wrong_type(name, expected, value)
    if isinstance(number, float) and not isfinite(number):
        raise ValueError(f"{name} must be a finite number of seconds, got {number}")
    if number < 0 and minimum == 0:
        raise ValueError(f"{name} must not be negative, got {_shown(number)}")
    _check_range(number, name, minimum, MAX_SECONDS, " seconds")
    return float(number)


def fraction(value: Any, name: str) -> float:
    """Return a number from 0 to 1. Raises `TypeError` for no number, `ValueError` for another, naming the argument."""
    if not _is_number(value):
        raise _wrong_type(name, "a number from 0 to 1", value)
    if not 0 <= value <= 1:
        raise ValueError(f"{name} must be from 0 to 1, got {_shown(value)}")
    return float(value)


def integer(
    value: Any, name: str, *, minimum: int | None = None, maximum: int | None = None, expected: str = "an integer"
) -> int:
    """Return an integer. Raises `TypeError` for anything else, `ValueError` out of range, both naming the argument."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong_type(name, expected, value)
    _check_range(value, name, minimum, maximum)
    return int(value)


def choice(value: Any, name: str, choices: type[E]) -> E:
    """Return one of `choices`. Raises `ValueError` for anything else, naming the argument."""
    try:
        return choices(value)
    except ValueError:
        known = ", ".join(repr(each.value) for each in choices)
        raise ValueError(f"{name} must be one of {known}, got {value!r}") from None


def text(value: Any, name: str, *, maximum: int | None = None) -> str:
    """
    Return a string of 1 to `maximum` characters, not all of them blank, that every database can store.

    Raises `TypeError` for anything else than a string, `ValueError` for one that is empty, blank, longer, or holds NUL
    characters or lone surrogates; both name the argument.
    """
    if not isinstance(value, str):
        raise _wrong_type(name, "a string", value)
    plain = str.__str__(value)
    if not plain:
        raise ValueError(f"{name} must not be empty")
    if plain.isspace():
        raise ValueError(f"{name} must not be blank, got {plain[:40]!r}")
    if maximum is not None and len(plain) > maximum:
        raise ValueError(f"{name} must have at most {maximum} characters, got {len(plain)}: {plain[:40]!r}…")
    if (found := unstorable(plain)) is not None:
        raise ValueError(f"{name} must not hold {found}, got {plain!a}")
    return plain


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _wrong_type(name: str, expected: str, value: Any) -> TypeError:
    shown = f" ({_shown(value)})" if isinstance(value, (int, float)) else ""
    return TypeError(f"{name} must be {expected}, got {type(value).__name__}{shown}")


def _check_range(number: float, name: str, minimum: float | None, maximum: float | None, unit: str = "") -> None:
    if minimum is not None and number < minimum:
        raise ValueError(f"{name} must be at least {minimum:,}{unit}, got {_shown(number)}")
    if maximum is not None and number > maximum:
        raise ValueError(f"{name} must be at most {maximum:,}{unit}, got {_shown(number)}")


def _shown(number: Any) -> str:
    # Python refuses to write out integers of more than 4,300 digits.
    return str(number) if isinstance(number, float) or abs(number) < 10**100 else "an integer of over 100 digits"
