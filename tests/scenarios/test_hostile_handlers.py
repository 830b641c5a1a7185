"""A handler may raise anything: it ends as a recorded envelope, and the worker goes on."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import pytest

from cairnq_django import AsyncTaskContext, Registry, TaskContext, TaskError, get, submit
from tests.workers import attempts, run, runs_workers

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = runs_workers

KINDS = ["sync", "async"]


class Unreadable(Exception):
    def __str__(self) -> str:
        raise SystemExit("str() ends the process")

    __repr__ = __str__


class Base(BaseException):
    pass


def group() -> BaseException:
    return ExceptionGroup("several", [ValueError("one"), TypeError("two")])  # noqa: F821 - not in Python 3.10


def bottomless() -> BaseException:
    return bottomless()


RAISED: dict[str, tuple[Callable[[], BaseException], str, str]] = {
    "an exception": (lambda: ValueError("no"), "ValueError", "no"),
    "an exception without a message": (ValueError, "ValueError", ""),
    "one whose str() raises": (Unreadable, "Unreadable", "cannot be read"),
    "a base exception": (lambda: Base("below"), "Base", "below"),
    "SystemExit": (lambda: SystemExit(3), "SystemExit", "3"),
    "KeyboardInterrupt": (KeyboardInterrupt, "KeyboardInterrupt", ""),
    "GeneratorExit": (lambda: GeneratorExit("gone"), "GeneratorExit", "gone"),
    "CancelledError": (lambda: asyncio.CancelledError("off"), "CancelledError", "off"),
    "RecursionError": (bottomless, "RecursionError", "maximum recursion depth exceeded"),
    "MemoryError": (lambda: MemoryError("out"), "MemoryError", "out"),
    "a megabyte of message": (lambda: ValueError("x" * 2**20), "ValueError", "characters cut"),
    "NULs": (lambda: ValueError("a\x00b"), "ValueError", "a\\x00b"),
    "lone surrogates": (lambda: ValueError("a\ud800b"), "ValueError", "a\\ud800b"),
}
if sys.version_info >= (3, 11):
    RAISED["an exception group"] = (group, "ExceptionGroup", "several (2 sub-exceptions)")


@pytest.mark.parametrize("case", RAISED)
def test_whatever_a_handler_raises_is_recorded_and_the_worker_goes_on(case: str) -> None:
    make, type_name, message = RAISED[case]
    registry = registry_of(make)
    hostile = [submit(kind, {"raise": True}, max_attempts=1) for kind in KINDS]
    after_it = [submit(kind, {"raise": False}) for kind in KINDS]

    run(registry, concurrency=1)

    for task in hostile:
        task.refresh()
        assert task.failed
        assert task.error["type"].rpartition(".")[2] == type_name
        assert task.error["code"] == "unexpected_exception"
        assert task.error["retryable"] is True
        assert message in task.error["message"]
        assert "raise_it" in task.error["details"]["traceback"]
        assert attempts(task) == [(1, "failed", "unexpected_exception")]
    assert [get(task.pk).result for task in after_it] == ["fine", "fine"]


def test_so_is_stop_iteration_which_python_turns_into_another_error_in_coroutines() -> None:
    registry = registry_of(lambda: StopIteration("no more"))
    hostile = [submit(kind, {"raise": True}, max_attempts=1) for kind in KINDS]
    after_it = [submit(kind, {"raise": False}) for kind in KINDS]

    run(registry, concurrency=1)

    assert [get(task.pk).error["type"] for task in hostile] == ["StopIteration", "RuntimeError"]
    assert [get(task.pk).result for task in after_it] == ["fine", "fine"]


def test_a_task_error_says_itself_what_is_recorded() -> None:
    registry = registry_of(lambda: TaskError("no such order", code="missing", retryable=False, details={"order": [7]}))
    tasks = [submit(kind, {"raise": True}) for kind in KINDS]

    run(registry)

    for task in tasks:
        task.refresh()
        assert task.failed
        assert task.error == {
            "type": "cairnq_django.errors.TaskError",
            "code": "missing",
            "message": "no such order",
            "retryable": False,
            "details": {"order": [7]},
        }
        assert task.attempt == 1


def test_details_that_do_not_serialise_are_left_out_and_said_to_be() -> None:
    registry = registry_of(lambda: TaskError("no", code="odd", details={"when": {1, 2}}))
    tasks = [submit(kind, {"raise": True}, max_attempts=1) for kind in KINDS]

    run(registry)

    for task in tasks:
        task.refresh()
        assert task.error["code"] == "odd"
        assert task.error["message"] == "no"
        assert "details.when" in task.error["details"]["not_stored"]


def test_a_task_of_an_async_handlers_own_that_raises_system_exit_harms_nobody() -> None:
    registry = Registry()

    @registry.task
    async def leave_a_bomb(ctx: AsyncTaskContext, payload: Any) -> str:
        bomb = asyncio.create_task(exit_the_process())
        await asyncio.wait([bomb])
        assert isinstance(bomb.exception(), SystemExit)
        return "survived"

    @registry.task
    async def beside_it(ctx: AsyncTaskContext, payload: Any) -> str:
        await asyncio.sleep(0.05)
        return "fine"

    tasks = [submit(leave_a_bomb), submit(beside_it), submit(leave_a_bomb)]
    run(registry)
    assert [get(task.pk).result for task in tasks] == ["survived", "fine", "survived"]


def test_an_async_handler_that_awaits_such_a_task_fails() -> None:
    registry = Registry()

    @registry.task(max_attempts=1)
    async def await_a_bomb(ctx: AsyncTaskContext, payload: Any) -> None:
        await asyncio.create_task(exit_the_process())

    task = submit(await_a_bomb)
    run(registry)
    assert get(task.pk).error["type"] == "SystemExit"


def test_an_async_handler_that_cancels_itself_fails() -> None:
    registry = Registry()

    @registry.task(max_attempts=1)
    async def give_up(ctx: AsyncTaskContext, payload: Any) -> None:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        await ctx.progress(0.5)

    task = submit(give_up)
    run(registry)
    assert get(task.pk).error["type"].endswith("CancelledError")


def test_an_async_handler_that_cancels_itself_at_the_very_end_has_succeeded() -> None:
    registry = Registry()

    @registry.task
    async def too_late(ctx: AsyncTaskContext, payload: Any) -> str:
        await ctx.progress(0.5)
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        return "done"

    task = submit(too_late)
    run(registry)
    assert get(task.pk).result == "done"


def registry_of(make: Callable[[], BaseException]) -> Registry:
    """Handlers that raise what `make()` returns, or raises, if their payload says so."""
    registry = Registry()

    def raise_it() -> None:
        raise make()

    @registry.task("sync")
    def handler(ctx: TaskContext, payload: Any) -> str:
        if payload["raise"]:
            raise_it()
        return "fine"

    @registry.task("async")
    async def async_handler(ctx: AsyncTaskContext, payload: Any) -> str:
        if payload["raise"]:
            raise_it()
        return "fine"

    return registry


async def exit_the_process() -> None:
    raise SystemExit("a task of its own")
