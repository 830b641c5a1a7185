"""Backpressure: while a queue is full, who submits to it waits; then `QueueFull`."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from asgiref.sync import sync_to_async
from django.db import transaction

from cairnq_django import (
    AlreadyExists,
    AsyncTaskContext,
    LostLease,
    QueueFull,
    Registry,
    Task,
    TaskContext,
    acancel,
    aget,
    asubmit,
    asubmit_many,
    backpressure,
    call,
    cancel,
    get,
    retry,
    submit,
    submit_many,
)
from tests.factories import TaskFactory, new_task
from tests.helpers import eventually, in_threads
from tests.store.sessions import started_in_another_session, statements
from tests.workers import PATIENCE, attempts, ended, expire, quick, run, runs_workers, wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = runs_workers


@pytest.fixture(autouse=True)
def no_grants() -> None:
    backpressure.forget_grants()


class Looks(list[int]):
    """How many tasks each look at a queue found. Other threads learn it only when `held`, if there is one, is set."""

    def __init__(self) -> None:
        self.held: threading.Event | None = None


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    looks = Looks()
    test = threading.current_thread()
    look = backpressure.queued_up_to

    def noted(using: str, queue: str, limit: int) -> int:
        found = look(using, queue, limit)
        if looks.held is not None and threading.current_thread() is not test:
            wait_for(looks.held)
        looks.append(found)
        return found

    monkeypatch.setattr(backpressure, "queued_up_to", noted)
    return looks


def headroom_reads(work: Callable[[], object]) -> int:
    return sum("COUNT(" in sql for sql in statements(work))


def fill(tasks: int, queue: str = "default") -> list[Task]:
    """Put tasks into a queue, as another producer does that has no limit."""
    return Task.objects.bulk_create([new_task(queue=queue) for _ in range(tasks)])


def queued() -> int:
    return Task.objects.queued().count()


def refused(submit: Callable[..., Any] = submit, *args: Any, **options: Any) -> QueueFull:
    before = Task.objects.count()
    with pytest.raises(QueueFull) as raised:
        submit(*(args or ("work",)), **{"max_queue_wait": 0, **options})
    assert Task.objects.count() == before
    return raised.value


class TestTheLimit:
    def test_without_one_a_submit_looks_at_nothing(self) -> None:
        assert headroom_reads(lambda: [submit("work"), *submit_many("work", range(3))]) == 0

    def test_a_queue_takes_as_many_tasks_as_it_allows(self) -> None:
        fill(7)
        for _ in range(3):
            submit("work", max_queue_depth=10)
        error = refused(max_queue_depth=10)
        assert (error.queue, error.depth, error.limit, error.tasks) == ("default", 10, 10, 1)
        assert not error.in_transaction

    def test_it_counts_what_is_delayed_but_not_what_runs_has_ended_or_is_elsewhere(self) -> None:
        for state in ({"running": True}, {"succeeded": True}, {"queue": "Default"}, {"delayed": True}):
            TaskFactory(**state)
        submit("work", max_queue_depth=2)
        assert refused(max_queue_depth=2).depth == 2

    def test_it_holds_for_a_queue_that_others_have_filled_beyond_it(self) -> None:
        fill(5)
        assert refused(max_queue_depth=3).depth == 3

    def test_one_number_is_the_limit_of_every_queue(self, settings: Any) -> None:
        settings.CAIRNQ = {"MAX_QUEUE_DEPTH": 1, "MAX_QUEUE_WAIT": 0}
        for queue in ("default", "mail"):
            submit("work", queue=queue)
            with pytest.raises(QueueFull):
                submit("work", queue=queue)

    def test_queues_that_are_not_named_have_none(self, settings: Any) -> None:
        settings.CAIRNQ = {"MAX_QUEUE_DEPTH": {"mail": 1, "bulk": 2}, "MAX_QUEUE_WAIT": 0}
        taken = {}
        for queue in ("mail", "bulk", "default"):
            with suppress(QueueFull):
                for taken[queue] in range(5):
                    submit("work", queue=queue)
        assert taken == {"mail": 1, "bulk": 2, "default": 4}

    def test_a_task_s_own_queue_counts(self, settings: Any) -> None:
        settings.CAIRNQ = {"MAX_QUEUE_DEPTH": {"mail": 1}}
        send = Registry().task("send", queue="mail")(lambda ctx, payload: None)
        fill(1, "mail")
        assert refused(submit, send).queue == "mail"

    def test_a_call_may_set_its_own(self, settings: Any) -> None:
        settings.CAIRNQ = {"MAX_QUEUE_DEPTH": 2, "MAX_QUEUE_WAIT": 0}
        fill(3)
        with pytest.raises(QueueFull):
            submit("work", max_queue_depth=None, max_queue_wait=None)
        submit("work", max_queue_depth=5)
        assert refused(max_queue_depth=4).depth == 4

    def test_call_passes_it_on(self) -> None:
        fill(1)
        assert refused(call, max_queue_depth=1).depth == 1

    def test_a_retry_is_not_limited(self, settings: Any) -> None:
        settings.CAIRNQ = {"MAX_QUEUE_DEPTH": 1, "MAX_QUEUE_WAIT": 0}
        fill(1)
        assert retry(TaskFactory(failed=True)).is_queued

    def test_a_submit_that_its_key_s_task_would_answer_is_held_back_too(self) -> None:
        task = submit("work", key="k")
        assert refused(key="k", max_queue_depth=1)
        assert submit("work", key="k", max_queue_depth=2) == task


class TestGrants:
    def test_one_look_allows_64_submits(self, settings: Any) -> None:
        settings.CAIRNQ = {"MAX_QUEUE_DEPTH": 1_000}
        assert headroom_reads(lambda: submit("work")) == 1
        assert headroom_reads(lambda: [submit("work") for _ in range(63)]) == 0
        assert headroom_reads(lambda: [submit("work") for _ in range(128)]) == 2

    def test_a_submit_of_many_takes_so_many_at_once(self, settings: Any) -> None:
        settings.CAIRNQ = {"MAX_QUEUE_DEPTH": 1_000}
        assert headroom_reads(lambda: [submit_many("work", range(32)) for _ in range(2)]) == 1
        assert headroom_reads(lambda: submit_many("work", range(65))) == 1
        assert headroom_reads(lambda: submit("work")) == 1

    def test_no_payloads_need_none(self) -> None:
        fill(1)
        assert statements(lambda: submit_many("work", [], max_queue_depth=1)) == []

    def test_a_producer_with_an_old_grant_exceeds_the_limit_by_less_than_64(self) -> None:
        submit("work", max_queue_depth=100)
        fill(99)  # by another producer, as many as it found room for
        for _ in range(63):
            submit("work", max_queue_depth=100)
        assert refused(max_queue_depth=100).depth == 100
        assert queued() == 163

    def test_one_whose_submit_came_to_nothing_lapses(self, settings: Any) -> None:
        settings.CAIRNQ = {"MAX_QUEUE_DEPTH": 6, "MAX_QUEUE_WAIT": 0}
        submit("work", key="k")
        for _ in range(20):
            with pytest.raises(AlreadyExists):
                submit("work", key="k", conflict="reject")
        for _ in range(5):
            submit("work")
        assert refused().depth == 6

    def test_they_are_forgotten_when_settings_change(self, settings: Any) -> None:
        settings.CAIRNQ = {"MAX_QUEUE_DEPTH": 3}
        submit("work")
        fill(2)
        settings.CAIRNQ = {"MAX_QUEUE_DEPTH": 3}
        assert refused().depth == 3

    def test_each_limit_has_its_own(self) -> None:
        fill(2)
        submit("work", max_queue_depth=10)
        assert refused(max_queue_depth=3).depth == 3
        assert refused(max_queue_depth=1).depth == 1

    def test_threads_share_one_and_never_take_more(self) -> None:
        def try_to_submit(n: int) -> bool:
            with suppress(QueueFull):
                return bool(submit("work", max_queue_depth=5, max_queue_wait=0))
            return False

        assert sum(in_threads(20, try_to_submit)) == queued() == 5

    def test_what_is_being_inserted_is_counted_before_it_can_be_seen(self) -> None:
        def try_to_submit(n: int) -> bool:
            with suppress(QueueFull):
                return bool(submit_many("work", range(200), max_queue_depth=500, max_queue_wait=0))
            return False

        assert 1 <= sum(in_threads(8, try_to_submit)) <= 2
        assert queued() <= 500

    @pytest.mark.parametrize(("room", "needed"), [(8, 1), (0, 2)])
    def test_threads_that_come_while_one_looks_wait_for_what_it_finds(
        self, looks: Looks, go: threading.Event, room: int, needed: int
    ) -> None:
        fill(8 - room)
        looks.held = go
        sessions = [
            started_in_another_session(lambda: submit("work", max_queue_depth=8, max_queue_wait=0)) for _ in range(8)
        ]
        eventually(lambda: threads_in("take") == 8)
        go.set()
        admitted = [session for session in sessions if session.exception() is None]
        assert len(admitted) == room
        # The first look began before most of them came: a "no" is good for those who came before it.
        assert len(looks) == needed


def threads_in(function: str) -> int:
    """How many threads are in a function of that name."""
    return sum(function in names_of(frame) for frame in sys._current_frames().values())


def names_of(frame: Any) -> Iterator[str]:
    while frame is not None:
        yield frame.f_code.co_name
        frame = frame.f_back


class TestManyAtOnce:
    def test_they_get_in_all_or_none(self) -> None:
        fill(80)
        error = refused(submit_many, "work", range(30), max_queue_depth=100)
        assert (error.depth, error.limit, error.tasks) == (80, 100, 30)
        assert len(submit_many("work", range(20), max_queue_depth=100)) == 20

    def test_more_than_64_need_room_for_all(self) -> None:
        fill(50)
        assert refused(submit_many, "work", range(151), max_queue_depth=200).depth == 50
        assert len(submit_many("work", range(150), max_queue_depth=200)) == 150

    @pytest.mark.parametrize("function", [submit_many, asubmit_many])
    def test_more_than_the_limit_are_refused_at_once(self, function: Any, looks: Looks) -> None:
        with pytest.raises(
            ValueError, match=r"^1,001 tasks never fit into queue 'default', .* at most 1,000 .*; split"
        ):
            finish(function("work", range(1_001), max_queue_depth=1_000))
        assert not looks
        assert queued() == 0


def finish(result: Any) -> Any:
    return asyncio.run(result) if asyncio.iscoroutine(result) else result


class TestWaiting:
    def test_a_submit_waits_until_there_is_room(self, looks: Looks) -> None:
        tasks = fill(3)
        waiting = started_in_another_session(lambda: submit("late", max_queue_depth=3, max_queue_wait=PATIENCE))
        eventually(lambda: len(looks) >= 2)
        assert not waiting.done()
        cancel(tasks[0])
        assert get(waiting.result()).name == "late"
        assert queued() == 3

    def test_many_wait_until_there_is_room_for_all(self, looks: Looks) -> None:
        tasks = fill(100)
        waiting = started_in_another_session(
            lambda: submit_many("late", range(70), max_queue_depth=100, max_queue_wait=PATIENCE)
        )
        for task in tasks[:69]:
            cancel(task)
        seen = len(looks)
        eventually(lambda: len(looks) >= seen + 2)
        assert not waiting.done()
        cancel(tasks[69])
        assert len(waiting.result()) == 70

    def test_it_gives_up_when_its_time_is_up(self, settings: Any, looks: Looks) -> None:
        settings.CAIRNQ = {"MAX_QUEUE_DEPTH": 3, "MAX_QUEUE_WAIT": 0.15}
        fill(3)
        error = refused(max_queue_wait=None)
        assert error.waited >= 0.15
        assert len(looks) >= 3

    def test_a_wait_of_zero_looks_once(self, looks: Looks) -> None:
        fill(3)
        assert refused(max_queue_depth=3, max_queue_wait=0).waited < 0.15
        assert looks == [3]

    def test_those_who_wait_together_look_for_each_other(self, looks: Looks) -> None:
        fill(3)
        in_threads(20, lambda n: refused_in_a_thread(max_queue_wait=1.5, max_queue_depth=3))
        # Each alone would look 7 to 12 times in that time, first and last look included.
        assert len(looks) < 20 * 5

    def test_it_waits_in_a_transaction_s_on_commit_hook(self) -> None:
        fill(1)
        errors = []
        with transaction.atomic():
            transaction.on_commit(lambda: errors.append(refused(max_queue_depth=1, max_queue_wait=0.05)))
        (error,) = errors
        assert not error.in_transaction
        assert error.waited >= 0.05


def refused_in_a_thread(**options: Any) -> None:
    with pytest.raises(QueueFull):
        submit("work", **options)


class TestInATransaction:
    def test_it_looks_once_and_says_why_it_does_not_wait(self, looks: Looks) -> None:
        fill(2)
        with transaction.atomic():
            error = refused(max_queue_depth=2, max_queue_wait=PATIENCE)
            submit("work", max_queue_depth=3)
        assert looks == [2, 2]
        assert (error.depth, error.in_transaction) == (2, True)
        assert "it holds 2 tasks. In the open transaction submit() does not wait" in str(error)
        assert queued() == 3

    def test_what_it_submitted_itself_counts(self) -> None:
        with transaction.atomic():
            submit_many("work", range(3), max_queue_depth=70)
            submit_many("work", range(65), max_queue_depth=70)
            assert refused(submit_many, "work", range(3), max_queue_depth=70, max_queue_wait=PATIENCE).depth == 68

    def test_one_look_allows_64_submits_there_too(self) -> None:
        with transaction.atomic():
            assert headroom_reads(lambda: [submit("work", max_queue_depth=1_000) for _ in range(128)]) == 2

    def test_what_is_rolled_back_makes_room(self) -> None:
        with suppress(ZeroDivisionError), transaction.atomic():
            submit_many("work", range(3), max_queue_depth=3)
            raise ZeroDivisionError
        assert len(submit_many("work", range(3), max_queue_depth=3)) == 3

    def test_it_does_not_wait_for_the_look_of_another_thread(self, looks: Looks, go: threading.Event) -> None:
        looks.held = go
        other = started_in_another_session(lambda: submit("work", max_queue_depth=2))
        eventually(lambda: threads_in("noted") == 1)
        with transaction.atomic():
            submit("work", max_queue_depth=2)
        assert not other.done()
        go.set()
        assert other.result()
        assert refused(max_queue_depth=2).depth == 2

    def test_one_that_is_managed_by_hand_is_one(self) -> None:
        fill(1)
        transaction.set_autocommit(False)
        try:
            assert refused(max_queue_depth=1, max_queue_wait=PATIENCE).in_transaction
        finally:
            transaction.rollback()
            transaction.set_autocommit(True)

    def test_an_async_submit_does_not_wait_there_either(self, looks: Looks) -> None:
        fill(1)

        async def submit_in_a_transaction() -> QueueFull:
            atomic = transaction.atomic()
            await sync_to_async(atomic.__enter__)()
            try:
                with pytest.raises(QueueFull) as raised:
                    await asubmit("work", max_queue_depth=1, max_queue_wait=PATIENCE)
            finally:
                await sync_to_async(atomic.__exit__)(None, None, None)
            return raised.value

        assert asyncio.run(submit_in_a_transaction()).in_transaction
        assert looks == [1]


class TestAsync:
    def test_submits_that_wait_hold_no_thread(self, looks: Looks) -> None:
        tasks = fill(15)
        before = threading.active_count()
        limits: Any = {"max_queue_depth": 15, "max_queue_wait": PATIENCE}

        async def submit_and_make_room() -> tuple[list[Task], int]:
            waiting = [asyncio.ensure_future(asubmit("late", n, **limits)) for n in range(10)]
            many = asyncio.ensure_future(asubmit_many("late", range(10, 15), **limits))
            while len(looks) < 20:
                # What else the program asks of the database is answered meanwhile.
                assert (await aget(tasks[0].pk)).is_queued
            threads = threading.active_count()
            assert not any(future.done() for future in [*waiting, many])
            for task in tasks:
                await acancel(task)
            return await asyncio.gather(*waiting) + await many, threads

        submitted, threads = asyncio.run(submit_and_make_room())
        assert {get(task.pk).payload for task in submitted} == set(range(15))
        assert threads <= before + 1  # the database's thread

    def test_one_gives_up_when_its_time_is_up(self) -> None:
        fill(1)
        error = refused(lambda *args, **options: asyncio.run(asubmit(*args, **options)), max_queue_depth=1)
        assert (error.depth, error.in_transaction) == (1, False)
        error = refused(
            lambda *args, **options: asyncio.run(asubmit(*args, **options)), max_queue_depth=1, max_queue_wait=0.1
        )
        assert error.waited >= 0.1

    def test_one_that_is_cancelled_leaves_nothing_behind(self, looks: Looks) -> None:
        tasks = fill(3)

        async def give_up() -> None:
            waiting = asyncio.ensure_future(asubmit("late", max_queue_depth=3, max_queue_wait=PATIENCE))
            await sync_to_async(eventually, thread_sensitive=False)(lambda: len(looks) >= 2)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert asyncio.all_tasks() == {asyncio.current_task()}

        asyncio.run(give_up())
        assert queued() == 3
        for task in tasks:
            cancel(task)
        for _ in range(3):
            submit("work", max_queue_depth=3, max_queue_wait=0)

    def test_one_that_is_cancelled_in_the_middle_of_a_look_is_submitted_whole(
        self, looks: Looks, go: threading.Event
    ) -> None:
        looks.held = go

        async def give_up() -> None:
            looking = asyncio.ensure_future(asubmit_many("work", range(3), max_queue_depth=5))
            await sync_to_async(eventually, thread_sensitive=False)(lambda: threads_in("noted"))
            looking.cancel()
            go.set()
            with suppress(asyncio.CancelledError):
                await looking

        asyncio.run(give_up())
        eventually(lambda: queued() == 3)
        submit_many("work", range(2), max_queue_depth=5)
        assert refused(max_queue_depth=5).depth == 5

    def test_many_producers_keep_the_limit(self) -> None:
        async def produce() -> list[Any]:
            submits = (asubmit("work", max_queue_depth=70, max_queue_wait=0) for _ in range(80))
            return await asyncio.gather(*submits, return_exceptions=True)

        outcomes = asyncio.run(produce())
        assert sum(isinstance(outcome, Task) for outcome in outcomes) == queued() == 70
        assert sum(isinstance(outcome, QueueFull) for outcome in outcomes) == 10

    def test_an_option_that_does_not_exist_is_refused(self) -> None:
        with pytest.raises(TypeError, match="unexpected keyword argument 'retries'"):
            asyncio.run(asubmit("work", retries=5))  # type: ignore[call-arg]


class TestInAHandler:
    @pytest.fixture
    def registry(self, go: threading.Event) -> Registry:
        registry = Registry()
        late: dict[str, Any] = {"queue": "children", "max_queue_depth": 2}

        @registry.task("sync")
        def submit_child(ctx: TaskContext, payload: float) -> str:
            return str(ctx.submit("late", max_queue_wait=payload, **late).pk)

        @registry.task("async")
        async def submit_child_async(ctx: AsyncTaskContext, payload: float) -> str:
            return str((await ctx.submit("late", max_queue_wait=payload, **late)).pk)

        @registry.task
        async def echo(ctx: AsyncTaskContext, payload: Any) -> Any:
            return payload

        return registry

    @pytest.mark.parametrize("kind", ["sync", "async"])
    def test_a_child_waits_for_room_and_holds_nobody_up(self, registry: Registry, looks: Looks, kind: str) -> None:
        tasks = fill(2, "children")
        parent = submit(kind, PATIENCE)
        with quick(registry).background():
            eventually(lambda: len(looks) >= 2, PATIENCE)
            assert ended(submit("echo", "meanwhile")).result == "meanwhile"
            assert get(parent.pk).is_running
            cancel(tasks[0])
            child = get(ended(parent).result)
        assert (child.name, child.parent_id, child.queue) == ("late", parent.pk, "children")

    @pytest.mark.parametrize("kind", ["sync", "async"])
    def test_an_attempt_that_is_lost_meanwhile_waits_no_longer(self, looks: Looks, kind: str) -> None:
        registry = Registry()
        late: dict[str, Any] = {"queue": "children", "max_queue_depth": 2, "max_queue_wait": 100 * PATIENCE}
        lost = []

        @registry.task("sync")
        def submit_child(ctx: TaskContext, payload: Any) -> None:
            if ctx.attempt == 1:
                with pytest.raises(LostLease):
                    ctx.submit("late", **late)
                lost.append(ctx.attempt)

        @registry.task("async")
        async def submit_child_async(ctx: AsyncTaskContext, payload: Any) -> None:
            if ctx.attempt == 1:
                with pytest.raises(LostLease):
                    await ctx.submit("late", **late)
                lost.append(ctx.attempt)

        fill(2, "children")
        parent = submit(kind)
        with quick(registry, lease=1, heartbeat_interval=0.05).background():
            eventually(lambda: len(looks) >= 2, PATIENCE)
            expire(parent)
            eventually(lambda: lost == [1], PATIENCE)
            assert ended(parent).succeeded
        assert not Task.objects.filter(parent_id=parent.pk).exists()

    @pytest.mark.parametrize("kind", ["sync", "async"])
    def test_an_option_that_does_not_exist_is_refused(self, kind: str) -> None:
        registry = Registry()

        @registry.task("sync")
        def handler(ctx: TaskContext, payload: Any) -> None:
            ctx.submit("child", retries=5)

        @registry.task("async")
        async def async_handler(ctx: AsyncTaskContext, payload: Any) -> None:
            await ctx.submit("child", retries=5)

        task = submit(kind, max_attempts=1)
        run(registry)
        assert task.refresh().error["message"] == "got an unexpected keyword argument 'retries'"

    @pytest.mark.parametrize("kind", ["sync", "async"])
    def test_a_queue_that_stays_full_fails_the_attempt(self, registry: Registry, kind: str) -> None:
        fill(2, "children")
        parent = submit(kind, 0, max_attempts=1)
        run(registry)
        assert attempts(parent) == [(1, "failed", "unexpected_exception")]
        assert parent.refresh().error["type"].endswith("QueueFull")


class TestManyProducers:
    @pytest.mark.parametrize("limit", [5, 80])
    def test_a_process_never_exceeds_the_limit(self, limit: int) -> None:
        registry = Registry()
        registry.task("work")(lambda ctx, payload: None)
        depths: list[int] = []
        over = threading.Event()

        def watch() -> None:
            while not over.is_set():
                depths.append(queued())

        def produce(n: int) -> None:
            for _ in range(15):
                submit("work", max_queue_depth=limit, max_queue_wait=PATIENCE)
            submit_many("work", range(5), max_queue_depth=limit, max_queue_wait=PATIENCE)

        submit_many("work", range(limit), max_queue_depth=limit)
        watching = started_in_another_session(watch)
        try:
            with quick(registry, concurrency=2).background():
                in_threads(6, produce)
        finally:
            over.set()
            watching.result()
        assert Task.objects.count() == limit + 6 * 20
        assert max(depths) <= limit

    def test_several_processes_exceed_it_by_less_than_64_each(self, subprocess_env: dict[str, str]) -> None:
        producers = [
            subprocess.Popen([sys.executable, "-c", PRODUCER], env=subprocess_env, stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        submitted = [int(producer.communicate(timeout=60)[0]) for producer in producers]
        assert sum(submitted) == queued()
        assert 100 <= queued() < 100 + 2 * 64

    @pytest.mark.skipif(not hasattr(os, "fork"), reason="no processes are forked here")
    def test_a_forked_process_starts_without_its_parent_s_grant(self, subprocess_env: dict[str, str]) -> None:
        subprocess.run([sys.executable, "-c", FORKING_PRODUCER], env=subprocess_env, check=True, timeout=60)
        assert queued() == 10


FORKING_PRODUCER = """
import os, sys
import django
django.setup()
from django.db import connections
from cairnq_django import QueueFull, submit, submit_many
submit("work", max_queue_depth=10)
submit_many("work", range(9))
connections.close_all()
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
try:
    submit("work", max_queue_depth=10, max_queue_wait=0)
except QueueFull:
    pass
"""

PRODUCER = """
import django
django.setup()
from cairnq_django import QueueFull, submit
submitted = 0
try:
    while True:
        submit("work", max_queue_depth=100, max_queue_wait=0)
        submitted += 1
except QueueFull:
    print(submitted)
"""
