"""A project whose `TASKS` names this backend, put back afterwards with all that it registered."""

from __future__ import annotations

import gc
import threading
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from asgiref.sync import async_to_sync

from cairnq_django.registry import default_registry
from cairnq_django.tasks_backend import CairnQBackend, finishing
from cairnq_django.tasks_backend.framework import BaseTaskBackend, task_backends

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

R = TypeVar("R")

BACKEND = "cairnq_django.tasks_backend.CairnQBackend"
IMMEDIATE = BaseTaskBackend.__module__.replace("backends.base", "backends.immediate.ImmediateBackend")


@pytest.fixture(autouse=True)
def tasks_setting(settings: Any) -> Iterator[dict[str, Any]]:
    """`TASKS`, whose default takes any queue."""
    registered = default_registry._tasks
    settings.TASKS = {
        "default": {"BACKEND": BACKEND, "QUEUES": []},
        "other": {"BACKEND": BACKEND, "QUEUES": ["default"]},
        "immediate": {"BACKEND": IMMEDIATE, "QUEUES": []},
    }
    yield settings.TASKS
    default_registry._tasks = registered
    finishing.disconnect()
    if any(thread.name.startswith("ThreadPoolExecutor") for thread in threading.enumerate()):
        # The thread of an event loop, kept by an exception that went through it.
        gc.collect()


@pytest.fixture
def backend(tasks_setting: dict[str, Any]) -> CairnQBackend:
    made: Any = task_backends["default"]
    assert isinstance(made, CairnQBackend)
    return made


def awaited(function: Callable[..., Coroutine[Any, Any, R]], *args: Any, **kwargs: Any) -> R:
    """What it returns or raises, its ORM calls made by this thread."""
    return async_to_sync(function)(*args, **kwargs)
