"""A worker tells once how each attempt ended, after that is committed, and no receiver keeps it from its work."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from contextlib import ExitStack
from contextvars import ContextVar
from typing import Any

import pytest
from django.db import transaction

from cairnq_django import (
    AsyncTaskContext,
    Registry,
    Snooze,
    Task,
    TaskContext,
    TaskError,
    Worker,
    cancel,
    current_task,
    get,
    submit,
    submit_many,
)
from cairnq_django.signals import task_failed, task_started, task_succeeded, worker_started, worker_stopping
from cairnq_django.worker import dispatcher
from tests.factories import TaskFactory
from tests.hearing import hearing, receiving
from tests.helpers import eventually
from tests.workers import ended, expire, handlers_wait_for, quick, run, running, runs_workers, wait_for

pytestmark = runs_workers


@pytest.fixture
def registry(go: threading.Event) -> Registry:
    """Handlers that end in each way there is; payloads say how."""
    registry = Registry()

    @registry.task
    def work(ctx: TaskContext, payload: Any) -> Any:
        if payload == "raise":
            raise ValueError("boom")
        if payload == "raise for good":
            raise TaskError("no such thing", code="not_found", retryable=False)
        if payload == "once":
            if ctx.attempt == 1:
                raise ValueError("boom")
            return "again"
        if payload == "snooze":
            raise Snooze(0)
        if payload == "fail":
            ctx.fail("boom", code="declined", retryable=False)
            return None
        if payload == "succeed":
            ctx.succeed("by itself")
            return None
        if payload == "wait":
            wait_for(go)
        return object() if payload == "unserializable" else payload

    @registry.task
    async def work_async(ctx: AsyncTaskContext, payload: Any) -> Any:
        if payload == "raise":
            raise ValueError("boom")
        if payload == "succeed":
            await ctx.succeed("by itself")
        return payload

    return registry


@pytest.mark.parametrize("name", ["work", "work_async"])
def test_a_success_is_told_with_its_result_after_its_start(registry: Registry, name: str) -> None:
    task = submit(name, {"n": 1}, key="k", metadata={"by": "me"})
    with hearing() as ears:
        run(registry)
    assert ears.names() == ["started", "succeeded"]
    started, succeeded = ears
    assert {heard.sender for heard in ears} == {Task}
    assert (started.task.pk, started.task.status, started.task.attempt) == (task.pk, "running", 1)
    assert set(succeeded.facts) == {"task", "duration"}
    told = succeeded.task
    assert (told.status, told.result, told.error, told.metadata) == ("succeeded", {"n": 1}, None, {"by": "me"})
    # What the worker did not know is read from the row.
    assert told.completed_at == get(task.pk).completed_at
    assert 0 <= succeeded.facts["duration"] < 20
    assert succeeded.thread == "cairnq-signals"
    assert "cairnq-handler" in started.thread or name == "work_async"


@pytest.mark.parametrize("name", ["work", "work_async"])
def test_a_failure_is_told_while_its_exception_is_being_handled(registry: Registry, name: str) -> None:
    task = submit(name, "raise", max_attempts=2)
    with hearing() as ears:
        run(registry)
    # The next attempt may start before it is told how the last one ended.
    assert sorted(ears.names(task)) == ["failed", "retried", "started", "started"]
    retried, failed = ends = (ears.only("task_retried"), ears.only("task_failed"))
    for heard in ends:
        assert isinstance(heard.handled, ValueError)
        assert heard.handled is heard.facts["exception"]
        assert heard.facts["error"]["message"] == "boom"
        assert heard.task.error == heard.facts["error"]
    assert (retried.task.status, retried.task.attempt) == ("queued", 1)
    assert retried.facts["delay"] <= 0.01
    assert (failed.task.status, failed.task.attempt) == ("failed", 2)


@pytest.mark.parametrize(
    ("payload", "told", "code"),
    [
        ("raise for good", "failed", "not_found"),
        ("fail", "failed", "declined"),
        ("unserializable", "failed", "unserializable_result"),
        ("once", "retried", "unexpected_exception"),
    ],
)
def test_each_way_to_fail_is_told(registry: Registry, payload: str, told: str, code: str) -> None:
    submit("work", payload)
    with hearing(f"task_{told}") as ears:
        run(registry)
    assert [(heard.name, heard.code) for heard in ears] == [(f"task_{told}", code)]


@pytest.mark.parametrize("name", ["work", "work_async"])
def test_what_a_handler_settles_itself_is_told_once(registry: Registry, name: str) -> None:
    task = submit(name, "succeed")
    with hearing() as ears:
        run(registry)
    assert ears.names(task) == ["started", "succeeded"]
    assert ears.only("task_succeeded").task.result == "by itself"


def test_a_settlement_in_a_transaction_is_told_when_that_commits_and_not_if_it_rolls_back() -> None:
    registry = Registry()
    told_early = []

    @registry.task
    def work(ctx: TaskContext, payload: str) -> str:
        try:
            with transaction.atomic():
                ctx.succeed("in a transaction")
                told_early.extend(heard.name for heard in ears if heard.task.pk == ctx.task_id)
                if payload == "roll back":
                    raise ZeroDivisionError
        except ZeroDivisionError:
            pass
        return "returned"

    tasks = [submit("work", payload) for payload in ("commit", "roll back")]
    with hearing() as ears:
        run(registry, concurrency=1)
    assert told_early == ["task_started"] * 2
    results = {heard.task.pk: heard.task.result for heard in ears if heard.name == "task_succeeded"}
    assert results == {tasks[0].pk: "in a transaction", tasks[1].pk: "returned"}
    assert ears.names().count("succeeded") == 2


@pytest.mark.parametrize("payload", ["commit", "raise", "cancel"])
def test_an_atomic_handler_is_told_once_its_transaction_has_ended(payload: str) -> None:
    registry = Registry()

    @registry.task(atomic=True)
    def work(ctx: TaskContext, payload: str) -> str:
        TaskFactory(name="written")
        if payload == "raise":
            raise ValueError("boom")
        if payload == "cancel":
            # Seen in the very transaction that would have committed its success.
            cancel(ctx.task_id)
        return "done"

    submit("work", payload, max_attempts=1)
    with hearing() as ears:
        run(registry)
    assert ears.names() == ["started", {"commit": "succeeded", "raise": "failed", "cancel": "failed"}[payload]]
    assert not ears[1].in_transaction
    assert Task.objects.filter(name="written").exists() == (payload == "commit")


def test_a_snooze_is_not_told(registry: Registry) -> None:
    task = submit("work", "snooze")
    with hearing() as ears, quick(registry).background():
        eventually(lambda: ears.names().count("started") >= 2)
        cancel(task.pk)
        ended(task)
    assert set(ears.names()) == {"started", "canceled"}
    assert ears.names().count("canceled") == 1


def test_a_running_task_that_is_canceled_is_told_when_it_has_stopped(registry: Registry, go: threading.Event) -> None:
    task = submit("work", "wait")
    with hearing() as ears, quick(registry).background():
        handlers_wait_for(go)
        cancel(task.pk)
        assert ears.names() == ["started"]
        go.set()
        ended(task)
    assert ears.names() == ["started", "canceled"]
    told = ears.only("task_canceled")
    assert (told.code, told.task.status, told.task.result, told.task.error) == ("canceled", "canceled", None, None)


def test_each_task_of_a_batch_is_told_as_it_ended() -> None:
    registry = Registry()

    @registry.task(batch=10)
    def work(items: list[TaskContext]) -> dict[Any, Any]:
        items[0].fail("declined", retryable=False)
        items[1].succeed("early")
        return {items[2].task_id: "late"}

    tasks = submit_many("work", range(3))
    with hearing() as ears:
        run(registry)
    by_payload = {task.payload: task for task in tasks}
    assert [ears.names(by_payload[n]) for n in range(3)] == [
        ["started", "failed"],
        ["started", "succeeded"],
        ["started", "succeeded"],
    ]
    assert {heard.task.result for heard in ears if heard.name == "task_succeeded"} == {"early", "late"}


def test_many_that_are_recorded_together_are_each_told_with_its_own_result(registry: Registry) -> None:
    submit_many("work", range(200))
    with hearing("task_succeeded") as ears:
        run(registry)
    assert sorted(heard.task.result for heard in ears) == list(range(200))


def test_a_handler_that_runs_too_long_is_told_once_by_its_timeout(registry: Registry, go: threading.Event) -> None:
    task = submit("work", "wait", max_attempts=1)
    with hearing() as ears:
        worker = quick(registry, max_run=0.2)
        with worker.background():
            ended(task)
            go.set()
            eventually(lambda: not worker.hanging)
    assert ears.names() == ["started", "failed"]
    assert ears.only("task_failed").code == "handler_timeout"
    assert ears.only("task_failed").facts["exception"] is None


def test_what_became_of_tasks_whose_worker_is_gone_is_told_by_the_one_that_finds_them() -> None:
    again = TaskFactory(expired=True, max_attempts=2)
    failed = TaskFactory(expired=True, max_attempts=1)
    canceled = TaskFactory(expired=True, cancel_requested=True, lease_until=TaskFactory(expired=True).lease_until)
    late = TaskFactory(too_late=True)
    with hearing() as ears:
        run(Registry())
    assert [ears.names(task) for task in (again, failed, canceled, late)] == [
        ["retried"],
        ["failed"],
        ["canceled"],
        ["canceled"],
    ]
    codes = {heard.task.pk: heard.code for heard in ears}
    assert (codes[again.pk], codes[failed.pk], codes[late.pk]) == ("lease_expired", "lease_expired", "expired")
    states = {heard.task.pk: (heard.task.status, heard.task.lease_until) for heard in ears}
    assert (states[again.pk], states[failed.pk]) == (("queued", None), ("failed", None))


def test_an_attempt_that_lost_its_lease_is_told_by_the_recovery_alone(registry: Registry, go: threading.Event) -> None:
    task = submit("work", "wait", max_attempts=1)
    with hearing() as ears, quick(registry, concurrency=1, lease=60, heartbeat_interval=0.1).background():
        running(task)
        expire(task)
        eventually(lambda: run(Registry()) and get(task.pk).is_terminal)
        go.set()
    assert ears.names() == ["started", "failed"]
    assert ears.only("task_failed").code == "lease_expired"


def test_a_worker_tells_of_its_start_before_it_claims_and_of_its_stop_while_handlers_still_run(
    registry: Registry, go: threading.Event
) -> None:
    task = submit("work", "wait")
    with hearing("worker_started", "worker_stopping", "task_started", "task_succeeded") as ears:
        worker = quick(registry)
        with worker.background():
            running(task)
            handlers_wait_for(go)
            worker.stop()
            eventually(lambda: "worker_stopping" in ears.names())
            go.set()
    assert ears.names() == ["worker_started", "started", "worker_stopping", "succeeded"]
    for name in ("worker_started", "worker_stopping"):
        assert (ears.only(name).sender, ears.only(name).facts) == (Worker, {"worker": worker})


@pytest.mark.parametrize("signal", [worker_started, worker_stopping, task_started, task_succeeded])
@pytest.mark.parametrize("how", ["raises", "leaves a transaction open"])
def test_a_receiver_that_does_harm_keeps_no_worker_from_its_work(registry: Registry, signal: Any, how: str) -> None:
    def harm(**kwargs: Any) -> None:
        if how == "raises":
            raise ValueError("no")
        transaction.atomic().__enter__()

    tasks = [submit("work", number) for number in range(3)]
    with receiving(signal, harm), hearing("task_succeeded") as ears:
        run(registry, concurrency=1)
    assert [get(task.pk).result for task in tasks] == [0, 1, 2]
    assert len(ears) == 3


def test_a_receiver_that_wants_the_process_to_exit_ends_no_more_than_its_own_signal(registry: Registry) -> None:
    def leave(task: Task, **kwargs: Any) -> None:
        if task.result == 0:
            raise SystemExit

    submit_many("work", range(3))
    with receiving(task_succeeded, leave), hearing("task_succeeded") as ears:
        run(registry)
    assert {heard.task.result for heard in ears} >= {1, 2}


@pytest.mark.parametrize("name", ["work", "work_async"])
def test_async_receivers_are_awaited(registry: Registry, name: str) -> None:
    told = []

    async def hear(task: Task, signal: Any, **kwargs: Any) -> None:
        await asyncio.sleep(0)
        told.append((task.status, await Task.objects.filter(pk=task.pk).acount()))

    submit(name)
    with receiving(task_started, hear), receiving(task_succeeded, hear):
        run(registry)
    assert told == [("running", 1), ("succeeded", 1)]


def test_receivers_see_what_the_handlers_context_held(registry: Registry) -> None:
    tenant: ContextVar[str] = ContextVar("tenant", default="nobody")
    seen = []

    def see(**kwargs: Any) -> None:
        task = current_task()
        seen.append((task and task.task_id, tenant.get()))

    @registry.task
    def work_for(ctx: TaskContext, payload: str) -> None:
        tenant.set(payload)
        raise TaskError("no", retryable=False)

    tasks = [submit("work_for", name) for name in ("ada", "bob")]
    with receiving(task_failed, see):
        run(registry)
    assert sorted(seen, key=str) == sorted(((task.pk, task.payload) for task in tasks), key=str)


class Defiant(Exception):
    """Cannot be looked at, nor logged."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("no")

    def __setattr__(self, name: str, value: Any) -> None:
        raise RuntimeError("no")


