"""What `run_pending()` runs, what it leaves, and what it tells the test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import sync_to_async
from django.db import DatabaseError, connection, transaction
from django.test import TestCase
from django.utils import translation

from cairnq_django import (
    AsyncTaskContext,
    Registry,
    Snooze,
    Task,
    TaskContext,
    TaskFailed,
    TaskStatus,
    call,
    get,
    pause_queue,
    submit,
    submit_many,
)
from cairnq_django.store.claim import claim_these
from cairnq_django.store.engine import task_database
from cairnq_django.testing import arun_pending, run_pending
from cairnq_django.testing.isolation import as_if_alone
from tests.app.models import Counter
from tests.workers import database_refusing, expire, runs_workers

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.django_db


registry = Registry()


@registry.task
def echo(ctx: TaskContext, payload: Any) -> Any:
    return payload


@registry.task(queue="mail")
def send(ctx: TaskContext, payload: Any) -> str:
    return "sent"


@registry.task
def fail(ctx: TaskContext, payload: Any) -> None:
    raise ValueError(f"attempt {ctx.attempt}")


@registry.task
def snooze(ctx: TaskContext, payload: Any) -> None:
    raise Snooze(60)


@registry.task
def chain(ctx: TaskContext, payload: int) -> None:
    if payload:
        ctx.submit(chain, payload - 1)


def test_it_runs_what_is_due_in_the_order_of_claims_and_returns_it_as_it_is_then() -> None:
    second, first = submit(echo, 2), submit(echo, 1, priority=1)

    ran = run_pending(registry=registry)

    assert [(task.pk, task.status, task.result) for task in ran] == [
        (first.pk, TaskStatus.SUCCEEDED, 1),
        (second.pk, TaskStatus.SUCCEEDED, 2),
    ]
    assert run_pending(registry=registry) == []


def test_it_runs_what_is_submitted_meanwhile() -> None:
    submit(chain, 3)
    assert [task.payload for task in run_pending(registry=registry)] == [3, 2, 1, 0]


def test_it_runs_the_named_tasks_and_queues_alone() -> None:
    submit(echo)
    submit(send)
    submit(send, queue="bulk")
    submit("nobody_here")

    assert names_and_queues(run_pending(send, queues="bulk", registry=registry)) == [("send", "bulk")]
    assert names_and_queues(run_pending(queues=["default", "other"], registry=registry)) == [("echo", "default")]
    assert names_and_queues(run_pending("send", registry=registry)) == [("send", "mail")]
    assert Task.objects.queued().get().name == "nobody_here"


def test_it_runs_what_was_submitted_under_an_earlier_name_together_with_the_rest() -> None:
    registry = Registry()

    @registry.task(aliases=["measure"], batch=3)
    def sizes(items: list[TaskContext]) -> Any:
        return {item.task_id: len(items) for item in items}

    submit_many("measure", [1, 2])
    submit(sizes, 3)
    assert [task.result for task in run_pending(sizes, registry=registry)] == [3, 3, 3]


def test_it_refuses_a_task_without_a_handler() -> None:
    with pytest.raises(
        ValueError, match=r"'ecko' has no handler to run here \(there are handlers for: 'chain', 'echo'"
    ):
        run_pending("ecko", registry=registry)


def test_it_stops_at_the_limit() -> None:
    submit_many(echo, [1, 2, 3])
    assert len(run_pending(registry=registry, limit=2)) == 2
    assert Task.objects.queued().get().payload == 3


def test_what_is_delayed_is_left_unless_it_is_to_be_run() -> None:
    submit(echo, "later", delay=3600)
    submit(echo, "soon", delay=60)
    assert run_pending(registry=registry) == []
    assert [task.payload for task in run_pending(registry=registry, delayed=True)] == ["soon", "later"]


def test_what_is_snoozed_is_left_so_that_the_run_ends() -> None:
    submit(snooze, delay=60)
    (task,) = run_pending(registry=registry, delayed=True)
    assert (task.status, task.attempt) == (TaskStatus.QUEUED, 0)


def test_what_is_paused_is_left() -> None:
    submit(send)
    pause_queue("mail")
    assert run_pending(registry=registry, delayed=True) == []


def test_what_failed_is_retried_without_a_wait_and_raises_in_the_end() -> None:
    task = submit(fail, max_attempts=3)

    with pytest.raises(TaskFailed, match=r"\(fail\) failed in attempt 3 of 3: ValueError") as caught:
        run_pending(registry=registry)

    assert isinstance(caught.value.__cause__, ValueError)
    assert caught.value.__cause__.__traceback__ is not None
    assert [attempt.error["message"] for attempt in task.attempts.order_by("number")] == [
        "attempt 1",
        "attempt 2",
        "attempt 3",
    ]


def test_retries_can_be_left_waiting_and_run_later() -> None:
    submit(fail, max_attempts=2)
    (waiting,) = run_pending(registry=registry, retries=False)
    assert (waiting.status, waiting.attempt) == (TaskStatus.QUEUED, 1)
    assert run_pending(registry=registry, retries=False) == []
    (failed,) = run_pending(registry=registry, fail_silently=True)
    assert (failed.status, failed.attempt) == (TaskStatus.FAILED, 2)


def test_what_fails_silently_does_not_keep_others_from_their_turn() -> None:
    submit(fail, max_attempts=1)
    submit(echo)
    statuses = [task.status for task in run_pending(registry=registry, fail_silently=True)]
    assert statuses == [TaskStatus.FAILED, TaskStatus.SUCCEEDED]


def test_what_pytest_raises_in_a_handler_is_for_the_test() -> None:
    registry = Registry()

    @registry.task
    def check(ctx: TaskContext, payload: Any) -> None:
        pytest.fail("not like this")

    task = submit("check", max_attempts=1)
    with pytest.raises(pytest.fail.Exception, match="not like this"):
        run_pending(registry=registry, fail_silently=True)
    assert get(task.pk).failed


def test_it_takes_back_and_ends_what_a_worker_would() -> None:
    late = submit(echo, expires=0.001)
    orphan = submit(echo, "orphan")
    claimed_by_a_worker_that_is_gone(orphan)

    run_pending(registry=registry)

    assert get(late.pk).canceled
    assert get(orphan.pk).result == "orphan"
    assert [attempt.error["code"] for attempt in get(orphan.pk).attempts.all()] == ["lease_expired"]


def test_handlers_see_what_the_test_has_not_committed_and_the_test_what_they_wrote() -> None:
    registry = Registry()
    Counter.objects.create(name="seen")

    @registry.task
    def rename(ctx: TaskContext, payload: Any) -> None:
        Counter.objects.filter(name="seen").update(value=1)

    @registry.task
    async def arename(ctx: AsyncTaskContext, payload: Any) -> int:
        return await Counter.objects.filter(name="seen", value=1).aupdate(value=2)

    submit("rename", priority=1)
    submit("arename")
    _, last = run_pending(registry=registry)
    assert (last.result, Counter.objects.get().value) == (1, 2)


def test_a_handler_sees_at_once_that_it_is_canceled() -> None:
    registry = Registry()

    @registry.task
    def work(ctx: TaskContext, payload: Any) -> None:
        assert not ctx.canceled()
        get(ctx.task_id).cancel()
        assert ctx.canceled()

    submit("work", max_attempts=1)
    (task,) = run_pending(registry=registry)
    assert task.canceled


def test_the_language_of_the_test_is_not_the_handlers() -> None:
    registry = Registry()

    @registry.task
    def language(ctx: TaskContext, payload: Any) -> str:
        return translation.get_language()

    submit("language")
    with translation.override("de"):
        (task,) = run_pending(registry=registry)
    assert task.result == "en-us"


def test_call_is_refused_where_nobody_would_run_its_task() -> None:
    with pytest.raises(transaction.TransactionManagementError, match=r"or cairnq_django\.testing"):
        call("echo", timeout=1)
    with transaction.atomic(), pytest.raises(transaction.TransactionManagementError, match="Use submit"):
        call("echo", timeout=1)


def test_a_handler_cannot_wait_for_what_nobody_runs() -> None:
    registry = Registry()

    @registry.task
    def wait(ctx: TaskContext, payload: Any) -> None:
        ctx.wait(ctx.submit("nobody_here"), timeout=1)

    submit("wait", max_attempts=1)
    with pytest.raises(TaskFailed, match="TransactionManagementError"):
        run_pending(registry=registry)


@runs_workers
def test_what_a_worker_reports_and_survives_is_raised() -> None:
    submit(echo, "poison")
    with database_refusing("poison", "result"), pytest.raises(DatabaseError, match="not this"):
        run_pending(registry=registry)


def test_queries_of_the_test_are_still_counted(django_assert_max_num_queries: Callable[..., Any]) -> None:
    submit(echo)
    with django_assert_max_num_queries(100) as queries:
        run_pending(registry=registry)
    assert len(queries) > 5


def test_a_hook_that_raises_is_the_handlers_failure() -> None:
    registry = Registry()

    def boom() -> None:
        raise RuntimeError("in on_commit()")

    @registry.task
    def hook(ctx: TaskContext, payload: Any) -> None:
        transaction.on_commit(boom, robust=True)
        transaction.on_commit(boom)

    submit("hook", max_attempts=1)
    with pytest.raises(TaskFailed, match=r"RuntimeError .* in on_commit\(\)"):
        run_pending(registry=registry)


def test_the_hooks_of_a_handler_run_once_and_those_of_the_test_are_left_to_it() -> None:
    registry = Registry()
    called: list[str] = []

    @registry.task
    def hook(ctx: TaskContext, payload: Any) -> None:
        transaction.on_commit(lambda: called.append("handler's"))

    with TestCase.captureOnCommitCallbacks(execute=True):
        transaction.on_commit(lambda: called.append("test's"))
        submit("hook")
        run_pending(registry=registry)
        assert called == ["handler's"]
    assert called == ["handler's", "test's"]


@pytest.mark.skipif(connection.vendor != "postgresql", reason="others go on after a statement that failed")
def test_a_broken_transaction_is_rolled_back_to_where_the_handler_began() -> None:
    Counter.objects.create(name="kept")
    with as_if_alone():
        Counter.objects.create(name="lost")
        with pytest.raises(Exception, match="syntax"):
            Counter.objects.raw("SELEC")[0]
    assert [counter.name for counter in Counter.objects.all()] == ["kept"]


@pytest.mark.django_db(databases=["default", "dedicated"])
def test_tasks_with_a_database_of_their_own_run_beside_the_projects(settings: Any) -> None:
    settings.DATABASE_ROUTERS = ["cairnq_django.routers.CairnQRouter"]
    settings.CAIRNQ = {"DATABASE": "dedicated"}
    Counter.objects.create(name="seen")
    registry = Registry()

    @registry.task
    def see(ctx: TaskContext, payload: Any) -> int:
        with transaction.atomic(durable=True):
            return Counter.objects.count()

    submit("see")
    (task,) = run_pending(registry=registry)
    assert (task.result, task._state.db) == (1, "dedicated")


class AsyncTests(TestCase):
    async def test_async_tests_have_a_twin(self) -> None:
        registry = Registry()

        @registry.task
        async def count(ctx: AsyncTaskContext, payload: Any) -> int:
            return await Counter.objects.acount()

        await Counter.objects.acreate(name="one")
        await sync_to_async(submit)("count")
        (task,) = await arun_pending(registry=registry)
        assert task.result == 1


def names_and_queues(tasks: list[Task]) -> list[tuple[str, str]]:
    return [(task.name, task.queue) for task in tasks]


def claimed_by_a_worker_that_is_gone(task: Task) -> None:
    assert claim_these(task_database(), [task.pk], worker_id="gone", lease=30)
    expire(task)
