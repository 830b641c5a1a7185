"""The queue in Django's admin: see what becomes of tasks, cancel and retry them; pause queues; see who works."""

from __future__ import annotations

from .queue import QueueAdmin
from .task import TaskAdmin
from .worker import WorkerProcessAdmin

__all__ = ["QueueAdmin", "TaskAdmin", "WorkerProcessAdmin"]
