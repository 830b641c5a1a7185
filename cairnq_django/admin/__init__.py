"""The queue in Django's admin: see what became of each task, cancel it or queue it again."""

from __future__ import annotations

from .task import TaskAdmin

__all__ = ["TaskAdmin"]
