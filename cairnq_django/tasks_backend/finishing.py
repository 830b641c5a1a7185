"""Tell the receivers of the framework's `task_finished` of every task that ended, however it did."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from ..signals import task_canceled, task_failed, task_succeeded
from . import handlers, results
from .framework import task_finished

_UID: Final = "cairnq_django.tasks_backend"


def connect() -> None:
    """Listen to this app's own signals; doing it again changes nothing."""
    for signal in (task_succeeded, task_failed, task_canceled):
        signal.connect(_tell_finished, dispatch_uid=_UID)


def disconnect() -> None:
    for signal in (task_succeeded, task_failed, task_canceled):
        signal.disconnect(dispatch_uid=_UID)


def _tell_finished(sender: Any, *, task: Any, duration: float | None = None, **facts: Any) -> None:
    # The exception that ended the task, if one did, is being handled meanwhile.
    handler = handlers.registered(task.name)
    if handler is None or not results.is_call(task.payload):
        return
    deferred = task.get_deferred_fields()
    if task.succeeded and "completed_at" in deferred and duration is not None:
        # Nothing needs to be read for what succeeds at once, as most do. When it was recorded, a moment later, the
        # row says.
        task.completed_at = task.started_at + timedelta(seconds=duration)
    elif deferred:
        # All in one go, instead of each when it is asked for.
        task.refresh_from_db(fields=list(deferred))
    result = results.of_row(task, handler.declared)
    task_finished.send_robust(sender=handler.sender(result), task_result=result)
