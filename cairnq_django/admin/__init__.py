"""The queue in Django's admin: see what became of each task, cancel it or queue it again; see who works."""

from __future__ import annotations

from .task import TaskAdmin
from .worker import WorkerProcessAdmin

__all__ = ["TaskAdmin", "WorkerProcessAdmin"]
