"""A batch is settled as its call ends: every task that the handler did not settle itself, and each for itself."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import pytest

from cairnq_django import (
    AsyncTaskContext,
    CairnQError,
    Registry,
    Snooze,
    Task,
    TaskContext,
    TaskError,
    cancel,
    get,
    submit,
    submit_many,
)
from cairnq_django.models import TaskAttempt
from cairnq_django.worker import settlement
from tests.helpers import eventually
from tests.workers import (
    attempts,
    database_refusing,
    ended,
    expire,
    quick,
    reports,
    run,
    running,
    runs_workers,
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = runs_workers

KINDS = pytest.mark.parametrize("kind", ["sync", "async"])


def batching(
    kind: str, handle: Callable[[list[Any]], Any], *, batch: int = 100, max_attempts: int = 3, **options: Any
) -> Registry:
    """A registry whose handler `work` takes batches and does `handle(items)`."""
    registry = Registry()

    if kind == "sync":

        @registry.task("work", batch=batch, max_attempts=max_attempts, **options)
        def work(items: list[TaskContext]) -> Any:
            return handle(items)

    else:

        @registry.task("work", batch=batch, max_attempts=max_attempts, **options)
        async def work_async(items: list[AsyncTaskContext]) -> Any:
            done = handle(items)
            return await done if asyncio.iscoroutine(done) else done

    return registry


def submitted(*payloads: Any) -> list[Task]:
    # One transaction: the worker finds all or none.
    return submit_many("work", payloads, max_attempts=3)


def states(tasks: list[Task]) -> list[tuple[str, Any]]:
    """Status and result of each, or its error's code."""
    rows = [get(task.pk) for task in tasks]
    return [(row.status, row.error["code"] if row.error else row.result) for row in rows]


@KINDS
def test_tasks_of_a_name_come_in_lists_of_up_to_its_batch(kind: str) -> None:
    sizes: list[int] = []
    tasks = submitted(*range(25))

    run(batching(kind, lambda items: sizes.append(len(items)), batch=10))

    assert sorted(sizes) == [5, 10, 10]
    assert states(tasks) == [("succeeded", None)] * 25


@KINDS
def test_one_task_is_a_list_of_one(kind: str) -> None:
    (task,) = submitted("only")

    run(batching(kind, lambda items: {items[0].task_id: [item.payload for item in items]}))

    assert states([task]) == [("succeeded", ["only"])]


@KINDS
def test_results_come_from_a_returned_mapping_and_what_is_not_in_it_is_null(kind: str) -> None:
    def handle(items: list[Any]) -> Any:
        by_payload = {item.payload: item.task_id for item in items}
        return {by_payload["as uuid"]: 1, str(by_payload["as text"]): 2, "stranger": 3, 4: 5, None: 6}

    tasks = submitted("as uuid", "as text", "not in it")
    run(batching(kind, handle))

    assert states(tasks) == [("succeeded", 1), ("succeeded", 2), ("succeeded", None)]


@KINDS
@pytest.mark.parametrize("value", [None, 7, "text", [1, 2], {"a": 1}.items()], ids=repr)
def test_anything_else_that_is_returned_is_ignored(kind: str, value: Any) -> None:
    tasks = submitted(1, 2)

    run(batching(kind, lambda items: value))

    assert states(tasks) == [("succeeded", None)] * 2


@KINDS
def test_an_exception_fails_each_task_retryably_with_a_delay_of_its_own(kind: str) -> None:
    def handle(items: list[Any]) -> None:
        raise ValueError("all of them")

    tasks = submitted(1, 2, 3)
    with quick(batching(kind, handle), retry_backoff=1000, retry_backoff_max=1000).background():
        rows = eventually(lambda: [get(task.pk) for task in tasks] if TaskAttempt.objects.count() == 3 else None)

    assert [(row.status, row.error["code"]) for row in rows] == [("queued", "unexpected_exception")] * 3
    assert all("all of them" in row.error["details"]["traceback"] for row in rows)
    assert len({row.run_at - row.updated_at for row in rows}) == 3


@KINDS
def test_a_batch_that_fails_is_tried_again_until_its_attempts_are_used_up(kind: str) -> None:
    def handle(items: list[Any]) -> None:
        if items[0].attempt < 3:
            raise ValueError("not yet")

    # Of several, each would be tried again as it falls due, not always with the others.
    (task,) = submitted(1)
    run(batching(kind, handle))

    assert states([task]) == [("succeeded", None)]
    assert attempts(task) == [(1, "retried", "unexpected_exception"), (2, "retried", "unexpected_exception")]


@KINDS
def test_an_error_that_is_not_retryable_fails_each_for_good(kind: str) -> None:
    def handle(items: list[Any]) -> None:
        raise TaskError("no such model", code="no_model", retryable=False)

    tasks = submitted(1, 2)
    run(batching(kind, handle))

    assert states(tasks) == [("failed", "no_model")] * 2


