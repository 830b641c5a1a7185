"""The backend that `TASKS` names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from asgiref.sync import sync_to_async
from django.apps import apps
from django.core.checks import CheckMessage, Error, Warning
from django.core.exceptions import ImproperlyConfigured, ObjectDoesNotExist

import cairnq_django

from ..arguments import text
from ..conf import get_settings
from ..limits import QUEUE_LENGTH
from ..registry import default_registry
from ..serialization import normalize
from . import finishing, handlers, options, results
from .framework import (
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    normalize_json,
    task_enqueued,
)
from .telling import tell

_DEPTH: Final = 100  # levels in which the place of what is refused is looked for


class CairnQBackend(BaseTaskBackend):
    """Tasks of Django's framework, kept in the database and run by `runworker`.

    `OPTIONS` takes `max_attempts`, `retry_backoff`, `retry_backoff_max` and `max_run`, which hold for tasks that have
    no such `@task_options` of their own; for what is not said, `CAIRNQ` holds.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self._given_queues = params.get("QUEUES", ())
        finishing.connect()
        self._defaults, self._problems = options.read(self.options, f"TASKS[{alias!r}]['OPTIONS']")

    def validate_task(self, task: Task[Any, Any]) -> None:
        """Raises `InvalidTask`. A task that this backend can run is one that workers know from here on."""
        super().validate_task(task)
        try:
            text(task.queue_name, "queue_name", maximum=QUEUE_LENGTH)
        except (TypeError, ValueError) as error:
            raise InvalidTask(str(error)) from error
        self.register(task)

    def register(self, task: Task[Any, Any]) -> handlers.Handler:
        """Let workers of this process know the task, under its module path. Raises `InvalidTask`."""
        return handlers.register(task, self, self._defaults)

    def enqueue(self, task: Task[Any, Any], args: Any, kwargs: Any) -> TaskResult[Any, Any]:
        """Submit the task, in the caller's transaction, and return its result as it is now.

        Raises `InvalidTask`, `TypeError` or `ValueError` for arguments that JSON cannot represent (naming the place),
        and `QueueFull` where a queue has a limit; nothing is written then.
        """
        handler, payload, fields = self._prepare(task, args, kwargs)
        row = cairnq_django.submit(task.module_path, payload, **fields)
        result = results.enqueued(row, task, self.alias) or results.of_row(row, handler.declared)
        tell(task_enqueued, type(self), result)
        return result

    async def aenqueue(self, task: Task[Any, Any], args: Any, kwargs: Any) -> TaskResult[Any, Any]:
        handler, payload, fields = self._prepare(task, args, kwargs)
        row = await cairnq_django.asubmit(task.module_path, payload, **fields)
        result = results.enqueued(row, task, self.alias)
        if result is None:
            result = await sync_to_async(results.of_row)(row, handler.declared)
        await task_enqueued.asend_robust(sender=type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> TaskResult[Any, Any]:
        """The result of a task as it is now, whoever enqueued it and wherever it ran.

        Raises `TaskResultDoesNotExist` for an id that no task has, also one that was purged, and for a task that is
        not one of Django's framework, or that has no function here any more.
        """
        try:
            row = cairnq_django.get(result_id)
        except (TypeError, ValueError, ObjectDoesNotExist) as error:
            raise TaskResultDoesNotExist(str(error)) from error
        handler = handlers.find(row.name) if results.is_call(row.payload) else None
        if handler is None:
            raise TaskResultDoesNotExist(f"Task {row.pk} is {row.name!r}, which is not the path of a task with @task")
        return results.of_row(row, handler.declared)

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        return [*super().check(**kwargs), *self._check_app(), *self._check_params(), *self._check_paths()]

    def _prepare(self, task: Task[Any, Any], args: Any, kwargs: Any) -> tuple[handlers.Handler, Any, dict[str, Any]]:
        """The task's handler, the payload of a submit, and its keywords."""
        if self._problems:
            raise ImproperlyConfigured("\n".join(self._problems))
        self.validate_task(task)
        handler = self.register(task)
        chosen = {**self._defaults, **handlers.options_of(task.func)}
        fields: dict[str, Any] = {
            "queue": task.queue_name,
            "priority": int(task.priority),
            "run_at": task.run_after,
            "max_attempts": chosen.get("max_attempts") or get_settings().max_attempts,
            "metadata": results.note(task, self.alias, handler.declared),
        }
        return handler, _plain({"args": args, "kwargs": kwargs}), fields

    def _check_app(self) -> Iterable[CheckMessage]:
        """E101: the app whose tables the tasks are to be in."""
        if not apps.is_installed("cairnq_django"):
            yield Error(
                f"TASKS[{self.alias!r}] uses {type(self).__name__}, but its app is not installed.",
                hint="Add 'cairnq_django' to INSTALLED_APPS and run migrate.",
                id="cairnq_django.E101",
            )

    def _check_params(self) -> Iterable[CheckMessage]:
        """E102 and E103: what `OPTIONS` and `QUEUES` hold."""
        for problem in self._problems:
            yield Error(problem, id="cairnq_django.E102")
        place = f"TASKS[{self.alias!r}]['QUEUES']"
        if isinstance(self._given_queues, str):
            yield Error(
                f"{place} must be a list of queue names, got a string; write [{self._given_queues!r}]",
                id="cairnq_django.E103",
            )
            return
        for queue in self._given_queues:
            try:
                text(queue, f"A queue of {place}", maximum=QUEUE_LENGTH)
            except (TypeError, ValueError) as error:
                yield Error(str(error), id="cairnq_django.E103")

    def _check_paths(self) -> Iterable[CheckMessage]:
        """W101: two functions under one path, of which only one can be run."""
        for definition in default_registry:
            handler = definition.handler
            if not isinstance(handler, handlers.Handler) or handler.declared.alias != self.alias:
                continue
            if handler.displaced is not None:
                first, second = handler.displaced.lines[0], handler.lines[0]
                yield Warning(
                    f"Two functions are tasks under the path {definition.name!r}: those of lines {first} and {second}. "
                    "Workers run the latter, whichever was enqueued.",
                    hint="Give each a name of its own: its __qualname__, which functools.wraps() copies, too.",
                    obj=definition.name,
                    id="cairnq_django.W101",
                )


def _plain(payload: dict[str, Any]) -> Any:
    """As Django's own backends keep it. Raises what they raise or, naming the place, `SerializationError`."""
    try:
        return normalize_json(payload)
    except (TypeError, ValueError, RecursionError):
        normalize(payload, root="payload", max_depth=_DEPTH)
        raise
