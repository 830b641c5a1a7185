"""Wait for tasks to end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import TYPE_CHECKING, Any, TypeVar, overload

from asgiref.sync import sync_to_async
from django.db.models import Exists, OuterRef
from django.db.transaction import TransactionManagementError

from . import notify
from .arguments import Seconds, seconds
from .backoff import poll_intervals
from .client import SubmitOptions, asubmit_awaited, id_by_key, named, submit_awaited
from .errors import TaskCanceled, TaskFailed, TaskTimeout
from .models import PausedQueue, Task
from .notify import Channel
from .registry import TaskDef
from .statuses import TERMINAL
from .store.engine import awaits_commit, can_see_the_end, task_database
from .submission import TaskId, as_task_id

if TYPE_CHECKING:
    from typing_extensions import Unpack

P = TypeVar("P")
R = TypeVar("R")


def wait(task_id: Task | TaskId, timeout: Seconds | None = None) -> Task:
    """Wait until the task has ended, in whichever way, and return its row.

    Without `timeout` (seconds or a `timedelta`) it waits as long as it takes; after it, `TaskTimeout` is raised and
    the task goes on. Raises `Task.DoesNotExist`, and `TransactionManagementError` inside a transaction that could
    never see the end.
    """
    watch = _Watch(task_id, timeout)
    woken = threading.Event()
    with watch.subscribed(woken.set):
        while (ended := watch.look()) is None:
            woken.wait(watch.pause())
            woken.clear()
    return ended


async def await_(task_id: Task | TaskId, timeout: Seconds | None = None) -> Task:
    """As `wait()`, for async callers; it holds no thread while it waits."""
    watch = await sync_to_async(_Watch)(task_id, timeout)
    woken = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wake() -> None:
        # Who is being woken may have been canceled meanwhile, and its loop closed.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(woken.set)

    with watch.subscribed(wake):
        while (ended := await sync_to_async(watch.look)()) is None:
            # Not wait_for(): up to Python 3.11 it can swallow a cancellation.
            timer = loop.call_later(watch.pause(), woken.set)
            try:
                await woken.wait()
            finally:
                timer.cancel()
            woken.clear()
    return ended


def wait_by_key(key: str, timeout: Seconds | None = None) -> Task:
    """Wait for the task that is the key's current one now. Raises what `wait()` raises."""
    return wait(id_by_key(key), timeout)


async def await_by_key(key: str, timeout: Seconds | None = None) -> Task:
    """As `wait_by_key()`, for async callers."""
    return await await_(await sync_to_async(id_by_key)(key), timeout)


@overload
def call(task: TaskDef[P, R], payload: P, *, timeout: Seconds | None = None, **options: Unpack[SubmitOptions]) -> R: ...
@overload
def call(task: TaskDef[None, R], *, timeout: Seconds | None = None, **options: Unpack[SubmitOptions]) -> R: ...
@overload
def call(
    task: str, payload: Any = None, *, timeout: Seconds | None = None, **options: Unpack[SubmitOptions]
) -> Any: ...
def call(
    task: TaskDef[Any, Any] | str,
    payload: Any = None,
    *,
    timeout: Seconds | None = None,
    **options: Unpack[SubmitOptions],
) -> Any:
    """Submit a task, wait for its end and return its result.

    `options` are those of `submit()`; what that waits for room in a full queue comes on top of `timeout`. Raises
    `TaskFailed`, `TaskCanceled` or `TaskTimeout`, what `submit()` raises, and `TransactionManagementError` inside a
    transaction, which no worker could see the task in.
    """
    _check_timeout(timeout)
    _refuse_in_transaction(task_database())
    return _unwrap(wait(submit_awaited(task, payload, **options), timeout))


@overload
async def acall(
    task: TaskDef[P, R], payload: P, *, timeout: Seconds | None = None, **options: Unpack[SubmitOptions]
) -> R: ...
@overload
async def acall(task: TaskDef[None, R], *, timeout: Seconds | None = None, **options: Unpack[SubmitOptions]) -> R: ...
@overload
async def acall(
    task: str, payload: Any = None, *, timeout: Seconds | None = None, **options: Unpack[SubmitOptions]
) -> Any: ...
async def acall(
    task: TaskDef[Any, Any] | str,
    payload: Any = None,
    *,
    timeout: Seconds | None = None,
    **options: Unpack[SubmitOptions],
) -> Any:
    """As `call()`, for async callers."""
    _check_timeout(timeout)
    await sync_to_async(_refuse_in_transaction)(task_database())
    return _unwrap(await await_(await asubmit_awaited(task, payload, **options), timeout))


class _Watch:
    """One wait: what is waited for, and until when."""

    def __init__(self, task_id: Task | TaskId, timeout: Seconds | None) -> None:
        self.using = task_database()
        self.task_id = as_task_id(task_id)
        self.timeout = _check_timeout(timeout)
        self.intervals = poll_intervals()
        self.deadline = time.monotonic() + self.timeout if self.timeout is not None else float("inf")
        if not can_see_the_end(self.using, self.task_id) and not self._has_ended():
            raise TransactionManagementError(
                f"wait() for task {self.task_id} would never end: the transaction that is open on database "
                f"{self.using!r} cannot see what a worker commits. Wait after the atomic block, for example in "
                "transaction.on_commit(); in tests use TransactionTestCase and a worker, or cairnq_django.testing"
            )

    def subscribed(self, wake: Callable[[], None]) -> AbstractContextManager[None]:
        return notify.subscribed(self.using, Channel.ENDED, [str(self.task_id)], wake)

    def look(self) -> Task | None:
        """The task if it has ended; raises `TaskTimeout` if it has not and time is up."""
        with named(f"task {self.task_id}"):
            return self._look()

    def _look(self) -> Task | None:
        rows = Task.objects.using(self.using).filter(pk=self.task_id)
        if rows.values_list("status", flat=True).get() in TERMINAL:
            return rows.get()
        if time.monotonic() < self.deadline:
            return None
        pauses = PausedQueue.objects.using(self.using).in_force()
        task: Task = rows.annotate(is_paused=Exists(pauses.filter(pk=OuterRef("queue")))).get()
        is_paused = task.__dict__.pop("is_paused")
        if task.is_terminal:
            return task
        assert self.timeout is not None
        raise TaskTimeout(task, self.timeout, is_paused=is_paused)

    def _has_ended(self) -> bool:
        return Task.objects.using(self.using).terminal().filter(pk=self.task_id).exists()

    def pause(self) -> float:
        """Seconds until the next look, unless something happens before."""
        return max(0.0, min(next(self.intervals), self.deadline - time.monotonic()))


def _check_timeout(timeout: Seconds | None) -> float | None:
    return seconds(timeout, "timeout", allow_none=True)


def _refuse_in_transaction(using: str) -> None:
    if awaits_commit(using):
        raise TransactionManagementError(
            f"call() would never end: inside the transaction that is open on database {using!r} the task stays "
            "invisible to every worker. Use submit() here, or call() outside the atomic block (with ATOMIC_REQUESTS, "
            "decorate the view with @transaction.non_atomic_requests)"
        )


def _unwrap(task: Task) -> Any:
    if task.failed:
        raise TaskFailed(task)
    if task.canceled:
        raise TaskCanceled(task)
    return task.result
