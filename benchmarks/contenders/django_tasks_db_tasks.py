"""The task of django-tasks-db, which finds it by its path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_tasks_db import compat

if TYPE_CHECKING:
    from .contender import Body

bodies: list[Body] = []  # the worker's only one


def handle(n: int) -> None:
    bodies[0](n)


# The decorator's module depends on Django's version; what it makes does not.
handle = compat.Task(
    func=handle,
    priority=compat.DEFAULT_TASK_PRIORITY,
    queue_name=compat.DEFAULT_TASK_QUEUE_NAME,
    backend=compat.DEFAULT_TASK_BACKEND_ALIAS,
)
