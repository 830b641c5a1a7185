from __future__ import annotations

import json
import math
import random
import re
import struct
import tracemalloc
from collections import OrderedDict, UserDict, defaultdict, namedtuple
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from datetime import time as time_of_day
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any
from uuid import UUID

import pytest
from django.db.models import IntegerChoices, TextChoices
from django.utils.functional import SimpleLazyObject
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy

from cairnq_django.errors import SerializationError
from cairnq_django.models import Task
from cairnq_django.serialization import (
    MAX_INTEGER,
    MAX_KEY_LENGTH,
    MIN_INTEGER,
    StrictJSONEncoder,
    clean_text,
    dumped_size,
    max_depth_for,
    normalize,
    type_name,
)

Point = namedtuple("Point", "x y")


class Color(TextChoices):
    RED = "red", "Red"


class Size(IntegerChoices):
    BIG = 3, "Big"


class Mixed(str, Enum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


class Ratio(float, Enum):
    HALF = 0.5


class Plain(Enum):
    A = "a"


class Text(str):
    pass


class Loner(str):
    """A string that equals none but itself."""

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


class Number(int):
    def __int__(self) -> int:
        return 0


class Real(float):
    pass


@dataclass
class Item:
    price: int = 1


def nested(levels: int, *, inside: Any = "leaf", dicts: bool = False) -> Any:
    for _ in range(levels):
        inside = {"a": inside} if dicts else [inside]
    return inside


def refusal(value: Any, *, max_depth: int = 100) -> SerializationError:
    with pytest.raises(SerializationError) as raised:
        normalize(value, max_depth=max_depth)
    assert str(raised.value).startswith(f"{raised.value.path}: ")
    return raised.value


def is_plain(value: Any) -> bool:
    if type(value) is dict:
        return all(type(key) is str and is_plain(item) for key, item in value.items())
    if type(value) is list:
        return all(map(is_plain, value))
    return value is None or type(value) in (str, int, float, bool)


class TestNormalize:
    @pytest.mark.parametrize(
        "value",
        [
            None,
            True,
            0,
            MIN_INTEGER,
            MAX_INTEGER,
            1.5,
            -0.0,
            5e-324,
            1.7976931348623157e308,
            "",
            "Grüße, 世界, 🚀 \n\t\x01\x7f\u2028\ufffe\uffff\U0010ffff",
            [],
            {},
            {"": "", "größe": [1, [2, {"x": None}]], "b": [True, False]},
            {"k" * MAX_KEY_LENGTH: 1},
        ],
        ids=lambda value: ascii(value)[:30],
    )
    def test_leaves_json_as_it_is(self, value: Any) -> None:
        plain = normalize(value, max_depth=10)
        assert plain == value
        assert is_plain(plain)

    @pytest.mark.parametrize(
        ("value", "plain"),
        [
            ((1, (2,)), [1, [2]]),
            (Point(1, 2), [1, 2]),
            (Color.RED, "red"),
            (Mixed.RED, "red"),
            (Size.BIG, 3),
            (Level.LOW, 1),
            (mark_safe("<b>"), "<b>"),
            (Text("größe"), "größe"),
            (Number(7), 7),
            (Real(0.5), 0.5),
            (OrderedDict(a=(1,)), {"a": [1]}),
            (defaultdict(list, a=[1]), {"a": [1]}),
            ({mark_safe("a"): 1, Color.RED: 2, Mixed.RED.value: 3}, {"a": 1, "red": 3}),
        ],
        ids=repr,
    )
    def test_turns_what_stands_for_json_into_plain_json(self, value: Any, plain: Any) -> None:
        for wrapped, expected in [(value, plain), ([value], [plain]), ({"k": value}, {"k": plain})]:
            result = normalize(wrapped, max_depth=10)
            assert result == expected
            assert is_plain(result)

    def test_copies_deeply_and_leaves_the_original_alone(self) -> None:
        original = {"a": [{"b": (1, 2)}], "c": Color.RED}
        copy = normalize(original, max_depth=10)
        copy["a"][0]["b"].append(3)
        copy["a"].append(4)
        copy["d"] = 5
        assert original == {"a": [{"b": (1, 2)}], "c": Color.RED}
        assert original["c"] is Color.RED

    def test_keeps_the_order_of_keys(self) -> None:
        value = {"z": 1, mark_safe("a"): [], "m": {}}
        assert list(normalize(value, max_depth=10)) == ["z", "a", "m"]

    def test_copies_what_is_shared_once_for_each_place(self) -> None:
        shared: list[int] = []
        first, second = normalize([shared, shared], max_depth=10)
        assert first is not second

    @pytest.mark.parametrize(
        ("value", "hint"),
        [
            (math.nan, "nan is not a JSON number"),
            (math.inf, "inf is not a JSON number"),
            (-math.inf, "-inf is not a JSON number"),
            (Real("nan"), "nan is not a JSON number"),
            (MAX_INTEGER + 1, "64 bits"),
            (MIN_INTEGER - 1, "64 bits"),
            (Number(10**5000), "64 bits"),
            (b"x", "bytes is not a JSON type; decode it"),
            (bytearray(b"x"), "bytearray is not a JSON type; decode it"),
            ({1, 2}, "set is not a JSON type; convert it with list()"),
            (frozenset({1}), "frozenset is not a JSON type; convert it with list()"),
            (date(2024, 1, 2), "datetime.date is not a JSON type; convert it with .isoformat()"),
            (datetime(2024, 1, 2), "datetime.datetime is not a JSON type; convert it with .isoformat()"),  # noqa: DTZ001
            (time_of_day(1), "datetime.time is not a JSON type; convert it with .isoformat()"),
            (timedelta(1), "datetime.timedelta is not a JSON type; convert it with .total_seconds()"),
            (Decimal("1.5"), "decimal.Decimal is not a JSON type; convert it with str()"),
            (UUID(int=1), "uuid.UUID is not a JSON type; convert it with str()"),
            (PurePosixPath("/"), "convert it with str()"),
            (1j, "complex is not a JSON type; convert it with str()"),
            (gettext_lazy("hello"), "convert it with str()"),
            (Task(), "cairnq_django.models.Task is not a JSON type; pass its primary key, .pk"),
            (Ratio.HALF, "use its .value"),
            (Plain.A, "use its .value"),
            (UserDict(a=1), "convert it with dict()"),
            (MappingProxyType({}), "convert it with dict()"),
            (range(3), "range is not a JSON type; convert it with list()"),
            ({}.values(), "convert it with list()"),
            (Item(), "convert it with dataclasses.asdict()"),
            (object(), "object is not a JSON type; convert it to dict, list"),
            (len, "builtin_function_or_method is not a JSON type"),
            ("a\x00b", "a NUL character"),
            ("a\ud800", "a lone surrogate"),
            (Text("\udfff"), "a lone surrogate"),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_refuses_what_some_database_would_refuse_or_change(self, value: Any, hint: str) -> None:
        for wrapped, path in [
            (value, "payload"),
            ([1, value], "payload[1]"),
            ((value,), "payload[0]"),
            ({"items": [0, {"price": value}]}, "payload.items[1].price"),
        ]:
            error = refusal(wrapped)
            assert error.path == path
            assert hint in str(error)
            assert len(str(error)) < 200

    @pytest.mark.parametrize(
        ("key", "problem"),
        [
            (7, "its key 7 (int) is not a string; convert the keys with str()"),
            (10**5000, "its key (int) is not a string"),
            (None, "its key None (NoneType) is not a string"),
            (True, "its key True (bool) is not a string"),
            (1.5, "its key 1.5 (float) is not a string"),
            ((1, 2), "its key (tuple) is not a string"),
            (UUID(int=1), "its key (uuid.UUID) is not a string"),
            ("a\x00", r'its key "a\u0000" has a NUL character in it'),
            ("a\ud800", r'its key "a\ud800" has a lone surrogate in it'),
            ("k" * (MAX_KEY_LENGTH + 1), f'its key "{"k" * 40}…" has more than 16,383 characters'),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_refuses_keys_that_are_no_storable_strings(self, key: Any, problem: str) -> None:
        error = refusal({"orders": [{"fine": 1, key: 2}]})
        assert error.path == "payload.orders[0]"
        assert problem in str(error)

    def test_refuses_keys_that_become_the_same_string(self) -> None:
        assert "two of its keys" in str(refusal({"red": 1, Loner("red"): 2}))

    @pytest.mark.parametrize(
        ("value", "path"),
        [
            ({"a b": {1}}, 'payload["a b"]'),
            ({"größe": {1}}, "payload.größe"),
            ({"": {1}}, 'payload[""]'),
            ({'"quoted"': {1}}, r'payload["\"quoted\""]'),
            ({"1": {1}}, 'payload["1"]'),
            ({"a\nb\x7f": {1}}, r'payload["a\nb\x7f"]'),
            ({"k" * 41: {1}}, f'payload["{"k" * 40}…"]'),
            ([[], [[], {1}]], "payload[1][1]"),
        ],
    )
    def test_names_the_place(self, value: Any, path: str) -> None:
        assert refusal(value).path == path

    def test_names_the_argument_it_was_asked_about(self) -> None:
        with pytest.raises(SerializationError, match=r"^metadata\.user: "):
            normalize({"user": b""}, root="metadata", max_depth=10)

    def test_reports_the_first_problem_in_reading_order(self) -> None:
        assert refusal({"a": [[b""]], "b": b""}).path == "payload.a[0][0]"

    def test_does_not_consume_iterators(self) -> None:
        numbers = iter([1, 2])
        generator = (number for number in [3])
        for iterator in (numbers, generator):
            assert "convert it with list()" in str(refusal([iterator]))
        assert (list(numbers), list(generator)) == ([1, 2], [3])

    def test_tells_to_await_a_coroutine(self) -> None:
        async def work() -> None: ...

        coroutine = work()
        assert "coroutine is not a JSON type; await it first" in str(refusal(coroutine))
        coroutine.close()

    def test_tells_to_collect_an_async_generator(self) -> None:
        async def work() -> AsyncIterator[int]:
            yield 1

        assert "collect what it yields" in str(refusal(work()))

    def test_does_not_evaluate_lazy_objects(self) -> None:
        evaluated = []
        assert "SimpleLazyObject" in str(refusal(SimpleLazyObject(lambda: evaluated.append(1) or "text")))
        assert not evaluated

    @pytest.mark.parametrize("dicts", [False, True])
    def test_takes_as_many_levels_as_allowed_and_not_one_more(self, dicts: bool) -> None:
        assert normalize(nested(31, dicts=dicts), max_depth=31) == nested(31, dicts=dicts)
        assert "deeper than the 31 levels" in str(refusal(nested(32, dicts=dicts), max_depth=31))
        assert "deeper than the 31 levels" in str(refusal(nested(32, inside=(), dicts=dicts), max_depth=31))

    def test_a_scalar_has_no_levels(self) -> None:
        assert normalize("x", max_depth=0) == "x"
        assert refusal([], max_depth=0).path == "payload"

    @pytest.mark.parametrize("dicts", [False, True])
    def test_refuses_a_hundred_thousand_levels_with_a_short_message(self, dicts: bool) -> None:
        error = refusal(nested(100_000, dicts=dicts), max_depth=400)
        assert "deeper than the 400 levels" in str(error)
        assert len(error.path) < 400

    def test_names_where_a_value_contains_itself(self) -> None:
        basket: dict[str, Any] = {"items": [1]}
        basket["items"].append({"basket": basket})
        error = refusal({"order": basket})
        assert error.path == "payload.order.items[1].basket"
        assert "contains itself" in str(error)

    def test_finds_cycles_through_subclasses(self) -> None:
        cycle = OrderedDict[str, Any]()
        cycle["list"] = ([cycle],)
        assert "contains itself" in str(refusal(cycle))


class TestStrictJSONEncoder:
    @pytest.mark.parametrize(
        ("value", "text"),
        [
            (1e16, "1.00000000000000000e+16"),
            (-1.5e20, "-1.500000000000000000000e+20"),
            (1.2345678901234567e18, "1.2345678901234568000e+18"),
            (9007199254740993.0, "9007199254740992.0"),
            (1e-7, "1e-07"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (2**63 - 1, "9223372036854775807"),
            ("é🚀", '"é🚀"'),
        ],
        ids=repr,
    )
    def test_writes(self, value: Any, text: str) -> None:
        assert json.dumps(value, cls=StrictJSONEncoder) == text
        assert json.loads(text) == value

    def test_gives_every_float_a_fraction_that_exceeds_its_exponent(self) -> None:
        """It is what makes PostgreSQL's numeric keep a digit after the point, and so the float a float."""
        for value in random_floats(2_000):
            text = json.dumps(value, cls=StrictJSONEncoder)
            mantissa, _, exponent = text.partition("e")
            fraction = mantissa.partition(".")[2]
            assert int(exponent or 0) < 0 or len(fraction) > int(exponent or 0)
            assert json.loads(text) == value

    def test_leaves_strings_alone(self) -> None:
        value = {"1e+16": 'a "1e+17" \\', "date+time e+5": [1e22, "\\", "2.5e+30", -1e300]}
        assert json.loads(json.dumps(value, cls=StrictJSONEncoder)) == value
        assert json.dumps("1e+16", cls=StrictJSONEncoder) == '"1e+16"'

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_refuses_what_is_not_json(self, value: float) -> None:
        with pytest.raises(ValueError, match="not JSON compliant"):
            json.dumps([value], cls=StrictJSONEncoder)


def random_floats(count: int) -> Iterator[float]:
    source = random.Random(7)
    for _ in range(count):
        (value,) = struct.unpack("d", source.randbytes(8))
        if math.isfinite(value):
            yield value


@pytest.mark.parametrize(("value", "size"), [(None, 4), ("é", 4), ({"a": [1, 2]}, 13), (1e16, 23)])
def test_the_dumped_size_counts_bytes_as_written(value: Any, size: int) -> None:
    assert dumped_size(value) == size


@pytest.mark.parametrize(
    ("vendor", "is_mariadb", "levels"),
    [("sqlite", False, 400), ("postgresql", False, 400), ("mysql", False, 99), ("mysql", True, 31)],
)
def test_each_database_has_its_depth_limit(vendor: str, is_mariadb: bool, levels: int) -> None:
    assert max_depth_for(vendor, is_mariadb=is_mariadb) == levels


def test_the_deepest_value_can_be_read_from_a_deep_call_stack() -> None:
    def read(frames: int) -> Any:
        return read(frames - 1) if frames else json.loads(text)

    value = nested(max_depth_for("postgresql"))
    text = json.dumps(value, cls=StrictJSONEncoder)
    assert read(400) == value


class TestCleanText:
    def test_leaves_printable_text_alone(self) -> None:
        text = "Grüße 🚀\n\tindented"
        assert clean_text(text) == text
        assert clean_text(text, len(text)) == text

    def test_makes_what_cannot_be_stored_or_shown_visible(self) -> None:
        text = "a\x00b\ud800c\x1b[31m\r\x7f\x85"
        assert clean_text(text) == r"a\x00b\ud800c\x1b[31m\x0d\x7f\x85"

    def test_cuts_the_middle_and_says_how_much_is_missing(self) -> None:
        text = "head " + "x" * 20_000 + " tail"
        cut = clean_text(text, 1_000)
        assert len(cut) == 1_000
        head, missing, tail = re.fullmatch(r"(head x+)… \[([\d,]+) characters cut\] …(x+ tail)", cut).groups()
        assert len(head) + int(missing.replace(",", "")) + len(tail) == len(text)

    @pytest.mark.parametrize("limit", [1, 10, 100, 200, 4_000])
    @pytest.mark.parametrize("text", ["x" * 10_000, "\x00" * 10_000, "\ud800" * 3_999, "ab\x00" * 1_500])
    def test_never_exceeds_the_limit(self, text: str, limit: int) -> None:
        cut = clean_text(text, limit)
        assert len(cut) <= limit
        assert "…" in cut
        assert cut.isprintable()

    def test_counts_the_characters_that_escapes_push_out(self) -> None:
        cut = clean_text("\x00" * 1_000, 1_000)
        kept = cut.count(r"\x00")
        assert f"[{1_000 - kept:,} characters cut]" in cut

    def test_does_not_escape_what_it_cuts(self) -> None:
        text = "\x00" * 20_000_000
        tracemalloc.start()
        try:
            clean_text(text, 4_000)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 5_000_000


def test_a_type_is_named_with_its_module_unless_it_is_a_builtin() -> None:
    assert type_name(ValueError) == "ValueError"
    assert type_name(Decimal) == "decimal.Decimal"
    assert type_name(TestCleanText) == f"{__name__}.TestCleanText"
