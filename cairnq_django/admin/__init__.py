"""The queue in Django's admin: see what became of each task, cancel or retry it; pause queues; see who works."""

from __future__ import annotations

from .queue import QueueAdmin
from .task import TaskAdmin
from .worker import WorkerAdmin

__all__ = ["QueueAdmin", "TaskAdmin", "WorkerAdmin"]
