"""Record how an attempt ended: the arrows out of `running` that its worker draws."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import F, TextField

from ..clock import after
from ..envelopes import Envelope, canceled_while_running
from ..errors import LostLease
from ..expressions import Among, Slot
from ..models import Task
from ..querysets import TaskQuerySet
from ..serialization import dumped
from ..statuses import AttemptOutcome, TaskStatus
from . import states
from .engine import (
    UpdateReturning,
    again_after_conflicts,
    each_its_own,
    in_transaction,
    is_postgresql,
    returns_updated_rows,
    update_returning,
    value_by_id,
)
from .leases import Lease


def complete(using: str, lease: Lease, result: Any) -> TaskStatus:
    """Settle the attempt as succeeded with `result` (plain JSON), or as canceled if that was requested.

    One UPDATE that joins the caller's transaction. Raises `LostLease`, having written nothing.
    """
    if lease.rows(using).filter(cancel_requested_at=None).update(**states.SUCCEEDED, result=result):
        return TaskStatus.SUCCEEDED
    return in_transaction(using, lambda: _cancel(using, lease))


def complete_together(using: str, results: Mapping[Lease, Any]) -> set[Lease]:
    """Settle one worker's attempts as succeeded, each with its result (plain JSON), and return those that were.

    One that is to be canceled, whose lease is lost or whose row someone else has locked is left as it is, for
    `complete()` to settle. A statement for all that are in their first attempt, in their second and so on, together in
    one short transaction.
    """
    by_attempt: dict[int, dict[UUID, Any]] = {}
    for lease, result in results.items():
        by_attempt.setdefault(lease.attempt, {})[lease.task_id] = result
    (worker_id,) = {lease.worker_id for lease in results}

    def work() -> set[Lease]:
        return {
            Lease(task_id, worker_id, attempt)
            for attempt, results_of_tasks in by_attempt.items()
            for task_id in _complete_all(using, worker_id, attempt, results_of_tasks)
        }

    if len(by_attempt) == 1 and returns_updated_rows(using):
        return again_after_conflicts(using, work)
    return in_transaction(using, work)


def fail(using: str, lease: Lease, error: Envelope, *, retry_delay: float) -> TaskStatus:
    """Settle the attempt as failed with `error`, and keep a row about it.

    The task is queued again, due in `retry_delay` seconds, if the error is retryable and attempts are left; otherwise
    it is `failed`, or `canceled` if that was requested. One short transaction. Raises `LostLease`, having written
    nothing.
    """
    return in_transaction(using, lambda: _fail(using, lease, error, retry_delay))


def snooze(using: str, lease: Lease, *, delay: float) -> TaskStatus:
    """Give the task back to its queue, due in `delay` seconds, its attempt not counted.

    One with a cancel requested ends `canceled`. One short transaction. Raises `LostLease`, having written nothing.
    """
    return in_transaction(using, lambda: _give_back(using, lease, delay))


class Released(NamedTuple):
    """What became of the tasks that were given up."""

    queued: list[UUID]
    ended: list[UUID]  # canceled


def cancel_if_requested(using: str, lease: Lease, *, otherwise: Envelope) -> TaskStatus:
    """Settle the attempt as canceled if that was requested, and as failed for good with `otherwise` if it was not.

    One short transaction. Raises `LostLease`, having written nothing.
    """

    def work() -> TaskStatus:
        task = _owned(using, lease)
        if task is not None and task.cancel_requested:
            return _write_canceled(using, lease, task, canceled_while_running())
        return _fail(using, lease, otherwise, 0)

    return in_transaction(using, work)


def release(using: str, leases: Sequence[Lease]) -> Released:
    """Give unfinished tasks back to their queues at once, their attempts not counted, and return what became of them.

    One with a cancel requested ends `canceled`; a lost lease is passed over. A short transaction each.
    """
    released = Released([], [])
    for lease in leases:
        status = in_transaction(using, lambda lease=lease: _release(using, lease))  # type: ignore[misc]
        if status is not None:
            (released.queued if status == TaskStatus.QUEUED else released.ended).append(lease.task_id)
    return released


def _complete_all(using: str, worker_id: str, attempt: int, results: Mapping[UUID, Any]) -> list[UUID]:
    if is_postgresql(using):
        given = {str(pk): result for pk, result in results.items() if result is not None}
        slots = {"worker_id": worker_id, "attempt": attempt, "ids": list(results), "results": dumped(given)}
        return [task_id for (task_id,) in _complete_statement(using).run(**slots)]
    rows = _held(using, worker_id, attempt, results)
    changes = {**states.SUCCEEDED, "result": each_its_own(using, "result", results)}
    return [task_id for (task_id,) in update_returning(rows, changes, ["id"])]


@lru_cache
def _complete_statement(using: str) -> UpdateReturning:
    rows = _held(using, Slot("worker_id"), Slot("attempt"), Slot("ids"))
    result = value_by_id(Slot("results", TextField()), Task._meta.get_field("result"))
    return UpdateReturning(rows, {**states.SUCCEEDED, "result": result}, ["id"])


def _held(using: str, worker_id: str | Slot, attempt: int | Slot, ids: Iterable[UUID] | Slot) -> TaskQuerySet:
    """What the worker still holds of this, locked: it never waits for a row while it holds others."""
    free = Task.objects.using(using).leased(worker_id, attempt, ids).filter(cancel_requested_at=None)
    return Task.objects.using(using).filter(Among("pk", free.values("pk"), lock=True))


def _fail(using: str, lease: Lease, error: Envelope, retry_delay: float) -> TaskStatus:
    task = _owned(using, lease)
    if task is None:
        raise lease.lost()
    if task.cancel_requested:
        return _write_canceled(using, lease, task, error)
    if error["retryable"] and task.attempt < task.max_attempts:
        _write(using, lease, {**states.QUEUED_AGAIN, "run_at": after(retry_delay), "error": error})
        states.record_attempt(using, task, AttemptOutcome.RETRIED, error)
        return TaskStatus.QUEUED
    _write(using, lease, {**states.FAILED, "error": error})
    states.record_attempt(using, task, AttemptOutcome.FAILED, error)
    return TaskStatus.FAILED


def _cancel(using: str, lease: Lease) -> TaskStatus:
    task = _owned(using, lease)
    if task is None or not task.cancel_requested:
        raise lease.lost()
    return _write_canceled(using, lease, task, canceled_while_running())


def _release(using: str, lease: Lease) -> TaskStatus | None:
    try:
        return _give_back(using, lease, 0)
    except LostLease:
        return None


def _give_back(using: str, lease: Lease, delay: float) -> TaskStatus:
    task = _owned(using, lease)
    if task is None:
        raise lease.lost()
    if task.cancel_requested:
        return _write_canceled(using, lease, task, canceled_while_running())
    _write(using, lease, {**states.QUEUED_AGAIN, "attempt": F("attempt") - 1, "run_at": after(delay)})
    return TaskStatus.QUEUED


def _write_canceled(using: str, lease: Lease, task: Task, error: Envelope) -> TaskStatus:
    _write(using, lease, states.CANCELED)
    states.record_attempt(using, task, AttemptOutcome.CANCELED, error)
    return TaskStatus.CANCELED


def _owned(using: str, lease: Lease) -> Task | None:
    """The task, locked, if the lease still holds."""
    return lease.rows(using).select_for_update().defer("payload", "result", "metadata").first()


def _write(using: str, lease: Lease, changes: dict[str, Any]) -> None:
    if not lease.rows(using).update(**changes):
        raise lease.lost()
