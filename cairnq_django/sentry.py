"""Report each failed attempt to Sentry; a worker imports this where the project has called `sentry_sdk.init()`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import sentry_sdk
from sentry_sdk.integrations.logging import ignore_logger, unignore_logger
from sentry_sdk.scope import add_global_event_processor
from sentry_sdk.tracing import TransactionSource
from sentry_sdk.utils import event_from_exception

from .instrumentation import surround
from .logs import about_these
from .signals import task_failed, task_retried

if TYPE_CHECKING:
    from sentry_sdk.types import Event

    from .envelopes import Envelope
    from .models import Task

_TAGS: Final = ("task_id", "task_name", "queue", "attempt")
_TOLD_BY: Final = "cairnq_django.worker.attempt"  # the logger of how attempts ended
_FRAMEWORK: Final = ("django.tasks", "django_tasks")  # its loggers
_MECHANISM: Final = {"type": "cairnq_django", "handled": False}


def report_failures() -> Callable[[], None]:
    """From now on, send one event for each attempt that fails, also if it is to be retried; returns what undoes it.

    Events that a handler sends itself, or logs, get the same tags: `task_id`, `task_name`, `queue` and `attempt`.
    """
    task_failed.connect(_report)
    task_retried.connect(_report)
    # It would send the same again without its traceback.
    ignore_logger(_TOLD_BY)
    leave = surround(calls=_scope_of_its_own)

    def undo() -> None:
        task_failed.disconnect(_report)
        task_retried.disconnect(_report)
        unignore_logger(_TOLD_BY)
        leave()

    return undo


@contextmanager
def _scope_of_its_own(tasks: Sequence[Any], in_batch: bool) -> Iterator[None]:
    with sentry_sdk.isolation_scope() as scope:
        scope.clear_breadcrumbs()
        about = about_these(tasks, in_batch=in_batch)
        _describe(scope, about)
        if in_batch:
            scope.set_context("cairnq_django", about)
        yield


def _report(task: Task, error: Envelope | None, exception: BaseException | None, **facts: Any) -> None:
    if error is None:
        # A person had it retried.
        return
    about = {
        "task_id": str(task.pk),
        "task_name": task.name,
        "queue": task.queue,
        "attempt": task.attempt,
        "max_attempts": task.max_attempts,
        "worker_id": task.worker_id,
        "correlation_id": task.correlation_id,
        "duration": facts["duration"],
        "error_code": error["code"],
        "retried_in": facts.get("delay"),
    }
    with sentry_sdk.new_scope() as scope:
        _describe(scope, about)
        scope.set_context("cairnq_django", about)
        event, hint = _event_of(exception) or (_event_without_traceback(task, error), None)
        sentry_sdk.capture_event(event, hint)


@add_global_event_processor
def _unless_told(event: Event, hint: dict[str, Any]) -> Event | None:
    """Drop what Django's tasks framework logs of the end of a task of ours: a failure is told, a cancel is no error."""
    record = hint.get("log_record")
    if record is None or record.name not in _FRAMEWORK or not record.args:
        return event
    try:
        UUID(record.args[0])
    except (TypeError, ValueError, AttributeError):
        # One that its own backends ran.
        return event
    return None


def _describe(scope: sentry_sdk.Scope, about: dict[str, Any]) -> None:
    scope.set_transaction_name(about["task_name"], source=TransactionSource.TASK)
    for tag in _TAGS:
        if about[tag] is not None:
            scope.set_tag(tag, about[tag])


def _event_of(exception: BaseException | None) -> tuple[Event, dict[str, Any]] | None:
    """The event and what goes with it; None if nothing was raised, or something that cannot be looked at."""
    if exception is None:
        return None
    try:
        options = sentry_sdk.get_client().options
        event, hint = event_from_exception(exception, client_options=options, mechanism=_MECHANISM)
    except Exception:
        return None
    return event, hint


def _event_without_traceback(task: Task, error: Envelope) -> Event:
    """For a timeout, a worker that is gone or `ctx.fail()`."""
    said = {"type": error["type"], "value": error["message"], "mechanism": _MECHANISM}
    # Messages name the worker or the time it took, and would each be an issue of its own.
    return {"level": "error", "exception": {"values": [said]}, "fingerprint": [task.name, error["code"]]}
