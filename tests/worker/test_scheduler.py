"""Workers keep schedules beside their work: what is due is submitted, what cannot be holds up nothing else."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection

from cairnq_django import Registry, Task, TaskContext
from cairnq_django.backpressure import forget_grants
from cairnq_django.clock import after
from cairnq_django.instrumentation import surround
from cairnq_django.models import Schedule
from cairnq_django.schedules import LATE
from cairnq_django.signals import task_submitted
from cairnq_django.worker import scheduler
from tests.factories import ScheduleFactory, TaskFactory
from tests.helpers import eventually
from tests.workers import PATIENCE, quick, reports, runs_workers, table_away

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from uuid import UUID

    from pytest_django.fixtures import SettingsWrapper

pytestmark = runs_workers


@pytest.fixture
def registry() -> Registry:
    registry = Registry()

    @registry.task
    def work(ctx: TaskContext, payload: Any) -> Any:
        return ctx.metadata["due_at"]

    return registry


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "FIRST_LOOK", 0.0)


def runs(schedule: Schedule, count: int = 1) -> list[Task]:
    """The tasks of a schedule, once there are so many."""

    def found() -> list[Task]:
        tasks = [task for task in Task.objects.order_by("pk") if task.metadata.get("schedule") == schedule.name]
        return tasks if len(tasks) >= count else []

    return eventually(found, PATIENCE, f"{count} tasks of {schedule}")


def test_what_is_due_runs_and_what_comes_due_later_does_then(registry: Registry) -> None:
    due, soon = ScheduleFactory(due=True), ScheduleFactory(next_run_at=after(0.7))
    with quick(registry).background():
        for schedule in (due, soon):
            (task,) = runs(schedule)
            eventually(lambda task=task: task.refresh().succeeded, PATIENCE)
            assert task.result == schedule.next_run_at.isoformat()
            assert task.created_at >= schedule.next_run_at


def test_what_code_declares_runs() -> None:
    registry = Registry()
    ran = threading.Event()

    @registry.task(every=1)
    def often(ctx: TaskContext, payload: None) -> None:
        ran.set()

    with quick(registry).background():
        assert ran.wait(PATIENCE)
    assert Schedule.objects.get().declared


def test_its_submits_are_told_and_traced_like_all_others(registry: Registry) -> None:
    told: list[UUID] = []
    traced: list[Any] = []

    @contextmanager
    def around(rows: Sequence[Task]) -> Iterator[None]:
        traced.append([row.metadata["due_at"] for row in rows])
        yield

    def receive(task: Task, **facts: Any) -> None:
        told.append(task.pk)

    schedule = ScheduleFactory(next_run_at=after(-150), missed="all", overlap="allow")
    task_submitted.connect(receive)
    undo = surround(submits=around)
    try:
        with quick(registry).background():
            tasks = runs(schedule, 3)
            eventually(lambda: told == [task.pk for task in tasks], PATIENCE)
    finally:
        undo()
        task_submitted.disconnect(receive)
    assert traced == [[task.metadata["due_at"]] for task in tasks]


def test_idle_workers_do_not_wait_for_their_next_look_at_the_queue(registry: Registry) -> None:
    schedule = ScheduleFactory(next_run_at=after(1))
    with quick(registry, poll_interval=60).background():
        (task,) = runs(schedule)
        eventually(lambda: task.refresh().succeeded, PATIENCE)


def test_a_burst_keeps_no_schedules(registry: Registry) -> None:
    registry.task("often", every=1)(lambda ctx, payload: None)
    ScheduleFactory(due=True)
    quick(registry).run(burst=True)
    assert not Task.objects.exists()
    assert not Schedule.objects.filter(declared=True).exists()


def test_what_cannot_run_is_reported_and_shown_and_holds_up_nothing(registry: Registry) -> None:
    early = {"next_run_at": after(-60 * 60)}
    bad_cron = ScheduleFactory(every=None, cron="@fortnightly", timezone="UTC", **early)
    bad_zone = ScheduleFactory(every=None, cron="* * * * *", timezone="Moon/Sea", **early)
    too_large = ScheduleFactory(payload="x" * 2_000_000, **early)
    unknown = ScheduleFactory(task_name="unheard of", **early)
    good = ScheduleFactory(due=True)

    with reports() as reported, quick(registry).background():
        runs(good)
        eventually(lambda: len([phase for phase, _ in reported if phase == "schedule"]) == 4, PATIENCE)

    told = " ".join(str(error) for _, error in reported)
    parts = {
        bad_cron: "@fortnightly",
        bad_zone: "Moon/Sea",
        too_large: "payload takes 2,000,002",
        unknown: "'unheard of'",
    }
    for schedule, part in parts.items():
        due = schedule.next_run_at
        schedule.refresh_from_db()
        assert (schedule.last_tick, schedule.next_run_at) == ("failed", due)
        assert part in schedule.error
        assert part in told
        assert repr(schedule.name) in told


def test_a_task_that_is_not_known_here_is_left_to_others_and_not_reported_at_once(registry: Registry) -> None:
    others = ScheduleFactory(task_name="unheard of", next_run_at=after(-LATE / 2))
    full = {"last_tick": "held back", "error": "Queue 'x' is full."}
    held = ScheduleFactory(task_name="unheard of", next_run_at=after(-LATE * 2), **full)
    good = ScheduleFactory(due=True)
    with reports() as reported, quick(registry).background():
        runs(good)
    assert reported == []
    others.refresh_from_db()
    held.refresh_from_db()
    assert [others.last_tick, held.last_tick] == ["", "held back"]


def test_a_full_queue_holds_a_schedule_back_until_there_is_room(
    registry: Registry, settings: SettingsWrapper, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(scheduler, "FULL_PAUSE", 0.05)
    monkeypatch.setattr(scheduler, "LOOK_INTERVAL", 0.05)
    settings.CAIRNQ = {"MAX_QUEUE_DEPTH": {"narrow": 1}}
    forget_grants()
    TaskFactory(queue="narrow", name="of others")
    held, free = ScheduleFactory(due=True, queue="narrow"), ScheduleFactory(due=True)
    with reports() as reported, quick(registry).background():
        runs(free)
        eventually(lambda: Schedule.objects.filter(pk=held.pk, last_tick="held back").exists(), PATIENCE)
        Task.objects.filter(queue="narrow").delete()
        runs(held)
    assert reported == []
    assert caplog.text.count("is held back") == 1


def test_a_database_that_is_away_is_reported_and_waited_for(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "LOOK_INTERVAL", 0.05)
    monkeypatch.setattr(scheduler, "IDLE_INTERVAL", 0.05)
    monkeypatch.setattr(scheduler, "RETRY_PAUSE", 0.05)
    with reports() as reported, quick(registry).background():
        with table_away(Schedule):
            eventually(lambda: "schedule" in reported.phases, PATIENCE)
        runs(ScheduleFactory(due=True))


def test_a_worker_without_schedules_asks_once_a_minute(registry: Registry) -> None:
    asked: list[str] = []

    class Counting(scheduler.Scheduler):
        def _go(self) -> float:
            with connection.execute_wrapper(self._count):
                return super()._go()

        def _count(self, execute: Any, sql: str, *rest: Any) -> Any:
            asked.append(sql)
            return execute(sql, *rest)

    counting = Counting("default", registry, wake=lambda: None, report=lambda *_: None)
    pauses = [counting._go() for _ in range(3)]
    assert pauses == [scheduler.IDLE_INTERVAL] * 3
    of_schedules = [sql for sql in asked if Schedule._meta.db_table in sql]
    assert len(of_schedules) == 1 + 3, "one for what is declared, then one each time"
