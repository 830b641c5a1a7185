"""What a `TaskResult` says of a task: its row, and its attempts that failed, in the words of Django's framework."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import UUID

import cairnq_django

from ..envelopes import Envelope
from ..errors import TaskCanceled
from ..serialization import type_name
from .framework import DEFAULT_TASK_BACKEND_ALIAS, Task, TaskError, TaskResult, TaskResultStatus

if TYPE_CHECKING:
    from ..models import Task as Row
    from ..models import TaskAttempt

NOTE: Final = "django_tasks"  # the key in a task's metadata for what its row has no column for

_STATUSES: Final = {
    "queued": TaskResultStatus.READY,
    "running": TaskResultStatus.RUNNING,
    "succeeded": TaskResultStatus.SUCCESSFUL,
    "failed": TaskResultStatus.FAILED,
    "canceled": TaskResultStatus.FAILED,
}
_CANCELED: Final = type_name(TaskCanceled)


class Declared(NamedTuple):
    """A task as its module has it, and the alias of the backend here that runs it if nothing else is said."""

    task: Task[Any, Any]
    alias: str


def note(task: Task[Any, Any], alias: str, declared: Declared) -> dict[str, Any] | None:
    """The metadata of a task that is enqueued with the backend `alias`: nothing, for most."""
    noted: dict[str, Any] = {}
    if not alias == declared.alias == DEFAULT_TASK_BACKEND_ALIAS:
        noted["backend"] = alias
    if task.run_after is not None:
        # The row says when it is due, which a retry changes.
        noted["run_after"] = task.run_after.isoformat()
    return {NOTE: noted} if noted else None


def is_call(payload: Any) -> bool:
    """Whether this can be the arguments of a function; of one that takes none, there need not be a payload."""
    return payload is None or (
        isinstance(payload, dict)
        and payload.keys() <= {"args", "kwargs"}
        and isinstance(payload.get("args", []), list)
        and isinstance(payload.get("kwargs", {}), dict)
    )


def read(task_id: UUID | str, declared: Declared) -> TaskResult[Any, Any]:
    """The result of a task as it is now. Raises what `cairnq_django.get()` raises."""
    return of_row(cairnq_django.get(task_id), declared)


def enqueued(row: Row, task: Task[Any, Any], alias: str) -> TaskResult[Any, Any] | None:
    """The result of a task that was just enqueued as this row; None if more has become of it, as in `immediate()`."""
    if not row.is_queued or row.attempt:
        return None
    return _result(row, task, alias, task_id=row.pk, status=TaskResultStatus.READY)


def of_row(row: Row, declared: Declared) -> TaskResult[Any, Any]:
    """The result of a task that this is the row of. Its failed attempts are read if there are any."""
    task = _as_enqueued(declared, row)
    failed = _failed_attempts(row)
    started_at = failed[0].started_at if failed else row.started_at
    worker_ids = [attempt.worker_id for attempt in failed]
    if _has_one_more_attempt(row):
        worker_ids.append(row.worker_id)
    result = _result(
        row,
        task,
        task.backend,
        task_id=row.pk,
        status=_STATUSES[row.status],
        started_at=started_at,
        last_attempted_at=row.started_at,
        finished_at=row.completed_at,
        errors=list(_errors(row, failed)),
        worker_ids=worker_ids,
    )
    if row.succeeded:
        object.__setattr__(result, "_return_value", row.result)
    return result


def first_attempt(ctx: Any, declared: Declared) -> TaskResult[Any, Any]:
    """The result of a task that is in its first attempt, of which its handler's `ctx` knows all."""
    task = _as_enqueued(declared, ctx)
    return _result(
        ctx,
        task,
        task.backend,
        task_id=ctx.task_id,
        status=TaskResultStatus.RUNNING,
        started_at=ctx.started_at,
        last_attempted_at=ctx.started_at,
        worker_ids=[ctx.worker_id],
    )


def _result(
    source: Any,
    task: Task[Any, Any],
    alias: str,
    *,
    task_id: UUID,
    status: TaskResultStatus,
    started_at: datetime | None = None,
    last_attempted_at: datetime | None = None,
    finished_at: datetime | None = None,
    errors: Sequence[TaskError] = (),
    worker_ids: Sequence[str] = (),
) -> TaskResult[Any, Any]:
    """`source` is a row or a handler's `ctx`, which tell what was submitted in the same words."""
    call = source.payload or {}
    return TaskResult(
        task=task,
        id=str(task_id),
        status=status,
        enqueued_at=source.created_at,
        started_at=started_at,
        finished_at=finished_at,
        last_attempted_at=last_attempted_at,
        args=call.get("args", []),
        kwargs=call.get("kwargs", {}),
        backend=alias,
        errors=list(errors),
        worker_ids=list(worker_ids),
    )


def _as_enqueued(declared: Declared, source: Any) -> Task[Any, Any]:
    """The task with what it was enqueued with. It is not validated: settings may have changed since then."""
    noted = source.metadata.get(NOTE)
    noted = noted if isinstance(noted, Mapping) else {}
    run_after = noted.get("run_after")
    changes = {
        "priority": source.priority,
        "queue_name": source.queue,
        "backend": noted.get("backend", declared.alias),
        "run_after": datetime.fromisoformat(run_after) if run_after is not None else None,
    }
    task: Task[Any, Any] = object.__new__(type(declared.task))
    for field in fields(declared.task):
        object.__setattr__(task, field.name, changes.get(field.name, getattr(declared.task, field.name)))
    return task


def _has_one_more_attempt(row: Row) -> bool:
    """Whether the latest attempt is not among those that failed."""
    return row.is_running or row.succeeded


def _failed_attempts(row: Row) -> Sequence[TaskAttempt]:
    """Those that count, the first one first: not those before the attempts were reset, nor any that came since."""
    number = row.attempt - _has_one_more_attempt(row)
    if not number:
        return []
    found: list[TaskAttempt] = []
    for attempt in row.attempts.using(row._state.db).order_by("-pk"):
        if attempt.number <= number:
            found.append(attempt)
            number = attempt.number - 1
    return found[::-1]


def _errors(row: Row, failed: Sequence[TaskAttempt]) -> Iterator[TaskError]:
    for attempt in failed:
        yield _error(attempt.error)
    if row.canceled and not (failed and failed[-1].error["type"] == _CANCELED):
        message = row.error["message"] if row.error is not None else "The task was canceled"
        yield TaskError(exception_class_path=_CANCELED, traceback=f"{_CANCELED}: {message}\n")


def _error(envelope: Envelope) -> TaskError:
    path, details = envelope["type"], envelope["details"]
    if envelope["code"] == "unserializable_result":
        # What it is with Django's own backends.
        path = "TypeError"
    trace = details.get("traceback") if isinstance(details, dict) else None
    return TaskError(
        exception_class_path=path if "." in path else f"builtins.{path}",
        traceback=trace if isinstance(trace, str) else f"{path}: {envelope['message']}\n",
    )
