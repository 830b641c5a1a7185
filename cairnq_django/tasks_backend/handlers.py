"""The handlers that run tasks of Django's framework, registered under their functions' module paths."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from inspect import iscoroutinefunction, unwrap
from typing import Any, Final

from asgiref.sync import sync_to_async

from ..errors import TaskError
from ..limits import NAME_LENGTH
from ..registry import TaskDef, default_registry
from . import results
from .framework import (
    BaseTaskBackend,
    InvalidTask,
    InvalidTaskBackend,
    Task,
    TaskContext,
    TaskResult,
    normalize_json,
    task_backends,
    task_started,
)
from .results import Declared
from .telling import tell

_OPTIONS: Final = "_cairnq_options"  # where `@task_options` leaves them, on the function


class Handler:
    """Runs one task's function. A worker calls it as it calls any handler, with (ctx, payload)."""

    def __init__(self, task: Task[Any, Any], backend: BaseTaskBackend, defaults: Mapping[str, Any]) -> None:
        self.task = task
        self.declared = Declared(task, backend.alias)
        self.defaults = defaults  # for what the task's own options do not say
        self.displaced: Handler | None = None  # another function's of the same path
        self._backend = type(backend)
        # What messages say of a handler.
        self.__module__, self.__name__, self.__qualname__ = task.func.__module__, task.name, task.func.__qualname__

    def __call__(self, ctx: Any, payload: Any) -> Any:
        raise NotImplementedError

    @property
    def lines(self) -> tuple[int, ...]:
        """Where the function is in its file, and what it wraps."""
        return tuple(each.__code__.co_firstlineno for each in (unwrap(self.task.func), self.task.func))

    def sender(self, result: TaskResult[Any, Any]) -> type[BaseTaskBackend]:
        """Of the signals about a task: the class of the backend that it was enqueued with."""
        if result.backend == self.declared.alias:
            return self._backend
        try:
            return type(task_backends[result.backend])
        except InvalidTaskBackend:
            # It is not in the settings any more.
            return self._backend

    def _started(self, ctx: Any) -> TaskResult[Any, Any] | None:
        """What is known of a task without reading anything, which is all of it in its first attempt."""
        if not results.is_call(ctx.payload):
            raise TaskError(
                "A task of Django's framework has the payload {'args': [...], 'kwargs': {...}}; this one, which it did "
                f"not enqueue, has another: {type(ctx.payload).__name__}",
                code="invalid_payload",
                retryable=False,
            )
        return results.first_attempt(ctx, self.declared) if ctx.attempt == 1 else None

    def _arguments(self, result: TaskResult[Any, Any]) -> list[Any]:
        return [TaskContext(task_result=result), *result.args] if self.task.takes_context else result.args


class SyncHandler(Handler):
    def __call__(self, ctx: Any, payload: Any) -> Any:
        result = self._started(ctx) or results.read(ctx.task_id, self.declared)
        tell(task_started, self.sender(result), result)
        return _plain(self.task.func(*self._arguments(result), **result.kwargs))


class AsyncHandler(Handler):
    async def __call__(self, ctx: Any, payload: Any) -> Any:
        result = self._started(ctx) or await sync_to_async(results.read)(ctx.task_id, self.declared)
        await task_started.asend_robust(sender=self.sender(result), task_result=result)
        return _plain(await self.task.func(*self._arguments(result), **result.kwargs))


def register(task: Task[Any, Any], backend: BaseTaskBackend, defaults: Mapping[str, Any]) -> Handler:
    """Have workers run the task, as the first of its copies that was seen declares it, and return its handler.

    Another function of the same path takes its place, as it does in the module. Raises `InvalidTask` for a path that
    is too long, or is the name of a handler made by `cairnq_django.task`.
    """
    path = task.module_path
    present = default_registry.get(path)
    handler = present.handler if present is not None else None
    if isinstance(handler, Handler) and handler.task.func is task.func:
        return handler
    if present is not None and not isinstance(handler, Handler):
        raise InvalidTask(f"The task {path!r} cannot be run: a handler of cairnq_django.task has this name")
    if len(path) > NAME_LENGTH:
        raise InvalidTask(f"The module path of a task must have at most {NAME_LENGTH} characters, got {path!r}")
    new = (AsyncHandler if iscoroutinefunction(task.func) else SyncHandler)(task, backend, defaults)
    if isinstance(handler, Handler) and handler.lines != new.lines:
        # Else it is the same one, its module loaded again.
        new.displaced = handler
    default_registry.replace(_definition(new))
    return new


def set_options(function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Leave the options of a task with its function; if it is a task's already, they hold from now on."""
    setattr(function, _OPTIONS, dict(options))
    for definition in default_registry:
        handler = definition.handler
        if isinstance(handler, Handler) and handler.task.func is function:
            default_registry.replace(_definition(handler))


def options_of(function: Callable[..., Any]) -> Mapping[str, Any]:
    options: Mapping[str, Any] = getattr(function, _OPTIONS, {})
    return options


def find(name: str) -> Handler | None:
    """The handler of a task's name, if it is one of Django's framework; its module is imported if it was not yet."""
    module = name.rpartition(".")[0]
    is_path = all(part.isidentifier() for part in name.split("."))
    if name not in default_registry and module and is_path and module not in sys.modules:
        with suppress(ImportError):
            import_module(module)
    return registered(name)


def registered(name: str) -> Handler | None:
    """As `find()`, of those that are registered."""
    definition = default_registry.get(name)
    handler = definition.handler if definition is not None else None
    return handler if isinstance(handler, Handler) else None


def _definition(handler: Handler) -> TaskDef[Any, Any]:
    task = handler.task
    options = {**handler.defaults, **options_of(task.func)}
    return TaskDef(task.module_path, queue=task.queue_name, priority=task.priority, handler=handler, **options)


def _plain(value: Any) -> Any:
    """What a function returned, as Django's own backends keep it; what they refuse is for the worker to refuse."""
    try:
        return normalize_json(value)
    except (TypeError, ValueError, RecursionError):
        return value
