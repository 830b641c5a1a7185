"""Find the tasks that are declared for other backends: `.using(backend=...)` may send them to one of these."""

from __future__ import annotations

import sys
from contextlib import suppress

from django.apps import apps

from .backend import CairnQBackend
from .framework import InvalidTask, InvalidTaskBackend, Task, task_backends


def register_tasks() -> None:
    """Let workers know all tasks in the `tasks` modules of installed apps that they do not know yet."""
    backend = _first_backend()
    if backend is None:
        return
    names = [f"{config.name}.tasks" for config in apps.get_app_configs()]
    modules = [sys.modules[name] for name in names if name in sys.modules]
    for task in [value for module in modules for value in vars(module).values() if isinstance(value, Task)]:
        # One that cannot be run here is not one that was meant for it.
        with suppress(InvalidTask):
            backend.register(task)


def _first_backend() -> CairnQBackend | None:
    for alias in task_backends:
        # One that cannot be made is reported by the framework's own check.
        with suppress(InvalidTaskBackend):
            backend = task_backends[alias]
            if isinstance(backend, CairnQBackend):
                return backend
    return None
