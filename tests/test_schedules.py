"""What a schedule that is due submits, by its rules; what code declares of schedules, and what people ask of them."""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from datetime import timezone as zone
from typing import TYPE_CHECKING, Any

import pytest
from django.db import DEFAULT_DB_ALIAS as DB
from django.utils import timezone

from cairnq_django import QueueFull, Registry, Task, TaskDef, cancel, ids, retry
from cairnq_django import schedules as room
from cairnq_django.backpressure import forget_grants
from cairnq_django.clock import Now, after
from cairnq_django.models import Schedule
from cairnq_django.schedules import LATE, coming, declare, request_run_now, tick
from cairnq_django.statuses import Tick
from cairnq_django.store import schedules as store
from tests.factories import ScheduleFactory, TaskFactory

if TYPE_CHECKING:
    from pytest_django.fixtures import SettingsWrapper

pytestmark = pytest.mark.django_db


def handler(ctx: Any, payload: Any) -> None: ...


def registry_of(*definitions: TaskDef[Any, Any]) -> Registry:
    registry = Registry()
    for definition in definitions:
        registry.task(definition)(handler)
    return registry


WORK = registry_of(TaskDef("work", queue="mail", priority=3, max_attempts=7))


def ticked(schedule: Schedule, registry: Registry = WORK) -> Tick | None:
    done = tick(DB, schedule.pk, registry)
    schedule.refresh_from_db()
    return None if done is None else done.tick


def missing(times: int, **fields: Any) -> Schedule:
    """A schedule of each minute that was due so many times, the last time a moment ago."""
    return ScheduleFactory(next_run_at=after(-60 * (times - 1) - 1), **fields)


def due_times() -> list[datetime]:
    tasks = Task.objects.order_by("pk").values_list("metadata", flat=True)
    return [datetime.fromisoformat(metadata["due_at"]) for metadata in tasks]


def test_what_is_due_is_submitted_as_its_task_says_and_the_next_time_is_counted_from_the_due_one() -> None:
    schedule = ScheduleFactory(name="each minute", due=True, payload={"a": [1]})
    due = schedule.next_run_at

    assert ticked(schedule) is Tick.SUBMITTED

    task = Task.objects.get()
    assert (task.name, task.queue, task.priority, task.max_attempts) == ("work", "mail", 3, 7)
    assert task.payload == {"a": [1]}
    assert task.metadata == {"schedule": "each minute", "due_at": due.isoformat()}
    assert task.key == f"schedule:{schedule.pk}:{due.isoformat()}"
    assert task.is_queued
    assert schedule.next_run_at == due + timedelta(seconds=60)
    assert schedule.last_task_id == task.pk
    assert schedule.last_run_at >= due


def test_a_schedule_may_have_a_queue_and_a_priority_of_its_own() -> None:
    ticked(ScheduleFactory(due=True, queue="night", priority=-5))
    task = Task.objects.get()
    assert (task.queue, task.priority) == ("night", -5)


def test_a_task_s_earlier_name_stands_for_it() -> None:
    assert (
        ticked(ScheduleFactory(task_name="old", due=True), registry_of(TaskDef("new", aliases=["old"])))
        is Tick.SUBMITTED
    )
    assert Task.objects.get().name == "new"


def test_what_is_not_due_is_left_alone() -> None:
    assert ticked(ScheduleFactory()) is None
    assert ticked(ScheduleFactory(next_run_at=None)) is None
    assert not Task.objects.exists()


@pytest.mark.parametrize("wrong_by", [-86_400, 86_400])
def test_the_clock_of_a_host_that_is_wrong_changes_nothing(wrong_by: int, monkeypatch: pytest.MonkeyPatch) -> None:
    time_of_host, later = time.time(), ScheduleFactory()
    schedule = missing(3, missed="none")
    monkeypatch.setattr(ids, "_last", ids._last)  # later ids of this process are not to come from tomorrow
    monkeypatch.setattr(time, "time", lambda: time_of_host + wrong_by)
    monkeypatch.setattr(time, "time_ns", lambda: int((time_of_host + wrong_by) * 1e9))
    monkeypatch.setattr(timezone, "now", lambda: datetime.fromtimestamp(time.time(), zone.utc))
    first = schedule.next_run_at
    assert ticked(later) is None
    assert ticked(schedule) is Tick.SUBMITTED
    assert due_times() == [first + timedelta(minutes=2)]
    assert schedule.next_run_at == first + timedelta(minutes=3)
    declare(DB, periodic())
    assert Schedule.objects.filter(declared=True, next_run_at__gt=after(55), next_run_at__lte=after(60)).exists()


