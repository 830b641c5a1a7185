"""Ceilings on calls hold at the claim: what is above one stays queued for other workers and holds up nothing else."""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from django.db import DEFAULT_DB_ALIAS as DB

from cairnq_django import AsyncTaskContext, Registry, Task, TaskContext, get, submit, submit_many
from cairnq_django.models import TaskAttempt
from tests.factories import TaskFactory, new_task
from tests.helpers import eventually
from tests.workers import ended, quick, reports, run, running, runs_workers, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = runs_workers


class Overlap:
    """How many handlers were inside at the same time, by their own account."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self.most = 0
        self.calls = 0

    @contextmanager
    def inside(self) -> Iterator[None]:
        with self._lock:
            self._inside += 1
            self.calls += 1
            self.most = max(self.most, self._inside)
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1


def test_names_that_share_a_resource_of_one_exclude_each_other() -> None:
    registry = Registry()
    overlap = Overlap()

    @registry.task(resource="gpu")
    def render(ctx: TaskContext, payload: Any) -> None:
        with overlap.inside():
            time.sleep(0.001)

    @registry.task(resource="gpu")
    async def encode(ctx: AsyncTaskContext, payload: Any) -> None:
        with overlap.inside():
            await ctx.progress(0.5)

    # By hand: CAIRNQ_TEST_TASKS=500
    count = int(os.environ.get("CAIRNQ_TEST_TASKS", "60"))
    submit_many("render", range(count // 2))
    submit_many("encode", range(count // 2))
    run(registry, concurrency=8, resources={"gpu": 1})

    assert Task.objects.succeeded().count() == overlap.calls == count // 2 * 2
    assert overlap.most == 1


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        ({"concurrency": 2}, 2),
        ({"resource": "gpu"}, 3),
        ({"concurrency": 4, "resource": "gpu"}, 3),
        ({"concurrency": 2, "resource": "gpu", "batch": 2}, 2),
        ({"concurrency": 100}, 5),
    ],
    ids=str,
)
def test_the_tightest_ceiling_binds_and_is_reached(limits: dict[str, Any], most: int) -> None:
    registry = Registry()
    overlap = Overlap()
    full = threading.Barrier(most)

    def handle() -> None:
        with overlap.inside():
            # Only so many at the same time get through here; the last ones may be fewer.
            full.wait(20)

    if "batch" in limits:
        registry.task("work", **limits)(lambda items: handle())
    else:
        registry.task("work", **limits)(lambda ctx, payload: handle())

    calls = 3 * most
    submit_many("work", range(calls * limits.get("batch", 1)))
    run(registry, concurrency=5, resources={"gpu": 3})

    assert Task.objects.succeeded().count() == calls * limits.get("batch", 1)
    assert overlap.most == most


def test_work_above_a_ceiling_stays_queued_for_another_worker(go: threading.Event) -> None:
    registry = Registry()

    @registry.task(concurrency=1)
    def alone(ctx: TaskContext, payload: Any) -> str:
        wait_for(go)
        return ctx.worker_id

    first, second, third = (submit("alone") for _ in range(3))
    with quick(registry).background() as worker, quick(registry).background() as other:
        running(first)
        running(second)
        assert get(third.pk).is_queued
        go.set()
        assert {ended(first).result, ended(second).result} == {worker.id, other.id}
        assert ended(third).succeeded


def test_what_waits_for_a_resource_holds_up_nothing_behind_it(go: threading.Event) -> None:
    registry = Registry()

    @registry.task(resource="gpu")
    def blocked(ctx: TaskContext, payload: Any) -> None:
        wait_for(go)

    @registry.task
    def other(ctx: TaskContext, payload: Any) -> None: ...

    # By hand: CAIRNQ_TEST_TASKS=20000
    Task.objects.bulk_create(
        [new_task(name="blocked", priority=10) for _ in range(int(os.environ.get("CAIRNQ_TEST_TASKS", "500")))]
    )
    with quick(registry, resources={"gpu": 1}, poll_interval=0.1).background():
        eventually(lambda: Task.objects.running().exists(), 20)
        others = submit_many("other", range(50))
        eventually(lambda: not Task.objects.filter(pk__in=[task.pk for task in others]).live().exists(), 20)
        assert Task.objects.running().filter(name="blocked").count() == 1
        Task.objects.queued().filter(name="blocked")._raw_delete(DB)
        go.set()


def test_a_deep_backlog_of_one_name_starves_no_other(go: threading.Event) -> None:
    registry = Registry()
    order: list[str] = []

    @registry.task(concurrency=2)
    def deep(ctx: TaskContext, payload: Any) -> None:
        order.append("deep")

    @registry.task(batch=5)
    def batched(items: list[TaskContext]) -> None:
        order.append("batched")

    @registry.task
    def plain(ctx: TaskContext, payload: Any) -> None:
        order.append("plain")

    submit_many("deep", range(300), priority=10)
    submit_many("batched", range(10))
    submit_many("plain", range(3))
    run(registry, concurrency=2)

    assert order.count("deep") == 300
    assert max(order.index("plain"), order.index("batched")) < 20


def test_an_abandoned_handler_counts_against_its_resource_until_it_ends(go: threading.Event) -> None:
    registry = Registry()
    overlap = Overlap()

    @registry.task(resource="gpu", max_run=0.1, max_attempts=1)
    def hang(ctx: TaskContext, payload: Any) -> None:
        with overlap.inside():
            wait_for(go)

    @registry.task(resource="gpu")
    def after(ctx: TaskContext, payload: Any) -> None:
        with overlap.inside():
            pass

    @registry.task
    def free(ctx: TaskContext, payload: Any) -> None: ...

    hanging = submit(hang)
    with quick(registry, resources={"gpu": 1}).background():
        assert ended(hanging).error["code"] == "handler_timeout"
        waiting = submit("after")
        assert ended(submit("free")).succeeded
        assert get(waiting.pk).is_queued
        go.set()
        assert ended(waiting).succeeded
    assert overlap.most == 1


def test_a_crashed_holder_blocks_neither_its_redelivery_nor_others() -> None:
    registry = Registry()

    @registry.task(resource="gpu")
    def render(ctx: TaskContext, payload: Any) -> int:
        return ctx.attempt

    crashed = TaskFactory(name="render", running=True, worker_id="crashed")
    fresh = submit("render")
    with quick(registry, resources={"gpu": 1}, lease=0.3).background():
        assert ended(fresh).result == 1
        Task.objects.filter(pk=crashed.pk).update(lease_until=fresh.created_at)
        assert ended(crashed).result == 2
    assert TaskAttempt.objects.get().error["code"] == "lease_expired"


def test_a_worker_that_has_none_of_a_resource_leaves_its_work_to_others() -> None:
    registry = Registry()

    @registry.task(resource="gpu")
    def render(ctx: TaskContext, payload: Any) -> None: ...

    @registry.task
    def plain(ctx: TaskContext, payload: Any) -> None: ...

    task, other = submit("render"), submit("plain")
    run(registry, resources={"gpu": 0})
    assert get(task.pk).is_queued
    assert get(other.pk).succeeded

    run(registry, resources={"gpu": 1})
    assert get(task.pk).succeeded


def test_a_handler_of_an_undeclared_resource_registered_while_it_runs_is_logged_and_left_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    registry = Registry()

    @registry.task
    def plain(ctx: TaskContext, payload: Any) -> None: ...

    with quick(registry).background() as worker, reports() as reported:
        assert ended(submit("plain")).succeeded

        @worker.task(resource="gpu")
        def render(ctx: TaskContext, payload: Any) -> None: ...

        task = submit("render")
        assert ended(submit("plain")).succeeded
    assert get(task.pk).is_queued
    assert "draws on the resource 'gpu', which this worker does not declare" in caplog.text
    assert not reported
