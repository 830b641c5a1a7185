"""Log records say which task they are about: the worker's by themselves, all others through `TaskFilter`."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import sync_to_async
from django.db import transaction

from cairnq_django import (
    AsyncTaskContext,
    Registry,
    Snooze,
    TaskContext,
    current_task,
    current_tasks,
    get,
    submit,
    submit_many,
)
from cairnq_django.logs import FIELDS, TaskFilter
from tests.workers import ended, quick, run, runs_workers, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = runs_workers

project = logging.getLogger("shop")
STANDARD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


class Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.addFilter(TaskFilter())
        self.all: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.all.append(record)

    def saying(self, text: str) -> logging.LogRecord:
        (found,) = [record for record in self.all if text in record.getMessage()]
        return found


@pytest.fixture
def records() -> Iterator[Records]:
    """All that is logged, as a handler with the filter gets it."""
    handler = Records()
    root = logging.getLogger()
    root.addHandler(handler)
    with at_level(root, logging.INFO):
        yield handler
    root.removeHandler(handler)


@contextmanager
def at_level(logger: logging.Logger, level: int) -> Iterator[None]:
    before = logger.level
    logger.setLevel(level)
    try:
        yield
    finally:
        logger.setLevel(before)


def said(record: logging.LogRecord, *fields: str) -> tuple[Any, ...]:
    return tuple(vars(record)[field] for field in fields)


def test_no_field_is_one_that_python_gives_records() -> None:
    assert STANDARD.isdisjoint(FIELDS)
    # Since Python 3.12 it would be set on every record.
    assert "taskName" not in FIELDS


def test_the_workers_records_say_which_attempt_ended_how_and_after_how_long(records: Records) -> None:
    registry = Registry()

    @registry.task
    def work(ctx: TaskContext, payload: Any) -> None:
        if payload == "fail":
            raise ValueError("boom")
        if payload == "snooze" and not snoozed:
            snoozed.append(True)
            raise Snooze(0)

    snoozed: list[bool] = []
    good, bad, late = (submit("work", how, queue="mail", correlation_id=how, max_attempts=2) for how in WAYS)
    run(registry, queues=["mail"])
    worker_id = get(good.pk).worker_id

    done = records.saying(f"{good.pk} (attempt 1) succeeded")
    assert said(done, "task_id", "task_name", "queue", "attempt") == (str(good.pk), "work", "mail", 1)
    assert said(done, "worker_id", "correlation_id", "error_code") == (worker_id, "succeed", None)
    assert 0 <= said(done, "duration")[0] < 20
    retried = records.saying(f"Attempt 1 of 2 at task {bad.pk}")
    failed = records.saying(f"Attempt 2 of 2 at task {bad.pk}")
    for record, level, attempt in ((retried, logging.WARNING, 1), (failed, logging.ERROR, 2)):
        assert record.levelno == level
        assert said(record, "task_id", "attempt", "error_type") == (str(bad.pk), attempt, "ValueError")
        assert said(record, "error_code") == ("unexpected_exception",)
        assert said(record, "duration")[0] >= 0
    assert said(records.saying(f"{late.pk} (attempt 1) is snoozed"), "task_id", "task_name") == (str(late.pk), "work")
    assert said(records.saying("started on queues"), "worker_id", "task_id") == (worker_id, None)


WAYS = ("succeed", "fail", "snooze")


def test_other_records_say_which_task_they_were_logged_for(records: Records) -> None:
    registry = Registry()

    def deep_below(ctx: Any) -> None:
        assert current_task() is ctx
        assert current_tasks() == (ctx,)
        project.info("at work on %s.", ctx.name)

    @registry.task
    def work(ctx: TaskContext, payload: Any) -> None:
        deep_below(ctx)

    @registry.task
    async def work_async(ctx: AsyncTaskContext, payload: Any) -> None:
        await asyncio.sleep(0)
        await asyncio.create_task(_async(deep_below, ctx))
        await sync_to_async(project.info)("from another thread")

    tasks = {name: submit(name) for name in ("work", "work_async")}
    run(registry)
    for name, task in tasks.items():
        record = records.saying(f"at work on {name}.")
        assert said(record, "task_id", "task_name", "attempt", "duration") == (str(task.pk), name, 1, None)
    assert said(records.saying("from another thread"), "task_id") == (str(tasks["work_async"].pk),)
    project.info("outside")
    assert said(records.saying("outside"), *FIELDS) == (None,) * len(FIELDS)
    assert current_task() is None
    assert current_tasks() == ()


async def _async(work: Any, *arguments: Any) -> None:
    work(*arguments)


def test_records_of_a_batch_name_all_of_its_tasks(records: Records) -> None:
    registry = Registry()

    @registry.task(batch=10)
    def work(items: list[TaskContext]) -> None:
        assert current_task() is None
        assert current_tasks() == tuple(items)
        project.info("at work")

    tasks = [*submit_many("work", range(2), queue="a"), submit("work", queue="b")]
    run(registry, queues=["a", "b"])
    record = records.saying("at work")
    assert set(said(record, "task_ids")[0]) == {str(task.pk) for task in tasks}
    assert said(record, "task_name", "task_id", "attempt", "queue") == ("work", None, None, None)
    assert said(record, "worker_id") == (get(tasks[0].pk).worker_id,)


def test_a_thread_that_a_handler_starts_with_its_context_logs_for_the_task_too(records: Records) -> None:
    registry = Registry()

    @registry.task
    def work(ctx: TaskContext, payload: Any) -> None:
        context = contextvars.copy_context()
        thread = threading.Thread(target=context.run, args=[project.info, "from a thread"])
        thread.start()
        thread.join()

    task = submit("work")
    run(registry)
    assert said(records.saying("from a thread"), "task_id") == (str(task.pk),)


def test_the_filter_leaves_what_a_record_says_already(records: Records) -> None:
    registry = Registry()

    @registry.task
    def work(ctx: TaskContext, payload: Any) -> None:
        project.info("about another", extra={"task_id": "another", "queue": None})

    submit("work")
    run(registry)
    assert said(records.saying("about another"), "task_id", "task_name", "queue") == ("another", "work", None)


def test_what_the_worker_has_to_say_of_a_handlers_call_names_its_task(records: Records, go: threading.Event) -> None:
    registry = Registry()

    @registry.task
    def work(ctx: TaskContext, payload: Any) -> None:
        if payload == "leave open":
            transaction.atomic().__enter__()
        if payload == "raise late":
            ctx.succeed()
            raise ValueError("late")
        if payload == "wait":
            wait_for(go)

    open_, late, long = (submit("work", how, max_attempts=1) for how in ("leave open", "raise late", "wait"))
    with quick(registry, max_run=0.5).background():
        for task in (open_, late, long):
            ended(task)
        go.set()
    for text, task in (("left a transaction open", open_), ("after it was settled", late), ("is abandoned", long)):
        assert said(records.saying(text), "task_id", "attempt") == (str(task.pk), 1)
