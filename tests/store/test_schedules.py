"""However many workers see to a schedule, and whatever cuts them off, each of its times is submitted once."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from django.db import DEFAULT_DB_ALIAS as DB
from django.db import IntegrityError, transaction

from cairnq_django import Registry, Task
from cairnq_django import schedules as room
from cairnq_django.clock import after
from cairnq_django.models import Schedule, TaskKey
from cairnq_django.statuses import Tick
from cairnq_django.store import schedules as store
from cairnq_django.store.schedules import upcoming
from tests.factories import ScheduleFactory
from tests.helpers import in_threads
from tests.store.sessions import another_transaction, locks_rows

TIMES = 60


@pytest.fixture
def registry() -> Registry:
    registry = Registry()

    @registry.task
    def work(ctx: Any, payload: Any) -> None: ...

    return registry


class CutOff(Exception):
    """What comes in between."""


@pytest.mark.django_db(transaction=True, available_apps=["cairnq_django"])
def test_threads_that_are_cut_off_again_and_again_submit_each_time_once(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "CATCH_UP_BATCH", 3)
    schedule = ScheduleFactory(next_run_at=after(-60 * (TIMES - 1) - 1), missed="all", overlap="allow")
    first = schedule.next_run_at
    submit_once, submits = store._submit_once, count()

    def submit_and_be_cut_off(using: str, tasks: list[Task]) -> Any:
        submitted = submit_once(using, tasks)
        if next(submits) % 3 == 0:
            raise CutOff
        return submitted

    monkeypatch.setattr(store, "_submit_once", submit_and_be_cut_off)

    def work(_: int) -> int:
        cut_off = 0
        while Schedule.objects.filter(pk=schedule.pk, next_run_at__lte=first + timedelta(minutes=TIMES - 1)).exists():
            try:
                room.tick(DB, schedule.pk, registry)
            except CutOff:
                cut_off += 1
        return cut_off

    cut_off = in_threads(4, work)

    times = Counter(task.metadata["due_at"] for task in Task.objects.all())
    assert times == dict.fromkeys(((first + timedelta(minutes=n)).isoformat() for n in range(TIMES)), 1)
    assert TaskKey.objects.count() == TIMES
    assert sum(cut_off) > 0


@locks_rows
@pytest.mark.django_db(transaction=True, available_apps=["cairnq_django"])
def test_a_schedule_that_another_worker_is_at_is_passed_over(registry: Registry) -> None:
    schedule, other = ScheduleFactory(due=True), ScheduleFactory(due=True)

    def hold() -> None:
        Schedule.objects.select_for_update().get(pk=schedule.pk)

    with another_transaction(hold):
        assert room.tick(DB, schedule.pk, registry) is None
        assert room.tick(DB, other.pk, registry) is not None
    assert room.tick(DB, schedule.pk, registry) is not None


@pytest.mark.django_db
def test_what_comes_next_is_told_in_order_with_how_long_it_takes() -> None:
    later, due = ScheduleFactory(next_run_at=after(100)), ScheduleFactory(due=True)
    ScheduleFactory(next_run_at=None)
    found = upcoming(DB, limit=10)
    assert [each.schedule_id for each in found] == [due.pk, later.pk]
    assert -5 < found[0].due_in < 0
    assert 90 < found[1].due_in < 101
    assert [each.schedule_id for each in upcoming(DB, limit=1)] == [due.pk]
    assert [each.schedule_id for each in upcoming(DB, limit=10, leave_out=[due.pk])] == [later.pk]


@pytest.mark.django_db
def test_a_problem_is_noted_once_and_not_of_a_time_that_is_over() -> None:
    schedule = ScheduleFactory(due=True)
    (seen,) = upcoming(DB, limit=1)
    assert store.note(DB, seen, Tick.FAILED, "no")
    assert not store.note(DB, seen, Tick.FAILED, "no")
    assert store.note(DB, seen, Tick.HELD_BACK, "full")
    schedule.refresh_from_db()
    assert (schedule.last_tick, schedule.error) == ("held back", "full")
    Schedule.objects.update(next_run_at=after(60))
    assert not store.note(DB, seen, Tick.FAILED, "no")


@pytest.mark.django_db
def test_what_is_submitted_at_last_has_no_problem_any_more(registry: Registry) -> None:
    schedule = ScheduleFactory(due=True, last_tick=Tick.FAILED, error="no")
    room.tick(DB, schedule.pk, registry)
    schedule.refresh_from_db()
    assert (schedule.last_tick, schedule.error) == ("submitted", "")


@pytest.mark.django_db
def test_a_change_keeps_the_next_time_unless_it_is_one_of_timing() -> None:
    schedule = ScheduleFactory(error="no")
    before = schedule.next_run_at
    store.change(DB, schedule.pk, {"payload": [1], "every": 60.0, "cron": ""}, room.first_time)
    schedule.refresh_from_db()
    assert (schedule.payload, schedule.next_run_at, schedule.error) == ([1], before, "")
    store.change(DB, schedule.pk, {"every": 90.0}, room.first_time)
    assert Schedule.objects.filter(next_run_at__gt=after(80), next_run_at__lte=after(90)).count() == 1


@pytest.mark.django_db
def test_a_schedule_that_is_made_has_a_next_time_and_one_that_is_deleted_leaves_its_tasks(registry: Registry) -> None:
    schedule = Schedule(name="mine", task_name="work", every=60.0)
    store.create(DB, schedule, room.first_time)
    assert Schedule.objects.filter(next_run_at__gt=after(50)).count() == 1
    Schedule.objects.update(next_run_at=after(-1))
    room.tick(DB, schedule.pk, registry)
    store.delete(DB, [schedule.pk])
    assert not Schedule.objects.exists()
    assert Task.objects.count() == 1


@pytest.mark.django_db(transaction=True, available_apps=["cairnq_django"])
def test_workers_that_start_together_declare_one_row(registry: Registry) -> None:
    registry.task("nightly", cron="0 3 * * *", timezone="UTC")(lambda ctx, payload: None)
    in_threads(4, lambda _: room.declare(DB, registry))
    schedule = Schedule.objects.get()
    assert schedule.next_run_at is not None


@pytest.mark.django_db
@pytest.mark.parametrize(
    "fields",
    [
        {"every": None},
        {"cron": "* * * * *", "timezone": "UTC"},
        {"every": 0},
        {"missed": "sometimes"},
        {"overlap": ""},
    ],
)
def test_the_database_refuses_a_schedule_that_cannot_be(fields: dict[str, Any]) -> None:
    with transaction.atomic(), pytest.raises(IntegrityError):
        ScheduleFactory(**fields)


@pytest.mark.django_db
def test_people_and_code_have_each_name_once() -> None:
    ScheduleFactory(name="a")
    ScheduleFactory(name="a", declared=True)
    ScheduleFactory(name="A")
    with transaction.atomic(), pytest.raises(IntegrityError):
        ScheduleFactory(name="a")
