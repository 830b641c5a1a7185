"""Strict JSON: what goes into a task's JSON columns comes back equal from every database.

One thing no encoding can help: MySQL's own parser (not MariaDB's) may change the last digit of a float that needs 17
significant digits.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import AsyncIterable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from math import isfinite
from typing import Any, Final
from uuid import UUID

from django.db.models import Model
from django.utils.functional import Promise

from .errors import SerializationError

# Beyond 64 bits, databases turn integers into floats or refuse them.
MIN_INTEGER: Final = -(2**63)
MAX_INTEGER: Final = 2**63 - 1
# MySQL takes keys of up to 65,535 bytes, and a character takes up to four.
MAX_KEY_LENGTH: Final = 16_383  # characters

_SHOWN_KEY_LENGTH = 40  # characters
_SHOWN_PATH_LENGTH = 300  # characters

# The first type that fits says what to do.
_HINTS: tuple[tuple[tuple[type, ...], str], ...] = (
    ((Enum,), "use its .value"),
    ((bytes, bytearray, memoryview), "decode it, or convert it with base64.b64encode(...).decode()"),
    ((date, time), "convert it with .isoformat()"),
    ((timedelta,), "convert it with .total_seconds()"),
    ((Decimal, UUID, Promise, os.PathLike, complex), "convert it with str()"),
    ((Model,), "pass its primary key, .pk, and read the row where it is needed"),
    ((Mapping,), "convert it with dict()"),
    ((Coroutine,), "await it first"),
    ((AsyncIterable,), "collect what it yields into a list first"),
    ((Iterable,), "convert it with list()"),
)

_STRING_OR_LARGE_FLOAT = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|(-?\d)(?:\.(\d+))?e\+(\d+)')
_SURROGATE = re.compile("[\ud800-\udfff]")
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def max_depth_for(vendor: str, *, is_mariadb: bool = False) -> int:
    """Return how many levels of lists and dicts a JSON value may have in the databases of `vendor`."""
    if vendor == "mysql":
        # MariaDB before 12.1 takes 31. MySQL takes 100 and counts a scalar inside as a level.
        return 31 if is_mariadb else 99
    # SQLite takes 1,000 and PostgreSQL more. But up to Python 3.11 json shares the recursion limit, 1,000 by default,
    # with the frames it is called from.
    return 400


def normalize(value: Any, *, root: str = "payload", max_depth: int) -> Any:
    """
    Return a deep copy of `value` made of nothing but dict, list, str, int, float, bool and None.

    Tuples become lists, string and integer enums their values, instances of other subclasses of JSON's types plain
    ones. Nothing is consumed: iterators are refused.

    Raises `SerializationError`, which names the place below `root`, for anything that JSON cannot represent on every
    database, and for more than `max_depth` levels of lists and dicts.
    """
    # A recursive walk would end in RecursionError before max_depth has its say. Each list and dict is copied whole,
    # then what is not plain in it is replaced in the copy.
    holder = [value]
    copy: Any = holder
    items: Iterator[tuple[Any, Any]] = iter(enumerate(holder))
    outer: list[tuple[Any, Iterator[tuple[Any, Any]], Any, Any]] = []  # copy, items, key and original, level by level
    key: Any = None
    try:
        while True:
            for key, item in items:
                kind = type(item)
                if kind is str:
                    if item.isascii() and "\x00" not in item:
                        continue
                elif kind is int:
                    if MIN_INTEGER <= item <= MAX_INTEGER:
                        continue
                elif kind is float:
                    if isfinite(item):
                        continue
                elif kind is bool or item is None:
                    continue
                copy[key] = plain = _plain(item)
                if type(plain) is not dict and type(plain) is not list:
                    continue
                if len(outer) == max_depth:
                    raise _too_deep([level[3] for level in outer], item, max_depth)
                outer.append((copy, items, key, item))
                copy = plain
                items = iter(plain.items() if type(plain) is dict else enumerate(plain))
                break
            else:
                if not outer:
                    return holder[0]
                copy, items, _, _ = outer.pop()
    except _Refused as refused:
        keys = [*(level[2] for level in outer), key][1 : refused.depth]
        raise SerializationError(_path(root, keys), refused.problem) from None


class StrictJSONEncoder(json.JSONEncoder):
    """
    The encoder of the JSON columns: UTF-8 as it is, no NaN, and floats that are read back as floats.

    Of a number without a fraction, PostgreSQL's jsonb keeps no trace of an exponent: 1e+300 would come back as an
    integer of 301 digits. So large floats are written with as many digits as it takes to have a fraction. MySQL reads
    those well, but not numbers written out without an exponent.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "ensure_ascii": False, "allow_nan": False})

    def encode(self, o: Any) -> str:
        text = super().encode(o)
        return _STRING_OR_LARGE_FLOAT.sub(_with_fraction, text) if "e+" in text else text


#: Normalized values as text, as they are written to the database.
dumped = StrictJSONEncoder().encode


def dumped_size(value: Any) -> int:
    """Return the size of normalized `value` as it is written to the database, in bytes."""
    return len(dumped(value).encode()) if value is not None else len("null")


def unstorable(text: str) -> str | None:
    """Return what in `text` not every database can store, or None."""
    if "\x00" in text:
        return "a NUL character"
    return None if text.isascii() or not _SURROGATE.search(text) else "a lone surrogate"


