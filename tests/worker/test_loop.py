"""What a worker claims, and when."""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import Any

import pytest

from cairnq_django import AsyncTaskContext, Registry, Task, TaskContext, get, submit, submit_many
from cairnq_django.worker.threads import HandlerThread
from tests.factories import TaskFactory
from tests.helpers import eventually
from tests.workers import PATIENCE, echo_and_wait, ended, quick, reports, run, running, runs_workers

pytestmark = runs_workers


@pytest.fixture
def registry(go: threading.Event) -> Registry:
    return echo_and_wait(go)


def test_it_claims_names_that_it_has_handlers_for_and_no_others(registry: Registry) -> None:
    known, unknown = submit("echo"), submit("Echo")
    run(registry)
    assert get(known.pk).succeeded
    assert get(unknown.pk).is_queued
    assert get(unknown.pk).attempt == 0


def test_it_claims_from_its_queues_and_no_others(registry: Registry) -> None:
    tasks = {queue: submit("echo", queue=queue) for queue in ("default", "mail", "MAIL", "other")}
    run(registry, queues=["mail", "other"])
    assert {queue for queue, task in tasks.items() if get(task.pk).succeeded} == {"mail", "other"}


def test_it_claims_no_more_than_it_has_free_slots_for(registry: Registry, go: threading.Event) -> None:
    submit_many("wait", range(5))
    with quick(registry, concurrency=2).background():
        eventually(lambda: Task.objects.running().count() == 2, PATIENCE)
        # A slot that is freed is filled, and no more than that.
        one_more = submit("echo", priority=1)
        assert Task.objects.running().count() == 2
        assert Task.objects.queued().count() == 4
        go.set()
        assert ended(one_more).succeeded
        eventually(lambda: Task.objects.succeeded().count() == 6, PATIENCE)


def test_it_claims_no_more_at_once_than_it_is_told(registry: Registry, go: threading.Event) -> None:
    together = threading.Barrier(3, timeout=PATIENCE)

    @registry.task
    def meet(ctx: TaskContext, payload: Any) -> None:
        together.wait()

    # All slots are filled, if by more than one claim.
    tasks = submit_many(meet, range(3))
    run(registry, concurrency=3, claim_batch=1, poll_interval=60)
    assert all(get(task.pk).succeeded for task in tasks)


def test_it_runs_the_urgent_first_and_then_the_oldest(registry: Registry) -> None:
    order = []

    @registry.task
    def note(ctx: TaskContext, payload: Any) -> None:
        order.append(payload)

    submit(note, "second")
    submit(note, "third")
    submit(note, "last", priority=-1)
    submit(note, "first", priority=5)
    run(registry, concurrency=1)
    assert order == ["first", "second", "third", "last"]


def test_a_free_slot_is_filled_without_waiting_for_the_poll(registry: Registry) -> None:
    tasks = submit_many("echo", range(20))
    began = time.monotonic()
    run(registry, concurrency=2, poll_interval=60)
    assert time.monotonic() - began < 30
    assert all(get(task.pk).succeeded for task in tasks)


def test_what_is_submitted_later_is_found_by_the_poll(registry: Registry) -> None:
    with quick(registry).background():
        for number in range(3):
            assert ended(submit("echo", number)).result == number


def test_a_task_that_falls_due_is_found_by_the_poll(registry: Registry) -> None:
    task = submit("echo", delay=0.3)
    with quick(registry).background():
        assert ended(task).succeeded
    assert get(task.pk).started_at >= task.run_at


def test_while_all_slots_are_taken_dead_workers_tasks_are_recovered_all_the_same(
    registry: Registry, go: threading.Event
) -> None:
    with quick(registry, concurrency=1, lease=0.6).background():
        held = submit("wait")
        running(held)
        lost = TaskFactory(name="echo", expired=True)
        eventually(lambda: get(lost.pk).is_queued, PATIENCE)
        go.set()
        assert ended(lost).succeeded
        assert ended(held).succeeded


def test_a_worker_is_named_after_its_host_and_process(registry: Registry) -> None:
    worker = run(registry)
    assert worker.id.startswith(f"{socket.gethostname()[:90]}")
    assert f"-{os.getpid()}-" in worker.id


@pytest.mark.parametrize("claimed_at_once", [1, 3])
def test_tasks_that_no_thread_can_be_started_for_are_given_back(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, claimed_at_once: int
) -> None:
    refusals = iter([RuntimeError("can't start new thread")] * 2)
    start = HandlerThread.start

    def start_in_the_end(thread: HandlerThread) -> None:
        for refusal in refusals:
            raise refusal
        start(thread)

    monkeypatch.setattr(HandlerThread, "start", start_in_the_end)
    tasks = submit_many("echo", range(3))
    with reports() as reported:
        run(registry, claim_batch=claimed_at_once)
    assert [get(task.pk).result for task in tasks] == [0, 1, 2]
    assert [get(task.pk).attempt for task in tasks] == [1, 1, 1]
    assert [(phase, str(error)) for phase, error in reported] == [("claim", "can't start new thread")] * 2


def test_an_error_in_the_loop_itself_is_survived(registry: Registry) -> None:
    class Faulty(Registry):
        fails = True

        @property
        def names(self) -> tuple[str, ...]:
            if self.fails:
                self.fails = False
                raise ValueError("once")
            return registry.names

        def get(self, name: str) -> Any:
            return registry.get(name)

    task = submit("echo")
    with reports() as reported:
        run(Faulty())
    assert get(task.pk).succeeded
    assert [str(error) for _, error in reported] == ["once"]


def test_sync_and_async_handlers_share_the_slots(registry: Registry) -> None:
    @registry.task
    async def echo_async(ctx: AsyncTaskContext, payload: Any) -> Any:
        return payload

    tasks = [submit(name, number) for number in range(10) for name in ("echo", "echo_async")]
    run(registry, concurrency=1)
    assert [get(task.pk).result for task in tasks] == [number for number in range(10) for _ in range(2)]
