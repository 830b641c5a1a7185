"""What callers use: submit tasks, look at them, cancel and retry them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, cast, overload
from uuid import UUID

from asgiref.sync import sync_to_async

from . import limits, notify, sending
from .arguments import Seconds, integer, seconds, text
from .instrumentation import around_submit
from .models import Task
from .notify import Channel
from .registry import TaskDef
from .statuses import TERMINAL, TaskStatus
from .store import control, maintenance
from .store import stats as read_model
from .store import submit as insertion
from .store.control import CanceledFamily, Changed
from .store.engine import task_database
from .store.maintenance import Ended
from .store.stats import QueueStats
from .submission import Submission, TaskId, as_task_id, checked_key, prepare, prepare_many
from .twins import twin, twin_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

P = TypeVar("P")

#: What `testing.immediate()` does with the tasks that a submit has just inserted.
run_at_once: Callable[[list[Task]], None] | None = None

ConflictStrategy = Literal["reuse", "reuse-succeeded", "reject", "replace"]


class ChildOptions(TypedDict, total=False):
    """The keywords of `ctx.submit()`."""

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
    max_queue_depth: int | None
    max_queue_wait: Seconds | None


class SubmitOptions(ChildOptions, total=False):
    """The keywords of `submit()`, for functions that pass them on."""

    parent: Task | TaskId | None


@overload
def submit(task: TaskDef[P, Any], payload: P, **options: Unpack[SubmitOptions]) -> Task: ...
@overload
def submit(task: TaskDef[None, Any], **options: Unpack[SubmitOptions]) -> Task: ...
@overload
def submit(task: str, payload: Any = None, **options: Unpack[SubmitOptions]) -> Task: ...
def submit(
    task: TaskDef[Any, Any] | str,
    payload: Any = None,
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
    max_queue_depth: int | None = None,
    max_queue_wait: Seconds | None = None,
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

    `max_queue_depth` limits how many tasks may be queued in `queue`, delayed ones included, running ones not; the
    default is `CAIRNQ["MAX_QUEUE_DEPTH"]`. While the queue is full, the submit blocks for up to `max_queue_wait`
    (seconds or a `timedelta`; 0 is not at all; by default `CAIRNQ["MAX_QUEUE_WAIT"]`) and then raises `QueueFull`; one
    that its key's live task would answer, or give way to, is held back, too. Inside a transaction it never waits: what
    that has locked might be what workers need to make room. The limit is soft, to cost little: one look at the queue
    allows a process up to 64 submits, so each may put that many tasks on top; nobody sees what others have not
    committed, and retries are not limited.

    Joins the caller's transaction: rolled back, the task never existed. Raises `SerializationError` for what JSON
    cannot represent, `TypeError` or `ValueError` naming any other argument that is wrong, all before anything is
    written; `Task.DoesNotExist` for a `parent` that is not there.
    """
    submission = prepare(
        task,
        payload,
        key=key,
        conflict=conflict,
        queue=queue,
        priority=priority,
        delay=delay,
        run_at=run_at,
        expires=expires,
        max_attempts=max_attempts,
        metadata=metadata,
        correlation_id=correlation_id,
        parent=parent,
        max_queue_depth=max_queue_depth,
        max_queue_wait=max_queue_wait,
    )
    return submit_prepared(submission)


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
    max_queue_depth: int | None = None,
    max_queue_wait: Seconds | None = None,
) -> list[Task]:
    """Queue one execution of `task` for each payload, all or none, and return their rows in that order.

    As `submit()`, with one round trip per thousand; `key` is a function from a payload to its key. Payloads that share
    a key share a task, the first one's; `"reject"` and `"replace"`, which could only undo one with the other, refuse
    them. Raises what `submit()` raises, the payload's place in the message, before anything is written.

    A queue with a limit takes all of them or, until it has room for all, none; while others submit one by one, it may
    never have room for many. `ValueError` if they are more than its limit: they would never fit.
    """
    submission = prepare_many(
        task,
        payloads,
        key=key,
        conflict=conflict,
        queue=queue,
        priority=priority,
        delay=delay,
        run_at=run_at,
        expires=expires,
        max_attempts=max_attempts,
        metadata=metadata,
        correlation_id=correlation_id,
        parent=parent,
        max_queue_depth=max_queue_depth,
        max_queue_wait=max_queue_wait,
    )
    return _submit(submission)


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
    return request_family_cancel(task_id).task if family else request_cancel(task_id).task


def cancel_by_key(key: str, *, family: bool = False) -> Task:
    """Cancel the key's current task, as `cancel()` does. Raises `Task.DoesNotExist`."""
    return cancel(id_by_key(key), family=family)


