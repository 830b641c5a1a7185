"""How tasks of the framework are retried and bounded: by `OPTIONS` of their backend, and each by its decorator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, TypeVar

from ..arguments import Seconds
from ..registry import TaskDef
from . import handlers
from .framework import Task

T = TypeVar("T")

BACKEND_OPTIONS: Final = ("max_attempts", "retry_backoff", "retry_backoff_max", "max_run")


def task_options(
    *,
    max_attempts: int | None = None,
    retry_backoff: Seconds | None = None,
    retry_backoff_max: Seconds | None = None,
    max_run: Seconds | None = None,
    concurrency: int | None = None,
    resource: str | None = None,
    atomic: bool | None = None,
    aliases: Sequence[str] | None = None,
) -> Callable[[T], T]:
    """Say how one task of Django's framework runs here: a decorator beside `@task`, below it or above it.

    Each is what `cairnq_django.task` takes under that name; what is not said is as `OPTIONS` of the backend say, then
    as `CAIRNQ` says. `aliases` are module paths that the function had before. Other backends take no notice of it.

    Raises `TypeError` or `ValueError` naming the option that is wrong.
    """
    given = {name: value for name, value in locals().items() if value is not None}
    TaskDef("checked", **given)

    def decorate(task: T) -> T:
        function = task.func if isinstance(task, Task) else task
        if not callable(function):
            raise TypeError(f"@task_options is for a function or for what @task made of it, got {task!r}")
        handlers.set_options(function, given)
        return task

    return decorate


def read(options: Any, place: str) -> tuple[dict[str, Any], list[str]]:
    """The `OPTIONS` of a backend that can be used, and what is wrong with the others, one message for each."""
    if not isinstance(options, Mapping):
        return {}, [f"{place} must be a dict, got {type(options).__name__}"]
    usable: dict[str, Any] = {}
    problems: list[str] = []
    for name, value in options.items():
        if name not in BACKEND_OPTIONS:
            close = get_close_matches(str(name).lower(), BACKEND_OPTIONS, n=1)
            hint = f"Did you mean {close[0]!r}?" if close else f"Its options are {', '.join(BACKEND_OPTIONS)}"
            problems.append(f"{place} has an unknown option, {name!r}. {hint}")
            continue
        try:
            usable[name] = getattr(TaskDef("checked", **{name: value}), name)
        except (TypeError, ValueError) as error:
            problems.append(f"{place}: {error}")
    return usable, problems
