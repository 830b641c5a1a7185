"""Bad arguments of what callers use: the error names the argument and the value, and nothing is written."""

from __future__ import annotations

import math
import re
import uuid
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from django.utils.functional import SimpleLazyObject
from django.utils.translation import gettext_lazy

from cairnq_django import (
    Registry,
    SerializationError,
    Task,
    call,
    cancel,
    cancel_by_key,
    get,
    get_by_key,
    purge,
    queue_depth,
    retry,
    retry_by_key,
    submit,
    submit_many,
    wait,
    wait_by_key,
)
from cairnq_django.models import TaskKey

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.django_db

NOWHERE = uuid.UUID(int=7)
NAIVE = datetime(2031, 1, 2)  # noqa: DTZ001
EAST, WEST = timezone(timedelta(hours=5)), timezone(timedelta(hours=-5))


@pytest.fixture(autouse=True)
def nothing_is_written() -> Iterator[None]:
    yield
    assert not Task.objects.exists()
    assert not TaskKey.objects.exists()


def undecorated(ctx: Any, payload: Any) -> None: ...


@pytest.mark.parametrize("name", ["", "x" * 201, "nul\x00", "lone \ud800"], ids=ascii)
def test_a_name_that_no_task_can_have_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"^name must "):
        submit(name)
    with pytest.raises(ValueError, match=r"^name must "):
        submit_many(name, [1])


def test_a_plain_function_is_to_be_decorated() -> None:
    with pytest.raises(TypeError, match=r"^task must be .*<function undecorated .*; decorate the function with @task$"):
        submit(undecorated)  # type: ignore[arg-type]


