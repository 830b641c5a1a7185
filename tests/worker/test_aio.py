"""The event loop that async handlers run on, and the threads of their ORM calls."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import sync_to_async

from cairnq_django import AsyncTaskContext, Registry, get, submit
from cairnq_django.worker import aio
from cairnq_django.worker.aio import AsyncHandlers
from tests.app.models import Counter
from tests.workers import PATIENCE, run, runs_workers, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def handlers() -> Iterator[AsyncHandlers]:
    handlers = AsyncHandlers()
    yield handlers
    if loop_threads():
        handlers.close()


def loop_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "cairnq-async"]


async def nothing() -> None:
    """Ends at once."""


async def forever() -> None:
    await asyncio.Event().wait()


def test_without_a_call_there_is_no_thread(handlers: AsyncHandlers) -> None:
    assert loop_threads() == []
    handlers.close()  # without a word


def test_it_says_when_a_call_has_ended(handlers: AsyncHandlers) -> None:
    for _ in range(2):
        ended = threading.Event()
        handlers.start(nothing, ended.set)
        wait_for(ended)
    assert len(loop_threads()) == 1


def test_a_call_can_be_cancelled(handlers: AsyncHandlers) -> None:
    ended = threading.Event()
    handlers.start(forever, ended.set).cancel()
    wait_for(ended)


def test_one_that_is_cancelled_before_it_began_has_ended_too(handlers: AsyncHandlers, go: threading.Event) -> None:
    blocking, began, ended = threading.Event(), threading.Event(), threading.Event()

    async def block() -> None:
        blocking.set()
        wait_for(go)

    async def begin() -> None:
        began.set()

    handlers.start(block, lambda: None)
    wait_for(blocking)
    handlers.start(begin, ended.set).cancel()
    go.set()
    wait_for(ended)
    assert not began.is_set()


def test_a_task_that_exits_the_process_does_not_end_the_loop(
    handlers: AsyncHandlers, caplog: pytest.LogCaptureFixture
) -> None:
    async def exit_the_process() -> None:
        raise SystemExit("a task of its own")

    async def leave_a_bomb() -> None:
        task = asyncio.ensure_future(exit_the_process())
        await asyncio.wait([task])
        assert task.exception()

    ended = threading.Event()
    handlers.start(leave_a_bomb, ended.set)
    wait_for(ended)
    again = threading.Event()
    handlers.start(nothing, again.set)
    wait_for(again)
    assert "raised out of it" in caplog.text


def test_closing_cancels_what_still_runs_and_waits_for_it(handlers: AsyncHandlers) -> None:
    running, ended, cleaned_up = threading.Event(), threading.Event(), []

    async def clean_up() -> None:
        running.set()
        try:
            await forever()
        finally:
            await asyncio.sleep(0.01)
            cleaned_up.append(True)

    handlers.start(clean_up, ended.set)
    wait_for(running)
    handlers.close()
    assert ended.is_set()
    assert cleaned_up == [True]
    assert loop_threads() == []


def test_closing_leaves_a_handler_behind_that_blocks_the_loop(
    handlers: AsyncHandlers, go: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aio, "CLOSE_TIMEOUT", 0.1)
    blocking = threading.Event()

    async def block() -> None:
        blocking.set()
        wait_for(go)

    handlers.start(block, lambda: None)
    wait_for(blocking)
    [thread] = loop_threads()
    handlers.close()
    assert thread.is_alive()
    assert thread.daemon
    # Nothing else holds it: it ends when the handler does.
    go.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_closing_leaves_a_handler_behind_that_will_not_be_cancelled(
    handlers: AsyncHandlers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(aio, "CLOSE_TIMEOUT", 0.2)
    running, refusals = threading.Event(), []

    async def refuse() -> None:
        running.set()
        while True:
            try:
                await forever()
            except asyncio.CancelledError:
                refusals.append(True)

    handlers.start(refuse, lambda: None)
    wait_for(running)
    handlers.close()
    assert refusals == [True]
    assert loop_threads() == []


@runs_workers
def test_database_calls_of_two_handlers_do_not_queue_up_behind_each_other() -> None:
    registry = Registry()
    together = threading.Barrier(2, timeout=PATIENCE)

    def meet_in_a_query() -> str:
        Counter.objects.count()
        together.wait()
        return threading.current_thread().name

    @registry.task
    async def meet(ctx: AsyncTaskContext, payload: Any) -> str:
        await Counter.objects.acount()
        return await sync_to_async(meet_in_a_query)()

    tasks = [submit(meet), submit(meet)]
    run(registry, concurrency=2)
    assert [get(task.pk).status for task in tasks] == ["succeeded", "succeeded"], get(tasks[0].pk).error
    assert get(tasks[0].pk).result != get(tasks[1].pk).result


@runs_workers
def test_those_of_one_handler_share_a_connection() -> None:
    registry = Registry()

    @registry.task
    async def count(ctx: AsyncTaskContext, payload: Any) -> list[int]:
        await Counter.objects.acreate(name="mine")
        return [await sync_to_async(threading.get_ident)() for _ in range(3)]

    task = submit(count)
    run(registry)
    assert len(set(get(task.pk).result)) == 1


@runs_workers
def test_the_threads_of_its_calls_end_with_the_handler() -> None:
    registry = Registry()
    threads = []

    @registry.task
    async def use_a_thread(ctx: AsyncTaskContext, payload: Any) -> None:
        threads.append(await sync_to_async(threading.current_thread)())

    for _ in range(3):
        submit(use_a_thread)
    run(registry)
    for thread in threads:
        thread.join(PATIENCE)
    assert [thread.is_alive() for thread in threads] == [False] * 3
