"""Wait for tasks to end."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any, TypeVar

from asgiref.sync import sync_to_async
from django.db.transaction import TransactionManagementError

from . import notify
from .arguments import seconds
from .backoff import poll_intervals
from .client import Seconds, TaskId, aget_by_key, as_task_id, asubmit, get_by_key, submit
from .errors import TaskCanceled, TaskFailed, TaskTimeout
from .models import Task
from .notify import Channel
from .registry import TaskDef
from .statuses import TERMINAL
from .store.engine import can_see_the_end, in_open_transaction, task_database

P = TypeVar("P")
R = TypeVar("R")


def wait(task_id: TaskId, timeout: Seconds | None = None) -> Task:
    """Wait until the task has ended, in whichever way, and return its row.

    Without `timeout` (seconds or a `timedelta`) it waits as long as it takes; after it, `TaskTimeout` is raised and
    the task goes on. Raises `Task.DoesNotExist`, and `TransactionManagementError` inside a transaction that could
    never see the end.
    """
    watch = _Watch(task_id, timeout)
    woken = threading.Event()
    with watch.subscribed(woken.set):
        for interval in poll_intervals():
            ended = watch.look()
            if ended is not None:
                return ended
            woken.wait(watch.pause(interval))
            woken.clear()
    raise AssertionError("poll intervals never end")


async def await_(task_id: TaskId, timeout: Seconds | None = None) -> Task:
    """As `wait()`, for async callers; it holds no thread while it waits."""
    watch = await sync_to_async(_Watch)(task_id, timeout)
    woken = asyncio.Event()
    loop = asyncio.get_running_loop()
    with watch.subscribed(lambda: loop.call_soon_threadsafe(woken.set)):
        for interval in poll_intervals():
            ended = await sync_to_async(watch.look)()
            if ended is not None:
                return ended
            try:
                await asyncio.wait_for(woken.wait(), watch.pause(interval))
            except asyncio.TimeoutError:
                continue
            woken.clear()
    raise AssertionError("poll intervals never end")


def wait_by_key(key: str, timeout: Seconds | None = None) -> Task:
    """Wait for the task that is the key's current one now. Raises what `wait()` raises."""
    return wait(get_by_key(key).pk, timeout)


async def await_by_key(key: str, timeout: Seconds | None = None) -> Task:
    """As `wait_by_key()`, for async callers."""
    return await await_((await aget_by_key(key)).pk, timeout)


def call(task: TaskDef[P, R] | str, payload: P | None = None, *, timeout: Seconds | None = None, **options: Any) -> R:
    """Submit a task, wait for its end and return its result.

    `options` are those of `submit()`. Raises `TaskFailed`, `TaskCanceled` or `TaskTimeout`, what `submit()` raises,
    and `TransactionManagementError` inside a transaction, which no worker could see the task in.
    """
    _refuse_in_transaction(task_database())
    result: R = _unwrap(wait(submit(task, payload, **options).pk, timeout))
    return result


async def acall(
    task: TaskDef[P, R] | str, payload: P | None = None, *, timeout: Seconds | None = None, **options: Any
) -> R:
    """As `call()`, for async callers."""
    await sync_to_async(_refuse_in_transaction)(task_database())
    result: R = _unwrap(await await_((await asubmit(task, payload, **options)).pk, timeout))
    return result


class _Watch:
    """One wait: what is waited for, and until when."""

    def __init__(self, task_id: TaskId, timeout: Seconds | None) -> None:
        self.using = task_database()
        self.task_id = as_task_id(task_id)
        self.timeout = seconds(timeout, "timeout") if timeout is not None else None
        self.deadline = time.monotonic() + self.timeout if self.timeout is not None else float("inf")
        if not can_see_the_end(self.using, self.task_id):
            raise TransactionManagementError(
                f"wait() for task {self.task_id} would never end: the transaction that is open on database "
                f"{self.using!r} cannot see what a worker commits. Wait after the atomic block, for example in "
                "transaction.on_commit(); in tests use TransactionTestCase"
            )

    def subscribed(self, wake: Any) -> Any:
        return notify.subscribed(self.using, Channel.ENDED, [str(self.task_id)], wake)

    def look(self) -> Task | None:
        """The task if it has ended; raises `TaskTimeout` if it has not and time is up."""
        rows = Task.objects.using(self.using).filter(pk=self.task_id)
        if rows.values_list("status", flat=True).get() in TERMINAL:
            return rows.get()
        if time.monotonic() < self.deadline:
            return None
        task = rows.get()
        if task.is_terminal:
            return task
        assert self.timeout is not None
        raise TaskTimeout(task, self.timeout)

    def pause(self, interval: float) -> float:
        return max(0.0, min(interval, self.deadline - time.monotonic()))


def _refuse_in_transaction(using: str) -> None:
    if in_open_transaction(using):
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
