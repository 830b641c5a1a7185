"""What callers use: submit tasks, look at them, cancel and retry them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Literal, TypedDict, TypeVar
from uuid import UUID

from . import limits, notify
from .arguments import Seconds, integer, seconds, text
from .models import Task
from .notify import Channel
from .registry import TaskDef
from .statuses import TERMINAL, TaskStatus
from .store import control, maintenance
from .store import stats as read_model
from .store import submit as insertion
from .store.control import Changed
from .store.engine import task_database
from .store.stats import QueueStats
from .store.submit import Conflict
from .submission import (
    TaskId,
    as_task_id,
    checked_key,
    definition_of,
    new_row,
    refuse_repeated_keys,
    shared_fields,
    strategy_of,
)
from .twins import twin

P = TypeVar("P")

ConflictStrategy = Literal["reuse", "reuse-succeeded", "reject", "replace"]


class SubmitOptions(TypedDict, total=False):
    """The keywords of `submit()`, for functions that pass them on."""

    key: str | None
    conflict: ConflictStrategy
    queue: str | None
    priority: int | None
    delay: Seconds | None
    run_at: datetime | None
    expires: Seconds | datetime | None
    max_attempts: int | None
    metadata: dict[str, Any] | None
    correlation_id: str | None
    parent: Task | TaskId | None


def submit(
    task: TaskDef[P, Any] | str,
    payload: P | None = None,
    *,
    key: str | None = None,
    conflict: ConflictStrategy = "reuse",
    queue: str | None = None,
    priority: int | None = None,
    delay: Seconds | None = None,
    run_at: datetime | None = None,
    expires: Seconds | datetime | None = None,
    max_attempts: int | None = None,
    metadata: dict[str, Any] | None = None,
    correlation_id: str | None = None,
    parent: Task | TaskId | None = None,
) -> Task:
    """Queue one execution of `task` and return its row.

    `task` is what `@task` made, a `TaskDef`, or a name. `queue`, `priority` and `max_attempts` default to the task's
    own. `delay` (seconds or a `timedelta`) and `run_at` (an aware datetime) are two ways to say when it is due, at
    once by default. A task that no worker has started by `expires` (seconds or a `timedelta` from now, or an aware
    datetime) ends `canceled` with an `expired` error; once started it never expires, however often it is retried.
    `parent` makes it a child: it takes over the root and, unless given one, the correlation id.

    `key` names the task to the business. Where the key has a live task, `conflict` decides: `"reuse"` returns that
    task, `"reject"` raises `AlreadyExists`, `"replace"` cancels it and submits anew, and `"reuse-succeeded"` is
    `"reuse"` that also returns a task that has succeeded. A task that ended frees its key.

    Joins the caller's transaction: rolled back, the task never existed. Raises `SerializationError` for what JSON
    cannot represent, `TypeError` or `ValueError` naming any other argument that is wrong, all before anything is
    written; `Task.DoesNotExist` for a `parent` that is not there.
    """
    using = task_database()
    definition = definition_of(task)
    strategy = strategy_of(conflict)
    fields = shared_fields(
        using,
        definition,
        queue=queue,
        priority=priority,
        delay=delay,
        run_at=run_at,
        expires=expires,
        max_attempts=max_attempts,
        metadata=metadata,
        correlation_id=correlation_id,
        parent=parent,
    )
    row = new_row(using, fields, payload, key)
    return _submit(using, [row], strategy)[0]


def submit_many(
    task: TaskDef[P, Any] | str,
    payloads: Iterable[P],
    *,
    key: Callable[[P], str | None] | None = None,
    conflict: ConflictStrategy = "reuse",
    queue: str | None = None,
    priority: int | None = None,
    delay: Seconds | None = None,
    run_at: datetime | None = None,
    expires: Seconds | datetime | None = None,
    max_attempts: int | None = None,
    metadata: dict[str, Any] | None = None,
    correlation_id: str | None = None,
    parent: Task | TaskId | None = None,
) -> list[Task]:
    """Queue one execution of `task` for each payload, all or none, and return their rows in that order.

    As `submit()`, with one round trip per thousand; `key` is a function from a payload to its key. Payloads that share
    a key share a task, the first one's; `"reject"` and `"replace"`, which could only undo one with the other, refuse
    them. Raises what `submit()` raises, the payload's place in the message, before anything is written.
    """
    if isinstance(payloads, (str, bytes, Mapping)) or not isinstance(payloads, Iterable):
        raise TypeError(f"payloads must be a list or another iterable of payloads, got {type(payloads).__name__}")
    if key is not None and not callable(key):
        raise TypeError(f"key must be a function from a payload to its key, got {type(key).__name__}")
    using = task_database()
    definition = definition_of(task)
    strategy = strategy_of(conflict)
    fields = shared_fields(
        using,
        definition,
        queue=queue,
        priority=priority,
        delay=delay,
        run_at=run_at,
        expires=expires,
        max_attempts=max_attempts,
        metadata=metadata,
        correlation_id=correlation_id,
        parent=parent,
    )
    rows = [
        new_row(using, fields, payload, key(payload) if key is not None else None, place=f"payloads[{index}]")
        for index, payload in enumerate(payloads)
    ]
    if strategy in (Conflict.REJECT, Conflict.REPLACE):
        refuse_repeated_keys(rows, strategy)
    return _submit(using, rows, strategy) if rows else []


def get(task_id: Task | TaskId) -> Task:
    """The task as it is now. Raises `Task.DoesNotExist`."""
    pk = as_task_id(task_id)
    with named(f"task {pk}") as using:
        return Task.objects.using(using).get(pk=pk)


def get_by_key(key: str) -> Task:
    """The key's current task: the live one, or the last that was. Raises `Task.DoesNotExist`."""
    key = checked_key(key)
    with named(f"task with the key {key!r}") as using:
        return Task.objects.using(using).by_key(key).get()