def clean_text(text: str, limit: int | None = None) -> str:
    """
    Return `text` fit to be stored and shown: control characters and lone surrogates become visible escapes.

    A text of more than `limit` characters is cut in the middle, with a note of how many are missing.
    """
    if limit is None or len(text) <= limit:
        cleaned = _UNPRINTABLE.sub(_escape, text)
        if limit is None or len(cleaned) <= limit:
            return cleaned
    note = f"… [{len(text):,} characters cut] …"
    if limit < 4 * len(note):
        return "".join(_escaped_up_to(text[:limit], limit - 1)) + "…"
    room = limit - len(note)
    head = _escaped_up_to(text[: room // 2], room // 2)
    tail = _escaped_up_to(reversed(text[-(room - room // 2) :]), room - room // 2)[::-1]
    note = f"… [{len(text) - len(head) - len(tail):,} characters cut] …"
    return "".join([*head, note, *tail])


def type_name(kind: type) -> str:
    """Return the name of a class with its module, unless it is a builtin."""
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


class _Refused(Exception):
    """What is wrong at the place at hand, or at the one `depth` levels down from the root."""

    def __init__(self, problem: str, depth: int | None = None) -> None:
        self.problem = problem
        self.depth = depth
        super().__init__(problem)


def _plain(value: Any) -> Any:
    # isinstance() would ask a lazy object for the class of what it stands for, and so evaluate it.
    kind = type(value)
    if kind is list:
        return value.copy()
    if issubclass(kind, dict):
        return _plain_dict(value)
    if issubclass(kind, str):
        return _plain_text(value)
    if issubclass(kind, int):
        number = int.__int__(value)
        if not MIN_INTEGER <= number <= MAX_INTEGER:
            raise _Refused("an integer beyond 64 bits does not fit into every database; convert it with str()")
        return number
    if issubclass(kind, float) and not issubclass(kind, Enum):
        if not isfinite(value):
            raise _Refused(f"{float.__float__(value)} is not a JSON number; use None or a string in its place")
        return float.__float__(value)
    if issubclass(kind, (list, tuple)):
        return list(value)
    raise _Refused(f"{type_name(kind)} is not a JSON type; {_hint(kind)}")


def _plain_dict(value: dict[Any, Any]) -> dict[str, Any]:
    for key in value:
        if type(key) is not str or not key.isascii() or "\x00" in key or len(key) > MAX_KEY_LENGTH:
            break
    else:
        return value.copy() if type(value) is dict else dict(value.items())
    copy = {_plain_key(key): item for key, item in value.items()}
    if len(copy) < len(value):
        raise _Refused("two of its keys become the same string in JSON")
    return copy


def _plain_key(key: Any) -> str:
    kind = type(key)
    if not issubclass(kind, str):
        shown = f" {key!r}" if key is None or (kind in (int, float, bool) and abs(key) < 10**20) else ""
        raise _Refused(f"its key{shown} ({type_name(kind)}) is not a string; convert the keys with str()")
    text = str.__str__(key)
    found = unstorable(text)
    if found is not None:
        raise _Refused(f"its key {_shown(text)} has {found} in it, which cannot be stored")
    if len(text) > MAX_KEY_LENGTH:
        raise _Refused(f"its key {_shown(text)} has more than {MAX_KEY_LENGTH:,} characters")
    return text


def _plain_text(value: str) -> str:
    text = str.__str__(value)
    found = unstorable(text)
    if found is not None:
        raise _Refused(f"a string with {found} cannot be stored; remove it, or encode the data with base64")
    return text


def _hint(kind: type) -> str:
    for kinds, hint in _HINTS:
        if issubclass(kind, kinds):
            return hint
    if is_dataclass(kind):
        return "convert it with dataclasses.asdict()"
    return "convert it to dict, list, str, int, float, bool or None"


def _too_deep(above: list[Any], item: Any, max_depth: int) -> _Refused:
    seen: set[int] = set()
    for depth, container in enumerate([*above, item]):
        if id(container) in seen:
            return _Refused("it contains itself; JSON has no references", depth + 1)
        seen.add(id(container))
    return _Refused(f"it is nested deeper than the {max_depth} levels the database takes; flatten it")


def _path(root: str, keys: Sequence[str | int]) -> str:
    path = root + "".join(map(_step, keys))
    if len(path) > _SHOWN_PATH_LENGTH:
        return f"{path[: _SHOWN_PATH_LENGTH // 2]}…{path[-_SHOWN_PATH_LENGTH // 2 :]}"
    return path


def _step(key: str | int) -> str:
    if isinstance(key, int):
        return f"[{key}]"
    return f".{key}" if key.isidentifier() and len(key) <= _SHOWN_KEY_LENGTH else f"[{_shown(key)}]"


def _shown(key: str) -> str:
    cut = f"{key[:_SHOWN_KEY_LENGTH]}…" if len(key) > _SHOWN_KEY_LENGTH else key
    return clean_text(json.dumps(cut, ensure_ascii=False))


def _with_fraction(match: re.Match[str]) -> str:
    whole, fraction, exponent = match.groups(default="")
    return f"{whole}.{fraction.ljust(int(exponent) + 1, '0')}e+{exponent}" if whole else match[0]


def _escaped_up_to(characters: Iterable[str], room: int) -> list[str]:
    """As many of the characters, escaped where unprintable, as fit into `room`."""
    kept = []
    for character in characters:
        escaped = _UNPRINTABLE.sub(_escape, character)
        room -= len(escaped)
        if room < 0:
            break
        kept.append(escaped)
    return kept


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
