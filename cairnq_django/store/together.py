"""What people ask of many tasks at once: cancel, retry, run now; each batch in one short transaction."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import NamedTuple
from uuid import UUID

from django.db.models import QuerySet

from ..clock import Now
from ..expressions import Among
from ..models import Task
from ..statuses import TaskStatus
from . import keys, states
from .engine import in_transaction, note_written

_MAY_BE_RETRIED = (TaskStatus.FAILED, TaskStatus.CANCELED)


class Handled(NamedTuple):
    """A task, how it stood before, and whether it was changed."""

    task_id: UUID
    queue: str
    status: TaskStatus
    changed: bool


def cancel_all(using: str, task_ids: Collection[UUID]) -> list[Handled]:
    """Cancel each of these tasks as `control.cancel()` does, the least id first; those that are gone are left out.

    One short transaction, or the caller's, which ends up with a lock on each.
    """
    return in_transaction(using, lambda: _cancel_all(using, task_ids))


def retry_all(using: str, task_ids: Collection[UUID], *, reset_attempts: bool = False) -> list[Handled]:
    """Queue each of these tasks again as `control.retry()` does, the least id first; those that are gone are left out.

    One in another state, or that is not its key's current task any more, is left as it is: what it was to do has been
    submitted anew. One short transaction, or the caller's.
    """
    # Keys never change. Read in the transaction, they would fix what that sees before they are locked.
    found = _rows(using, task_ids).values_list("pk", "key")
    keyed = {pk: key for pk, key in found if key is not None}
    return in_transaction(using, lambda: _retry_all(using, task_ids, keyed, reset_attempts))


def run_all_now(using: str, task_ids: Collection[UUID]) -> list[Handled]:
    """Make each of these tasks due as `control.run_now()` does, if it is queued; those that are gone are left out.

    One short transaction, or the caller's.
    """
    return in_transaction(using, lambda: _run_all_now(using, task_ids))


def _cancel_all(using: str, task_ids: Collection[UUID]) -> list[Handled]:
    found = list(_locked(using, task_ids).values_list("pk", "queue", "status", "cancel_requested_at"))
    queued = [pk for pk, _, status, _ in found if status == TaskStatus.QUEUED]
    running = [pk for pk, _, status, _ in found if status == TaskStatus.RUNNING]
    unasked = [pk for pk, _, status, asked_at in found if status == TaskStatus.RUNNING and asked_at is None]
    # Locked until the caller's transaction ends.
    note_written(using, running)
    _rows(using, queued).update(**states.CANCELED)
    _rows(using, unasked).update(cancel_requested_at=Now(), updated_at=Now())
    changed = {*queued, *unasked}
    return [Handled(pk, queue, TaskStatus(status), pk in changed) for pk, queue, status, _ in found]


def _retry_all(using: str, task_ids: Collection[UUID], keyed: dict[UUID, str], reset_attempts: bool) -> list[Handled]:
    # Keys are locked before tasks, everywhere, so that no two transactions wait for each other.
    holders = keys.lock(using, keyed.values()) if keyed else {}
    current = {key: task.pk for key, task in holders.items() if task is not None}
    found = list(_locked(using, task_ids).values_list("pk", "queue", "status"))
    pointed: dict[str, UUID] = {}
    again = []
    # The latest one first, should their key have lost its current task.
    for pk, _, status in reversed(found):
        key = keyed.get(pk)
        if status in _MAY_BE_RETRIED and (key is None or (current.get(key, pk) == pk and key not in pointed)):
            again.append(pk)
            if key is not None:
                pointed[key] = pk
    note_written(using, again)
    _rows(using, again).update(**states.retried(reset_attempts=reset_attempts))
    if holders:
        keys.point(using, [Task(pk=pk, key=key) for key, pk in pointed.items()])
        keys.forget(using, [key for key, task in holders.items() if task is None and key not in pointed])
    changed = set(again)
    return [Handled(pk, queue, TaskStatus(status), pk in changed) for pk, queue, status in found]


def _run_all_now(using: str, task_ids: Collection[UUID]) -> list[Handled]:
    found = list(_locked(using, task_ids).values_list("pk", "queue", "status"))
    queued = [pk for pk, _, status in found if status == TaskStatus.QUEUED]
    late = list(Task.objects.using(using).delayed().filter(Among("pk", queued)).values_list("pk", flat=True))
    note_written(using, late)
    _rows(using, late).update(run_at=Now(), updated_at=Now())
    changed = set(late)
    return [Handled(pk, queue, TaskStatus(status), pk in changed) for pk, queue, status in found]


def _locked(using: str, task_ids: Iterable[UUID]) -> QuerySet[Task]:
    # By their ids alone: an index on their states would lock others, too.
    return _rows(using, task_ids).order_by("pk").select_for_update()


def _rows(using: str, task_ids: Iterable[UUID]) -> QuerySet[Task]:
    return Task.objects.using(using).filter(Among("pk", task_ids))