def cancel(task_id: Task | TaskId, *, family: bool = False) -> Task:
    """Cancel a task and return its row.

    A queued task is `canceled` at once. A running one gets `cancel_requested_at`, which its handler can see, and ends
    `canceled` however the handler ends. One that has ended stays as it is. Joins the caller's transaction. Raises
    `Task.DoesNotExist`.

    With `family=True` its descendants are canceled with it, in one transaction, also below those that have ended. What
    a running one of them submits after this is not covered: its handler has to look at `ctx.canceled()` before.
    """
    if not family:
        return request_cancel(task_id).task
    pk = as_task_id(task_id)
    with named(f"task {pk}") as using:
        task, ended = control.cancel_family(using, pk)
    notify.announce(using, Channel.ENDED, map(str, ended))
    return task


def cancel_by_key(key: str, *, family: bool = False) -> Task:
    """Cancel the key's current task, as `cancel()` does. Raises `Task.DoesNotExist`."""
    return cancel(id_by_key(key), family=family)


def retry(task_id: Task | TaskId) -> Task:
    """Queue a failed or canceled task again, due now, and return its row.

    Its attempts go on counting; if they were used up, one more is allowed. Joins the caller's transaction. Raises
    `CairnQError` for a task in another state, `AlreadyExists` if its key has another live task by now, and
    `Task.DoesNotExist`.
    """
    pk = as_task_id(task_id)
    with named(f"task {pk}") as using:
        task = control.retry(using, pk).task
    notify.announce(using, Channel.QUEUED, [task.queue])
    return task


def retry_by_key(key: str) -> Task:
    """Queue the key's current task again, as `retry()` does. Raises what `retry()` raises."""
    return retry(id_by_key(key))


def stats() -> dict[str, QueueStats]:
    """How each queue that has tasks stands, by its name. Counts every row: for people, not for hot paths."""
    return read_model.queue_stats(task_database())


def queue_depth(queue: str, max_depth: int) -> int:
    """The headroom of `queue` under a limit of `max_depth` queued tasks: how many more it takes, never below 0.

    Delayed tasks count, running ones do not. Reads at most `max_depth` index entries.
    """
    text(queue, "queue", maximum=limits.QUEUE_LENGTH)
    integer(max_depth, "max_depth", minimum=0)
    return max_depth - read_model.queued_up_to(task_database(), queue, max_depth)


def purge(
    older_than: Seconds,
    *,
    status: TaskStatus | str | None = None,
    queue: str | None = None,
    name: str | None = None,
    limit: int | None = None,
) -> int:
    """Delete tasks that ended more than `older_than` (seconds or a `timedelta`) ago, and return how many.

    Their keys and attempts go with them; live tasks stay. `status`, `queue` and `name` narrow it down, `limit` bounds
    it, the longest ended first. Works in short transactions of up to 1,000 tasks.
    """
    if status is not None and status not in TERMINAL:
        raise ValueError(
            f"status must be one of {', '.join(TERMINAL)}, got {status!r}: only tasks that ended are purged"
        )
    return maintenance.purge(
        task_database(),
        older_than=seconds(older_than, "older_than"),
        status=TaskStatus(status) if status is not None else None,
        queue=text(queue, "queue", maximum=limits.QUEUE_LENGTH) if queue is not None else None,
        name=text(name, "name", maximum=limits.NAME_LENGTH) if name is not None else None,
        limit=integer(limit, "limit", minimum=0) if limit is not None else None,
    )


asubmit = twin(submit)
asubmit_many = twin(submit_many)
aget = twin(get)
aget_by_key = twin(get_by_key)
acancel = twin(cancel)
acancel_by_key = twin(cancel_by_key)
aretry = twin(retry)
aretry_by_key = twin(retry_by_key)
astats = twin(stats)
aqueue_depth = twin(queue_depth)
apurge = twin(purge)


def request_cancel(task_id: Task | TaskId) -> Changed:
    """`cancel()`, also saying whether it changed anything."""
    pk = as_task_id(task_id)
    with named(f"task {pk}") as using:
        task, changed = control.cancel(using, pk)
    if changed and task.is_terminal:
        notify.announce(using, Channel.ENDED, [str(pk)])
    return Changed(task, changed)


@contextmanager
def named(what: str) -> Iterator[str]:
    """Yield the database that tasks live in; let a `Task.DoesNotExist` say what was sought there."""
    using = task_database()
    try:
        yield using
    except Task.DoesNotExist:
        raise Task.DoesNotExist(f"There is no {what} in database {using!r}; was it purged?") from None


def id_by_key(key: str) -> UUID:
    """The id of the key's current task. Raises `Task.DoesNotExist`."""
    key = checked_key(key)
    with named(f"task with the key {key!r}") as using:
        return Task.objects.using(using).by_key(key).values_list("pk", flat=True).get()


def _submit(using: str, rows: list[Task], strategy: Conflict) -> list[Task]:
    submitted = insertion.submit(using, rows, strategy)
    notify.announce(using, Channel.ENDED, map(str, submitted.ended))
    # A row that gave way is not in the queue; the task it gave way to was announced by its own submit.
    inserted = [row for row, task in zip(rows, submitted.tasks, strict=True) if task is row]
    notify.announce(using, Channel.QUEUED, {row.queue for row in inserted})
    return submitted.tasks
