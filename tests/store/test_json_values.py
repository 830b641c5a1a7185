"""What goes into a task's JSON comes back equal, type for type, from every database."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from django.db import DEFAULT_DB_ALIAS as DB

from cairnq_django.envelopes import custom
from cairnq_django.models import Task
from cairnq_django.serialization import normalize
from cairnq_django.store.claim import Draw, claim
from cairnq_django.store.engine import json_depth
from cairnq_django.store.settle import complete, fail
from cairnq_django.store.submit import Conflict, submit
from tests.factories import TaskFactory, in_turn, lease_of, new_task

pytestmark = pytest.mark.django_db

VALUES: dict[str, Any] = {
    "nothing": None,
    "true": True,
    "false": False,
    "zero": 0,
    "one": 1,
    "largest integer": 2**63 - 1,
    "smallest integer": -(2**63),
    "an integer no float holds": 2**53 + 1,
    "one as a float": 1.0,
    "a float that is not exact": 0.1 + 0.2,
    "minus zero": -0.0,
    "smallest float": 5e-324,
    "smallest normal float": sys.float_info.min,
    "largest float": sys.float_info.max,
    "1e300": 1e300,
    "-1e300": -1e300,
    "1e16": 1e16,
    "1e22": 1e22,
    "1e23": 1e23,
    "a float of 17 digits": 1234567.8901234567,
    "2.0 ** 63": 2.0**63,
    "empty string": "",
    "text": "Grüße, 世界, שלום, e\u0301",
    "emoji": "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0010ffff",
    "quotes and backslashes": '" \' ` \\ \\\\ \\u0041 \\n / \\"',
    "control characters": "".join(map(chr, range(1, 32))) + "\x7f\x80\x9f\u2028\u2029\ufeff\ufffe",
    "placeholders": "%s %% %(name)s {} {0} ? :name $1 ${x} -- /* */ ;",
    "text like other types": ["null", "true", "1", "1.0", "1e5", "2026-01-02T03:04:05Z", "NaN", "Infinity"],
    "empty list": [],
    "empty dict": {},
    "nested empties": [[], {}, [[]], {"a": {}, "b": []}],
    "keys": {"": 1, " ": 2, "a": 3, "A": 4, "a ": 5, "é": 6, "\U0001f600": 7, "$.a": 8, "a.b": 9, '"': 10, "1": 11},
    "a long key": {"k" * 1000: 1},
    "mixed": {"items": [{"price": 9.99, "tags": ["new", None, True]}, {"price": 1e-9, "tags": []}], "total": 2**40},
    "many numbers": [n * 1e305 for n in range(-50, 50)] + list(range(1000)),
}


def typed(value: Any) -> Any:
    """The value with its types: 1, 1.0 and True are equal, but not the same JSON."""
    if isinstance(value, dict):
        return {key: typed(item) for key, item in value.items()}
    if isinstance(value, list):
        return [typed(item) for item in value]
    return type(value), value


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
def test_a_payload_and_metadata_come_back_equal(value: Any) -> None:
    submit(DB, [new_task(payload=value, metadata={"value": value})], Conflict.REUSE)
    (claimed,) = claim(DB, in_turn(Draw(("default",), ("work",), 1)), worker_id="worker-1", lease=30)
    task = Task.objects.get()
    assert typed(claimed.payload) == typed(task.payload) == typed(value)
    assert typed(claimed.metadata) == typed(task.metadata) == typed({"value": value})


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
def test_a_result_and_error_details_come_back_equal(value: Any) -> None:
    done, failed = TaskFactory(running=True), TaskFactory(running=True)
    complete(DB, lease_of(done), value)
    fail(DB, lease_of(failed), custom("boom", details=value, max_depth=json_depth(DB)), retry_delay=0)
    assert typed(done.refresh().result) == typed(value)
    assert typed(failed.refresh().error["details"]) == typed(value)
    assert typed(failed.attempts.get().error["details"]) == typed(value)


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = {"a": value} if level % 2 else [value]
    return value


def test_nesting_comes_back_equal_down_to_what_the_database_takes() -> None:
    depth = json_depth(DB)
    value = normalize(nested(depth), max_depth=depth)
    submit(DB, [new_task(payload=value)], Conflict.REUSE)
    (claimed,) = claim(DB, in_turn(Draw(("default",), ("work",), 1)), worker_id="worker-1", lease=30)
    assert claimed.payload == value
    complete(DB, claimed.lease, value)
    assert Task.objects.get().result == value


def test_error_details_are_nested_as_deep_as_their_envelope_may_be() -> None:
    task = TaskFactory(running=True)
    details = nested(json_depth(DB) - 1)
    fail(DB, lease_of(task), custom("boom", details=details, max_depth=json_depth(DB)), retry_delay=0)
    assert task.refresh().error["details"] == details


@pytest.mark.parametrize(
    "value", ["x" * 1_000_000, "\U0001f600" * 250_000, list(range(150_000))], ids=["text", "emoji", "numbers"]
)
def test_a_megabyte_comes_back_equal(value: Any) -> None:
    submit(DB, [new_task(payload=value)], Conflict.REUSE)
    (claimed,) = claim(DB, in_turn(Draw(("default",), ("work",), 1)), worker_id="worker-1", lease=30)
    assert claimed.payload == value
    complete(DB, claimed.lease, value)
    assert Task.objects.get().result == value