@KINDS
def test_a_snooze_gives_all_of_them_back(kind: str) -> None:
    calls: list[int] = []

    def handle(items: list[Any]) -> None:
        calls.append(len(items))
        if len(calls) == 1:
            raise Snooze(0)

    tasks = submitted(1, 2)
    with quick(batching(kind, handle)).background():
        assert [ended(task).attempt for task in tasks] == [1, 1]
    assert calls[0] == 2


def test_each_item_may_end_in_its_own_way() -> None:
    def handle(items: list[TaskContext]) -> dict[Any, Any]:
        for item in items:
            {
                "succeed": lambda item: item.succeed("early"),
                "fail": lambda item: item.fail("broken", code="broken", retryable=False),
                "retry": lambda item: item.fail("later", code="later") if item.attempt == 1 else None,
                "snooze": lambda item: item.snooze(0) if item.metadata else None,
                "return": lambda item: None,
                "unserializable": lambda item: None,
            }[item.payload](item)
        return {item.task_id: {1, 2} if item.payload == "unserializable" else "returned" for item in items}

    tasks = submitted("succeed", "fail", "retry", "snooze", "return", "unserializable")
    with quick(batching("sync", handle)).background():
        eventually(lambda: not Task.objects.live().exists(), 20)

    assert states(tasks) == [
        ("succeeded", "early"),
        ("failed", "broken"),
        ("succeeded", "returned"),
        ("succeeded", "returned"),
        ("succeeded", "returned"),
        ("failed", "unserializable_result"),
    ]
    assert get(tasks[2].pk).attempt == 2
    assert all(get(task.pk).attempt == 1 for task in tasks if task is not tasks[2])


async def settle_async(items: list[AsyncTaskContext]) -> None:
    for item in items:
        if item.payload == "succeed":
            await item.succeed("early")
        elif item.payload == "fail":
            await item.fail("broken", code="broken", retryable=False)
    raise ValueError("the rest")


def settle_sync(items: list[TaskContext]) -> None:
    for item in items:
        if item.payload == "succeed":
            item.succeed("early")
        elif item.payload == "fail":
            item.fail("broken", code="broken", retryable=False)
    raise ValueError("the rest")


@KINDS
def test_what_is_settled_early_is_not_touched_by_how_the_call_ends(kind: str) -> None:
    tasks = submit_many("work", ["succeed", "fail", "neither"], max_attempts=1)

    run(batching(kind, settle_sync if kind == "sync" else settle_async))

    assert states(tasks) == [("succeeded", "early"), ("failed", "broken"), ("failed", "unexpected_exception")]


def test_settling_twice_changes_nothing() -> None:
    def handle(items: list[TaskContext]) -> dict[Any, Any]:
        for item in items:
            item.succeed("first")
            item.succeed("second")
            item.fail("third")
            assert item.settled
        return {item.task_id: "fourth" for item in items}

    tasks = submitted(1, 2)
    run(batching("sync", handle))

    assert states(tasks) == [("succeeded", "first")] * 2
    assert not TaskAttempt.objects.exists()


@KINDS
def test_a_result_whose_own_methods_fail_is_the_failure_of_one(kind: str) -> None:
    class Hostile(dict[str, Any]):
        def __iter__(self) -> Any:
            raise SystemExit("looked into")

    tasks = submit_many("work", ["hostile", "well"], max_attempts=1)
    run(
        batching(kind, lambda items: {item.task_id: Hostile(a=1) if item.payload == "hostile" else 1 for item in items})
    )

    assert states(tasks) == [("failed", "unexpected_exception"), ("succeeded", 1)]


def test_a_cancel_that_one_is_asked_for_ends_that_one(go: threading.Event) -> None:
    seen: dict[str, bool] = {}

    def handle(items: list[TaskContext]) -> dict[Any, Any]:
        wait_for(go)
        seen.update({item.payload: eventually(item.canceled) for item in items if item.payload == "canceled"})
        return {item.task_id: "done" for item in items}

    tasks = submitted("canceled", "not")
    with quick(batching("sync", handle)).background():
        running(tasks[0])
        cancel(tasks[0])
        go.set()
        eventually(lambda: not Task.objects.live().exists(), 20)

    assert seen == {"canceled": True}
    assert states(tasks) == [("canceled", None), ("succeeded", "done")]