def test_a_cron_schedule_goes_by_the_clocks_of_its_zone() -> None:
    due = datetime.fromisoformat("2026-03-28T01:30:00+00:00")
    schedule = ScheduleFactory(
        every=None, cron="30 2 * * *", timezone="Europe/Berlin", next_run_at=due, missed="all", overlap="allow"
    )
    ticked(schedule)
    assert [f"{time:%m-%d %H:%M}" for time in due_times()][:3] == ["03-28 01:30", "03-29 01:00", "03-30 00:30"]


class TestMissedTimes:
    def test_once_is_one_task_for_all_of_them(self) -> None:
        schedule = missing(5)
        first = schedule.next_run_at
        assert ticked(schedule) is Tick.SUBMITTED
        assert due_times() == [first + timedelta(minutes=4)]
        assert schedule.next_run_at == first + timedelta(minutes=5)
        assert ticked(schedule) is None

    def test_none_is_nothing_for_those_that_are_late(self) -> None:
        schedule = ScheduleFactory(every=3_600, next_run_at=after(-3_600 - LATE - 1), missed="none")
        first = schedule.next_run_at
        assert ticked(schedule) is Tick.MISSED
        assert not Task.objects.exists()
        assert schedule.next_run_at == first + timedelta(hours=2)
        assert schedule.last_run_at is None

    def test_none_is_a_task_for_what_is_only_a_little_late(self) -> None:
        schedule = ScheduleFactory(every=3_600, next_run_at=after(-3_600 - LATE + 30), missed="none")
        first = schedule.next_run_at
        assert ticked(schedule) is Tick.SUBMITTED
        assert due_times() == [first + timedelta(hours=1)]

    def test_all_is_a_task_for_each_the_oldest_first(self) -> None:
        schedule = missing(5, missed="all", overlap="allow")
        first = schedule.next_run_at
        assert ticked(schedule) is Tick.SUBMITTED
        assert due_times() == [first + timedelta(minutes=n) for n in range(5)]
        assert schedule.next_run_at == first + timedelta(minutes=5)
        assert schedule.last_task_id == Task.objects.order_by("pk").last().pk

    def test_all_goes_on_in_batches(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(room, "CATCH_UP_BATCH", 2)
        schedule = missing(5, missed="all", overlap="allow")
        first = schedule.next_run_at
        while ticked(schedule):
            pass
        assert due_times() == [first + timedelta(minutes=n) for n in range(5)]


class TestOverlap:
    @pytest.mark.parametrize("live", [{"delayed": True}, {"running": True}, {}])
    def test_a_time_is_skipped_while_the_latest_task_has_not_ended(self, live: dict[str, Any]) -> None:
        schedule = ScheduleFactory(due=True, last_task_id=TaskFactory(**live).pk)
        due = schedule.next_run_at
        assert ticked(schedule) is Tick.SKIPPED
        assert Task.objects.count() == 1
        assert schedule.next_run_at == due + timedelta(seconds=60)

    @pytest.mark.parametrize("ended", ["succeeded", "failed", "canceled"])
    def test_it_is_not_once_that_has_ended(self, ended: str) -> None:
        schedule = ScheduleFactory(due=True, last_task_id=TaskFactory(**{ended: True}).pk)
        assert ticked(schedule) is Tick.SUBMITTED

    def test_nor_if_that_was_purged(self) -> None:
        task = TaskFactory(succeeded=True)
        schedule = ScheduleFactory(due=True, last_task_id=task.pk)
        Task.objects.all().delete()
        assert ticked(schedule) is Tick.SUBMITTED

    def test_only_the_latest_counts_and_not_an_earlier_one_that_somebody_retries(self) -> None:
        earlier = TaskFactory(failed=True)
        schedule = ScheduleFactory(due=True, last_task_id=earlier.pk)
        ticked(schedule)
        cancel(schedule.last_task_id)
        retry(earlier.pk)
        Schedule.objects.update(next_run_at=after(-1))
        assert ticked(schedule) is Tick.SUBMITTED

    def test_allowed_it_runs_beside_it(self) -> None:
        schedule = ScheduleFactory(due=True, last_task_id=TaskFactory(running=True).pk, overlap="allow")
        assert ticked(schedule) is Tick.SUBMITTED


@pytest.mark.parametrize("outcome", ["queued", "succeeded", "failed"])
def test_a_time_that_has_its_task_is_not_submitted_again_even_if_the_schedule_is_put_back(outcome: str) -> None:
    schedule = ScheduleFactory(due=True, overlap="allow")
    due = schedule.next_run_at
    ticked(schedule)
    first = Task.objects.get()
    ended = {} if outcome == "queued" else {"completed_at": Now()}
    Task.objects.update(status=outcome, **ended)
    Schedule.objects.update(next_run_at=due)

    assert ticked(schedule) is Tick.SUBMITTED

    assert Task.objects.get().pk == first.pk == schedule.last_task_id
    assert schedule.next_run_at == due + timedelta(seconds=60)


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"every": None, "cron": "@fortnightly", "timezone": "UTC"}, ValueError),
        ({"every": None, "cron": "* * * * *", "timezone": "Moon/Tranquillity"}, ValueError),
        ({"payload": "x" * 2_000_000}, ValueError),
    ],
    ids=["cron", "time zone", "payload"],
)
def test_what_cannot_be_submitted_changes_nothing(fields: dict[str, Any], error: type[Exception]) -> None:
    schedule = ScheduleFactory(due=True, **fields)
    due = schedule.next_run_at
    with pytest.raises(error):
        tick(DB, schedule.pk, WORK)
    schedule.refresh_from_db()
    assert (schedule.next_run_at, schedule.last_tick) == (due, "")
    assert not Task.objects.exists()


