"""The state machine: every arrow there is, and that there are no others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import DEFAULT_DB_ALIAS as DB

from cairnq_django.clock import after
from cairnq_django.errors import CairnQError, LostLease
from cairnq_django.models import Task, TaskAttempt
from cairnq_django.store import control, maintenance, settle
from cairnq_django.store.claim import Draw, claim
from cairnq_django.store.maintenance import Ended
from tests.factories import TaskFactory, an_error, in_turn, lease_of

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.django_db

STARTS: dict[str, dict[str, Any]] = {
    "queued": {},
    "delayed": {"delayed": True},
    "running": {"running": True},
    "running, last attempt": {"running": True, "attempt": 3},
    "canceling": {"cancel_requested": True},
    "too late": {"too_late": True},
    "expired": {"expired": True},
    "expired, last attempt": {"expired": True, "attempt": 3},
    "expired, canceling": {"expired": True, "cancel_requested_at": after(-2)},
    "succeeded": {"succeeded": True},
    "failed": {"failed": True},
    "canceled": {"canceled": True},
}

EVENTS: dict[str, Callable[[Task], object]] = {
    "claim": lambda task: claim(DB, in_turn(Draw(("default",), ("work",), 10)), worker_id="worker-2", lease=30),
    "complete": lambda task: settle.complete(DB, lease_of(task), "done"),
    "fail": lambda task: settle.fail(DB, lease_of(task), an_error(), retry_delay=0),
    "fail for good": lambda task: settle.fail(DB, lease_of(task), an_error(retryable=False), retry_delay=0),
    "release": lambda task: settle.release(DB, [lease_of(task)]),
    "cancel": lambda task: control.cancel(DB, task.pk),
    "retry": lambda task: control.retry(DB, task.pk),
    "recover": lambda task: maintenance.recover(DB),
    "expire": lambda task: maintenance.expire(DB),
    "purge": lambda task: maintenance.purge(DB, Ended(older_than=0)),
}

ARROWS: dict[str, dict[str, str]] = {
    "claim": {"queued": "running"},
    "complete": {"running": "succeeded", "running, last attempt": "succeeded", "canceling": "canceled"},
    "fail": {"running": "queued", "running, last attempt": "failed", "canceling": "canceled"},
    "fail for good": {"running": "failed", "running, last attempt": "failed", "canceling": "canceled"},
    "release": {"running": "queued", "running, last attempt": "queued", "canceling": "canceled"},
    "cancel": {
        "queued": "canceled",
        "delayed": "canceled",
        "too late": "canceled",
        "running": "running",
        "running, last attempt": "running",
        "expired": "running",
        "expired, last attempt": "running",
    },
    "retry": {"failed": "queued", "canceled": "queued"},
    "recover": {"expired": "queued", "expired, last attempt": "failed", "expired, canceling": "canceled"},
    "expire": {"too late": "canceled"},
    "purge": {"succeeded": "deleted", "failed": "deleted", "canceled": "deleted"},
}

REFUSALS: dict[str, type[Exception]] = {
    "complete": LostLease,
    "fail": LostLease,
    "fail for good": LostLease,
    "retry": CairnQError,
}


@pytest.mark.parametrize(
    ("event", "start", "end"), [(event, start, end) for event, ends in ARROWS.items() for start, end in ends.items()]
)
def test_an_arrow_leads_to_its_state(event: str, start: str, end: str) -> None:
    task = TaskFactory(**STARTS[start])
    EVENTS[event](task)
    statuses = list(Task.objects.filter(pk=task.pk).values_list("status", flat=True))
    assert statuses == ([] if end == "deleted" else [end])


@pytest.mark.parametrize(
    ("event", "start"), [(event, start) for event in EVENTS for start in STARTS if start not in ARROWS[event]]
)
def test_where_there_is_no_arrow_nothing_is_written(event: str, start: str) -> None:
    task = TaskFactory(**STARTS[start])
    before = everything_about(task)
    if event in REFUSALS:
        with pytest.raises(REFUSALS[event]):
            EVENTS[event](task)
    else:
        EVENTS[event](task)
    assert everything_about(task) == before


@pytest.mark.parametrize(("event", "start"), [("fail", "running"), ("release", "running"), ("recover", "expired")])
def test_every_way_back_to_the_queue_clears_progress_message_and_lease(event: str, start: str) -> None:
    task = TaskFactory(**STARTS[start], progress=0.7, message="nearly there")
    EVENTS[event](task)
    task.refresh()
    assert (task.progress, task.message, task.lease_until, task.completed_at) == (None, "", None, None)
    assert task.worker_id == "worker-1", "who had it last stays to be seen"


def test_a_retry_clears_progress_and_message() -> None:
    task = TaskFactory(failed=True, progress=0.7, message="nearly there")
    EVENTS["retry"](task)
    task.refresh()
    assert (task.progress, task.message) == (None, "")


@pytest.mark.parametrize(
    ("event", "start"),
    [
        ("complete", "running"),
        ("complete", "canceling"),
        ("fail for good", "running"),
        ("fail", "canceling"),
        ("release", "canceling"),
        ("recover", "expired, last attempt"),
        ("recover", "expired, canceling"),
    ],
)
def test_a_task_that_ends_keeps_progress_and_message(event: str, start: str) -> None:
    task = TaskFactory(**STARTS[start], progress=0.7, message="nearly there")
    EVENTS[event](task)
    task.refresh()
    assert task.is_terminal
    assert (task.progress, task.message) == (0.7, "nearly there")
    assert task.lease_until is None
    assert task.completed_at == task.updated_at >= task.created_at


def everything_about(task: Task) -> tuple[Any, Any]:
    return list(Task.objects.filter(pk=task.pk).values()), list(TaskAttempt.objects.filter(task_id=task.pk).values())
