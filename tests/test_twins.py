"""The async twins: the same functions for async callers, and `await_()`, which holds no thread while it waits."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, transaction
from django.db.transaction import TransactionManagementError

from cairnq_django import (
    AsyncTaskContext,
    Registry,
    Task,
    TaskFailed,
    TaskTimeout,
    Worker,
    acall,
    acancel,
    acancel_by_key,
    aget,
    aget_by_key,
    apurge,
    aqueue_depth,
    aretry,
    aretry_by_key,
    astats,
    asubmit,
    asubmit_many,
    await_,
    await_by_key,
    cancel,
    get,
    notify,
    submit,
    submit_many,
)
from cairnq_django.notify.listener import listener_of_this_process
from cairnq_django.twins import twin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.django_db(transaction=True)

registry = Registry()


@registry.task
async def double(ctx: AsyncTaskContext, payload: int) -> int:
    return payload * 2


@registry.task(max_attempts=1)
async def crash(ctx: AsyncTaskContext, payload: None) -> float:
    return 1 / 0


def test_a_twin_passes_on_what_its_function_takes_returns_and_raises() -> None:
    def divide(a: float, *, by: float) -> float:
        return a / by

    adivide = twin(divide)
    assert asyncio.run(adivide(1, by=2)) == 0.5
    with pytest.raises(ZeroDivisionError):
        asyncio.run(adivide(1, by=0))


def test_the_life_of_a_task_seen_by_an_async_caller() -> None:
    async def live() -> None:
        task = await asubmit("work", {"order": 7}, key="receipt:7")
        assert await aget(task.id) == await aget_by_key("receipt:7") == task
        assert (await acancel(task.id)).canceled
        assert (await await_(task.id)).canceled
        assert (await aretry(task.id)).is_queued
        assert (await acancel_by_key("receipt:7")).canceled
        assert (await aretry_by_key("receipt:7")).is_queued
        assert [row.payload for row in await asubmit_many("work", [1, 2])] == [1, 2]
        assert (await astats())["default"].queued == 3
        assert await aqueue_depth("default", 10) == 7
        await acancel(task.id, family=True)
        assert (await await_by_key("receipt:7", timeout=5)).canceled
        assert await apurge(0) == 1

    asyncio.run(live())


def test_an_async_caller_gets_the_same_errors() -> None:
    async def fail() -> None:
        with pytest.raises(ValueError, match="delay must not be negative"):
            await asubmit("work", delay=-1)
        with pytest.raises(ValueError, match="task_id must be a UUID or its text, got 'not-a-uuid'"):
            await await_("not-a-uuid")
        with pytest.raises(ValueError, match="timeout must not be negative"):
            await acall("work", timeout=-1)
        with pytest.raises(Task.DoesNotExist):
            await await_by_key("receipt:7")
        task = await asubmit("slow")
        with pytest.raises(TaskTimeout, match="no worker claimed it") as raised:
            await await_(task.id, timeout=0.15)
        assert raised.value.task == task

    asyncio.run(fail())
    assert Task.objects.get().is_queued


def test_an_async_call_returns_the_result_or_raises() -> None:
    async def calls() -> list[Any]:
        results = await asyncio.gather(
            *(acall(double, n, timeout=20) for n in range(5)), acall("double", 5, timeout=20)
        )
        with pytest.raises(TaskFailed, match="ZeroDivisionError"):
            await acall(crash, timeout=20)
        return results

    with Worker(registry=registry, poll_interval=0.05).background():
        assert asyncio.run(calls()) == [0, 2, 4, 6, 8, 10]


def test_in_a_transaction_async_callers_are_refused_as_well() -> None:
    async def call_and_wait() -> None:
        atomic = transaction.atomic()
        await sync_to_async(atomic.__enter__)()
        try:
            with pytest.raises(TransactionManagementError, match=r"call\(\) would never end"):
                await acall("work")
            task = await asubmit("work")
            with pytest.raises(TransactionManagementError, match=f"task {task.id} would never end"):
                await await_(task.id)
        finally:
            await sync_to_async(atomic.__exit__)(None, None, None)

    asyncio.run(call_and_wait())
    assert Task.objects.count() == 1


def test_fifty_waits_hold_no_thread_each() -> None:
    tasks = submit_many("work", range(50))
    threads: list[int] = []

    async def wait_for_all() -> list[Task]:
        waits = [asyncio.ensure_future(await_(task.id, timeout=30)) for task in tasks]
        for task in tasks:
            await acancel(task.id)
            threads.append(threading.active_count())
        return list(await asyncio.gather(*waits))

    before = threading.active_count()
    ended = asyncio.run(wait_for_all())
    assert ended == tasks
    assert all(task.canceled for task in ended)
    # The database's thread and, on PostgreSQL, the listener.
    assert max(threads) <= before + 2


def test_a_wait_that_is_canceled_leaves_nothing_behind() -> None:
    task = submit("work")

    async def give_up() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(await_(task.id), timeout=0.15)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(give_up())
    if connection.vendor == "postgresql":
        assert not listener_of_this_process("default")._subscriptions
    assert get(task.id).is_queued
    assert cancel(task.id).canceled


def test_a_wake_up_that_comes_after_its_loop_was_closed_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    wakes: list[Callable[[], None]] = []

    @contextmanager
    def subscribed(using: str, channel: Any, payloads: Any, wake: Callable[[], None]) -> Iterator[None]:
        wakes.append(wake)
        yield

    monkeypatch.setattr(notify, "subscribed", subscribed)
    task = submit("work")
    with pytest.raises(TaskTimeout):
        asyncio.run(await_(task.id, timeout=0))
    for wake in wakes:
        wake()
    assert len(wakes) == 1
