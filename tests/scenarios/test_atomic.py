"""With `atomic`, what a handler writes commits together with its task's success, or not at all."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.models import F

from cairnq_django import (
    AsyncTaskContext,
    CairnQError,
    LostLease,
    Registry,
    Snooze,
    TaskContext,
    TaskError,
    cancel,
    get,
    submit,
)
from tests.app.models import Counter
from tests.helpers import eventually, in_threads
from tests.workers import attempts, ended, expire, quick, reports, run, running, runs_workers, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = runs_workers

needs_row_locks = pytest.mark.skipif(
    connection.vendor == "sqlite", reason="an open transaction has SQLite's only write lock: nobody can write beside it"
)


def increment() -> None:
    Counter.objects.filter(name="c").update(value=F("value") + 1)


def count() -> int:
    return Counter.objects.get(name="c").value


@pytest.fixture(autouse=True)
def counter(transactional_db: None) -> None:
    Counter.objects.create(name="c")


def atomic(handle: Callable[[TaskContext], Any], **options: Any) -> Registry:
    """A registry whose handler `work` increments the counter and then does `handle(ctx)`, all of it atomic."""
    registry = Registry()

    @registry.task("work", atomic=True, **options)
    def work(ctx: TaskContext, payload: Any) -> Any:
        increment()
        return handle(ctx)

    return registry


def partly_atomic(handle: Callable[[TaskContext], Any]) -> Registry:
    """A registry whose handler `work` does so in a part of itself, and notes in the payload's list what comes after."""
    registry = Registry()

    @registry.task("work")
    def work(ctx: TaskContext, payload: Any) -> Any:
        with ctx.atomic():
            increment()
            handle(ctx)
        return "after"

    return registry


def test_what_it_wrote_commits_with_its_success() -> None:
    task = submit("work")
    run(atomic(lambda ctx: {"counted": count()}))

    assert get(task.pk).result == {"counted": 1}
    assert count() == 1


def test_so_does_a_part_of_a_handler_that_ends_in_its_settlement() -> None:
    task = submit("work")
    run(partly_atomic(lambda ctx: ctx.succeed("settled")))

    assert get(task.pk).result == "settled"
    assert count() == 1


RAISED: dict[str, tuple[Callable[[], Exception], str]] = {
    "an error": (lambda: ValueError("no"), "unexpected_exception"),
    "a final error": (lambda: TaskError("no", code="declined", retryable=False), "declined"),
    "an error of the database": (lambda: IntegrityError("no"), "unexpected_exception"),
}


@pytest.mark.parametrize("kind", [atomic, partly_atomic])
@pytest.mark.parametrize("case", RAISED)
def test_what_raises_rolls_back_and_is_recorded(kind: Callable[..., Registry], case: str) -> None:
    error, code = RAISED[case]

    def fail(ctx: TaskContext) -> None:
        raise error()

    task = submit("work", max_attempts=2)
    run(kind(fail))

    task.refresh()
    assert task.failed
    assert task.error["code"] == code
    assert count() == 0


def test_a_failure_that_passes_counts_once() -> None:
    def fail_once(ctx: TaskContext) -> int:
        if ctx.attempt == 1:
            raise ValueError("once")
        return ctx.attempt

    task = submit("work")
    run(atomic(fail_once))

    assert get(task.pk).result == 2
    assert count() == 1


def test_a_result_that_does_not_serialise_rolls_back_and_fails_for_good() -> None:
    task = submit("work")
    run(atomic(lambda ctx: {1, 2}))

    assert get(task.pk).error["code"] == "unserializable_result"
    assert count() == 0


@pytest.mark.parametrize("kind", [atomic, partly_atomic])
def test_only_success_commits_with_the_writes(kind: Callable[..., Registry]) -> None:
    task = submit("work")
    run(kind(lambda ctx: ctx.fail("broken", code="broken", retryable=False)))

    assert get(task.pk).error["code"] == "broken"
    assert count() == 0


def test_what_raises_after_it_has_failed_by_itself_changes_nothing() -> None:
    def fail_and_raise(ctx: TaskContext) -> None:
        ctx.fail("broken", code="broken", retryable=False)
        raise ValueError("too late")

    task = submit("work")
    run(atomic(fail_and_raise))

    assert get(task.pk).error["code"] == "broken"
    assert count() == 0


