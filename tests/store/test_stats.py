from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.db import DEFAULT_DB_ALIAS as DB

from cairnq_django.clock import after
from cairnq_django.store.stats import QueueStats, queue_stats, queued_up_to, runnable
from tests.factories import TaskFactory
from tests.store.sessions import statements

if TYPE_CHECKING:
    from typing import Any

pytestmark = pytest.mark.django_db


def test_there_are_no_stats_without_tasks() -> None:
    assert queue_stats(DB) == {}


def test_stats_count_the_tasks_of_each_queue_in_each_status() -> None:
    for state, count in {"delayed": 1, "running": 2, "expired": 1, "succeeded": 4, "failed": 5, "canceled": 6}.items():
        for _ in range(count):
            TaskFactory(queue="mail", **{state: True})
    TaskFactory(queue="mail", run_at=after(-40))
    TaskFactory(queue="mail", run_at=after(-90))
    TaskFactory(queue="Mail", succeeded=True)
    stats = queue_stats(DB)
    assert list(stats) == ["Mail", "mail"]
    assert stats["Mail"] == QueueStats(succeeded=1)
    mail = stats["mail"]
    assert (mail.queued, mail.due, mail.running) == (3, 2, 3)
    assert (mail.succeeded, mail.failed, mail.canceled) == (4, 5, 6)
    assert mail.oldest_wait is not None
    assert 90 <= mail.oldest_wait < 150


def test_what_is_delayed_does_not_wait() -> None:
    TaskFactory(delayed=True)
    assert queue_stats(DB) == {"default": QueueStats(queued=1, due=0, oldest_wait=None)}


def test_stats_take_two_statements_however_many_queues_there_are() -> None:
    for n in range(5):
        TaskFactory(queue=f"queue-{n}")
    assert len(statements(lambda: queue_stats(DB))) == 2


def test_a_queue_s_depth_counts_what_waits_in_it_up_to_a_limit() -> None:
    for state in ({}, {}, {"delayed": True}, {"running": True}, {"succeeded": True}, {"queue": "Default"}):
        TaskFactory(**state)
    assert [queued_up_to(DB, "default", limit) for limit in (0, 1, 2, 3, 4, 100)] == [0, 1, 2, 3, 3, 3]
    assert queued_up_to(DB, "empty", 100) == 0


@pytest.mark.parametrize(
    ("state", "is_runnable"),
    [
        ({}, True),
        ({"delayed": True}, False),
        ({"delayed": True, "attempt": 1}, True),
        ({"queue": "other"}, False),
        ({"name": "other"}, False),
        ({"running": True}, False),
        ({"failed": True}, False),
    ],
)
def test_runnable_is_what_is_due_or_waits_for_its_retry(state: dict[str, Any], is_runnable: bool) -> None:
    TaskFactory(**state)
    assert runnable(DB, ["default", "mail"], ["work", "send"]) == is_runnable