def test_a_lease_that_one_lost_cuts_off_that_one_only(go: threading.Event) -> None:
    def handle(items: list[TaskContext]) -> dict[Any, Any]:
        if len(items) == 2:
            wait_for(go)
            lost = next(item for item in items if item.payload == "lost")
            with pytest.raises(CairnQError, match="lost its lease"):
                lost.progress(0.5)
            assert [item.lost_lease for item in items] == [item is lost for item in items]
            next(item for item in items if item is not lost).progress(0.5)
        return {item.task_id: f"{len(items)} at attempt {item.attempt}" for item in items}

    tasks = submitted("lost", "kept")
    # Its own worker does not take it back while the other one is at it.
    with quick(batching("sync", handle), lease=60).background():
        running(tasks[0])
        expire(tasks[0])
        eventually(lambda: get(tasks[0].pk).attempt == 2, 20)
        go.set()
        eventually(lambda: not Task.objects.live().exists(), 20)

    assert states(tasks) == [("succeeded", "1 at attempt 2"), ("succeeded", "2 at attempt 1")]


@KINDS
def test_max_run_bounds_the_call_and_all_of_its_open_tasks(kind: str, go: threading.Event) -> None:
    late: list[bool] = []

    def hang(items: list[TaskContext]) -> None:
        next(item for item in items if item.payload == "early").succeed("early")
        items[0].lease_lost.wait(20)
        late.extend(item.lost_lease for item in items if item.payload != "early")

    async def hang_async(items: list[AsyncTaskContext]) -> None:
        await next(item for item in items if item.payload == "early").succeed("early")
        try:
            await asyncio.Event().wait()
        finally:
            late.extend(item.lost_lease for item in items if item.payload != "early")

    tasks = submit_many("work", ["hangs", "hangs", "early"], max_attempts=1)
    run(batching(kind, hang if kind == "sync" else hang_async, max_run=0.2))

    assert states(tasks) == [("failed", "handler_timeout")] * 2 + [("succeeded", "early")]
    eventually(lambda: late == [True, True])


def test_a_settlement_that_the_database_refuses_keeps_no_other_from_its_own() -> None:
    tasks = submitted("a", "b", "forbidden", "d", "e")
    with database_refusing("forbidden", "result"), reports() as reported:
        run(batching("sync", lambda items: {item.task_id: item.payload for item in items}))

    assert states(tasks) == [
        ("succeeded", "a"),
        ("succeeded", "b"),
        ("failed", "unserializable_result"),
        ("succeeded", "d"),
        ("succeeded", "e"),
    ]
    assert reported.phases == {"settle"}
    assert reported.task_ids == {tasks[2].pk}


def test_a_drain_gives_back_a_whole_batch(go: threading.Event) -> None:
    tasks = submitted(1, 2, 3)
    worker = quick(batching("sync", lambda items: wait_for(go)), drain_timeout=0.1)
    try:
        with worker.background():
            running(tasks[0])
        assert worker.hanging == 1
        assert [(get(task.pk).status, get(task.pk).attempt) for task in tasks] == [("queued", 0)] * 3
    finally:
        go.set()


def test_a_batch_takes_what_is_there_and_waits_for_no_more(go: threading.Event) -> None:
    sizes: list[int] = []

    def handle(items: list[TaskContext]) -> None:
        sizes.append(len(items))
        if len(sizes) == 1:
            wait_for(go)

    (first,) = submitted("first")
    with quick(batching("sync", handle), concurrency=1).background():
        running(first)
        others = submitted(*range(7))
        go.set()
        eventually(lambda: not Task.objects.live().exists(), 20)

    assert sizes == [1, 7]
    assert states([first, *others]) == [("succeeded", None)] * 8


@KINDS
def test_a_list_that_is_returned_is_warned_about(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    (task,) = submitted(1)

    run(batching(kind, lambda items: ["for the first"]))

    assert states([task]) == [("succeeded", None)]
    assert "only a mapping of task ids to results counts" in caplog.text


def test_a_large_batch_keeps_no_other_task_waiting_until_it_is_settled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settlement, "SLICE", 0.0)
    left: list[int] = []

    def fail(items: list[TaskContext]) -> None:
        submit("other")
        # Failures are recorded one by one.
        raise TaskError("all of them", retryable=False)

    registry = batching("sync", fail, batch=1000)

    @registry.task
    def other(ctx: TaskContext, payload: Any) -> None:
        left.append(Task.objects.running().filter(name="work").count())

    submitted(*range(300))
    with quick(registry, concurrency=2).background():
        eventually(lambda: not Task.objects.live().exists(), 20)

    assert left[0] > 0


def test_batches_and_single_tasks_share_the_slots() -> None:
    registry = batching("sync", lambda items: [item.payload for item in items], batch=2)

    @registry.task
    def single(ctx: TaskContext, payload: Any) -> Any:
        return payload

    batched = submitted(*range(9))
    singles = submit_many("single", range(9))
    run(registry, concurrency=2)

    assert states(batched) == [("succeeded", None)] * 9
    assert states(singles) == [("succeeded", n) for n in range(9)]
