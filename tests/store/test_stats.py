from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.db import DEFAULT_DB_ALIAS as DB

from cairnq_django.clock import after
from cairnq_django.models import PausedQueue
from cairnq_django.store import stats as stats_module
from cairnq_django.store.stats import QueueFigures, QueueStats, queue_figures, queue_stats, queued_up_to, runnable
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


def figures(*also: str) -> dict[str, QueueFigures]:
    found = queue_figures(DB, also)
    assert [each.queue for each in found] == sorted(each.queue for each in found)
    return {each.queue: each for each in found}


def test_there_are_no_figures_without_queues() -> None:
    assert queue_figures(DB) == []
    assert queue_figures(DB, ["mail"]) == [QueueFigures("mail")]


def test_figures_tell_how_each_queue_with_live_tasks_stands() -> None:
    for state, count in {"delayed": 1, "running": 2, "expired": 1, "succeeded": 4, "failed": 5, "canceled": 6}.items():
        for _ in range(count):
            TaskFactory(queue="mail", **{state: True})
    TaskFactory(queue="mail", run_at=after(-40), priority=9)
    TaskFactory(queue="mail", run_at=after(-90), priority=-9)
    TaskFactory(queue="mail", name="a", run_at=after(-60))
    TaskFactory(queue="mail", name="z", delayed=True)
    TaskFactory(queue="Mail", delayed=True)
    TaskFactory(queue="other", running=True)
    TaskFactory(queue="over", succeeded=True)
    found = figures("mail", "idle")
    assert set(found) == {"Mail", "idle", "mail", "other"}
    mail = found["mail"]
    assert (mail.depth, mail.is_deeper, mail.due, mail.running, mail.runs_more) == (5, False, 3, 3, False)
    assert mail.oldest_wait is not None
    assert 90 <= mail.oldest_wait < 150
    assert found["Mail"] == QueueFigures("Mail", depth=1)
    assert found["other"] == QueueFigures("other", running=1)


def test_the_longest_wait_is_that_of_any_name_and_priority() -> None:
    for name, priority, waited in (("b", 5, 10), ("b", -5, 20), ("a", 0, 30), ("c", 7, 40), ("c", 6, 5)):
        TaskFactory(queue="mail", name=name, priority=priority, run_at=after(-waited))
        TaskFactory(queue=f"{name}{priority}", name=name, priority=priority, run_at=after(-waited))
    found = figures()
    assert 40 <= (found["mail"].oldest_wait or 0) < 100
    assert 20 <= (found["b-5"].oldest_wait or 0) < 80


def test_figures_tell_how_long_the_due_tasks_of_each_name_have_waited() -> None:
    for name, priority, waited in (("b", 5, 10), ("b", -5, 20), ("a", 0, 30)):
        TaskFactory(queue="mail", name=name, priority=priority, run_at=after(-waited))
    TaskFactory(queue="mail", name="c", delayed=True)
    waits = figures()["mail"].waits
    assert set(waits) == {"a", "b"}
    assert 20 <= waits["b"] < 30 <= waits["a"] < 90


def test_figures_count_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, number in {"COUNTED": 3, "COUNTED_AT_LEAST": 1}.items():
        monkeypatch.setattr(stats_module, name, number)
    for queue, count in {"mail": 5, "default": 3}.items():
        for _ in range(count):
            TaskFactory(queue=queue)
            TaskFactory(queue=queue, running=True)
    mail, default = figures()["mail"], figures()["default"]
    assert (mail.depth, mail.is_deeper, mail.due) == (3, True, 3)
    assert (default.depth, default.is_deeper, default.due) == (3, False, 3)
    assert mail.runs_more
    assert mail.running + default.running == 3
    monkeypatch.setattr(stats_module, "COUNTED_IN_ALL", 5)
    assert [(each.depth, each.is_deeper) for each in figures().values()] == [(2, True), (2, True)]


def test_figures_say_what_is_paused() -> None:
    TaskFactory(queue="mail")
    PausedQueue.objects.create(queue="mail", paused_by="ada")
    PausedQueue.objects.create(queue="empty", until=after(60))
    PausedQueue.objects.create(queue="over", until=after(-1))
    found = figures()
    assert set(found) == {"empty", "mail"}
    assert found["mail"].pause == PausedQueue.objects.get(pk="mail")
    assert (found["mail"].due, found["empty"].depth) == (1, 0)


def test_looking_for_the_longest_wait_and_for_queues_ends_somewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(4):
        TaskFactory(queue="mail", priority=n, run_at=after(-60 if n == 0 else -10))
        TaskFactory(queue=f"z{n}")
    monkeypatch.setattr(stats_module, "LEVELS", 3)
    assert (figures()["mail"].oldest_wait or 60) < 60
    monkeypatch.setattr(stats_module, "QUEUES", 2)
    assert set(figures()) == {"mail", "z0"}


def test_figures_take_one_short_look_for_each_queue_and_few_others() -> None:
    queues = [f"queue {n}" for n in range(6)]
    for queue in queues:
        for name in "abc":
            for priority in (1, 2):
                TaskFactory(queue=queue, name=name, priority=priority, run_at=after(-60 if priority == 1 else -10))
    assert len(statements(lambda: queue_figures(DB))) <= len(queues) + 15
    assert all((each.oldest_wait or 0) >= 60 for each in queue_figures(DB))


def test_looking_for_the_longest_wait_is_shared_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats_module, "LEVELS_IN_ALL", 4)
    for queue in ("default", "mail"):
        for priority, waited in ((3, 10), (2, 60), (1, 600)):
            TaskFactory(queue=queue, priority=priority, run_at=after(-waited))
    assert all(60 <= (each.oldest_wait or 0) < 600 for each in queue_figures(DB))


def test_looks_are_sent_in_parts_and_told_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats_module, "LOOKS", 2)
    for n, queue in enumerate("abcde"):
        for _ in range(n + 1):
            TaskFactory(queue=queue, run_at=after(-100 * (n + 1)))
    for n, each in enumerate(queue_figures(DB)):
        assert (each.depth, each.due) == (n + 1, n + 1)
        assert 100 * (n + 1) <= (each.oldest_wait or 0) < 100 * (n + 2)
