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
        "run_now",
        "run_now_by_key",
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
        "arun_now",
        "arun_now_by_key",
        "astats",
        "aqueue_depth",
        "apurge",
    ),
    "queues": (
        "pause_queue",
        "resume_queue",
        "paused_queues",
        "apause_queue",
        "aresume_queue",
        "apaused_queues",
    ),
    "on_commit": ("submit_on_commit", "asubmit_on_commit"),
    "waiting": ("wait", "wait_by_key", "call", "await_", "await_by_key", "acall"),
    "models": ("Task", "PausedQueue"),
    "statuses": ("TaskStatus",),
    "current": ("current_task", "current_tasks"),
    "worker.context": ("TaskContext", "AsyncTaskContext"),
    "worker.worker": ("Worker",),
    "errors": (
        "CairnQError",
        "TaskError",
        "Snooze",
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

__all__ = list(_ROOM_OF)


def __dir__() -> list[str]:
    return sorted({*globals(), *_ROOM_OF})


if TYPE_CHECKING:
    # Each with its alias: to type checkers that makes it public.
    from .client import acancel as acancel
    from .client import acancel_by_key as acancel_by_key
    from .client import aget as aget
    from .client import aget_by_key as aget_by_key
    from .client import apurge as apurge
    from .client import aqueue_depth as aqueue_depth
    from .client import aretry as aretry
    from .client import aretry_by_key as aretry_by_key
    from .client import arun_now as arun_now
    from .client import arun_now_by_key as arun_now_by_key
    from .client import astats as astats
    from .client import asubmit as asubmit
    from .client import asubmit_many as asubmit_many
    from .client import cancel as cancel
    from .client import cancel_by_key as cancel_by_key
    from .client import get as get
    from .client import get_by_key as get_by_key
    from .client import purge as purge
    from .client import queue_depth as queue_depth
    from .client import retry as retry
    from .client import retry_by_key as retry_by_key
    from .client import run_now as run_now
    from .client import run_now_by_key as run_now_by_key
    from .client import stats as stats
    from .client import submit as submit
    from .client import submit_many as submit_many
    from .current import current_task as current_task
    from .current import current_tasks as current_tasks
    from .errors import AlreadyExists as AlreadyExists
    from .errors import CairnQError as CairnQError
    from .errors import LostLease as LostLease
    from .errors import QueueFull as QueueFull
    from .errors import SerializationError as SerializationError
    from .errors import Snooze as Snooze
    from .errors import TaskCanceled as TaskCanceled
    from .errors import TaskError as TaskError
    from .errors import TaskFailed as TaskFailed
    from .errors import TaskTimeout as TaskTimeout
    from .models import PausedQueue as PausedQueue
    from .models import Task as Task
    from .on_commit import asubmit_on_commit as asubmit_on_commit
    from .on_commit import submit_on_commit as submit_on_commit
    from .queues import apause_queue as apause_queue
    from .queues import apaused_queues as apaused_queues
    from .queues import aresume_queue as aresume_queue
    from .queues import pause_queue as pause_queue
    from .queues import paused_queues as paused_queues
    from .queues import resume_queue as resume_queue
    from .registry import Registry as Registry
    from .registry import TaskDef as TaskDef
    from .registry import task as task
    from .statuses import TaskStatus as TaskStatus
    from .waiting import acall as acall
    from .waiting import await_ as await_
    from .waiting import await_by_key as await_by_key
    from .waiting import call as call
    from .waiting import wait as wait
    from .waiting import wait_by_key as wait_by_key
    from .worker.context import AsyncTaskContext as AsyncTaskContext
    from .worker.context import TaskContext as TaskContext
    from .worker.worker import Worker as Worker
else:
    # Hidden from type checkers, which would take every misspelt name for one that is found here.
    def __getattr__(name: str) -> Any:
        if name not in _ROOM_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f".{_ROOM_OF[name]}", __name__), name)
        globals()[name] = value
        return value