def test_an_exception_that_defies_being_looked_at_ends_no_signal_but_its_own(registry: Registry) -> None:
    @registry.task
    def defy(ctx: TaskContext, payload: Any) -> None:
        raise Defiant

    def defiant(task: Task, **kwargs: Any) -> None:
        if task.payload == 1:
            raise Defiant

    tasks = [submit("defy", number, max_attempts=1) for number in range(3)]
    with hearing("task_failed") as ears, receiving(task_failed, defiant):
        run(registry, concurrency=1)
    assert [heard.task.pk for heard in ears] == [task.pk for task in tasks]
    assert all(heard.handled is not None for heard in ears)


def test_no_thread_is_started_for_signals_that_nobody_listens_to(registry: Registry) -> None:
    threads: list[set[str]] = []

    @registry.task
    def look(ctx: TaskContext, payload: Any) -> None:
        threads.append({thread.name for thread in threading.enumerate()})
        if payload == "fail":
            raise ValueError("boom")

    for how in ("succeed", "fail", "look"):
        submit("look", how, max_attempts=1)
    run(registry, concurrency=1)
    assert len(threads) == 3
    assert "cairnq-signals" not in set().union(*threads)


@pytest.mark.parametrize("heard", [True, False])
@pytest.mark.parametrize("name", ["burden", "burden_async"])
def test_nothing_of_an_attempt_waits_for_the_garbage_collector(name: str, heard: bool) -> None:
    registry = Registry()
    burdens: list[weakref.ref[Any]] = []

    class Burden:
        """What would be large."""

    @registry.task
    def burden(ctx: TaskContext, payload: str) -> None:
        large = Burden()
        burdens.append(weakref.ref(large))
        ctx.large = large  # type: ignore[attr-defined]
        if payload == "raise":
            raise ValueError("boom")

    @registry.task
    async def burden_async(ctx: AsyncTaskContext, payload: str) -> None:
        large = Burden()
        burdens.append(weakref.ref(large))
        ctx.large = large  # type: ignore[attr-defined]
        if payload == "raise":
            raise ValueError("boom")

    with ExitStack() as heard_by:
        if heard:
            heard_by.enter_context(receiving(task_failed, lambda **kwargs: None))
        gc.disable()
        try:
            with quick(registry).background():
                for task in [submit(name, "raise", max_attempts=1), submit(name, "return"), submit(name, "raise")]:
                    ended(task)
                eventually(
                    lambda: not any(each() is not None for each in burdens), message="all that they held is gone"
                )
        finally:
            gc.enable()
    assert len(burdens) >= 3


