"""A durable task queue whose only server is the database a Django project already has."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Resolved when first asked for: models cannot be imported before Django's app registry is ready, and `@task` must be.
_ROOMS = {
    "registry": ("task", "TaskDef", "Registry"),
    "client": (
        "submit",
        "submit_many",
        "get",
        "get_by_key",
        "cancel",
        "cancel_by_key",
        "retry",
        "retry_by_key",
        "stats",
        "queue_depth",
        "purge",
        "asubmit",
        "asubmit_many",
        "aget",
        "aget_by_key",
        "acancel",
        "acancel_by_key",
        "aretry",
        "aretry_by_key",
        "astats",
        "aqueue_depth",
        "apurge",
    ),
    "waiting": ("wait", "wait_by_key", "call", "await_", "await_by_key", "acall"),
    "models": ("Task",),
    "statuses": ("TaskStatus",),
    "worker.context": ("TaskContext", "AsyncTaskContext"),
    "worker.worker": ("Worker",),
    "errors": (
        "CairnQError",
        "TaskError",
        "TaskFailed",
        "TaskCanceled",
        "TaskTimeout",
        "AlreadyExists",
        "QueueFull",
        "LostLease",
        "SerializationError",
    ),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = ["__version__", *_ROOM_OF]


def __getattr__(name: str) -> Any:
    if name not in _ROOM_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_ROOM_OF[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOM_OF})


if TYPE_CHECKING:
    from .client import (
        acancel,
        acancel_by_key,
        aget,
        aget_by_key,
        apurge,
        aqueue_depth,
        aretry,
        aretry_by_key,
        astats,
        asubmit,
        asubmit_many,
        cancel,
        cancel_by_key,
        get,
        get_by_key,
        purge,
        queue_depth,
        retry,
        retry_by_key,
        stats,
        submit,
        submit_many,
    )
    from .errors import (
        AlreadyExists,
        CairnQError,
        LostLease,
        QueueFull,
        SerializationError,
        TaskCanceled,
        TaskError,
        TaskFailed,
        TaskTimeout,
    )
    from .models import Task
    from .registry import Registry, TaskDef, task
    from .statuses import TaskStatus
    from .waiting import acall, await_, await_by_key, call, wait, wait_by_key
    from .worker.context import AsyncTaskContext, TaskContext
    from .worker.worker import Worker
