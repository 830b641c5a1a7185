"""Tidy up: take back what dead workers held, end what was not started in time, delete what is over."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from ..clock import Now, after
from ..envelopes import expired, lease_expired
from ..expressions import Among
from ..models import Task, TaskAttempt, TaskKey
from ..querysets import TaskQuerySet
from ..statuses import TERMINAL, AttemptOutcome, TaskStatus
from . import states
from .engine import each_its_own, in_batches, in_transaction

RECOVERY_BATCH = 100
EXPIRE_BATCH = 200
PURGE_BATCH = 1000
WINDOW = 10_000  # tasks that a purge by queue or name looks through at a time


class Recovered(NamedTuple):
    """What became of the tasks whose lease had run out."""

    queued: list[Task]
    ended: list[Task]  # failed or canceled


def recover(using: str, *, limit: int = RECOVERY_BATCH) -> Recovered:
    """Take back up to `limit` tasks whose lease ran out, and return what became of them.

    One with a cancel requested ends `canceled`; one that has used up its attempts ends `failed` with a `lease_expired`
    envelope. One short transaction; rows that someone else has locked are left for the next time.
    """
    return in_transaction(using, lambda: _recover(using, limit))


def expire(using: str, *, limit: int = EXPIRE_BATCH) -> list[UUID]:
    """End up to `limit` tasks that no worker started in time, the longest expired first, and return their ids.

    They end `canceled` with an `expired` envelope. One short transaction; rows that someone else has locked are left
    for the next time.
    """
    return in_transaction(using, lambda: _expire(using, limit))


def expire_among(using: str, task_ids: Iterable[UUID]) -> list[UUID]:
    """End those of these tasks that no worker started in time, as `expire()` does, and return their ids.

    For use in a transaction. Waits for rows that someone else has locked.
    """
    late = Task.objects.using(using).too_late().order_by("pk").select_for_update()
    batches = in_batches(sorted(task_ids), EXPIRE_BATCH)
    return [pk for batch in batches for pk in _end_expired(using, late.filter(pk__in=batch))]


@dataclass(frozen=True)
class Ended:
    """Which tasks to purge: those that ended more than `older_than` seconds ago and are all that is said here."""

    older_than: float
    statuses: tuple[TaskStatus, ...] = TERMINAL
    queue: str | None = None
    name: str | None = None


class Step(NamedTuple):
    """What a purge has just done."""

    deleted: int
    passed: int  # about how many tasks it read and has no business with
    since: datetime | None  # all that ended up to then is done with


def purge(using: str, ended: Ended, *, limit: int | None = None) -> int:
    """Delete `ended` with their keys and attempts, and return how many.

    In short transactions of up to 1,000 tasks; at most `limit` tasks in all, the longest ended first. What someone
    holds locked stays.
    """
    return sum(step.deleted for step in purge_steps(using, ended, size=PURGE_BATCH, limit=limit))


def purge_steps(
    using: str, ended: Ended, *, size: int, limit: int | None = None, since: datetime | None = None
) -> Iterator[Step]:
    """`purge()` step by step, each a transaction of up to `size` tasks, done when it is asked for.

    A purge by queue or name may have to read over any number of other tasks. It does so a window at a time, and can be
    broken off and taken up again: pass the latest step's `since`.
    """
    left = sys.maxsize if limit is None else limit
    while left > 0:
        until = _end_of_window(using, ended, since) if _is_narrowed(ended) else None
        passed = WINDOW if until is not None else 0
        for deleted in _purge_window(using, ended, _window(using, ended, since, until), size, left):
            left -= deleted
            passed -= deleted
            yield Step(deleted, 0, since)
        if until is None or not left:
            return
        since = until
        yield Step(0, max(passed, 0), since)


def count(using: str, ended: Ended) -> Iterator[int]:
    """How many tasks a purge would find, in parts to be added up; each comes from short queries."""
    since = None
    while True:
        until = _end_of_window(using, ended, since)
        window = _window(using, ended, since, until)
        yield sum(window.filter(status=status).count() for status in ended.statuses)
        if until is None:
            return
        since = until


def _recover(using: str, limit: int) -> Recovered:
    orphaned = Task.objects.using(using).expired().defer("payload", "result", "metadata")
    recovered = Recovered([], [])
    for task in orphaned.order_by("lease_until").select_for_update(skip_locked=True)[:limit]:
        row = Task.objects.using(using).filter(pk=task.pk)
        error = lease_expired(task.worker_id, task.attempt)
        if task.cancel_requested:
            row.update(**states.CANCELED)
            recovered.ended.append(task)
            outcome = AttemptOutcome.CANCELED
        elif task.attempt < task.max_attempts:
            row.update(**states.QUEUED_AGAIN, run_at=Now(), error=error)
            recovered.queued.append(task)
            outcome = AttemptOutcome.RETRIED
        else:
            row.update(**states.FAILED, error=error)
            recovered.ended.append(task)
            outcome = AttemptOutcome.FAILED
        states.record_attempt(using, task, outcome, error)
    return recovered


def _expire(using: str, limit: int) -> list[UUID]:
    late = Task.objects.using(using).too_late().order_by("expires_at").select_for_update(skip_locked=True)
    return _end_expired(using, late[:limit])


def _end_expired(using: str, late: TaskQuerySet) -> list[UUID]:
    found = {pk: expired(moment) for pk, moment in late.values_list("pk", "expires_at") if moment}
    if found:
        errors = each_its_own(using, "error", found)
        Task.objects.using(using).filter(Among("pk", found)).update(**{**states.CANCELED, "error": errors})
    return list(found)


def _old(using: str, ended: Ended, since: datetime | None) -> TaskQuerySet:
    """Those that ended after `since` and long enough ago, whatever their queue and name."""
    old = Task.objects.using(using).filter(completed_at__lte=after(-ended.older_than))
    return old if since is None else old.filter(completed_at__gt=since)


def _is_narrowed(ended: Ended) -> bool:
    return ended.queue is not None or ended.name is not None


def _end_of_window(using: str, ended: Ended, since: datetime | None) -> datetime | None:
    """The end of a time after `since` in which about `WINDOW` tasks ended; None if no more than that are left."""
    ends: list[Any] = []
    for status in ended.statuses:
        old = _old(using, ended, since).filter(status=status).order_by("completed_at")
        ends += old.values_list("completed_at", flat=True)[WINDOW - 1 : WINDOW]
    # To SQLite times are texts, and 10:00:00.000, its own way to write 10:00:00, comes after that.
    return min(ends) + timedelta(microseconds=1) if ends else None


def _window(using: str, ended: Ended, since: datetime | None, until: datetime | None) -> TaskQuerySet:
    window = _old(using, ended, since).filter(status__in=ended.statuses)
    if until is not None:
        window = window.filter(completed_at__lte=until)
    if ended.queue is not None:
        window = window.filter(queue=ended.queue)
    if ended.name is not None:
        window = window.filter(name=ended.name)
    return window


def _purge_window(using: str, ended: Ended, window: TaskQuerySet, size: int, limit: int) -> Iterator[int]:
    while limit > 0:
        wanted = min(size, limit)
        found = _longest_ended(window, ended.statuses, wanted)
        if not found:
            return
        deleted = in_transaction(using, lambda found=found: _delete(using, found))  # type: ignore[misc]
        limit -= deleted
        yield deleted
        if len(found) < wanted or not deleted:
            return


def _longest_ended(tasks: TaskQuerySet, statuses: Sequence[TaskStatus], limit: int) -> dict[UUID, datetime]:
    """The first `limit` of these tasks to have ended, and when that was."""
    ended: list[tuple[Any, UUID]] = []
    for status in statuses:
        # Status by status, each in the order of the index: over several at once the database would sort all there are.
        ended += tasks.filter(status=status).order_by("completed_at").values_list("completed_at", "pk")[:limit]
    return {pk: completed_at for completed_at, pk in sorted(ended)[:limit]}


def _delete(using: str, found: Mapping[UUID, datetime]) -> int:
    """Delete those of the tasks found that are free and have not lived again since; return how many that were."""
    keyed = TaskKey.objects.using(using).filter(Among("task", found))
    # Keys are locked before tasks. One that someone holds is about to be retried or replaced: its task stays.
    free_keys = list(keyed.select_for_update(skip_locked=True).values_list("pk", "task_id"))
    held = set(keyed.values_list("task_id", flat=True)) - {task_id for _, task_id in free_keys}
    # By id alone: with more to choose by, SQLite reads the index of all that ended.
    tasks = Task.objects.using(using).filter(Among("pk", found.keys() - held)).select_for_update(skip_locked=True)
    free = [pk for pk, ended in tasks.values_list("pk", "completed_at") if ended == found[pk]]
    TaskKey.objects.using(using).filter(Among("task", free))._raw_delete(using)
    TaskAttempt.objects.using(using).filter(Among("task", free))._raw_delete(using)
    Task.objects.using(using).filter(Among("pk", free))._raw_delete(using)
    return len(free)
