"""Sentry hears of each failed attempt once, though the framework logs the end of a task as well."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("sentry_sdk")

from cairnq_django import cancel, get
from cairnq_django.registry import default_registry
from cairnq_django.store.claim import Draw, claim
from cairnq_django.store.engine import task_database
from cairnq_django.tasks_backend import task_options
from tests.factories import in_turn
from tests.tasks_backend import tasks
from tests.tasks_backend.tasks import task
from tests.test_sentry import Event, events, raised, tags  # noqa: F401 - events is a fixture
from tests.workers import expire, run, runs_workers

pytestmark = runs_workers


@task
@task_options(max_attempts=1)
def once() -> None: ...


@pytest.mark.parametrize("task", [tasks.refuse, tasks.refuse_async])
def test_each_failed_attempt_is_one_event(task: Any, events: list[Event]) -> None:  # noqa: F811
    result = task.enqueue("because")
    run(default_registry)
    assert [tags(event)["attempt"] for event in events] == [1, 2, 3]
    assert {tags(event)["task_id"] for event in events} == {result.id}
    assert {raised(event)[1] for event in events} == {"because"}


def test_so_is_one_that_nothing_was_raised_for(events: list[Event]) -> None:  # noqa: F811
    result = once.enqueue()
    draw = Draw(queues=("default",), names=(once.module_path,), limit=1)
    assert claim(task_database(), in_turn(draw), worker_id="worker-0", lease=60)
    expire(get(result.id))
    run(default_registry)
    (event,) = events
    assert (tags(event)["task_id"], raised(event)[0]) == (result.id, "cairnq_django.errors.LostLease")


def test_a_cancel_is_no_error_but_what_another_backend_ran_may_be(events: list[Event]) -> None:  # noqa: F811
    cancel(once.enqueue().id)
    assert events == []
    tasks.refuse.using(backend="immediate").enqueue("here and now")
    (event,) = events
    assert raised(event) == ("Refused", "here and now")
