"""Schedules: which are due, the step from one time to the next with its tasks, and what people and code change."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from django.db.models import QuerySet

from ..clock import Now
from ..models import Schedule, Task
from ..statuses import Overlap, Tick
from . import keys
from .engine import in_transaction, note_written
from .insert import insert

#: The first time of a schedule that is later than a moment; None if there is none.
First = Callable[[Schedule, datetime], datetime | None]

_TIMING = ("cron", "timezone", "every")


class Upcoming(NamedTuple):
    """A schedule that has a next time, and the database's time when that was asked."""

    schedule_id: int
    name: str
    task_name: str
    next_run_at: datetime
    error: str  # why nobody has submitted it yet; empty: none that is known
    asked_at: datetime

    @property
    def due_in(self) -> float:
        """Seconds; negative if it is late."""
        return (self.next_run_at - self.asked_at).total_seconds()


class Step(NamedTuple):
    """What is to become of a schedule that is due: the tasks to submit, each with its key, and the next time."""

    tick: Tick
    tasks: list[Task]
    next_run_at: datetime | None


class Ticked(NamedTuple):
    """What became of a schedule that was due."""

    schedule: Schedule
    tick: Tick
    submitted: list[Task]


def upcoming(using: str, *, limit: int, leave_out: Collection[int] = ()) -> list[Upcoming]:
    """The schedules whose times come next, or are due; one statement, without a transaction."""
    rows: Any = _rows(using).filter(next_run_at__isnull=False).order_by("next_run_at", "pk").annotate(asked_at=Now())
    if leave_out:
        rows = rows.exclude(pk__in=leave_out)
    columns = ("pk", "name", "task_name", "next_run_at", "error", "asked_at")
    return [Upcoming(*row) for row in rows.values_list(*columns)[:limit]]


def tick(using: str, schedule_id: int, step: Callable[[Schedule, datetime, bool], Step]) -> Ticked | None:
    """Submit what a schedule that is due has to submit, and advance it; None if it is not due, or others are at it.

    `step` is given the row, the database's time, and whether that must be skipped, since the latest task has not ended.
    One short transaction: either all of it happens, or nothing. What has a task under its key already, whatever became
    of that, is not submitted again.
    """
    return in_transaction(using, lambda: _tick(using, schedule_id, step))


def note(using: str, upcoming: Upcoming, tick: Tick, error: str) -> bool:
    """Record why a schedule was not advanced, unless it was by now, and return whether that is news."""
    row = _rows(using).filter(pk=upcoming.schedule_id, next_run_at=upcoming.next_run_at)
    news = row.exclude(last_tick=tick, error=error)
    return bool(in_transaction(using, lambda: news.update(last_tick=tick, error=error)))


def run_now(using: str, schedule_id: int, task_of: Callable[[Schedule], Task]) -> Task | None:
    """Submit a task of a schedule, whose next time stays as it is, and return it.

    None if it would overlap with the latest one and must not. Joins the caller's transaction. Raises
    `Schedule.DoesNotExist`.
    """

    def work() -> Task | None:
        schedule = _locked(using, schedule_id)
        if _must_skip(using, schedule):
            return None
        task = task_of(schedule)
        insert(using, [task])
        note_written(using, [task.pk])
        _row(using, schedule_id).update(last_run_at=Now(), last_task_id=task.pk)
        return task

    return in_transaction(using, work)


def create(using: str, schedule: Schedule, first: First) -> None:
    """Insert a schedule and set its next time. Joins the caller's transaction."""

    def work() -> None:
        schedule.save(using=using, force_insert=True)
        _set_next(using, schedule.pk, first)

    in_transaction(using, work)


def change(using: str, schedule_id: int, values: Mapping[str, Any], first: First) -> None:
    """Give a schedule these values. Its next time stays as it is unless its timing is another by that.

    Joins the caller's transaction. Raises `Schedule.DoesNotExist`.
    """

    def work() -> None:
        before = _locked(using, schedule_id)
        # What could not be submitted may be by now.
        _row(using, schedule_id).update(**values, error="")
        if before.next_run_at is None or not _says(before, values, of=_TIMING):
            _set_next(using, schedule_id, first)

    in_transaction(using, work)


def pause(using: str, schedule_id: int) -> bool:
    """Have a schedule submit nothing until it is resumed, and return whether it did until now."""
    row = _row(using, schedule_id).filter(paused=False)
    return bool(in_transaction(using, lambda: row.update(paused=True, next_run_at=None)))


