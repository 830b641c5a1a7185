"""What callers use: submit tasks, look at them, cancel and retry them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any, Literal, TypedDict, TypeVar
from uuid import UUID

from django.utils.timezone import is_naive

from . import limits, notify
from .arguments import integer, seconds, text
from .clock import after
from .conf import get_settings
from .ids import new_task_id
from .models import Task
from .notify import Channel
from .registry import TaskDef, default_registry
from .serialization import dumped_size, normalize
from .statuses import TERMINAL, TaskStatus
from .store import control, maintenance
from .store import stats as read_model
from .store import submit as insertion
from .store.engine import json_depth, task_database
from .store.stats import QueueStats
from .store.submit import Conflict
from .twins import twin

P = TypeVar("P")

Seconds = float | timedelta
TaskId = UUID | str
ConflictStrategy = Literal["reuse", "reuse-succeeded", "reject", "replace"]


class SubmitOptions(TypedDict, total=False):
    """The keywords of `submit()`, for functions that pass them on."""

    key: str | None
    conflict: ConflictStrategy
    queue: str | None
    priority: int | None
    delay: Seconds | None
    run_at: datetime | None
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
    max_attempts: int | None = None,
    metadata: dict[str, Any] | None = None,
    correlation_id: str | None = None,
    parent: Task | TaskId | None = None,
) -> Task:
    """Queue one execution of `task` and return its row.

    `task` is what `@task` made, a `TaskDef`, or a name. `queue`, `priority` and `max_attempts` default to the task's
    own. `delay` (seconds or a `timedelta`) and `run_at` (an aware datetime) are two ways to say when it is due, at
    once by default. `parent` makes it a child: it takes over the root and, unless given one, the correlation id.

    `key` names the task to the business. Where the key has a live task, `conflict` decides: `"reuse"` returns that
    task, `"reject"` raises `AlreadyExists`, `"replace"` cancels it and submits anew, and `"reuse-succeeded"` is
    `"reuse"` that also returns a task that has succeeded. A task that ended frees its key.

    Joins the caller's transaction: rolled back, the task never existed. Raises `SerializationError` for what JSON
    cannot represent, `TypeError` or `ValueError` naming any other argument that is wrong, all before anything is
    written; `Task.DoesNotExist` for a `parent` that is not there.
    """
    using = task_database()
    definition = _definition(task)
    strategy = _strategy(conflict)
    fields = _fields(
        using,
        definition,
        queue=queue,
        priority=priority,
        delay=delay,
        run_at=run_at,
        max_attempts=max_attempts,
        metadata=metadata,
        correlation_id=correlation_id,
        parent=parent,
    )
    row = _row(using, fields, payload, key)
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
    definition = _definition(task)
    strategy = _strategy(conflict)
    fields = _fields(
        using,
        definition,
        queue=queue,
        priority=priority,
        delay=delay,
        run_at=run_at,
        max_attempts=max_attempts,
        metadata=metadata,
        correlation_id=correlation_id,
        parent=parent,
    )
    rows = [
        _row(using, fields, payload, key(payload) if key is not None else None, place=f"payloads[{index}]")
        for index, payload in enumerate(payloads)
    ]
    if strategy in (Conflict.REJECT, Conflict.REPLACE):
        _refuse_repeated_keys(rows, strategy)
    return _submit(using, rows, strategy) if rows else []


def get(task_id: Task | TaskId) -> Task:
    """The task as it is now. Raises `Task.DoesNotExist`."""
    pk = as_task_id(task_id)
    with named(f"task {pk}") as using:
        return Task.objects.using(using).get(pk=pk)


def get_by_key(key: str) -> Task:
    """The key's current task: the live one, or the last that was. Raises `Task.DoesNotExist`."""
    with named(f"task with the key {_key(key)!r}") as using:
        return Task.objects.using(using).by_key(key).get()


def cancel(task_id: Task | TaskId) -> Task:
    """Cancel a task and return its row.

    A queued task is `canceled` at once. A running one gets `cancel_requested_at`, which its handler can see, and ends
    `canceled` however the handler ends. One that has ended stays as it is. Joins the caller's transaction. Raises
    `Task.DoesNotExist`.
    """
    pk = as_task_id(task_id)
    with named(f"task {pk}") as using:
        task, changed = control.cancel(using, pk)
    if changed and task.is_terminal:
        notify.announce(using, Channel.ENDED, [str(task.pk)])
    return task


def cancel_by_key(key: str) -> Task:
    """Cancel the key's current task, as `cancel()` does. Raises `Task.DoesNotExist`."""
    return cancel(id_by_key(key))


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


def as_task_id(value: Task | TaskId, name: str = "task_id") -> UUID:
    """The id in any form a caller may hold. Raises `TypeError` or `ValueError` naming the argument and the value."""
    if isinstance(value, Task):
        return value.pk
    if isinstance(value, UUID):
        return value
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a UUID or its text, got {value!r}")
    try:
        return UUID(value)
    except ValueError:
        raise ValueError(f"{name} must be a UUID or its text, got {value!r}") from None


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
    with named(f"task with the key {_key(key)!r}") as using:
        return Task.objects.using(using).by_key(key).values_list("pk", flat=True).get()