@pytest.mark.parametrize("what", [None, 7, b"work", Registry()], ids=lambda what: type(what).__name__)
def test_what_is_no_task_at_all_is_refused(what: Any) -> None:
    with pytest.raises(TypeError, match=f"^task must be .*got {re.escape(repr(what))}$"):
        submit(what)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"delay": -1}, ValueError, "delay must not be negative, got -1"),
        ({"delay": timedelta(seconds=-1)}, ValueError, "delay must not be negative, got -1.0"),
        ({"delay": math.nan}, ValueError, "delay must be a finite number of seconds, got nan"),
        ({"delay": math.inf}, ValueError, "delay must be a finite number of seconds, got inf"),
        ({"delay": 1e12}, ValueError, "delay must be at most 3,153,600,000 seconds, got 1000000000000.0"),
        ({"delay": "5"}, TypeError, "delay must be a number of seconds or a timedelta, got str"),
        ({"delay": True}, TypeError, "delay must be a number of seconds or a timedelta, got bool (True)"),
        ({"run_at": NAIVE}, ValueError, "run_at must be aware, got 2031-01-02T00:00:00 without"),
        ({"run_at": "2031-01-02"}, TypeError, "run_at must be a datetime, got '2031-01-02'"),
        ({"run_at": date(2031, 1, 2)}, TypeError, "run_at must be a datetime, got datetime.date(2031, 1, 2)"),
        ({"run_at": 5}, TypeError, "run_at must be a datetime, got 5"),
        ({"run_at": datetime.max.replace(tzinfo=WEST)}, ValueError, "run_at must be within the years 1 to 9999"),
        ({"run_at": datetime.min.replace(tzinfo=EAST)}, ValueError, "run_at must be within the years 1 to 9999"),
        (
            {"delay": 5, "run_at": datetime(2031, 1, 2, tzinfo=timezone.utc)},
            ValueError,
            "Give delay or run_at, not both; got 5 and datetime.datetime(2031, 1, 2",
        ),
        ({"expires": -1}, ValueError, "expires must not be negative, got -1"),
        ({"expires": timedelta(seconds=-1)}, ValueError, "expires must not be negative, got -1.0"),
        ({"expires": 0}, ValueError, "expires must be more than 0 seconds, got 0: the task could not start; leave it"),
        ({"expires": timedelta(0)}, ValueError, "expires must be more than 0 seconds, got datetime.timedelta(0)"),
        ({"expires": math.nan}, ValueError, "expires must be a finite number of seconds, got nan"),
        ({"expires": 1e12}, ValueError, "expires must be at most 3,153,600,000 seconds, got 1000000000000.0"),
        ({"expires": True}, TypeError, "expires must be a number of seconds or a timedelta, got bool (True)"),
        ({"expires": "5"}, TypeError, "expires must be a number of seconds, a timedelta or an aware datetime, got '5'"),
        ({"expires": date(2031, 1, 2)}, TypeError, "expires must be a number of seconds, a timedelta or an aware"),
        ({"expires": NAIVE}, ValueError, "expires must be aware, got 2031-01-02T00:00:00 without a time zone"),
        ({"expires": datetime.max.replace(tzinfo=WEST)}, ValueError, "expires must be within the years 1 to 9999"),
        (
            {"expires": 60, "delay": timedelta(minutes=1)},
            ValueError,
            "expires must be later than delay, when the task is due; got 60 and datetime.timedelta(seconds=60)",
        ),
        ({"expires": 5, "delay": 60}, ValueError, "expires must be later than delay, when the task is due; got 5 and"),
        (
            {"expires": datetime(2031, 1, 2, tzinfo=timezone.utc), "run_at": datetime(2031, 1, 2, tzinfo=WEST)},
            ValueError,
            "expires must be later than run_at, when the task is due; got datetime.datetime(2031, 1, 2",
        ),
        ({"conflict": "ignore"}, ValueError, "conflict must be one of 'reuse', 'reuse-succeeded', 'reject', 'replace'"),
        ({"conflict": None}, ValueError, "conflict must be one of"),
        ({"queue": ""}, ValueError, "queue must not be empty"),
        ({"queue": " "}, ValueError, "queue must not be blank, got ' '"),
        ({"queue": "q" * 101}, ValueError, "queue must have at most 100 characters, got 101"),
        ({"queue": "q\x00"}, ValueError, "queue must not hold a NUL character"),
        ({"queue": 5}, TypeError, "queue must be a string, got int (5)"),
        ({"key": ""}, ValueError, "key must not be empty"),
        ({"key": "k" * 256}, ValueError, "key must have at most 255 characters, got 256"),
        ({"key": "k\x00"}, ValueError, "key must not hold a NUL character"),
        ({"key": "\udc00"}, ValueError, "key must not hold a lone surrogate"),
        ({"key": 7}, TypeError, "key must be a string, got int (7)"),
        ({"correlation_id": ""}, ValueError, "correlation_id must not be empty"),
        ({"correlation_id": "c" * 201}, ValueError, "correlation_id must have at most 200 characters, got 201"),
        ({"correlation_id": "c\x00"}, ValueError, "correlation_id must not hold a NUL character"),
        ({"correlation_id": NOWHERE}, TypeError, "correlation_id must be a string, got UUID"),
        ({"max_attempts": 0}, ValueError, "max_attempts must be at least 1, got 0"),
        ({"max_attempts": 10**9}, ValueError, "max_attempts must be at most 1,000,000, got 1000000000"),
        ({"max_attempts": 1.0}, TypeError, "max_attempts must be an integer, got float (1.0)"),
        ({"max_attempts": True}, TypeError, "max_attempts must be an integer, got bool (True)"),
        ({"priority": 40_000}, ValueError, "priority must be at most 32,767, got 40000"),
        ({"priority": -40_000}, ValueError, "priority must be at least -32,768, got -40000"),
        ({"priority": True}, TypeError, "priority must be an integer, got bool (True)"),
        ({"priority": "high"}, TypeError, "priority must be an integer, got str"),
        ({"max_queue_depth": 0}, ValueError, "max_queue_depth must be at least 1, got 0"),
        ({"max_queue_depth": 2**31}, ValueError, "max_queue_depth must be at most 2,147,483,647, got 2147483648"),
        ({"max_queue_depth": True}, TypeError, "max_queue_depth must be an integer, got bool (True)"),
        ({"max_queue_depth": {"default": 5}}, TypeError, "max_queue_depth must be an integer, got dict"),
        ({"max_queue_wait": -1}, ValueError, "max_queue_wait must not be negative, got -1"),
        ({"max_queue_wait": math.nan}, ValueError, "max_queue_wait must be a finite number of seconds, got nan"),
        ({"max_queue_wait": "5"}, TypeError, "max_queue_wait must be a number of seconds or a timedelta, got str"),
        ({"metadata": [1]}, TypeError, "metadata must be a dict, got list"),
        ({"metadata": "x"}, TypeError, "metadata must be a dict, got str"),
        ({"metadata": {"at": date(2031, 1, 2)}}, SerializationError, "metadata.at: datetime.date is not a JSON type"),
        ({"metadata": {1: 2}}, SerializationError, "metadata: its key 1 (int) is not a string"),
        ({"parent": "not-a-uuid"}, ValueError, "parent must be a UUID or its text, got 'not-a-uuid'"),
        ({"parent": 7}, TypeError, "parent must be a UUID or its text, got 7"),
        ({"parent": NOWHERE}, Task.DoesNotExist, f"parent must be a task that exists, got {NOWHERE}"),
        ({"retries": 5}, TypeError, "unexpected keyword argument 'retries'"),
    ],
)
def test_an_option_that_is_wrong_is_named(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        submit("work", **{"key": "k", **options})
    if "key" not in options:
        with pytest.raises(error, match=re.escape(message)):
            submit_many("work", [1, 2], **options)


@pytest.mark.parametrize(
    ("payload", "message"),
    [
        ({"items": [{"price": Decimal("1.5")}]}, "payload.items[0].price: decimal.Decimal is not a JSON type"),
        ({"when": NAIVE}, "payload.when: datetime.datetime is not a JSON type"),
        ([math.nan], "payload[0]: nan is not a JSON number"),
        (b"bytes", "payload: bytes is not a JSON type"),
        ({"a b": {1, 2}}, 'payload["a b"]: set is not a JSON type'),
        ({"id": NOWHERE}, "payload.id: uuid.UUID is not a JSON type"),
        ({7: "x"}, "payload: its key 7 (int) is not a string"),
        ("nul\x00", "payload: a string with a NUL character"),
        ([2**63], "payload[0]: an integer beyond 64 bits"),
        (gettext_lazy("Hello"), "payload: "),
        ({"user": SimpleLazyObject(dict)}, "payload.user: django.utils.functional.SimpleLazyObject is not a JSON type"),
        (Task(name="x"), "payload: cairnq_django.models.Task is not a JSON type; pass its primary key"),
        (iter([1]), "payload: list_iterator is not a JSON type; convert it with list()"),
    ],
)
def test_a_payload_that_json_cannot_represent_is_refused_with_the_place_in_it(payload: Any, message: str) -> None:
    with pytest.raises(SerializationError, match=f"^{re.escape(message)}"):
        submit("work", payload, key="k")


def test_a_payload_that_contains_itself_is_refused() -> None:
    payload: list[Any] = []
    payload.append(payload)
    with pytest.raises(SerializationError, match=r"^payload\[0\]: it contains itself"):
        submit("work", payload)


@pytest.mark.parametrize(
    ("payload", "metadata", "argument"), [("x" * 99, None, "payload"), ("ü" * 50, None, "payload"), (1, 99, "metadata")]
)
def test_what_is_larger_than_the_setting_allows_is_refused(
    settings: Any, payload: Any, metadata: Any, argument: str
) -> None:
    settings.CAIRNQ = {"MAX_PAYLOAD_BYTES": 100}
    with pytest.raises(ValueError, match=rf"^{argument} takes \d+ bytes as JSON, more than .*MAX_PAYLOAD_BYTES"):
        submit("work", payload, key="k", metadata={"x": "y" * metadata} if metadata else None)


@pytest.mark.parametrize("payloads", [None, 7, "text", b"bytes", {"order": 7}], ids=lambda given: type(given).__name__)
def test_payloads_that_are_no_list_of_payloads_are_refused(payloads: Any) -> None:
    given = type(payloads).__name__
    with pytest.raises(TypeError, match=f"^payloads must be a list or another iterable of payloads, got {given}$"):
        submit_many("work", payloads)


def test_the_key_of_many_payloads_is_a_function() -> None:
    with pytest.raises(TypeError, match=r"^key must be a function from a payload to its key, got str$"):
        submit_many("work", [1], key="k")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        ("", ValueError, "must not be empty"),
        (7, TypeError, "must be a string, got int (7)"),
        ("k" * 256, ValueError, ""),
    ],
)
def test_a_key_that_is_wrong_is_named_with_its_payload(key: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=rf"^key of payloads\[1\] {re.escape(message)}"):
        submit_many("work", ["fine", key], key=lambda payload: payload)