class TestAFullQueue:
    @pytest.fixture(autouse=True)
    def _limit(self, settings: SettingsWrapper) -> None:
        settings.CAIRNQ = {"MAX_QUEUE_DEPTH": 3}
        forget_grants()

    def test_it_is_not_waited_for(self) -> None:
        for _ in range(3):
            TaskFactory(queue="mail")
        schedule = ScheduleFactory(due=True)
        due = schedule.next_run_at
        with pytest.raises(QueueFull):
            tick(DB, schedule.pk, WORK)
        schedule.refresh_from_db()
        assert schedule.next_run_at == due

        Task.objects.all().delete()
        forget_grants()
        assert ticked(schedule) is Tick.SUBMITTED

    def test_missed_times_are_let_in_as_far_as_there_is_room(self) -> None:
        schedule = missing(5, missed="all", overlap="allow")
        first = schedule.next_run_at
        for _ in range(3):
            assert ticked(schedule) is Tick.SUBMITTED
        with pytest.raises(QueueFull):
            tick(DB, schedule.pk, WORK)
        assert due_times() == [first + timedelta(minutes=n) for n in range(3)]


def periodic(name: str = "work", **options: Any) -> Registry:
    return registry_of(TaskDef(name, **{"every": 60, **options}))


class TestWhatCodeDeclares:
    def test_it_gets_a_row_with_a_next_time(self, settings: SettingsWrapper) -> None:
        settings.TIME_ZONE = "Asia/Tokyo"
        declare(
            DB,
            registry_of(TaskDef("nightly", cron="0 3 * * *"), TaskDef("often", every=60, missed="none"), TaskDef("x")),
        )
        nightly, often = Schedule.objects.order_by("name")
        assert (nightly.name, nightly.cron, nightly.timezone, nightly.every) == (
            "nightly",
            "0 3 * * *",
            "Asia/Tokyo",
            None,
        )
        assert f"{nightly.next_run_at:%H:%M}" == "18:00"
        assert (often.cron, often.timezone, often.every, often.missed) == ("", "", 60.0, "none")
        assert all(schedule.declared for schedule in (nightly, often))

    def test_an_interval_begins_when_the_row_is_made(self) -> None:
        declare(DB, periodic())
        assert Schedule.objects.filter(next_run_at__gt=after(57), next_run_at__lte=after(60)).count() == 1

    def test_declared_again_it_stays_as_it_is(self, django_assert_num_queries: Any) -> None:
        declare(DB, periodic())
        Schedule.objects.update(next_run_at=after(7))
        before = Schedule.objects.get().next_run_at
        with django_assert_num_queries(1):
            declare(DB, periodic())
        assert Schedule.objects.get().next_run_at == before

    def test_other_rules_leave_the_next_time_as_it_is(self) -> None:
        declare(DB, periodic())
        Schedule.objects.update(next_run_at=after(7))
        before = Schedule.objects.get().next_run_at
        declare(DB, periodic(overlap="allow"))
        schedule = Schedule.objects.get()
        assert (schedule.overlap, schedule.next_run_at) == ("allow", before)

    def test_another_timing_has_a_next_time_of_its_own(self) -> None:
        declare(DB, periodic())
        declare(DB, periodic(every=3_600))
        assert Schedule.objects.filter(every=3_600, next_run_at__gt=after(3_500)).count() == 1

    def test_what_a_person_paused_stays_so_whatever_the_code_says(self) -> None:
        declare(DB, periodic())
        store.pause(DB, Schedule.objects.get().pk)
        declare(DB, periodic(every=30))
        declare(DB, registry_of(TaskDef("work")))
        declare(DB, periodic(every=90))
        schedule = Schedule.objects.get()
        assert (schedule.paused, schedule.retired, schedule.next_run_at) == (True, False, None)
        assert store.resume(DB, schedule.pk, room.first_time)
        assert Schedule.objects.filter(next_run_at__gt=after(80), every=90).count() == 1

    def test_a_declaration_that_is_gone_is_retired_and_comes_back(self) -> None:
        declare(DB, periodic())
        declare(DB, registry_of(TaskDef("work")))
        schedule = Schedule.objects.get()
        assert (schedule.retired, schedule.next_run_at) == (True, None)
        declare(DB, periodic())
        schedule = Schedule.objects.get()
        assert not schedule.retired
        assert schedule.next_run_at is not None

    def test_a_task_with_a_new_name_has_a_schedule_of_that_and_the_old_one_is_retired(self) -> None:
        declare(DB, periodic("old"))
        declare(DB, periodic("new", aliases=["old"]))
        assert dict(Schedule.objects.values_list("name", "retired")) == {"old": True, "new": False}

    def test_what_is_not_known_here_is_left_alone(self) -> None:
        declare(DB, periodic("of another program"))
        before = Schedule.objects.get().next_run_at
        declare(DB, periodic("work"))
        assert Schedule.objects.get(name="of another program").next_run_at == before

    def test_one_that_people_made_under_the_same_name_is_left_alone(self) -> None:
        theirs = ScheduleFactory(name="work", every=5)
        declare(DB, periodic())
        declare(DB, registry_of(TaskDef("work")))
        theirs.refresh_from_db()
        assert (theirs.every, theirs.retired, theirs.next_run_at is None) == (5, False, False)
        assert Schedule.objects.count() == 2