@pytest.mark.parametrize("how", ["raised", "called"])
def test_a_snooze_rolls_back(how: str) -> None:
    times = iter(range(3))

    def snooze_once(ctx: TaskContext) -> None:
        if next(times) == 0:
            if how == "raised":
                raise Snooze(0)
            ctx.snooze(0)

    task = submit("work")
    with quick(atomic(snooze_once)).background():
        assert ended(task).succeeded
    assert get(task.pk).attempt == 1
    assert count() == 1


@needs_row_locks
@pytest.mark.parametrize("settles", ["returns", "in a part of it"])
def test_a_cancel_that_was_requested_rolls_back_and_the_task_is_canceled(go: threading.Event, settles: str) -> None:
    def handle(ctx: TaskContext) -> None:
        wait_for(go)
        if settles != "returns":
            ctx.succeed("done")
            assert ctx.settled

    task = submit("work")
    registry = atomic(handle) if settles == "returns" else partly_atomic(handle)
    with quick(registry).background():
        running(task)
        cancel(task)
        go.set()
        assert ended(task).canceled
    assert get(task.pk).result is None
    assert attempts(task) == [(1, "canceled", "canceled")]
    assert count() == 0


@needs_row_locks
def test_a_lost_lease_rolls_back() -> None:
    go = threading.Event()

    def handle(ctx: TaskContext) -> int:
        if ctx.attempt == 1:
            wait_for(go)
        return ctx.attempt

    task = submit("work")
    with quick(atomic(handle), lease=60).background():
        running(task)
        expire(task)
        eventually(lambda: get(task.pk).attempt == 2, 20)
        assert ended(task).result == 2
        go.set()
    assert count() == 1


@needs_row_locks
def test_what_ends_after_its_time_is_up_rolls_back(go: threading.Event) -> None:
    registry = Registry()
    late = threading.Event()

    @registry.task(atomic=True, max_run=0.3)
    def work(ctx: TaskContext, payload: Any) -> str:
        if ctx.attempt == 1:
            wait_for(go)
            late.set()
        # Not before: until the end of its transaction nobody else could.
        increment()
        return "in time"

    task = submit("work")
    with quick(registry).background() as worker:
        assert ended(task).result == "in time"
        assert attempts(task) == [(1, "retried", "handler_timeout")]
        go.set()
        wait_for(late)
        eventually(lambda: not any(thread.name == "cairnq-handler-1" for thread in threading.enumerate()))
    assert worker.hanging == 0
    assert count() == 1


@pytest.mark.skipif(
    connection.vendor == "mysql", reason="MariaDB and MySQL have no constraints that wait for the commit"
)
@pytest.mark.parametrize("attempts_allowed", [1, 2])
def test_what_the_database_refuses_at_the_commit_rolls_back_and_fails(attempts_allowed: int) -> None:
    def break_a_deferred_constraint(ctx: TaskContext) -> None:
        if ctx.attempt < 2:
            with connection.cursor() as cursor:
                # The id of a task's attempt is the one deferred foreign key there is.
                cursor.execute(
                    "INSERT INTO cairnq_django_taskattempt (task_id, number, worker_id, started_at, ended_at, outcome, "
                    "error) SELECT %s, 1, 'w', run_at, run_at, 'failed', '{}' FROM cairnq_django_task",
                    ["0" * 32],
                )

    task = submit("work", max_attempts=attempts_allowed)
    with reports() as reported:
        run(atomic(break_a_deferred_constraint))

    task.refresh()
    assert count() == (1 if attempts_allowed == 2 else 0)
    assert task.status == ("succeeded" if attempts_allowed == 2 else "failed")
    assert task.attempts.get().error["type"].endswith("IntegrityError")
    assert not reported


@needs_row_locks
@pytest.mark.parametrize("then", ["looks before it settles", "catches what settling raises"])
def test_a_block_that_goes_on_after_its_time_is_up_rolls_back(then: str) -> None:
    registry = Registry()
    over = threading.Event()

    @registry.task(max_run=0.3, max_attempts=1)
    def work(ctx: TaskContext, payload: Any) -> None:
        try:
            with ctx.atomic():
                increment()
                wait_for(ctx.lease_lost)
                # By then its end is recorded.
                eventually(lambda: ctx._attempt.settled, 20)
                if then.startswith("looks"):
                    assert ctx.lost_lease
                else:
                    with suppress(LostLease):
                        ctx.succeed()
        finally:
            over.set()

    task = submit(work)
    with quick(registry, concurrency=3).background():
        assert ended(task).error["code"] == "handler_timeout"
        wait_for(over)
    assert count() == 0


