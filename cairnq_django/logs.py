"""What log records say of a task, as attributes: those of the worker by themselves, all others through `TaskFilter`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final, Protocol
from uuid import UUID

from .current import current_work

#: The attributes, which are None where they do not apply: `task_id` (text), `task_name`, `queue`, `attempt` (1 for the
#: first), `worker_id` and `correlation_id` of the task; `task_ids`, a list, for a handler of batches, where `task_id`
#: and `attempt` are None; and, of records about how an attempt ended, `duration` (seconds), `error_type`, `error_code`.
FIELDS: Final = (
    "task_id",
    "task_name",
    "queue",
    "attempt",
    "worker_id",
    "correlation_id",
    "task_ids",
    "duration",
    "error_type",
    "error_code",
)


class Named(Protocol):
    """What a record can be about."""

    @property
    def task_id(self) -> UUID: ...
    @property
    def name(self) -> str: ...
    @property
    def queue(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def worker_id(self) -> str: ...
    @property
    def correlation_id(self) -> str | None: ...


class TaskFilter(logging.Filter):
    """Adds the task that a record was logged for to the record, and keeps what it says already. It lets all pass."""

    def filter(self, record: logging.LogRecord) -> bool:
        said = record.__dict__
        about = about_current()
        for field in FIELDS:
            if field not in said:
                said[field] = about.get(field)
        return True


def about_current() -> dict[str, Any]:
    """The `extra` of a record about what the handler that is at work here was called for; empty outside of one."""
    work = current_work()
    return about_these(work.tasks, in_batch=work.in_batch) if work.tasks else {}


def about_this(task: Named, **more: Any) -> dict[str, Any]:
    """The `extra` of a record about this task."""
    return {
        "task_id": str(task.task_id),
        "task_name": task.name,
        "queue": task.queue,
        "attempt": task.attempt,
        "worker_id": task.worker_id,
        "correlation_id": task.correlation_id,
        **more,
    }


def about_these(tasks: Sequence[Named], *, in_batch: bool) -> dict[str, Any]:
    """The `extra` of a record about a handler's task or, `in_batch`, about all tasks of its batch."""
    if not in_batch:
        return about_this(tasks[0])
    first = about_this(tasks[0], task_ids=[str(task.task_id) for task in tasks], task_id=None, attempt=None)
    for field in ("queue", "correlation_id"):
        if any(getattr(task, field) != first[field] for task in tasks):
            first[field] = None
    return first
