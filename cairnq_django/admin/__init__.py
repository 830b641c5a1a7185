"""The queue in Django's admin: see what became of each task and what fails, mend it; pause queues, make schedules."""

from __future__ import annotations

from .failures import TaskAttemptAdmin
from .queue import QueueAdmin
from .schedule import ScheduleAdmin
from .task import TaskAdmin
from .worker import WorkerAdmin

__all__ = ["QueueAdmin", "ScheduleAdmin", "TaskAdmin", "TaskAttemptAdmin", "WorkerAdmin"]
