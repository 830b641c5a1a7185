"""What the arguments of a submit become: checked, serialised, as rows that are not inserted yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Any
from uuid import UUID

from django.utils.timezone import is_naive

from . import limits
from .arguments import Seconds, integer, seconds, text
from .backpressure import Admission, admission
from .clock import after
from .conf import get_settings
from .ids import new_task_id
from .models import Task
from .registry import TaskDef, default_registry
from .serialization import dumped_size, normalize
from .store.engine import json_depth, task_database
from .store.submit import Conflict

TaskId = UUID | str


@dataclass(frozen=True)
class Submission:
    """A submit whose arguments are checked; nothing is written yet."""

    using: str
    rows: list[Task]
    strategy: Conflict
    admission: Admission | None  # None: the queue takes any number
    is_awaited: bool = False  # whether the caller waits for its end


def prepare(
    task: TaskDef[Any, Any] | str,
    payload: Any = None,
    *,
    key: str | None = None,
    conflict: str = "reuse",
    max_queue_depth: int | None = None,
    max_queue_wait: Seconds | None = None,
    **fields: Any,
) -> Submission:
    """The submission of one task, from the arguments of `submit()`."""
    using = task_database()
    definition = definition_of(task)
    strategy = strategy_of(conflict)
    shared = shared_fields(using, definition, **fields)
    row = new_row(using, shared, payload, key)
    admitted = admission(using, shared["queue"], 1, max_depth=max_queue_depth, max_wait=max_queue_wait)
    return Submission(using, [row], strategy, admitted)


def prepare_many(
    task: TaskDef[Any, Any] | str,
    payloads: Iterable[Any],
    *,
    key: Callable[[Any], str | None] | None = None,
    conflict: str = "reuse",
    max_queue_depth: int | None = None,
    max_queue_wait: Seconds | None = None,
    **fields: Any,
) -> Submission:
    """The submission of one task for each payload, from the arguments of `submit_many()`."""
    if isinstance(payloads, (str, bytes, Mapping)) or not isinstance(payloads, Iterable):
        raise TypeError(f"payloads must be a list or another iterable of payloads, got {type(payloads).__name__}")
    if key is not None and not callable(key):
        raise TypeError(f"key must be a function from a payload to its key, got {type(key).__name__}")
    using = task_database()
    definition = definition_of(task)
    strategy = strategy_of(conflict)
    shared = shared_fields(using, definition, **fields)
    rows = [
        new_row(using, shared, payload, key(payload) if key is not None else None, place=f"payloads[{index}]")
        for index, payload in enumerate(payloads)
    ]
    if strategy in (Conflict.REJECT, Conflict.REPLACE):
        refuse_repeated_keys(rows, strategy)
    admitted = admission(using, shared["queue"], len(rows), max_depth=max_queue_depth, max_wait=max_queue_wait)
    return Submission(using, rows, strategy, admitted)


def definition_of(task: object) -> TaskDef[Any, Any]:
    if isinstance(task, TaskDef):
        return task
    if not isinstance(task, str):
        remedy = "; decorate the function with @task" if callable(task) else ""
        raise TypeError(f"task must be what @task made, a TaskDef or a task's name, got {task!r}{remedy}")
    definition = default_registry.get(task)
    if definition is None:
        return _elsewhere(task)
    return definition if definition.name == task else _under_alias(definition, task)


@lru_cache(maxsize=1024)
def _elsewhere(name: str) -> TaskDef[Any, Any]:
    """A task that another program runs."""
    return TaskDef(name)


@lru_cache(maxsize=1024)
def _under_alias(definition: TaskDef[Any, Any], alias: str) -> TaskDef[Any, Any]:
    """As it is submitted by an earlier name: workers of an earlier version may run it, too."""
    return replace(definition, name=alias, aliases=(), handler=None)


def strategy_of(conflict: str) -> Conflict:
    try:
        return Conflict(conflict)
    except ValueError:
        known = ", ".join(repr(strategy.value) for strategy in Conflict)
        raise ValueError(f"conflict must be one of {known}, got {conflict!r}") from None


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


def checked_key(key: str, name: str = "key") -> str:
    return text(key, name, maximum=limits.KEY_LENGTH)


def shared_fields(
    using: str,
    definition: TaskDef[Any, Any],
    *,
    queue: str | None = None,
    priority: int | None = None,
    delay: Seconds | None = None,
    run_at: datetime | None = None,
    expires: Seconds | datetime | None = None,
    max_attempts: int | None = None,
    metadata: dict[str, Any] | None = None,
    correlation_id: str | None = None,
    parent: Task | TaskId | None = None,
) -> dict[str, Any]:
    """What every task of one submit shares, checked: a value for each column, in the columns' order."""
    fields: dict[str, Any] = {
        **_blank(),
        "name": definition.name,
        "queue": text(queue, "queue", maximum=limits.QUEUE_LENGTH) if queue is not None else definition.queue,
        "priority": definition.priority,
        "max_attempts": definition.max_attempts or get_settings().max_attempts,
        "metadata": _json(using, metadata, "metadata") if metadata is not None else {},
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
    if expires is not None:
        fields["expires_at"] = _expiry(expires, delay, run_at)
    if parent is not None:
        inherited = _inherited(using, parent)
        fields = {**fields, **inherited, "correlation_id": fields["correlation_id"] or inherited["correlation_id"]}
    return fields


@lru_cache(maxsize=1)
def _blank() -> dict[str, Any]:
    """What the model says of a row of which nothing is known yet. Nobody changes these values."""
    return {column.attname: column.get_default() for column in Task._meta.concrete_fields}


def new_row(using: str, fields: dict[str, Any], payload: Any, key: str | None, *, place: str | None = None) -> Task:
    task_id = new_task_id()
    row: Any = {
        **fields,
        "id": task_id,
        "root_id": fields["root_id"] or task_id,
        "payload": _json(using, payload, place or "payload"),
        "key": checked_key(key, f"key of {place}" if place else "key") if key is not None else None,
    }
    # In the order of the columns, which takes the model half of the time that names take it.
    return Task(*row.values())


def refuse_repeated_keys(rows: list[Task], strategy: Conflict) -> None:
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


def _due(delay: Seconds | None, run_at: datetime | None) -> Any:
    if delay is not None and run_at is not None:
        raise ValueError(f"Give delay or run_at, not both; got {delay!r} and {run_at!r}")
    if delay is not None:
        return after(seconds(delay, "delay"))
    if run_at is None:
        return None
    if not isinstance(run_at, datetime):
        raise TypeError(f"run_at must be a datetime, got {run_at!r}")
    return in_utc(run_at, "run_at")


def _expiry(expires: Seconds | datetime, delay: Seconds | None, run_at: datetime | None) -> Any:
    if isinstance(expires, datetime):
        moment = in_utc(expires, "expires")
        if run_at is not None and moment <= run_at:
            raise _expired_before_due(expires, "run_at", run_at)
        return moment
    if not isinstance(expires, (int, float, timedelta)):
        raise TypeError(f"expires must be a number of seconds, a timedelta or an aware datetime, got {expires!r}")
    duration = seconds(expires, "expires")
    if not duration:
        raise ValueError(
            f"expires must be more than 0 seconds, got {expires!r}: the task could not start; "
            "leave it out for a task that never expires"
        )
    if delay is not None and duration <= seconds(delay, "delay"):
        raise _expired_before_due(expires, "delay", delay)
    return after(duration)


def _expired_before_due(expires: object, name: str, due: object) -> ValueError:
    return ValueError(f"expires must be later than {name}, when the task is due; got {expires!r} and {due!r}")


def in_utc(moment: datetime, name: str) -> datetime:
    """The same moment in UTC. Raises `ValueError` naming the argument."""
    if is_naive(moment):
        raise ValueError(f"{name} must be aware, got {moment.isoformat()} without a time zone; see make_aware()")
    try:
        return moment.astimezone(timezone.utc)
    except OverflowError:
        raise ValueError(f"{name} must be within the years 1 to 9999 of UTC, got {moment.isoformat()}") from None


def _inherited(using: str, parent: Task | TaskId) -> dict[str, Any]:
    if not isinstance(parent, Task):
        parent_id = as_task_id(parent, "parent")
        try:
            parent = Task.objects.using(using).only("root_id", "correlation_id").get(pk=parent_id)
        except Task.DoesNotExist:
            raise Task.DoesNotExist(f"parent must be a task that exists, got {parent_id}") from None
    return {"parent_id": parent.pk, "root_id": parent.root_id, "correlation_id": parent.correlation_id}


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
