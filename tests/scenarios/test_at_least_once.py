"""Each task is delivered at least once, and while nothing goes wrong exactly once."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from cairnq_django import AsyncTaskContext, Registry, Task, TaskContext, get, submit, submit_many
from tests.factories import TaskFactory
from tests.helpers import eventually
from tests.workers import PATIENCE, attempts, expire, quick, run, runs_workers

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = runs_workers


class Gauge:
    """How many calls run at a time, and which tasks were delivered how often."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = 0
        self.most = 0
        self.delivered: Counter[Any] = Counter()

    @contextmanager
    def call(self, payload: Any) -> Iterator[None]:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
            self.delivered[payload] += 1
        try:
            yield
        finally:
            with self._lock:
                self._now -= 1


@pytest.fixture
def gauge() -> Gauge:
    return Gauge()


@pytest.fixture
def registry(gauge: Gauge) -> Registry:
    registry = Registry()

    @registry.task
    def work(ctx: TaskContext, payload: Any) -> Any:
        with gauge.call(payload):
            return payload

    @registry.task
    async def work_async(ctx: AsyncTaskContext, payload: Any) -> Any:
        with gauge.call(payload):
            return payload

    return registry


def test_many_tasks_on_few_slots_run_exactly_once_each(registry: Registry, gauge: Gauge) -> None:
    submit_many("work", range(200))
    submit_many("work_async", range(200, 300))
    run(registry, concurrency=8)
    assert gauge.delivered == Counter(range(300))
    assert gauge.most <= 8
    assert Task.objects.succeeded().filter(attempt=1).count() == 300


def test_so_they_do_on_several_workers(registry: Registry, gauge: Gauge) -> None:
    submit_many("work", range(120))
    workers = [quick(registry, concurrency=4) for _ in range(3)]
    with ExitStack() as stack:
        for worker in workers:
            stack.enter_context(worker.background())
        eventually(lambda: Task.objects.succeeded().count() == 120, PATIENCE)
    assert gauge.delivered == Counter(range(120))
    assert set(Task.objects.values_list("attempt", flat=True)) == {1}


def test_the_slots_are_used_all_and_never_more_than_all(registry: Registry, gauge: Gauge) -> None:
    together = threading.Barrier(3, timeout=PATIENCE)

    @registry.task
    def meet(ctx: TaskContext, payload: Any) -> None:
        with gauge.call(payload):
            together.wait()

    tasks = submit_many(meet, range(9))
    run(registry, concurrency=3)
    assert all(get(task.pk).succeeded for task in tasks)
    assert gauge.most == 3


def test_a_dead_workers_task_is_delivered_again(registry: Registry, gauge: Gauge) -> None:
    task = TaskFactory(name="work", payload="mine", running=True, progress=0.5, message="half")
    expire(task)
    run(registry)
    task.refresh()
    assert task.result == "mine"
    assert task.attempt == 2
    assert (task.progress, task.message) == (None, "")
    assert attempts(task) == [(1, "retried", "lease_expired")]


def test_a_task_that_kills_its_workers_is_not_delivered_for_ever(registry: Registry, gauge: Gauge) -> None:
    task = TaskFactory(name="work", running=True, attempt=3, max_attempts=3)
    expire(task)
    run(registry)
    task.refresh()
    assert task.failed
    assert task.error["code"] == "lease_expired"
    assert task.worker_id in task.error["message"]
    assert gauge.delivered == Counter()


def test_a_living_workers_task_is_left_to_it(registry: Registry, gauge: Gauge) -> None:
    task = TaskFactory(name="work", running=True)
    run(registry)
    assert get(task.pk).is_running
    assert gauge.delivered == Counter()


def test_a_task_delivered_after_its_worker_died_can_still_be_found_by_its_key(registry: Registry) -> None:
    task = TaskFactory(name="work", payload=1, running=True, key="k")
    expire(task)
    assert submit("work", 2, key="k").pk == task.pk
    run(registry)
    assert get(task.pk).result == 1
