"""Which task the code that runs now works on: a context variable that the worker sets for each call of a handler."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from .worker.context import AsyncTaskContext, TaskContext


class Work(NamedTuple):
    """What a handler was called for."""

    tasks: tuple[Any, ...]  # its contexts
    in_batch: bool  # whether it takes batches


_NO_WORK = Work((), False)
_current: ContextVar[Work] = ContextVar("cairnq_django.current", default=_NO_WORK)


def current_task() -> TaskContext | AsyncTaskContext | None:
    """The `ctx` of the handler that is at work here, also deep below it; None outside of one, and in one of batches.

    What is copied with the context sees it, such as asyncio tasks and `sync_to_async()`; a thread that a handler starts
    does not, unless it is started with `contextvars.copy_context().run`.
    """
    work = _current.get()
    return work.tasks[0] if work.tasks and not work.in_batch else None


def current_tasks() -> tuple[TaskContext | AsyncTaskContext, ...]:
    """As `current_task()`: the one of a handler's task, or all of its batch; empty outside of handlers."""
    return _current.get().tasks


def current_work() -> Work:
    return _current.get()


class working_on:
    """While the context lasts, these are what the code works on. A class: a generator would take twice the time."""

    __slots__ = ("_token", "_work")

    def __init__(self, tasks: Sequence[Any], *, in_batch: bool) -> None:
        self._work = Work(tuple(tasks), in_batch)

    def __enter__(self) -> None:
        self._token = _current.set(self._work)

    def __exit__(self, *raised: object) -> None:
        _current.reset(self._token)
