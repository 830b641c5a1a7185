"""The right to write for an attempt."""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from ..errors import LostLease
from ..models import Task
from ..querysets import TaskQuerySet


class Lease(NamedTuple):
    """One attempt of one worker. Whoever claims the task next holds another lease, and this one opens no row."""

    task_id: UUID
    worker_id: str
    attempt: int

    def rows(self, using: str) -> TaskQuerySet:
        """The task's row as long as this lease holds: the ownership check of every write of a worker."""
        return Task.objects.using(using).leased(self.worker_id, self.attempt, self.task_id)

    def lost(self) -> LostLease:
        return LostLease(self.task_id, self.attempt)