def retry(task_id: Task | TaskId, *, reset_attempts: bool = False) -> Task:
    """Queue a failed or canceled task again, due now, and return its row.

    Its attempts go on counting; if they were used up, one more is allowed. With `reset_attempts=True` they count from
    the beginning, so that all of them are left; those that failed are kept with their errors all the same. Joins the
    caller's transaction. Raises `CairnQError` for a task in another state, `AlreadyExists` if its key has another live
    task by now, and `Task.DoesNotExist`.
    """
    pk = as_task_id(task_id)
    with named(f"task {pk}") as using:
        task = control.retry(using, pk, reset_attempts=reset_attempts).task
    notify.announce(using, Channel.QUEUED, [task.queue])
    sending.tell_retried(using, [pk])
    return task


def retry_by_key(key: str, *, reset_attempts: bool = False) -> Task:
    """Queue the key's current task again, as `retry()` does. Raises what `retry()` raises."""
    return retry(id_by_key(key), reset_attempts=reset_attempts)


def run_now(task_id: Task | TaskId) -> Task:
    """Make a queued task due now that was delayed or waits for its retry, and return its row.

    One that is due already stays as it is. Joins the caller's transaction. Raises `CairnQError` for a task in another
    state, and `Task.DoesNotExist`.
    """
    return request_run_now(task_id).task


def run_now_by_key(key: str) -> Task:
    """Make the key's current task due now, as `run_now()` does. Raises what `run_now()` raises."""
    return run_now(id_by_key(key))


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
    status: TaskStatus | str | Collection[TaskStatus | str] | None = None,
    queue: str | None = None,
    name: str | None = None,
    limit: int | None = None,
) -> int:
    """Delete tasks that ended more than `older_than` (seconds or a `timedelta`) ago, and return how many.

    Their keys and attempts go with them; live tasks stay. `status` (one, or several), `queue` and `name` narrow it
    down, `limit` bounds it, the longest ended first. Works in short transactions of up to 1,000 tasks.
    """
    ended = ended_tasks(older_than, status=status, queue=queue, name=name)
    return maintenance.purge(task_database(), ended, limit=checked_limit(limit))


@overload
async def asubmit(task: TaskDef[P, Any], payload: P, **options: Unpack[SubmitOptions]) -> Task: ...
@overload
async def asubmit(task: TaskDef[None, Any], **options: Unpack[SubmitOptions]) -> Task: ...
@overload
async def asubmit(task: str, payload: Any = None, **options: Unpack[SubmitOptions]) -> Task: ...
@twin_of(cast("Callable[..., Task]", submit))  # of its overloads, a type checker would take the first
async def asubmit(*args: Any, **options: Any) -> Task:
    return (await _asubmit(partial(prepare, *args, **options)))[0]


@twin_of(submit_many)
async def asubmit_many(*args: Any, **options: Any) -> list[Task]:
    return await _asubmit(partial(prepare_many, *args, **options))


aget = twin(get)
aget_by_key = twin(get_by_key)
acancel = twin(cancel)
acancel_by_key = twin(cancel_by_key)
aretry = twin(retry)
aretry_by_key = twin(retry_by_key)
arun_now = twin(run_now)
arun_now_by_key = twin(run_now_by_key)
astats = twin(stats)
aqueue_depth = twin(queue_depth)
apurge = twin(purge)


def submit_prepared(submission: Submission) -> Task:
    """What `submit()` does once its arguments are checked."""
    return _submit(submission)[0]


def submit_awaited(*args: Any, **options: Any) -> Task:
    """`submit()` for who waits for the end right afterwards."""
    return submit_prepared(_prepare_awaited(*args, **options))


async def asubmit_awaited(*args: Any, **options: Any) -> Task:
    """As `submit_awaited()`, for async callers."""
    return (await _asubmit(partial(_prepare_awaited, *args, **options)))[0]


def _prepare_awaited(*args: Any, **options: Any) -> Submission:
    _submit_takes.bind(*args, **options)
    return replace(prepare(*args, **options), is_awaited=True)


def submit_child(check: Callable[[], None], *args: Any, **options: Any) -> Task:
    """`submit()` for a handler: before each look at the queue it calls `check()`, and what that raises ends it."""
    _submit_takes.bind(*args, **options)
    return _submit(prepare(*args, **options), check)[0]


async def asubmit_child(check: Callable[[], None], *args: Any, **options: Any) -> Task:
    """As `submit_child()`, for async handlers; `check()` is called in a thread."""
    _submit_takes.bind(*args, **options)
    return (await _asubmit(partial(prepare, *args, **options), check))[0]


_submit_takes = signature(submit)


