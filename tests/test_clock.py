from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from django.db import DEFAULT_DB_ALIAS as DB
from django.db import connection

from cairnq_django.arguments import MAX_SECONDS
from cairnq_django.clock import Now, after
from cairnq_django.models import Task
from cairnq_django.store.claim import Draw, claim
from cairnq_django.store.maintenance import Ended, purge, recover
from cairnq_django.store.submit import Conflict, submit
from tests.factories import TaskFactory, in_turn, new_task
from tests.helpers import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.django_db

NEAR = timedelta(minutes=10)  # the server may be another host


def read(**expressions: Any) -> dict[str, Any]:
    """The database's values of some expressions, all of one statement."""
    if not Task.objects.exists():
        TaskFactory()
    values: dict[str, Any] = Task.objects.annotate(**expressions).values(*expressions)[0]
    return values


def test_now_is_the_time() -> None:
    now = read(now=Now())["now"]
    assert now.utcoffset() == timedelta(0)
    assert abs(now - datetime.now(timezone.utc)) < NEAR


def test_now_goes_on_within_a_transaction() -> None:
    first = read(now=Now())["now"]
    assert eventually(lambda: read(now=Now())["now"] > first)


@pytest.mark.parametrize("seconds", [0, 0.001, 0.25, 1.5, 3600, 30 * 86_400, MAX_SECONDS, -0.001, -7.75, -86_400.5])
def test_after_is_so_many_seconds_from_now(seconds: float) -> None:
    values = read(now=Now(), then=after(seconds))
    assert values["then"] - values["now"] == timedelta(seconds=seconds)


@pytest.mark.parametrize("seconds", [0, 0.25, 3600, -90.5])
def test_what_is_written_is_so_many_seconds_from_now(seconds: float) -> None:
    task = TaskFactory(run_at=after(seconds))
    assert task.run_at - task.created_at == timedelta(seconds=seconds)
    Task.objects.update(run_at=after(seconds), updated_at=Now())
    task.refresh()
    assert task.run_at - task.updated_at == timedelta(seconds=seconds)


@pytest.mark.parametrize("microsecond", [0, 1, 999, 1_000, 999_999])
def test_moments_compare_as_times_whoever_wrote_them(microsecond: int) -> None:
    hour = timedelta(hours=1)
    moment = read(now=Now())["now"].replace(microsecond=microsecond)
    for run_at in (moment - hour, after(-3600)):
        Task.objects.update(run_at=run_at)
        assert Task.objects.filter(run_at__lte=Now(), run_at__gt=after(-7200)).exists()
        assert Task.objects.filter(run_at__lt=moment, run_at__gt=moment - 2 * hour).exists()
    for run_at in (moment + hour, after(3600)):
        Task.objects.update(run_at=run_at)
        assert Task.objects.filter(run_at__gt=Now(), run_at__lt=after(7200)).exists()
        assert Task.objects.filter(run_at__gt=moment, run_at__lt=moment + 2 * hour).exists()


@pytest.fixture
def _session_in_india() -> Iterator[None]:
    if connection.vendor == "sqlite":
        yield
        return
    name = "time_zone" if connection.vendor == "mysql" else "TIME ZONE"
    with connection.cursor() as cursor:
        cursor.execute(f"SET {name} {'=' if connection.vendor == 'mysql' else ''} '+05:30'")
    yield
    with connection.cursor() as cursor:
        cursor.execute("SET time_zone = @@GLOBAL.time_zone" if connection.vendor == "mysql" else "SET TIME ZONE 'UTC'")


@pytest.mark.usefixtures("_session_in_india")
def test_a_session_s_time_zone_does_not_matter() -> None:
    assert abs(read(now=Now())["now"] - datetime.now(timezone.utc)) < NEAR
    (task,) = submit(DB, [new_task()], Conflict.REUSE).tasks
    assert abs(task.created_at - datetime.now(timezone.utc)) < NEAR
    assert task.created_at == task.run_at == task.updated_at
    delayed = TaskFactory(delayed=True)
    expired = TaskFactory(expired=True)
    old = TaskFactory(succeeded=True, completed_at=after(-7200))
    held = TaskFactory(running=True)
    assert recover(DB).queued == [expired]
    assert purge(DB, Ended(older_than=3600)) == 1
    claimed = claim(DB, in_turn(Draw(("default",), ("work",), 10)), worker_id="worker-1", lease=30)
    assert {task.lease.task_id for task in claimed} >= {task.pk, expired.pk}
    assert delayed.refresh().is_queued
    assert held.refresh().is_running
    assert not Task.objects.filter(pk=old.pk).exists()
    task.refresh()
    assert task.lease_until - task.started_at == timedelta(seconds=30)
    assert abs(task.lease_until - datetime.now(timezone.utc)) < NEAR


def test_the_host_s_clock_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = datetime(2001, 1, 1, tzinfo=timezone.utc)
    monkeypatch.setattr("django.utils.timezone.now", lambda: wrong)
    monkeypatch.setattr("time.time", wrong.timestamp)
    (task,) = submit(DB, [new_task()], Conflict.REUSE).tasks
    claim(DB, in_turn(Draw(("default",), ("work",), 1)), worker_id="worker-1", lease=30)
    task.refresh()
    assert task.created_at <= task.started_at <= task.lease_until
    assert task.created_at.year > 2001
