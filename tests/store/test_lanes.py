from __future__ import annotations

from itertools import product

import pytest
from django.db import DEFAULT_DB_ALIAS as DB
from django.db import connection

from cairnq_django.clock import after
from cairnq_django.models import Task
from cairnq_django.store.lanes import Lane, Place, ahead, ahead_by_lateral_join, ahead_by_union, lanes_of
from tests.factories import TaskFactory, new_task

pytestmark = pytest.mark.django_db

LANES = lanes_of(["default", "other"], ["mail", "sms"])


def place(task: Task) -> Place:
    return Place(Lane(task.queue, task.name), task.pk)


def test_each_queue_and_name_is_a_lane_once() -> None:
    assert lanes_of(["b", "a", "b"], ["mail", "sms", "mail"]) == [
        Lane("b", "mail"),
        Lane("b", "sms"),
        Lane("a", "mail"),
        Lane("a", "sms"),
    ]
    assert lanes_of([], ["mail"]) == lanes_of(["a"], []) == []


def test_what_is_due_in_any_lane_stands_in_claim_order() -> None:
    late = TaskFactory(name="sms", run_at=after(-1))
    early = TaskFactory(name="mail", run_at=after(-2))
    high = TaskFactory(name="mail", queue="other", priority=1)
    TaskFactory(name="sms", queue="other", delayed=True)
    TaskFactory(name="sms", running=True)
    TaskFactory(name="fax", priority=9)
    assert ahead(DB, LANES, 10) == [place(high), place(early), place(late)]
    assert ahead(DB, LANES, 2) == [place(high), place(early)]


def test_the_limit_is_that_of_all_lanes_together() -> None:
    mails = [TaskFactory(name="mail", run_at=after(-9 + n)) for n in range(5)]
    sms = TaskFactory(name="sms", run_at=after(-8.5))
    assert ahead(DB, LANES, 3) == [place(mails[0]), place(sms), place(mails[1])]


@pytest.mark.skipif(connection.vendor != "postgresql", reason="needs LATERAL and arrays")
@pytest.mark.parametrize("limit", [1, 4, 50, 1000])
def test_a_join_finds_what_a_union_finds(limit: int) -> None:
    names, queues = ["mail", "Mail", "it's", '"quoted", {braces} %s', "", "\u00fc"], ["a", "b,c", "NULL"]
    Task.objects.bulk_create(
        new_task(name=name, queue=queue, priority=n * m % 5 - 2, run_at=after(n * m % 7 - 5))
        for n, (name, queue) in enumerate(product(names[:-1], queues))
        for m in range(n + 1)
    )
    lanes = lanes_of([*queues, "empty"], names)
    by_join = ahead_by_lateral_join(DB, lanes, limit)
    assert by_join == ahead_by_union(DB, lanes, limit)
    assert len(by_join) == min(limit, Task.objects.due().count())