def break_the_transaction() -> None:
    """As a handler does that goes on after an error of the database."""
    with suppress(IntegrityError):
        Counter.objects.create(name="c")


@pytest.mark.parametrize("kind", [atomic, partly_atomic])
def test_an_error_of_the_database_that_is_caught_after_the_settlement_fails_it(kind: Callable[..., Registry]) -> None:
    def handle(ctx: TaskContext) -> None:
        ctx.succeed("early")
        break_the_transaction()

    task = submit("work", max_attempts=1)
    run(kind(handle))

    task.refresh()
    assert task.failed
    assert "after an error of the database, which it caught" in task.error["message"]
    assert count() == 0


@pytest.mark.parametrize("kind", [atomic, partly_atomic])
def test_a_settlement_in_a_savepoint_that_rolled_back_never_was(kind: Callable[..., Registry]) -> None:
    def handle(ctx: TaskContext) -> str:
        with suppress(KeyError), transaction.atomic():
            ctx.succeed("inner")
            raise KeyError
        assert not ctx.settled
        return "outer"

    task = submit("work", max_attempts=1)
    run(kind(handle))

    task.refresh()
    if kind is atomic:
        assert task.result == "outer"
        assert count() == 1
    else:
        assert "ended ctx.atomic() without settling" in task.error["message"]
        assert count() == 0


