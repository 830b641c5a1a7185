"""What callers and running handlers ask of a task: cancel, retry, report progress, keep the lease."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from ..clock import Now, after
from ..errors import AlreadyExists, CairnQError
from ..expressions import Among
from ..limits import MAX_BATCH
from ..models import Task
from ..statuses import LIVE, TaskStatus
from . import keys, states, together
from .engine import in_batches, in_transaction, note_written, update_returning
from .leases import Lease

FAMILY_BATCH = 500


class Changed(NamedTuple):
    """A row as it is now, and whether the call changed it."""

    task: Task
    changed: bool


def cancel(using: str, task_id: UUID) -> Changed:
    """Cancel a queued task at once; ask a running one's worker to stop. A task that has ended stays as it is.

    One short transaction, or the caller's. Raises `Task.DoesNotExist`.
    """
    return in_transaction(using, lambda: _cancel(using, task_id))


class CanceledFamily(NamedTuple):
    """A task's row as it is now, and which of its family, itself included, were canceled at once or asked to stop."""

    task: Task
    ended: list[UUID]
    asked: list[UUID]


def cancel_family(using: str, task_id: UUID) -> CanceledFamily:
    """Cancel a task and its descendants, each as `cancel()` does.

    One transaction, or the caller's, which ends up with a lock on each live one. They are taken in the order of their
    ids, so that no two such transactions wait for each other. Raises `Task.DoesNotExist`.
    """
    task = Task.objects.using(using).only("status", "root_id").get(pk=task_id)
    # Read in the transaction, they would fix what that sees before the rows are locked.
    members = {task.pk: task.status, **_descendants(using, task)}
    live = sorted(pk for pk, status in members.items() if status in LIVE)
    return in_transaction(using, lambda: _cancel_family(using, task_id, live))


def retry(using: str, task_id: UUID, *, reset_attempts: bool = False) -> Changed:
    """Queue a failed or canceled task again, due now, with at least one more attempt allowed.

    `reset_attempts` has its attempts count from the beginning, so that all it is allowed are left. One short
    transaction, or the caller's. Raises `Task.DoesNotExist`, `CairnQError` for a task in another state, and
    `AlreadyExists` if its key has another live task.
    """
    # A task's key never changes. Read in the transaction, it would fix what that sees before the key is locked.
    key = Task.objects.using(using).values_list("key", flat=True).get(pk=task_id)
    return in_transaction(using, lambda: _retry(using, task_id, key, reset_attempts))


def run_now(using: str, task_id: UUID) -> Changed:
    """Make a queued task due now; one that is due already stays as it is.

    One short transaction, or the caller's. Raises `Task.DoesNotExist`, and `CairnQError` for a task in another state.
    """
    return in_transaction(using, lambda: _run_now(using, task_id))


def progress(using: str, lease: Lease, *, value: float | None, message: str | None) -> None:
    """Show how far a running task is; None leaves what was shown. Raises `LostLease`."""
    changes: dict[str, Any] = {"updated_at": Now()}
    if value is not None:
        changes["progress"] = value
    if message is not None:
        changes["message"] = message
    if not lease.rows(using).update(**changes):
        raise lease.lost()


def keep(using: str, lease: Lease, *, seconds: float) -> None:
    """Extend a lease that may have run out, in a transaction that kept everyone from taking the task meanwhile."""
    which = {"pk": lease.task_id, "worker_id": lease.worker_id, "attempt": lease.attempt}
    Task.objects.using(using).running().filter(**which).update(lease_until=after(seconds))


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
    hold up the others: its lease is neither renewed nor lost. One statement where the database can, for as many leases
    as a statement takes.
    """
    beat = Beat(set(), set(), set())
    for batch in in_batches(leases, MAX_BATCH):
        found = in_transaction(using, lambda batch=batch: _renew(using, set(batch), lease))  # type: ignore[misc]
        for known, new in zip(beat, found, strict=True):
            known |= new
    return beat


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


def _cancel_family(using: str, task_id: UUID, live: Sequence[UUID]) -> CanceledFamily:
    ended: list[UUID] = []
    asked: list[UUID] = []
    for batch in in_batches(live, FAMILY_BATCH):
        for task in together.cancel_all(using, batch):
            if task.changed:
                (ended if task.status == TaskStatus.QUEUED else asked).append(task.task_id)
    return CanceledFamily(Task.objects.using(using).get(pk=task_id), ended, asked)


def _descendants(using: str, task: Task) -> dict[UUID, str]:
    """The status of each, however deep, found level by level."""
    family = Task.objects.using(using).filter(root_id=task.root_id, parent_id__isnull=False)
    if task.pk == task.root_id:
        return dict(family.values_list("pk", "status"))
    found: dict[UUID, str] = {}
    level = [task.pk]
    while level:
        children: dict[UUID, str] = {}
        for parents in in_batches(level, FAMILY_BATCH):
            children.update(family.filter(Among("parent_id", parents)).values_list("pk", "status"))
        level = [pk for pk in children if pk not in found]
        found |= children
    return found


def _retry(using: str, task_id: UUID, key: str | None, reset_attempts: bool) -> Changed:
    row = Task.objects.using(using).filter(pk=task_id)
    # The key is locked before its task, everywhere, so that no two transactions wait for each other.
    holder = keys.lock(using, [key])[key] if key is not None else None
    task = row.select_for_update().get()
    if task.status not in (TaskStatus.FAILED, TaskStatus.CANCELED):
        raise CairnQError(f"Task {task_id} is {task.status}; only a failed or a canceled task can be retried")
    if key is not None and holder is not None and holder.pk != task_id and holder.status in LIVE:
        raise AlreadyExists(key, holder)
    note_written(using, [task_id])
    row.update(**states.retried(reset_attempts=reset_attempts))
    if key is not None:
        keys.point(using, [task])
    return Changed(row.get(), True)


def _run_now(using: str, task_id: UUID) -> Changed:
    row = Task.objects.using(using).filter(pk=task_id)
    task = row.select_for_update().get()
    if not task.is_queued:
        raise CairnQError(f"Task {task_id} is {task.status}; only a queued task can be made due")
    if not row.delayed().update(run_at=Now(), updated_at=Now()):
        return Changed(task, False)
    note_written(using, [task_id])
    return Changed(row.get(), True)


def _renew(using: str, held: Set[Lease], lease: float) -> Beat:
    (worker_id,) = {each.worker_id for each in held}
    tasks = Task.objects.using(using)
    mine = tasks.running().filter(
        Among("pk", {each.task_id for each in held}), worker_id=worker_id, lease_until__gt=Now()
    )
    unlocked = tasks.filter(Among("pk", mine.values("pk"), lock=True))
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
