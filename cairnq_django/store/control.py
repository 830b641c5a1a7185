"""What callers and running handlers ask of a task: cancel, retry, report progress, keep the lease."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import F
from django.db.models.functions import Greatest

from ..clock import Now, after
from ..errors import AlreadyExists, CairnQError
from ..models import Task
from ..statuses import LIVE, TaskStatus
from . import keys, states
from .engine import in_transaction, note_written, update_returning
from .leases import Lease


class Changed(NamedTuple):
    """A row as it is now, and whether the call changed it."""

    task: Task
    changed: bool


def cancel(using: str, task_id: UUID) -> Changed:
    """Cancel a queued task at once; ask a running one's worker to stop. A task that has ended stays as it is.

    One short transaction, or the caller's. Raises `Task.DoesNotExist`.
    """
    return in_transaction(using, lambda: _cancel(using, task_id))


def retry(using: str, task_id: UUID) -> Changed:
    """Queue a failed or canceled task again, due now, with at least one more attempt allowed.

    One short transaction, or the caller's. Raises `Task.DoesNotExist`, `CairnQError` for a task in another state, and
    `AlreadyExists` if its key has another live task.
    """
    # A task's key never changes. Read in the transaction, it would fix what that sees before the key is locked.
    key = Task.objects.using(using).values_list("key", flat=True).get(pk=task_id)
    return in_transaction(using, lambda: _retry(using, task_id, key))


def progress(using: str, lease: Lease, *, value: float | None, message: str | None) -> None:
    """Show how far a running task is; None leaves what was shown. Raises `LostLease`."""
    changes: dict[str, Any] = {"updated_at": Now()}
    if value is not None:
        changes["progress"] = value
    if message is not None:
        changes["message"] = message
    if not lease.rows(using).update(**changes):
        raise lease.lost()


def cancel_requested(using: str, lease: Lease) -> bool:
    """Whether someone asked this attempt to stop. Raises `LostLease`."""
    found = lease.rows(using).values_list("cancel_requested_at").first()
    if found is None:
        raise lease.lost()
    return found[0] is not None


class Beat(NamedTuple):
    """What a heartbeat learned of the leases it was sent for."""

    renewed: set[Lease]
    lost: set[Lease]
    cancel_requested: set[Lease]


def renew(using: str, leases: Sequence[Lease], *, lease: float) -> Beat:
    """Extend one worker's leases to `lease` seconds from now.

    A row that someone holds locked, such as a handler that settles in its own transaction, is passed over and cannot
    hold up the others: its lease is neither renewed nor lost. One statement where the database can.
    """
    if not leases:
        return Beat(set(), set(), set())
    return in_transaction(using, lambda: _renew(using, set(leases), lease))


def _cancel(using: str, task_id: UUID) -> Changed:
    task = Task.objects.using(using).select_for_update().get(pk=task_id)
    row = Task.objects.using(using).filter(pk=task_id)
    if task.is_running:
        # Its row is locked until the caller's transaction ends.
        note_written(using, [task_id])
    if task.is_queued:
        row.update(**states.CANCELED)
    elif task.is_running and not task.cancel_requested:
        row.update(cancel_requested_at=Now(), updated_at=Now())
    else:
        return Changed(task, False)
    return Changed(row.get(), True)


def _retry(using: str, task_id: UUID, key: str | None) -> Changed:
    row = Task.objects.using(using).filter(pk=task_id)
    # The key is locked before its task, everywhere, so that no two transactions wait for each other.
    holder = keys.lock(using, [key])[key] if key is not None else None
    task = row.select_for_update().get()
    if task.status not in (TaskStatus.FAILED, TaskStatus.CANCELED):
        raise CairnQError(f"Task {task_id} is {task.status}; only a failed or a canceled task can be retried")
    if key is not None and holder is not None and holder.pk != task_id and holder.status in LIVE:
        raise AlreadyExists(key, holder)
    note_written(using, [task_id])
    row.update(
        **states.QUEUED_AGAIN,
        max_attempts=Greatest("max_attempts", F("attempt") + 1),
        run_at=Now(),
        error=None,
        cancel_requested_at=None,
        started_at=None,
        completed_at=None,
    )
    if key is not None:
        keys.point(using, [task])
    return Changed(row.get(), True)


def _renew(using: str, held: Set[Lease], lease: float) -> Beat:
    (worker_id,) = {each.worker_id for each in held}
    tasks = Task.objects.using(using)
    mine = tasks.running().filter(pk__in={each.task_id for each in held}, worker_id=worker_id, lease_until__gt=Now())
    unlocked = tasks.filter(pk__in=mine.select_for_update(skip_locked=True).values("pk"))
    fields = ("id", "worker_id", "attempt", "cancel_requested_at")
    renewed = _cancel_requests(held, update_returning(unlocked, {"lease_until": after(lease)}, fields))
    locked = _cancel_requests(held - renewed.keys(), mine.values_list(*fields)) if len(renewed) < len(held) else {}
    seen = {**renewed, **locked}
    return Beat(
        renewed=set(renewed),
        lost=set(held - seen.keys()),
        cancel_requested={each for each, requested_at in seen.items() if requested_at is not None},
    )


def _cancel_requests(held: Set[Lease], rows: Iterable[tuple[Any, ...]]) -> dict[Lease, datetime | None]:
    """When each lease of `held` that is found in `rows` was asked to stop."""
    # Not every row is held: it may be at a later attempt, also one of the same worker.
    found = {Lease(*lease): requested_at for *lease, requested_at in rows}
    return {each: found[each] for each in held & found.keys()}