@pytest.mark.parametrize("kind", [atomic, partly_atomic])
def test_a_hook_that_raises_after_the_commit_undoes_nothing_and_is_logged(
    kind: Callable[..., Registry], caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise ValueError("a hook of the handler's own")

    def handle(ctx: TaskContext) -> None:
        transaction.on_commit(fail)
        ctx.succeed("done")

    task = submit("work", max_attempts=1)
    run(kind(handle))

    assert get(task.pk).result == "done"
    assert count() == 1
    assert "raised after it was settled" in caplog.text
    assert "a hook of the handler's own" in caplog.text


def test_settling_from_another_thread_is_refused() -> None:
    def handle(ctx: TaskContext) -> None:
        in_threads(1, lambda _: ctx.succeed("from elsewhere"))

    task = submit("work", max_attempts=1)
    run(atomic(handle))

    assert "settle it in the thread that its transaction is in" in get(task.pk).error["message"]
    assert count() == 0


@needs_row_locks
def test_a_drain_does_not_wait_for_a_transaction_that_has_settled_its_task(go: threading.Event) -> None:
    settled = threading.Event()

    def handle(ctx: TaskContext) -> None:
        ctx.succeed("settled")
        settled.set()
        wait_for(go)

    task = submit("work")
    with quick(atomic(handle), drain_timeout=0.1).background() as worker:
        wait_for(settled)
    assert worker.hanging == 1
    assert get(task.pk).is_running
    go.set()
    assert ended(task).result == "settled"
    assert count() == 1


@pytest.mark.parametrize("how", ["cancel", "the family's", "replace"])
@pytest.mark.parametrize("kind", [atomic, partly_atomic])
def test_who_asks_for_its_own_cancel_fails_for_good_and_is_told_what_to_do(
    kind: Callable[..., Registry], how: str
) -> None:
    def handle(ctx: TaskContext) -> None:
        if how == "cancel":
            cancel(ctx.task_id)
        elif how == "the family's":
            cancel(ctx.root_id, family=True)
        else:
            submit("work", key="nightly", conflict="replace", delay=3600)
        ctx.succeed("never recorded")

    task = submit("work", key="nightly")
    run(kind(handle))

    task.refresh()
    assert (task.status, task.result) == ("failed", None)
    assert task.error["code"] == "canceled_by_itself"
    assert "Do it in transaction.on_commit(), or use another key" in task.error["message"]
    assert attempts(task) == [(1, "failed", "canceled_by_itself")]
    assert count() == 0


@pytest.mark.skipif(connection.vendor != "sqlite", reason="elsewhere the heartbeat writes beside the transaction")
@pytest.mark.parametrize("kind", [atomic, partly_atomic])
def test_who_holds_the_only_write_lock_keeps_its_lease(kind: Callable[..., Registry]) -> None:
    def handle(ctx: TaskContext) -> None:
        # Its lease is over, and nobody could renew it or take the task.
        eventually(lambda: ctx._attempt._valid_until < time.monotonic())
        assert not ctx.lost_lease
        ctx.succeed("done")

    task = submit("work", max_attempts=1)
    run(kind(handle), lease=0.3)

    assert get(task.pk).result == "done"
    assert count() == 1


def test_children_that_it_submits_exist_only_if_it_succeeds() -> None:
    def submit_and_maybe_fail(ctx: TaskContext) -> None:
        ctx.submit("child", ctx.attempt, queue="other")
        if ctx.attempt == 1:
            raise ValueError("once")

    task = submit("work")
    run(atomic(submit_and_maybe_fail))

    assert get(task.pk).succeeded
    assert [child.payload for child in type(task).objects.filter(name="child")] == [2]


class TestRefused:
    def test_a_batch_at_registration(self) -> None:
        register = Registry().task("work", atomic=True, batch=5)  # type: ignore[call-overload]

        with pytest.raises(ValueError, match="Task 'work' cannot have both atomic and batch"):
            register(lambda items: None)

    def test_an_async_handler_at_registration(self) -> None:
        async def handler(ctx: AsyncTaskContext, payload: Any) -> None: ...

        with pytest.raises(ValueError, match="Task 'work' cannot be atomic: its handler is async"):
            Registry().task("work", atomic=True)(handler)

    @pytest.mark.parametrize("value", [1, "yes", None])
    def test_anything_but_true_and_false(self, value: Any) -> None:
        with pytest.raises(TypeError, match="atomic must be True or False"):
            Registry().task("work", atomic=value)(lambda ctx, payload: None)

    def test_a_block_that_does_not_settle(self) -> None:
        task = submit("work", max_attempts=1)
        run(partly_atomic(lambda ctx: None))

        assert "ended ctx.atomic() without settling" in get(task.pk).error["message"]
        assert count() == 0

    def test_a_block_in_a_batch(self) -> None:
        registry = Registry()
        messages: list[str] = []

        @registry.task(batch=2)
        def work(items: list[TaskContext]) -> None:
            with pytest.raises(CairnQError) as raised, items[0].atomic():
                increment()
            messages.append(str(raised.value))

        submit(work)
        run(registry)
        assert "not for a batch" in messages[0]
        assert count() == 0

    def test_a_block_in_an_async_handler(self) -> None:
        registry = Registry()

        @registry.task(max_attempts=1)
        async def work(ctx: AsyncTaskContext, payload: Any) -> None:
            ctx.atomic()

        task = submit(work)
        run(registry)
        assert "ctx.atomic() is for sync handlers" in get(task.pk).error["message"]

    def test_a_block_in_a_handler_that_is_atomic(self) -> None:
        def nest(ctx: TaskContext) -> None:
            with ctx.atomic():
                ctx.succeed()

        task = submit("work", max_attempts=1)
        run(atomic(nest))
        assert "ctx.atomic() is not needed here" in get(task.pk).error["message"]

    def test_a_block_in_another_transaction(self) -> None:
        registry = Registry()

        @registry.task(max_attempts=1)
        def work(ctx: TaskContext, payload: Any) -> None:
            with transaction.atomic(), ctx.atomic():
                ctx.succeed()

        task = submit(work)
        run(registry)
        assert get(task.pk).error["type"] == "RuntimeError"

    def test_a_block_after_the_settlement(self) -> None:
        registry = Registry()
        raised: list[BaseException] = []

        @registry.task
        def work(ctx: TaskContext, payload: Any) -> None:
            ctx.succeed("early")
            with pytest.raises(CairnQError) as refused, ctx.atomic():
                increment()
            raised.append(refused.value)

        task = submit(work)
        run(registry)
        assert get(task.pk).result == "early"
        assert "is settled" in str(raised[0])
        assert count() == 0

    def test_a_block_after_the_lease_is_lost(self) -> None:
        registry = Registry()
        raised: list[BaseException] = []

        @registry.task
        def work(ctx: TaskContext, payload: Any) -> None:
            if ctx.attempt == 1:
                expire(get(ctx.task_id))
                with pytest.raises(LostLease) as lost:
                    ctx.heartbeat()
                with pytest.raises(LostLease), ctx.atomic():
                    increment()
                raised.append(lost.value)

        task = submit(work)
        with quick(registry).background():
            assert ended(task).attempt == 2
        assert len(raised) == 1
        assert count() == 0
