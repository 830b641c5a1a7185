"""What a handler can see and do through its `ctx`, sync and async."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection, transaction

from cairnq_django import (
    AsyncTaskContext,
    LostLease,
    Registry,
    SerializationError,
    Task,
    TaskContext,
    cancel,
    get,
    submit,
)
from tests.app.models import Counter
from tests.helpers import eventually
from tests.store.sessions import another_transaction, in_another_session, locks_rows
from tests.workers import PATIENCE, attempts, ended, quick, run, running, runs_workers, wait_for

pytestmark = runs_workers


class Rollback(Exception):
    """Raised to roll a transaction back."""


@pytest.fixture
def registry() -> Registry:
    return Registry()


FIELDS = [
    "task_id",
    "name",
    "queue",
    "priority",
    "attempt",
    "max_attempts",
    "payload",
    "metadata",
    "key",
    "parent_id",
    "root_id",
    "correlation_id",
    "created_at",
    "started_at",
    "worker_id",
]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_handler_sees_what_was_submitted(registry: Registry, kind: str) -> None:
    seen: dict[str, Any] = {}

    @registry.task("sync")
    def handler(ctx: TaskContext, payload: Any) -> None:
        seen.update({field: getattr(ctx, field) for field in FIELDS}, given=payload, text=repr(ctx))

    @registry.task("async")
    async def async_handler(ctx: AsyncTaskContext, payload: Any) -> None:
        seen.update({field: getattr(ctx, field) for field in FIELDS}, given=payload, text=repr(ctx))

    parent = submit("elsewhere", queue="other", correlation_id="order-7")
    task = submit(kind, {"a": [1, None]}, key="k", metadata={"who": "me"}, max_attempts=7, parent=parent)
    worker = run(registry)

    text = seen.pop("text")
    row = get(task.pk)
    assert seen == {
        "task_id": task.pk,
        "name": kind,
        "queue": "default",
        "priority": 0,
        "attempt": 1,
        "max_attempts": 7,
        "payload": {"a": [1, None]},
        "given": {"a": [1, None]},
        "metadata": {"who": "me"},
        "key": "k",
        "parent_id": parent.pk,
        "root_id": parent.pk,
        "correlation_id": "order-7",
        "created_at": row.created_at,
        "started_at": row.started_at,
        "worker_id": worker.id,
    }
    assert kind in text
    assert str(task.pk) in text


class TestProgress:
    def test_it_shows_at_once_and_none_leaves_what_was_shown(self, registry: Registry, go: threading.Event) -> None:
        @registry.task
        def work(ctx: TaskContext, payload: Any) -> None:
            shown = []
            ctx.progress(0.5, "half")
            shown.append(in_another_session(lambda: get(ctx.task_id)))
            ctx.progress(message="more than half")
            shown.append(in_another_session(lambda: get(ctx.task_id)))
            ctx.progress(0.75)
            shown.append(in_another_session(lambda: get(ctx.task_id)))
            ctx.succeed([[row.progress, row.message] for row in shown])

        task = submit(work)
        run(registry)

        task.refresh()
        assert task.result == [[0.5, "half"], [0.5, "more than half"], [0.75, "more than half"]]
        assert (task.progress, task.message) == (0.75, "more than half")

    @pytest.mark.parametrize("value", [-0.01, 1.01, float("nan"), float("inf")])
    def test_a_value_out_of_range_is_refused_and_nothing_is_written(self, registry: Registry, value: float) -> None:
        @registry.task
        def work(ctx: TaskContext, payload: Any) -> None:
            with pytest.raises(ValueError, match="value must be from 0 to 1"):
                ctx.progress(value, "not shown")

        task = submit(work)
        run(registry)

        task.refresh()
        assert task.succeeded, task.error
        assert (task.progress, task.message) == (None, "")

    @pytest.mark.parametrize("value", ["0.5", True, b"1"])
    def test_a_value_that_is_no_number_is_refused(self, registry: Registry, value: Any) -> None:
        @registry.task
        async def work(ctx: AsyncTaskContext, payload: Any) -> None:
            with pytest.raises(TypeError, match="value must be a number from 0 to 1"):
                await ctx.progress(value)

        task = submit(work)
        run(registry)
        assert get(task.pk).succeeded, get(task.pk).error

    def test_a_message_is_cut_and_made_printable(self, registry: Registry) -> None:
        @registry.task
        def work(ctx: TaskContext, payload: Any) -> None:
            ctx.progress(message="\x00\ud800" + "x" * 100_000)

        task = submit(work)
        run(registry)

        task.refresh()
        assert task.succeeded, task.error
        assert task.message.startswith("\\x00\\ud800xxx")
        assert 1_900 < len(task.message) <= 2_000

    def test_in_a_transaction_it_shows_at_the_commit_and_locks_nothing(
        self, registry: Registry, go: threading.Event
    ) -> None:
        in_transaction, seen = threading.Event(), threading.Event()

        @registry.task
        def work(ctx: TaskContext, payload: Any) -> None:
            with transaction.atomic():
                ctx.progress(0.5, "half")
                in_transaction.set()
                wait_for(seen)
            wait_for(go)

        task = submit(work)
        with quick(registry).background():
            wait_for(in_transaction)
            if connection.vendor != "sqlite":
                with transaction.atomic():
                    Task.objects.select_for_update(nowait=True).get(pk=task.pk)
            assert get(task.pk).progress is None
            seen.set()
            shown = eventually(lambda: Task.objects.filter(pk=task.pk, progress=0.5).first(), PATIENCE)
            assert shown.is_running
            assert shown.message == "half"
            go.set()

    def test_in_a_transaction_that_rolls_back_it_never_shows(self, registry: Registry) -> None:
        @registry.task
        def work(ctx: TaskContext, payload: Any) -> None:
            with suppress(Rollback), transaction.atomic():
                ctx.progress(0.5, "half")
                raise Rollback

        task = submit(work)
        run(registry)

        task.refresh()
        assert task.succeeded, task.error
        assert (task.progress, task.message) == (None, "")

    def test_a_retry_starts_without_progress(self, registry: Registry) -> None:
        shown = []

        @registry.task
        def work(ctx: TaskContext, payload: Any) -> None:
            row = get(ctx.task_id)
            shown.append((row.progress, row.message))
            ctx.progress(0.5, "half")
            if ctx.attempt == 1:
                raise ValueError("again")

        submit(work)
        run(registry)
        assert shown == [(None, ""), (None, "")]


class TestHeartbeat:
    @pytest.mark.parametrize("kind", ["sync", "async"])
    def test_it_renews_the_lease(self, registry: Registry, kind: str) -> None:
        @registry.task("sync")
        def handler(ctx: TaskContext, payload: Any) -> bool:
            before = get(ctx.task_id)
            ctx.heartbeat()
            return get(ctx.task_id).lease_until > before.lease_until

        @registry.task("async")
        async def async_handler(ctx: AsyncTaskContext, payload: Any) -> bool:
            before = await sync_to_async(get)(ctx.task_id)
            await ctx.heartbeat()
            return (await sync_to_async(get)(ctx.task_id)).lease_until > before.lease_until

        task = submit(kind)
        run(registry, lease=60, heartbeat_interval=50)
        assert get(task.pk).result is True

    def test_in_a_transaction_it_leaves_the_row_alone(self, registry: Registry) -> None:
        @registry.task
        def work(ctx: TaskContext, payload: Any) -> bool:
            before = get(ctx.task_id)
            with transaction.atomic():
                ctx.heartbeat()
                return get(ctx.task_id).lease_until == before.lease_until

        task = submit(work)
        run(registry, lease=60, heartbeat_interval=50)
        assert get(task.pk).result is True

    @locks_rows
    def test_a_row_that_someone_holds_locked_does_not_count_as_renewed(self, registry: Registry) -> None:
        locked, lost = threading.Event(), []

        @registry.task
        def work(ctx: TaskContext, payload: Any) -> None:
            wait_for(locked)
            time.sleep(0.4)  # into the lease, so that one renewed now would end later
            ctx.heartbeat()
            eventually(lambda: Task.objects.expired().filter(pk=ctx.task_id).exists(), PATIENCE)
            lost.append(ctx.lost_lease)

        task = submit(work)
        # No beat but the handler's: the next one by itself comes after the lease.
        worker = quick(registry, lease=1, heartbeat_interval=0.9, concurrency=1)
        with worker.background():
            running(task)
            with another_transaction(lambda: Task.objects.select_for_update().get(pk=task.pk)):
                locked.set()
                eventually(lambda: lost, PATIENCE)
                worker.stop()
        assert lost == [True]


class TestCanceled:
    @pytest.mark.parametrize("kind", ["sync", "async"])
    def test_a_running_handler_sees_it_within_a_second_or_so(self, registry: Registry, kind: str) -> None:
        seen_at = []

        @registry.task("sync")
        def handler(ctx: TaskContext, payload: Any) -> None:
            assert ctx.canceled() is False
            eventually(ctx.canceled, PATIENCE)
            seen_at.append(time.monotonic())

        @registry.task("async")
        async def async_handler(ctx: AsyncTaskContext, payload: Any) -> None:
            assert await ctx.canceled() is False
            while not await ctx.canceled():  # noqa: ASYNC110 - as handlers do
                await asyncio.sleep(0.01)
            seen_at.append(time.monotonic())

        task = submit(kind)
        # The handler asks by itself: no beat comes before the end.
        with quick(registry, lease=60, heartbeat_interval=50).background():
            running(task)
            canceled_at = time.monotonic()
            cancel(task.pk)
            assert ended(task).canceled
        assert seen_at[0] - canceled_at < 3


class TestSettlingEarly:
    @pytest.mark.parametrize("kind", ["sync", "async"])
    def test_succeed_records_at_once_and_what_is_returned_changes_nothing(
        self, registry: Registry, go: threading.Event, kind: str
    ) -> None:
        settled = []

        @registry.task("sync")
        def handler(ctx: TaskContext, payload: Any) -> str:
            settled.append(ctx.settled)
            ctx.succeed({"early": True})
            settled.append(ctx.settled)
            ctx.succeed("twice")
            ctx.fail("thrice")
            wait_for(go)
            return "late"

        @registry.task("async")
        async def async_handler(ctx: AsyncTaskContext, payload: Any) -> str:
            settled.append(ctx.settled)
            await ctx.succeed({"early": True})
            settled.append(ctx.settled)
            await ctx.succeed("twice")
            await ctx.fail("thrice")
            await sync_to_async(wait_for)(go)
            return "late"

        task = submit(kind)
        with quick(registry).background():
            assert ended(task).result == {"early": True}
            go.set()
        assert get(task.pk).result == {"early": True}
        assert settled == [False, True]

    @pytest.mark.parametrize("kind", ["sync", "async"])
    def test_after_succeed_what_is_raised_changes_nothing(self, registry: Registry, kind: str) -> None:
        @registry.task("sync")
        def handler(ctx: TaskContext, payload: Any) -> None:
            ctx.succeed("early")
            raise SystemExit("late")

        @registry.task("async")
        async def async_handler(ctx: AsyncTaskContext, payload: Any) -> None:
            await ctx.succeed("early")
            raise SystemExit("late")

        task = submit(kind)
        run(registry)
        assert get(task.pk).result == "early"
        assert attempts(task) == []

    @pytest.mark.parametrize("kind", ["sync", "async"])
    def test_fail_says_how_the_attempt_failed(self, registry: Registry, kind: str) -> None:
        @registry.task("sync")
        def handler(ctx: TaskContext, payload: Any) -> str:
            ctx.fail("no such order", code="missing", retryable=False, details={"order": 7})
            return "late"

        @registry.task("async")
        async def async_handler(ctx: AsyncTaskContext, payload: Any) -> str:
            await ctx.fail("no such order", code="missing", retryable=False, details={"order": 7})
            return "late"

        task = submit(kind)
        run(registry)

        task.refresh()
        assert task.failed
        assert task.result is None
        error = {key: task.error[key] for key in ("code", "message", "retryable", "details")}
        assert error == {"code": "missing", "message": "no such order", "retryable": False, "details": {"order": 7}}

    def test_a_retryable_fail_is_tried_again(self, registry: Registry) -> None:
        @registry.task
        def work(ctx: TaskContext, payload: Any) -> int:
            if ctx.attempt < 3:
                ctx.fail("not yet", code="early")
            return ctx.attempt

        task = submit(work)
        run(registry)
        assert get(task.pk).result == 3
        assert attempts(task) == [(1, "retried", "early"), (2, "retried", "early")]

    def test_a_result_that_does_not_serialise_is_the_handlers_to_catch(self, registry: Registry) -> None:
        @registry.task
        def work(ctx: TaskContext, payload: Any) -> None:
            with pytest.raises(SerializationError, match=r"result\.items\[1\]"):
                ctx.succeed({"items": [1, {2}]})
            assert not ctx.settled
            ctx.succeed({"items": [1, 2]})

        task = submit(work)
        run(registry)
        assert get(task.pk).result == {"items": [1, 2]}, get(task.pk).error


class TestSettlingInATransaction:
    def test_the_outcome_commits_with_the_handlers_own_writes(self, registry: Registry, go: threading.Event) -> None:
        settled = threading.Event()

        @registry.task
        def work(ctx: TaskContext, payload: Any) -> str:
            with transaction.atomic():
                Counter.objects.create(name="mine")
                ctx.succeed("with my writes")
                settled.set()
                wait_for(go)
            return "late"

        task = submit(work)
        with quick(registry).background():
            wait_for(settled)
            assert get(task.pk).is_running
            assert not Counter.objects.exists()
            go.set()
            assert ended(task).result == "with my writes"
        assert Counter.objects.exists()

    @pytest.mark.parametrize("kind", ["sync", "async"])
    def test_rolled_back_the_end_of_the_call_settles(self, registry: Registry, kind: str) -> None:
        def settle_and_roll_back(ctx: TaskContext) -> None:
            with transaction.atomic():
                Counter.objects.create(name="mine")
                ctx._succeed("never was")
                raise Rollback

        @registry.task("sync")
        def handler(ctx: TaskContext, payload: Any) -> str:
            with pytest.raises(Rollback):
                settle_and_roll_back(ctx)
            return "is"

        @registry.task("async")
        async def async_handler(ctx: AsyncTaskContext, payload: Any) -> str:
            with pytest.raises(Rollback):
                await sync_to_async(settle_and_roll_back)(ctx)
            return "is"

        task = submit(kind)
        run(registry)
        assert get(task.pk).result == "is"
        assert not Counter.objects.exists()

    def test_rolled_back_by_an_error_the_error_is_recorded(self, registry: Registry) -> None:
        @registry.task(max_attempts=1)
        def work(ctx: TaskContext, payload: Any) -> None:
            with transaction.atomic():
                ctx.succeed("never was")
                raise Rollback

        task = submit(work)
        run(registry)
        assert get(task.pk).failed
        assert attempts(task) == [(1, "failed", "unexpected_exception")]

    def test_rolled_back_the_handler_may_settle_again(self, registry: Registry) -> None:
        @registry.task
        def work(ctx: TaskContext, payload: Any) -> str:
            with suppress(Rollback), transaction.atomic():
                ctx.succeed("never was")
                raise Rollback
            ctx.fail("after all", code="second", retryable=False)
            return "late"

        task = submit(work)
        run(registry)
        assert get(task.pk).failed
        assert get(task.pk).error["code"] == "second"

    def test_rolled_back_to_a_savepoint_the_handler_may_settle_again(self, registry: Registry) -> None:
        @registry.task
        def work(ctx: TaskContext, payload: Any) -> str:
            with transaction.atomic():
                with suppress(Rollback), transaction.atomic():
                    ctx.succeed("never was")
                    raise Rollback
                ctx.succeed("after all")
            return "late"

        task = submit(work)
        run(registry)
        assert get(task.pk).result == "after all"

    def test_settled_twice_in_a_transaction_the_first_counts(self, registry: Registry) -> None:
        @registry.task
        def work(ctx: TaskContext, payload: Any) -> None:
            with transaction.atomic():
                ctx.succeed("first")
                with transaction.atomic():
                    ctx.succeed("second")

        task = submit(work)
        run(registry)
        assert get(task.pk).result == "first"

    def test_rolled_back_the_lease_is_kept_alive(self, registry: Registry, go: threading.Event) -> None:
        @registry.task
        def work(ctx: TaskContext, payload: Any) -> str:
            with suppress(Rollback), transaction.atomic():
                ctx.succeed("never was")
                raise Rollback
            wait_for(go)
            return "still mine"

        task = submit(work)
        with quick(registry, lease=0.6).background():
            first = running(task).lease_until
            for _ in range(2):
                first = eventually(
                    lambda seen=first: Task.objects.filter(pk=task.pk, lease_until__gt=seen).first(), PATIENCE
                ).lease_until
            go.set()
            assert ended(task).result == "still mine"
        assert get(task.pk).attempt == 1


def test_async_forms_are_awaitable_one_by_one_and_at_once(registry: Registry) -> None:
    @registry.task
    async def work(ctx: AsyncTaskContext, payload: Any) -> None:
        assert await ctx.canceled() is False
        await asyncio.gather(ctx.progress(0.25, "quarter"), ctx.heartbeat(), ctx.canceled())
        child = await ctx.submit("child")
        assert (await ctx.wait(child, timeout=PATIENCE)).result == "of mine"
        assert ctx.lost_lease is False
        assert not ctx.lease_lost.is_set()
        await ctx.succeed({"child": str(child.pk)})

    @registry.task
    async def child(ctx: AsyncTaskContext, payload: Any) -> str:
        return "of mine"

    task = submit(work)
    run(registry)

    task.refresh()
    assert task.succeeded, task.error
    assert (task.progress, task.message) == (0.25, "quarter")
    assert get(task.result["child"]).parent_id == task.pk


def test_a_handler_that_raises_lost_lease_while_it_holds_it_has_failed(registry: Registry) -> None:
    @registry.task(max_attempts=1)
    def work(ctx: TaskContext, payload: Any) -> None:
        raise LostLease(ctx.task_id, ctx.attempt)

    task = submit(work)
    run(registry)
    assert attempts(task) == [(1, "failed", "unexpected_exception")]
