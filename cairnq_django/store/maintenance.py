"""Tidy up: take back what dead workers held, end what was not started in time, delete what is over."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Case, Q, Value, When

from ..clock import Now, after
from ..envelopes import expired, lease_expired
from ..models import Task, TaskAttempt, TaskKey
from ..querysets import TaskQuerySet
from ..statuses import TERMINAL, AttemptOutcome, TaskStatus
from . import states
from .engine import in_batches, in_transaction

EXPIRE_BATCH = 200
PURGE_BATCH = 1000


class Recovered(NamedTuple):
    """What became of the tasks whose lease had run out."""

    queued: list[Task]
    ended: list[Task]  # failed or canceled


def recover(using: str, *, limit: int = 100) -> Recovered:
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


def purge(
    using: str,
    *,
    older_than: float,
    status: TaskStatus | None = None,
    queue: str | None = None,
    name: str | None = None,
    limit: int | None = None,
) -> int:
    """Delete tasks that ended more than `older_than` seconds ago, with their keys and attempts; return how many.

    In short transactions of up to 1,000 tasks; at most `limit` tasks in all, the longest ended first.
    """
    statuses = (status,) if status else TERMINAL
    over = Q(status__in=statuses, completed_at__lte=after(-older_than))
    over &= Q(queue=queue) if queue is not None else Q()
    over &= Q(name=name) if name is not None else Q()
    tasks = Task.objects.using(using).filter(over)
    purged = 0
    while limit is None or purged < limit:
        batch = PURGE_BATCH if limit is None else min(PURGE_BATCH, limit - purged)
        found = _longest_ended(tasks, statuses, batch)
        deleted = in_transaction(using, lambda found=found: _delete(using, tasks, found)) if found else 0  # type: ignore[misc]
        purged += deleted
        if len(found) < batch or not deleted:
            break
    return purged


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
    moments: dict[Any, list[UUID]] = {}
    for pk, moment in late.values_list("pk", "expires_at"):
        moments.setdefault(moment, []).append(pk)
    found = [pk for pks in moments.values() for pk in pks]
    if found:
        column = Task._meta.get_field("error")
        error = Case(
            *[When(pk__in=pks, then=Value(expired(moment), column)) for moment, pks in moments.items()],
            output_field=column,
        )
        Task.objects.using(using).filter(pk__in=found).update(**{**states.CANCELED, "error": error})
    return found


def _longest_ended(tasks: TaskQuerySet, statuses: Sequence[TaskStatus], limit: int) -> list[UUID]:
    ended: list[tuple[Any, UUID]] = []
    for status in statuses:
        # Status by status, each in the order of the index: over several at once the database would sort all there are.
        ended += tasks.filter(status=status).order_by("completed_at").values_list("completed_at", "pk")[:limit]
    return [pk for _, pk in sorted(ended)[:limit]]


def _delete(using: str, tasks: TaskQuerySet, found: Sequence[UUID]) -> int:
    """Delete those of `tasks` that were found and are free; return how many that were."""
    keyed = TaskKey.objects.using(using).filter(task__in=found)
    # Keys are locked before tasks. One that someone holds is about to be retried or replaced: its task stays.
    free_keys = list(keyed.select_for_update(skip_locked=True).values_list("pk", "task_id"))
    held = set(keyed.values_list("task_id", flat=True)) - {task_id for _, task_id in free_keys}
    free = list(tasks.filter(pk__in=set(found) - held).select_for_update(skip_locked=True).values_list("pk", flat=True))
    TaskKey.objects.using(using).filter(task__in=free)._raw_delete(using)
    TaskAttempt.objects.using(using).filter(task__in=free)._raw_delete(using)
    Task.objects.using(using).filter(pk__in=free)._raw_delete(using)
    return len(free)