def test_a_slow_receiver_holds_up_no_other_task(registry: Registry, go: threading.Event) -> None:
    def dawdle(**kwargs: Any) -> None:
        wait_for(go)

    with receiving(task_succeeded, dawdle), quick(registry, concurrency=1).background():
        for number in range(3):
            assert ended(submit("work", number)).result == number
        go.set()


def test_a_receiver_that_hangs_keeps_no_worker_from_ending(
    registry: Registry, go: threading.Event, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dispatcher, "STOP_TIMEOUT", 0.1)
    submit_many("work", range(3))
    with receiving(task_succeeded, lambda **kwargs: wait_for(go)):
        run(registry)
        assert "takes too long" in caplog.text
        go.set()


def test_a_worker_claims_no_more_while_too_many_signals_wait_and_goes_on_when_they_are_sent(
    registry: Registry, go: threading.Event, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(dispatcher, "MAX_WAITING", 4)
    told = []

    def dawdle(task: Task, **kwargs: Any) -> None:
        wait_for(go)
        told.append(task.pk)

    tasks = [submit("work", number) for number in range(30)]
    with receiving(task_succeeded, dawdle), quick(registry, concurrency=1, claim_batch=1).background():
        eventually(lambda: Task.objects.filter(status="succeeded").count() >= 5)
        eventually(lambda: not Task.objects.running().exists())
        assert Task.objects.filter(status="queued").count() > 0
        eventually(lambda: "signals wait for slow receivers" in caplog.text)
        assert caplog.text.count("signals wait for slow receivers") == 1
        go.set()
        for task in tasks:
            assert ended(task).succeeded
    assert sorted(told) == sorted(task.pk for task in tasks)
