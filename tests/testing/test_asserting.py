"""What a test can say of what was submitted, and what it is told when that is wrong."""

from __future__ import annotations

from datetime import timedelta
from textwrap import dedent
from typing import TYPE_CHECKING, Any
from unittest.mock import ANY

import pytest

from cairnq_django import Registry, TaskContext, TaskStatus, submit, submit_many
from cairnq_django.testing import assert_not_submitted, assert_submitted, run_pending, submitted

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.django_db

registry = Registry()


@registry.task(queue="mail")
def send(ctx: TaskContext, payload: Any) -> Any:
    return payload


def test_it_is_said_how_often_a_task_was_submitted() -> None:
    assert_not_submitted()
    tasks = submit_many(send, [1, 2])
    assert assert_submitted(send, times=2) == tasks
    assert assert_submitted("send", 2) == tasks[1:]
    assert_not_submitted(send, 3)
    assert_submitted(send, 3, times=0)
    assert_not_submitted("other")


def test_payloads_are_compared_as_json_and_may_hold_what_equals_more_than_itself() -> None:
    submit(send, {"to": ("ada", "bob"), "status": TaskStatus.QUEUED, "at": 7})
    assert_submitted(send, {"to": ("ada", "bob"), "status": TaskStatus.QUEUED, "at": ANY})
    assert_submitted(send, payload={"to": ["ada", ANY], "status": "queued", "at": 7})
    assert_submitted(send, ANY)
    submit(send)
    assert_submitted(send, None)


def test_all_that_a_submit_takes_can_be_expected() -> None:
    parent = submit("parent")
    given: dict[str, Any] = {
        "key": "receipt:7",
        "queue": "bulk",
        "priority": 5,
        "delay": timedelta(minutes=1),
        "max_attempts": 9,
        "metadata": {"tags": ["a"]},
        "correlation_id": "c",
        "parent": parent,
    }
    submit(send, 7, **given)
    assert_submitted(send, 7, **given, status="queued")
    for field, other in {**given, "delay": 90, "parent": None, "status": TaskStatus.FAILED}.items():
        if field in ("delay", "parent", "status"):
            assert_not_submitted(send, 7, **{field: other})
        else:
            assert_not_submitted(send, 7, **{field: f"not {other}"})


def test_what_there_is_can_be_looked_at() -> None:
    first, second, third = submit(send, 1), submit("other"), submit(send, 1, queue="bulk")
    assert submitted() == [first, second, third]
    assert submitted(send) == [first, third]
    assert submitted(queue="bulk") == [third]
    run_pending(queues="mail", registry=registry)
    assert submitted(status=TaskStatus.SUCCEEDED) == [first]


def test_what_cannot_be_expected_is_refused() -> None:
    with pytest.raises(TypeError, match="Tasks are not compared by 'quue', but by payload, key, queue, priority"):
        assert_submitted(send, quue="mail")  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="delay"):
        assert_not_submitted(send, delay=-1)
    with pytest.raises(TypeError, match="task must be what @task made"):
        assert_submitted(7)  # type: ignore[arg-type]


def test_a_near_miss_is_shown_with_what_differs() -> None:
    submit(send, {"order": 8, "to": ["ada"]})
    assert message(lambda: assert_submitted(send, {"order": 7, "to": ["ada"]}, queue="bulk")) == told(
        """
        send with payload {'order': 7, 'to': ['ada']} and queue 'bulk' was submitted 0 times, not once.
        Under that name there is:
          send {'order': 8, 'to': ['ada']} in queue 'mail', queued
            payload, expected (-) and found (+):
              -{'order': 7, 'to': ['ada']}
              +{'order': 8, 'to': ['ada']}
            queue: 'mail', not 'bulk'
        """
    )


def test_what_differs_in_a_large_payload_is_cut_out() -> None:
    items = [{"number": number, "text": "x" * 50} for number in range(500)]
    submit(send, {"items": items})
    lines = message(lambda: assert_submitted(send, {"items": [*items[:250], "other", *items[251:]]})).splitlines()
    assert [line.strip() for line in lines if line.strip().startswith(("-", "+"))] == [
        "-           'other',",
        f"+           {{'number': 250, 'text': '{'x' * 50}'}},",
    ]
    all_other = message(lambda: assert_submitted(send, {"items": list(range(5000))}))
    assert all_other.endswith("...")
    assert len(all_other.splitlines()) < 60


def test_what_was_submitted_too_often_is_listed() -> None:
    submit_many(send, range(12))
    lines = message(lambda: assert_submitted(send, times=2)).splitlines()
    assert lines[0] == "send was submitted 12 times, not 2 times."
    assert lines[1] == "  send 0 in queue 'mail', queued"
    assert lines[-1] == "  and 2 more"
    assert message(lambda: assert_not_submitted(send, 3)) == told(
        """
        send with payload 3 was submitted once, not 0 times.
          send 3 in queue 'mail', queued
        """
    )
    assert message(assert_not_submitted).startswith("any task was submitted 12 times, not 0 times.")


def test_a_misspelt_name_is_shown_with_what_there_is() -> None:
    assert message(lambda: assert_submitted("sendd")) == told(
        """
        sendd was submitted 0 times, not once.
        Nothing was submitted at all.
        """
    )
    submit(send, "x" * 1000)
    assert message(lambda: assert_submitted("sendd")) == told(
        f"""
        sendd was submitted 0 times, not once.
        Nothing was submitted under that name (did you mean 'send'?), but:
          send '{"x" * 198}… in queue 'mail', queued
        """
    )


def message(assertion: Callable[[], object]) -> str:
    with pytest.raises(AssertionError) as caught:
        assertion()
    return str(caught.value)


def told(text: str) -> str:
    return dedent(text).strip()