def request_cancel(task_id: Task | TaskId) -> Changed:
    """`cancel()`, also saying whether it changed anything."""
    pk = as_task_id(task_id)
    with named(f"task {pk}") as using:
        task, changed = control.cancel(using, pk)
    if changed and task.is_terminal:
        notify.announce(using, Channel.ENDED, [str(pk)])
        sending.tell_canceled(using, [pk])
    return Changed(task, changed)


def request_family_cancel(task_id: Task | TaskId) -> CanceledFamily:
    """`cancel(family=True)`, also saying which tasks it changed."""
    pk = as_task_id(task_id)
    with named(f"task {pk}") as using:
        canceled = control.cancel_family(using, pk)
    notify.announce(using, Channel.ENDED, map(str, canceled.ended))
    sending.tell_canceled(using, canceled.ended)
    return canceled


def request_run_now(task_id: Task | TaskId) -> Changed:
    """`run_now()`, also saying whether it changed anything."""
    pk = as_task_id(task_id)
    with named(f"task {pk}") as using:
        task, changed = control.run_now(using, pk)
    if changed:
        notify.announce(using, Channel.QUEUED, [task.queue])
    return Changed(task, changed)


def ended_tasks(
    older_than: Seconds,
    *,
    status: TaskStatus | str | Collection[TaskStatus | str] | None = None,
    queue: str | None = None,
    name: str | None = None,
) -> Ended:
    """What `purge()` with these arguments deletes. Raises `TypeError` or `ValueError` naming the one that is wrong."""
    given = TERMINAL if status is None else status
    statuses = given if isinstance(given, (list, tuple, set, frozenset)) else [given]
    for each in statuses:
        if each not in TERMINAL:
            raise ValueError(
                f"status must be one of {', '.join(TERMINAL)}, got {each!r}: only tasks that ended are purged"
            )
    return Ended(
        older_than=seconds(older_than, "older_than"),
        statuses=tuple(TaskStatus(each) for each in dict.fromkeys(statuses)),
        queue=text(queue, "queue", maximum=limits.QUEUE_LENGTH) if queue is not None else None,
        name=text(name, "name", maximum=limits.NAME_LENGTH) if name is not None else None,
    )


def checked_limit(limit: int | None) -> int | None:
    return integer(limit, "limit", minimum=0) if limit is not None else None


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


def _submit(submission: Submission, check: Callable[[], None] | None = None) -> list[Task]:
    while (tasks := _submit_if_admitted(submission, check)) is None:
        time.sleep(_pause(submission))
    return tasks


async def _asubmit(prepared: Callable[[], Submission], check: Callable[[], None] | None = None) -> list[Task]:
    """As `_submit()`; it holds no thread while it waits, and each go is whole even if nobody awaits its end."""

    def begin() -> tuple[Submission, list[Task] | None]:
        submission = prepared()
        return submission, _submit_if_admitted(submission, check)

    submission, tasks = await sync_to_async(begin)()
    while tasks is None:
        await asyncio.sleep(_pause(submission))
        tasks = await sync_to_async(_submit_if_admitted)(submission, check)
    return tasks


def _submit_if_admitted(submission: Submission, check: Callable[[], None] | None) -> list[Task] | None:
    """The tasks, or None while their queue is full. Raises `QueueFull` once it is to be waited for no longer."""
    if check is not None:
        check()
    if submission.admission is None:
        tasks = _insert(submission)
    else:
        with submission.admission.granted() as granted:
            if not granted:
                return None
            tasks = _insert(submission)
    if run_at_once is not None:
        run_at_once([row for row, task in zip(submission.rows, tasks, strict=True) if task is row])
    return tasks


def _pause(submission: Submission) -> float:
    assert submission.admission is not None
    return submission.admission.pause()


def _insert(submission: Submission) -> list[Task]:
    using, rows, strategy = submission.using, submission.rows, submission.strategy
    if not rows:
        return []
    afterwards = None
    if len(rows) == 1:
        afterwards = notify.announcement_of_submit(using, rows[0], is_awaited=submission.is_awaited)
    with around_submit(rows):
        submitted = insertion.submit(using, rows, strategy, afterwards=afterwards)
    # A row that gave way is not in the queue; the task it gave way to was announced by its own submit.
    fresh = [row for row, task in zip(rows, submitted.tasks, strict=True) if task is row]
    if not submitted.followed:
        notify.announce(using, Channel.ENDED, map(str, submitted.ended))
        # Of what is delayed there is no news for anyone yet.
        notify.announce(using, Channel.QUEUED, {row.queue for row in fresh if row.run_at <= row.created_at})
    sending.tell_canceled(using, submitted.ended)
    sending.tell_submitted(using, fresh)
    return submitted.tasks