def test_one_bad_payload_of_many_is_named_by_its_place() -> None:
    with pytest.raises(SerializationError, match=r"^payloads\[2\]\.price: decimal\.Decimal is not a JSON type"):
        submit_many("work", [{"price": 1}, {"price": 2}, {"price": Decimal(3)}], key=lambda item: str(item["price"]))


def test_an_error_of_the_key_function_is_the_caller_s() -> None:
    with pytest.raises(KeyError, match="order"):
        submit_many("work", [{"order": 1}, {}], key=lambda payload: str(payload["order"]))


@pytest.mark.parametrize("conflict", ["reject", "replace"])
def test_a_key_that_stands_twice_is_refused_where_one_task_would_undo_the_other(conflict: Any) -> None:
    with pytest.raises(ValueError, match=rf"^payloads\[0\] and payloads\[2\] have the same key, 'a', .*\"{conflict}\""):
        submit_many("work", ["a", None, "a", None], key=lambda payload: payload, conflict=conflict)


@pytest.mark.parametrize("function", [get, cancel, retry, wait])
@pytest.mark.parametrize(
    ("task_id", "error"), [("not-a-uuid", ValueError), ("", ValueError), (7, TypeError), (None, TypeError)]
)
def test_what_is_no_task_id_is_named(function: Any, task_id: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"^task_id must be a UUID or its text, got {task_id!r}$"):
        function(task_id)