def _submit(using: str, rows: list[Task], strategy: Conflict) -> list[Task]:
    submitted = insertion.submit(using, rows, strategy)
    ended = [str(task.pk) for task in submitted.canceled if task.is_terminal]
    if ended:
        notify.announce(using, Channel.ENDED, ended)
    notify.announce(using, Channel.QUEUED, {row.queue for row in rows})
    return submitted.tasks


def _strategy(conflict: str) -> Conflict:
    try:
        return Conflict(conflict)
    except ValueError:
        known = ", ".join(repr(strategy.value) for strategy in Conflict)
        raise ValueError(f"conflict must be one of {known}, got {conflict!r}") from None


def _refuse_repeated_keys(rows: list[Task], strategy: Conflict) -> None:
    seen: dict[str, int] = {}
    for index, row in enumerate(rows):
        if row.key is None:
            continue
        if row.key in seen:
            raise ValueError(
                f"payloads[{seen[row.key]}] and payloads[{index}] have the same key, {row.key!r}, which "
                f'conflict="{strategy.value}" does not allow; submit it once'
            )
        seen[row.key] = index


def _definition(task: object) -> TaskDef[Any, Any]:
    if isinstance(task, TaskDef):
        return task
    if not isinstance(task, str):
        remedy = "; decorate the function with @task" if callable(task) else ""
        raise TypeError(f"task must be what @task made, a TaskDef or a task's name, got {task!r}{remedy}")
    return default_registry.get(task) or TaskDef(task)


def _fields(
    using: str,
    definition: TaskDef[Any, Any],
    *,
    queue: str | None,
    priority: int | None,
    delay: Seconds | None,
    run_at: datetime | None,
    max_attempts: int | None,
    metadata: dict[str, Any] | None,
    correlation_id: str | None,
    parent: Task | TaskId | None,
) -> dict[str, Any]:
    """The columns that every task of one submit shares, checked."""
    fields: dict[str, Any] = {
        "name": definition.name,
        "queue": text(queue, "queue", maximum=limits.QUEUE_LENGTH) if queue is not None else definition.queue,
        "priority": definition.priority,
        "max_attempts": definition.max_attempts or get_settings().max_attempts,
        "metadata": _json(using, metadata if metadata is not None else {}, "metadata"),
    }
    if priority is not None:
        fields["priority"] = integer(priority, "priority", minimum=limits.MIN_PRIORITY, maximum=limits.MAX_PRIORITY)
    if max_attempts is not None:
        fields["max_attempts"] = integer(max_attempts, "max_attempts", minimum=1, maximum=limits.MAX_ATTEMPTS)
    if not isinstance(fields["metadata"], dict):
        raise TypeError(f"metadata must be a dict, got {type(metadata).__name__}")
    if correlation_id is not None:
        fields["correlation_id"] = text(correlation_id, "correlation_id", maximum=limits.CORRELATION_ID_LENGTH)
    due = _due(delay, run_at)
    if due is not None:
        fields["run_at"] = due
    if parent is not None:
        fields = {**_inherited(using, parent), **fields}
    return fields


def _due(delay: Seconds | None, run_at: datetime | None) -> Any:
    if delay is not None and run_at is not None:
        raise ValueError(f"Give delay or run_at, not both; got {delay!r} and {run_at!r}")
    if delay is not None:
        return after(seconds(delay, "delay"))
    if run_at is None:
        return None
    if not isinstance(run_at, datetime):
        raise TypeError(f"run_at must be a datetime, got {run_at!r}")
    if is_naive(run_at):
        raise ValueError(f"run_at must be aware, got {run_at.isoformat()} without a time zone; see make_aware()")
    try:
        return run_at.astimezone(timezone.utc)
    except OverflowError:
        raise ValueError(f"run_at must be within the years 1 to 9999 of UTC, got {run_at.isoformat()}") from None


def _inherited(using: str, parent: Task | TaskId) -> dict[str, Any]:
    if not isinstance(parent, Task):
        parent_id = as_task_id(parent, "parent")
        try:
            parent = Task.objects.using(using).only("root_id", "correlation_id").get(pk=parent_id)
        except Task.DoesNotExist:
            raise Task.DoesNotExist(f"parent must be a task that exists, got {parent_id}") from None
    return {"parent_id": parent.pk, "root_id": parent.root_id, "correlation_id": parent.correlation_id}


def _row(using: str, fields: dict[str, Any], payload: Any, key: str | None, *, place: str | None = None) -> Task:
    task_id = new_task_id()
    return Task(
        **{"root_id": task_id, **fields},
        id=task_id,
        payload=_json(using, payload, place or "payload"),
        key=_key(key, f"key of {place}" if place else "key") if key is not None else None,
    )


def _json(using: str, value: Any, argument: str) -> Any:
    value = normalize(value, root=argument, max_depth=json_depth(using))
    limit = get_settings().max_payload_bytes
    size = dumped_size(value)
    if size > limit:
        raise ValueError(
            f'{argument} takes {size:,} bytes as JSON, more than CAIRNQ["MAX_PAYLOAD_BYTES"] allows ({limit:,}). '
            "Store the data elsewhere and submit a reference to it, or raise the limit"
        )
    return value


def _key(key: str, name: str = "key") -> str:
    return text(key, name, maximum=limits.KEY_LENGTH)