def resume(using: str, schedule_id: int, first: First) -> bool:
    """Have a paused schedule go on with the first time from now on, and return whether it was paused."""

    def work() -> bool:
        resumed = bool(_row(using, schedule_id).filter(paused=True).update(paused=False))
        if resumed:
            _set_next(using, schedule_id, first)
        return resumed

    return in_transaction(using, work)


def delete(using: str, schedule_ids: Collection[int]) -> None:
    """Delete schedules; the tasks they submitted stay. Joins the caller's transaction."""
    in_transaction(using, lambda: _rows(using).filter(pk__in=schedule_ids)._raw_delete(using))


def declare(using: str, declared: Mapping[str, Mapping[str, Any]], gone: Callable[[str], bool], first: First) -> None:
    """Make the schedules that code declares, by their names, what it says of them, and retire those that are `gone`.

    What is so already costs one statement. A pause stays, and so does the next time unless the timing is another.
    """
    stored = {schedule.name: schedule for schedule in _rows(using).filter(declared=True)}
    retiring = sorted(name for name, schedule in stored.items() if not schedule.retired and gone(name))
    wanted = {name: {**values, "retired": False} for name, values in declared.items()}
    changed = sorted(name for name in wanted if name not in stored or not _says(stored[name], wanted[name]))

    def work() -> None:
        # Workers that start together do the same.
        rows = [Schedule(name=name, declared=True, **wanted[name]) for name in changed if name not in stored]
        _rows(using).bulk_create(rows, ignore_conflicts=True)
        of_code = _rows(using).filter(declared=True)
        for schedule_id, name in list(of_code.filter(name__in=changed).order_by("pk").values_list("pk", "name")):
            change(using, schedule_id, wanted[name], first)
        of_code.filter(name__in=retiring).update(retired=True, next_run_at=None)

    if changed or retiring:
        in_transaction(using, work)


def _tick(using: str, schedule_id: int, step: Callable[[Schedule, datetime, bool], Step]) -> Ticked | None:
    due = _row(using, schedule_id).filter(next_run_at__lte=Now()).annotate(asked_at=Now())
    schedule: Any = due.select_for_update(skip_locked=True).first()
    if schedule is None:
        return None
    tick, tasks, next_run_at = step(schedule, schedule.asked_at, _must_skip(using, schedule))
    submitted, latest = _submit_once(using, tasks)
    values: dict[str, Any] = {"last_tick": tick, "error": "", "next_run_at": next_run_at}
    if latest is not None:
        values |= {"last_run_at": Now(), "last_task_id": latest.pk}
    _row(using, schedule_id).update(**values)
    return Ticked(schedule, tick, submitted)


def _submit_once(using: str, tasks: list[Task]) -> tuple[list[Task], Task | None]:
    """Those of the tasks that were submitted, and the task that has the last one's key."""
    if not tasks:
        return [], None
    holders = keys.lock(using, [task.key for task in tasks if task.key is not None])
    fresh = [task for task in tasks if task.key is not None and holders[task.key] is None]
    if fresh:
        insert(using, fresh)
        keys.point(using, fresh)
        note_written(using, [task.pk for task in fresh])
    return fresh, holders[tasks[-1].key or ""] or tasks[-1]


def _must_skip(using: str, schedule: Schedule) -> bool:
    latest = schedule.last_task_id
    if schedule.overlap != Overlap.SKIP or latest is None:
        return False
    return Task.objects.using(using).live().filter(pk=latest).exists()


def _says(schedule: Schedule, values: Mapping[str, Any], *, of: Collection[str] = ()) -> bool:
    """Whether the row holds these values already, or those of them that are named."""
    return all(getattr(schedule, name) == value for name, value in values.items() if not of or name in of)


def _set_next(using: str, schedule_id: int, first: First) -> None:
    schedule = _locked(using, schedule_id)
    runs = not schedule.paused and not schedule.retired
    next_run_at = first(schedule, schedule.asked_at) if runs else None
    _row(using, schedule_id).update(next_run_at=next_run_at, error="")


def _locked(using: str, schedule_id: int) -> Any:
    return _row(using, schedule_id).annotate(asked_at=Now()).select_for_update().get()


def _row(using: str, schedule_id: int) -> QuerySet[Schedule]:
    return _rows(using).filter(pk=schedule_id)


def _rows(using: str) -> QuerySet[Schedule]:
    return Schedule.objects.using(using)
