"""What people ask of many tasks at once, and the wake-ups that follow: the writes of the admin's work in chunks."""

from __future__ import annotations

from collections.abc import Collection
from uuid import UUID

from . import notify, sending
from .notify import Channel
from .statuses import TaskStatus
from .store import together
from .store.engine import task_database
from .store.together import Handled


def cancel_all(task_ids: Collection[UUID]) -> list[Handled]:
    """`cancel()` for each of these tasks, in one short transaction; those that are gone are left out."""
    using = task_database()
    handled = together.cancel_all(using, task_ids)
    ended = [task.task_id for task in handled if task.changed and task.status == TaskStatus.QUEUED]
    notify.announce(using, Channel.ENDED, map(str, ended))
    sending.tell_canceled(using, ended)
    return handled


def retry_all(task_ids: Collection[UUID], *, reset_attempts: bool = False) -> list[Handled]:
    """`retry()` for each of these tasks, in one short transaction; those that are gone are left out.

    One in another state, or that is not its key's current task any more, is left as it is: what it was to do has been
    submitted anew.
    """
    using = task_database()
    handled = together.retry_all(using, task_ids, reset_attempts=reset_attempts)
    notify.announce(using, Channel.QUEUED, {task.queue for task in handled if task.changed})
    sending.tell_retried(using, [task.task_id for task in handled if task.changed])
    return handled


def run_all_now(task_ids: Collection[UUID]) -> list[Handled]:
    """`run_now()` for each of these tasks, in one short transaction; those that are gone are left out."""
    using = task_database()
    handled = together.run_all_now(using, task_ids)
    notify.announce(using, Channel.QUEUED, {task.queue for task in handled if task.changed})
    return handled
