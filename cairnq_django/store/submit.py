"""Insert tasks: the arrow into `queued`, and who gives way to whom where a key is taken."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple
from uuid import UUID

from ..errors import AlreadyExists
from ..models import Task
from . import control, keys, maintenance
from .engine import in_transaction, note_written
from .insert import Afterwards, insert


class Conflict(str, Enum):
    """What a submit does where its key has a task already."""

    REUSE = "reuse"
    REUSE_SUCCEEDED = "reuse-succeeded"
    REJECT = "reject"
    REPLACE = "replace"


class Submitted(NamedTuple):
    """The task of each submit, in order, and the tasks that ended to make room."""

    tasks: list[Task]
    ended: list[UUID]
    followed: bool = False  # whether what was to run afterwards did


def submit(using: str, tasks: Sequence[Task], conflict: Conflict, *, afterwards: Afterwards | None = None) -> Submitted:
    """Insert `tasks`; one that gives way to its key's current task is replaced by that task.

    `afterwards` is as `insert()` takes it. Joins the caller's transaction. Raises `AlreadyExists` under
    `Conflict.REJECT`, having written nothing.
    """
    if all(task.key is None for task in tasks):
        followed = _insert(using, tasks, afterwards)
        return Submitted(list(tasks), [], followed)
    return in_transaction(using, lambda: _submit_keyed(using, tasks, conflict))


def _submit_keyed(using: str, tasks: Sequence[Task], conflict: Conflict) -> Submitted:
    current = keys.lock(using, [task.key for task in tasks if task.key is not None])
    chosen: list[Task] = []
    fresh: list[Task] = []
    ended = _expire_holders(using, current)
    for task in tasks:
        holder = current[task.key] if task.key is not None else None
        if holder is not None and _gives_way(task, holder, conflict):
            chosen.append(holder)
            continue
        if holder is not None and not holder.is_terminal:
            canceled = control.cancel(using, holder.pk).task
            ended += [canceled.pk] if canceled.is_terminal else []
        if task.key is not None:
            current[task.key] = task
        chosen.append(task)
        fresh.append(task)
    _insert(using, fresh)
    keys.point(using, [task for task in fresh if task.key is not None])
    return Submitted(chosen, ended)


def _expire_holders(using: str, current: dict[str, Task | None]) -> list[UUID]:
    """End the holders that have expired, by which they free their keys, and return their ids."""
    may_expire = {holder.pk: key for key, holder in current.items() if holder is not None and holder.expires_at}
    expired = maintenance.expire_among(using, may_expire) if may_expire else []
    current.update({may_expire[pk]: None for pk in expired})
    return expired


def _gives_way(task: Task, holder: Task, conflict: Conflict) -> bool:
    """Whether a new task gives way to its key's present holder. Raises `AlreadyExists` if the caller wants neither."""
    if holder.is_terminal:
        return conflict is Conflict.REUSE_SUCCEEDED and holder.succeeded
    if conflict is Conflict.REJECT:
        raise AlreadyExists(task.key or "", holder)
    return conflict is not Conflict.REPLACE


def _insert(using: str, tasks: Sequence[Task], afterwards: Afterwards | None = None) -> bool:
    if not tasks:
        return False
    followed = insert(using, tasks, afterwards=afterwards)
    note_written(using, [task.pk for task in tasks])
    return followed
