"""The queue in Django's admin: see what became of each task, cancel it or queue it again; pause queues."""

from __future__ import annotations

from .queue import QueueAdmin
from .task import TaskAdmin

__all__ = ["QueueAdmin", "TaskAdmin"]