@pytest.mark.parametrize("function", [get_by_key, cancel_by_key, retry_by_key, wait_by_key])
@pytest.mark.parametrize(
    ("key", "error"), [("", ValueError), ("k" * 256, ValueError), ("\x00", ValueError), (7, TypeError)]
)
def test_what_is_no_key_is_named(function: Any, key: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^key must "):
        function(key)


@pytest.mark.parametrize(
    ("timeout", "error"), [(-1, ValueError), (math.nan, ValueError), ("5", TypeError), (True, TypeError)]
)
def test_a_timeout_that_is_wrong_is_named(timeout: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"^timeout must "):
        wait(NOWHERE, timeout)
    with pytest.raises(error, match=r"^timeout must "):
        call("work", timeout=timeout)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"older_than": -1}, ValueError, "older_than must not be negative, got -1"),
        ({"older_than": "7 days"}, TypeError, "older_than must be a number of seconds or a timedelta, got str"),
        ({"older_than": None}, TypeError, "older_than must be"),
        ({"status": "queued"}, ValueError, "status must be one of succeeded, failed, canceled, got 'queued'"),
        ({"status": "done"}, ValueError, "status must be one of succeeded, failed, canceled, got 'done'"),
        ({"status": ["failed", 7]}, ValueError, "status must be one of succeeded, failed, canceled, got 7"),
        ({"status": 7}, ValueError, "status must be one of succeeded, failed, canceled, got 7"),
        ({"queue": ""}, ValueError, "queue must not be empty"),
        ({"queue": 7}, TypeError, "queue must be a string, got int (7)"),
        ({"queue": "q\x00"}, ValueError, "queue must not hold a NUL character"),
        ({"name": "x" * 201}, ValueError, "name must have at most 200 characters"),
        ({"limit": -1}, ValueError, "limit must be at least 0, got -1"),
        ({"limit": 1.5}, TypeError, "limit must be an integer, got float (1.5)"),
        ({"state": "failed"}, TypeError, "unexpected keyword argument 'state'"),
    ],
)
def test_a_bad_argument_of_purge_is_named(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        purge(**{"older_than": 0, **arguments})


@pytest.mark.parametrize(
    ("queue", "max_depth", "error", "message"),
    [
        ("", 5, ValueError, "queue must not be empty"),
        ("q" * 101, 5, ValueError, "queue must have at most 100 characters"),
        (7, 5, TypeError, "queue must be a string"),
        ("default", -1, ValueError, "max_depth must be at least 0, got -1"),
        ("default", 1.5, TypeError, "max_depth must be an integer, got float (1.5)"),
        ("default", None, TypeError, "max_depth must be an integer, got NoneType"),
    ],
)
def test_a_bad_argument_of_queue_depth_is_named(queue: Any, max_depth: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=re.escape(message)):
        queue_depth(queue, max_depth)
