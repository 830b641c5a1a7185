"""The threads that sync handlers run in."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings
from django.utils import timezone, translation

from cairnq_django import AsyncTaskContext, Registry, TaskContext, get, submit
from cairnq_django.worker.threads import HandlerThreads
from tests.workers import PATIENCE, run, runs_workers, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

variable = ContextVar("variable", default="untouched")


@pytest.fixture
def threads() -> Iterator[HandlerThreads]:
    threads = HandlerThreads()
    yield threads
    threads.close()


def done_in(threads: HandlerThreads, job: Callable[[], object]) -> threading.Thread:
    """The thread that did the job and is idle again."""
    done = threading.Event()
    thread = threads.start(lambda: job() and None, done.set)
    wait_for(done)
    return thread


def test_an_idle_thread_is_used_again(threads: HandlerThreads) -> None:
    assert done_in(threads, object) is done_in(threads, object)


def test_a_busy_one_is_not(threads: HandlerThreads) -> None:
    go, done = threading.Event(), threading.Event()
    busy = threads.start(lambda: wait_for(go), done.set)
    assert done_in(threads, object) is not busy
    go.set()
    wait_for(done)


def test_each_job_has_a_context_of_its_own(threads: HandlerThreads) -> None:
    seen = []

    def look_and_change() -> None:
        seen.append(variable.get())
        variable.set("changed")

    assert done_in(threads, look_and_change) is done_in(threads, look_and_change)
    assert seen == ["untouched", "untouched"]


def test_closing_ends_the_idle_threads(threads: HandlerThreads) -> None:
    idle = [done_in(threads, object)]
    threads.close()
    assert [thread.is_alive() for thread in idle] == [False]


def test_an_abandoned_thread_ends_with_its_job_and_says_so(threads: HandlerThreads) -> None:
    go, done = threading.Event(), threading.Event()
    thread = threads.start(lambda: wait_for(go), done.set)
    thread.abandon()
    assert thread.is_alive()
    go.set()
    wait_for(done)
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert done_in(threads, object) is not thread


@runs_workers
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_language_and_time_zone_do_not_leak_into_the_next_handler(kind: str) -> None:
    registry = Registry()

    def look_and_change() -> list[str]:
        seen = [translation.get_language(), timezone.get_current_timezone_name()]
        translation.activate("de")
        timezone.activate("Asia/Tokyo")
        return seen

    @registry.task("sync")
    def handler(ctx: TaskContext, payload: Any) -> Any:
        return [*look_and_change(), threading.get_ident()]

    @registry.task("async")
    async def async_handler(ctx: AsyncTaskContext, payload: Any) -> Any:
        return [*look_and_change(), threading.get_ident()]

    tasks = [submit(kind), submit(kind)]
    run(registry, concurrency=1)
    first, second = [get(task.pk).result for task in tasks]
    assert first == second == [settings.LANGUAGE_CODE, settings.TIME_ZONE, first[2]]
