"""How a call of a handler ends: what it returned, and what may go wrong with that."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from cairnq_django import AsyncTaskContext, Registry, Task, TaskContext, get, submit
from cairnq_django.models import TaskAttempt
from tests.workers import attempts, run, runs_workers

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

pytestmark = runs_workers

KINDS = ["sync", "async"]


async def coroutine() -> None:
    """Never awaited."""


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


class Exiting(dict[str, Any]):
    """Leaves the process when someone looks into it."""

    def __iter__(self) -> Iterator[str]:
        raise SystemExit("looked into")


RESULTS: dict[str, tuple[Any, Any]] = {
    "nothing": (None, None),
    "a number": (7, 7),
    "a text": ("text", "text"),
    "an empty list": ([], []),
    "tuples, which JSON has not": ({"a": (1, 2.5, True, None)}, {"a": [1, 2.5, True, None]}),
}


def test_what_a_handler_returns_is_the_result() -> None:
    registry = Registry()

    @registry.task("sync")
    def handler(ctx: TaskContext, payload: str) -> Any:
        return RESULTS[payload][0]

    @registry.task("async")
    async def async_handler(ctx: AsyncTaskContext, payload: str) -> Any:
        return RESULTS[payload][0]

    tasks = [(case, submit(kind, case)) for kind in KINDS for case in RESULTS]
    run(registry)

    for case, task in tasks:
        task.refresh()
        assert task.succeeded
        assert task.result == RESULTS[case][1]
        assert task.error is None
        assert task.lease_until is None
        assert task.started_at <= task.completed_at
    assert not TaskAttempt.objects.exists()


UNSERIALIZABLE: dict[str, tuple[Callable[[], Any], str]] = {
    "set": (lambda: {"a": {1, 2}}, "result.a"),
    "NaN": (lambda: [1.0, float("nan")], "result[1]"),
    "object": (object, "result"),
    "coroutine": (coroutine, "result"),
    "generator": (generator, "result"),
    "async generator": (async_generator, "result"),
    "bytes": (lambda: {"key": b"bytes"}, "result.key"),
    "NUL": (lambda: "a\x00b", "result"),
    "big": (lambda: 2**64, "result"),
    "deep": (lambda: nested(500), "result[0][0]"),
    "model": (lambda: Task(name="x"), "result"),
}


def test_a_result_that_does_not_serialise_fails_for_good() -> None:
    registry = Registry()

    @registry.task("sync")
    def handler(ctx: TaskContext, payload: str) -> Any:
        return UNSERIALIZABLE[payload][0]()

    @registry.task("async")
    async def async_handler(ctx: AsyncTaskContext, payload: str) -> Any:
        return UNSERIALIZABLE[payload][0]()

    tasks = [(case, submit(kind, case)) for kind in KINDS for case in UNSERIALIZABLE]
    run(registry)

    for case, task in tasks:
        task.refresh()
        assert task.failed, case
        assert task.error["code"] == "unserializable_result", case
        assert task.error["retryable"] is False
        assert task.error["details"]["path"].startswith(UNSERIALIZABLE[case][1]), case
        assert task.result is None
        assert attempts(task) == [(1, "failed", "unserializable_result")]


def test_a_result_that_raises_when_it_is_looked_into_is_a_failure() -> None:
    registry = Registry()

    @registry.task("sync")
    def handler(ctx: TaskContext, payload: Any) -> Any:
        return Exiting(a=1)

    @registry.task("async")
    async def async_handler(ctx: AsyncTaskContext, payload: Any) -> Any:
        return Exiting(a=1)

    tasks = [submit(kind, max_attempts=1) for kind in KINDS * 2]
    run(registry, concurrency=1)
    assert [get(task.pk).error["type"] for task in tasks] == ["SystemExit"] * 4


def test_logging_that_raises_does_not_cost_the_worker_a_call() -> None:
    registry = Registry()

    @registry.task("sync")
    def handler(ctx: TaskContext, payload: Any) -> None:
        ctx.succeed("early")
        raise ValueError("logged, for it changes nothing")

    @registry.task("async")
    async def async_handler(ctx: AsyncTaskContext, payload: Any) -> None:
        await ctx.succeed("early")
        raise ValueError("logged, for it changes nothing")

    def fail(record: logging.LogRecord) -> bool:
        raise SystemExit("a faulty filter")

    logger = logging.getLogger("cairnq_django.worker.call")
    tasks = [submit(kind) for kind in KINDS * 2]
    logger.addFilter(fail)
    try:
        run(registry, concurrency=1)
    finally:
        logger.removeFilter(fail)
    assert [get(task.pk).result for task in tasks] == ["early"] * 4


def test_what_is_raised_after_the_task_was_settled_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry()

    @registry.task
    def work(ctx: TaskContext, payload: Any) -> None:
        ctx.succeed("early")
        raise ValueError("too late")

    task = submit(work)
    run(registry)
    assert get(task.pk).succeeded
    [record] = [record for record in caplog.records if record.name == "cairnq_django.worker.call"]
    assert str(task.pk) in record.getMessage()
    assert record.exc_info is not None
    assert "too late" in str(record.exc_info[1])