class TestWhatPeopleAsk:
    def test_what_is_due_while_it_is_paused_is_not_made_up_for(self) -> None:
        schedule = missing(10)
        assert store.pause(DB, schedule.pk)
        assert not store.pause(DB, schedule.pk)
        assert ticked(schedule) is None
        assert store.resume(DB, schedule.pk, room.first_time)
        assert not store.resume(DB, schedule.pk, room.first_time)
        assert ticked(schedule) is None
        assert Schedule.objects.filter(next_run_at__gt=Now(), next_run_at__lte=after(60)).exists()

    def test_paused_and_resumed_it_forgets_a_time_that_a_wrong_clock_has_left_far_ahead(self) -> None:
        schedule = ScheduleFactory(next_run_at=after(86_400 * 365))
        store.pause(DB, schedule.pk)
        store.resume(DB, schedule.pk, room.first_time)
        schedule.refresh_from_db()
        assert schedule.next_run_at <= timezone.now() + timedelta(seconds=60)

    def test_a_run_beside_its_times_leaves_them_as_they_are(self) -> None:
        schedule = ScheduleFactory(payload=[1])
        task = request_run_now(schedule)
        assert task is not None
        assert (task.name, task.payload, task.key) == ("work", [1], None)
        assert task.metadata["schedule"] == schedule.name
        due_at = datetime.fromisoformat(task.metadata["due_at"])
        assert timedelta(0) <= task.created_at - due_at < timedelta(seconds=30)
        before = schedule.next_run_at
        schedule.refresh_from_db()
        assert (schedule.next_run_at, schedule.last_task_id) == (before, task.pk)

    def test_it_keeps_to_the_rule_for_overlap(self) -> None:
        schedule = ScheduleFactory()
        task = request_run_now(schedule)
        assert task is not None
        assert request_run_now(schedule) is None
        cancel(task.pk)
        assert request_run_now(schedule) is not None
        allowing = ScheduleFactory(overlap="allow")
        assert request_run_now(allowing) is not None
        assert request_run_now(allowing) is not None

    def test_the_next_runs_are_told(self) -> None:
        schedule = ScheduleFactory()
        assert coming(schedule, 3) == [schedule.next_run_at + timedelta(minutes=n) for n in range(3)]
        assert coming(ScheduleFactory(next_run_at=None), 3) == []
