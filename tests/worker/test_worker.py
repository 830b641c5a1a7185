"""The worker as its users hold it: run, background, stop."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from cairnq_django import Registry, Task, TaskContext, Worker, get, submit, task
from cairnq_django.registry import default_registry
from tests.helpers import eventually
from tests.workers import PATIENCE, ended, quick, running, runs_workers, wait_for

pytestmark = runs_workers


@pytest.fixture
def registry() -> Registry:
    registry = Registry()

    @registry.task
    def echo(ctx: TaskContext, payload: Any) -> Any:
        return payload

    return registry


def test_without_a_registry_it_serves_the_default_one() -> None:
    worker = Worker()
    assert worker.registry is default_registry
    assert worker.task == task


def test_its_task_decorator_registers_on_its_own_registry(registry: Registry) -> None:
    worker = quick(registry)

    @worker.task(queue="mail")
    def added_later(ctx: TaskContext, payload: Any) -> str:
        return "found"

    assert added_later.queue == "mail"
    assert registry.get("added_later") is added_later
    assert "added_later" not in default_registry


def test_a_handler_that_is_registered_while_it_runs_is_served(registry: Registry) -> None:
    worker = quick(registry)
    submitted = submit("later", "mine")
    with worker.background():
        assert ended(submit("echo")).succeeded
        assert get(submitted.pk).is_queued

        @worker.task
        def later(ctx: TaskContext, payload: Any) -> Any:
            return payload

        assert ended(submitted).result == "mine"


def test_the_first_handler_may_be_registered_while_it_runs() -> None:
    submitted = submit("first", "mine")
    with quick(Registry()).background() as worker:

        @worker.task
        def first(ctx: TaskContext, payload: Any) -> Any:
            return payload

        assert ended(submitted).result == "mine"


def test_run_works_in_the_calling_thread_until_it_is_stopped(registry: Registry) -> None:
    worker = quick(registry)

    @registry.task
    def stop(ctx: TaskContext, payload: Any) -> str:
        worker.stop()
        return "the last"

    task = submit(stop)
    worker.run()
    assert get(task.pk).result == "the last"
    assert get(task.pk).worker_id == worker.id
    assert (worker.hanging, worker.worn_out) == (0, False)


def test_after_so_many_tasks_it_ends_to_be_replaced_and_leaves_the_others_as_they_were(registry: Registry) -> None:
    worker = quick(registry, concurrency=1, max_tasks=2)
    tasks = [submit("echo") for _ in range(5)]
    worker.run()
    assert worker.recycled
    assert [(get(task.pk).status, get(task.pk).attempt) for task in tasks] == [("succeeded", 1)] * 2 + [
        ("queued", 0)
    ] * 3

    worker.run()
    worker.run(burst=True)
    assert not worker.recycled
    assert get(tasks[-1].pk).succeeded


def test_stopped_before_it_runs_it_ends_at_once_and_can_be_run_again(registry: Registry) -> None:
    worker = quick(registry)
    task = submit("echo")
    worker.stop()
    worker.run()
    assert get(task.pk).is_queued
    worker.run(burst=True)
    assert get(task.pk).succeeded


def test_it_can_be_stopped_from_another_thread(registry: Registry) -> None:
    worker = quick(registry)
    threading.Timer(0.2, worker.stop).start()
    worker.run()


def test_it_refuses_to_run_twice_at_once_and_the_first_run_goes_on(registry: Registry) -> None:
    worker = quick(registry)
    with worker.background():
        assert ended(submit("echo", 1)).result == 1
        with pytest.raises(RuntimeError, match=f"Worker {worker.id} is running already"):
            worker.run()
        with pytest.raises(RuntimeError, match="is running already"), worker.background():
            pytest.fail("it must not run")
        assert ended(submit("echo", 2)).result == 2


def test_two_workers_of_one_registry_run_side_by_side(registry: Registry, go: threading.Event) -> None:
    @registry.task
    def wait(ctx: TaskContext, payload: Any) -> str:
        wait_for(go)
        return ctx.worker_id

    tasks = [submit(wait), submit(wait)]
    one, another = quick(registry, concurrency=1), quick(registry, concurrency=1)
    with one.background(), another.background():
        for task in tasks:
            running(task)
        go.set()
    assert {get(task.pk).result for task in tasks} == {one.id, another.id}


def test_every_run_has_an_id_of_its_own_that_names_host_and_process(registry: Registry) -> None:
    worker, ids = quick(registry), set()
    for _ in range(3):
        worker.run(burst=True)
        ids.add(worker.id)
    assert len(ids) == 3


def test_leaving_the_background_raises_what_the_run_raised(registry: Registry) -> None:
    asked = threading.Event()

    class Broken(Registry):
        @property
        def names(self) -> tuple[str, ...]:
            asked.set()
            raise SystemExit("not an error that a worker survives")

    worker = quick(Broken())
    with pytest.raises(SystemExit, match="not an error"), worker.background():
        wait_for(asked)
    worker.registry = registry
    task = submit("echo")
    worker.run(burst=True)
    assert get(task.pk).succeeded


def test_leaving_the_background_with_an_error_stops_the_worker_too(registry: Registry) -> None:
    worker = quick(registry)
    with pytest.raises(ValueError, match="of the test"), worker.background():
        raise ValueError("of the test")
    assert not [thread for thread in threading.enumerate() if thread.name == "cairnq-worker"]


def test_a_run_that_ended_by_itself_in_the_background_leaves_no_stop_behind(
    registry: Registry, go: threading.Event
) -> None:
    @registry.task(max_run=0.1, max_attempts=1)
    def hang(ctx: TaskContext, payload: Any) -> None:
        wait_for(go)

    worker = quick(registry, concurrency=1)
    submit(hang)
    with worker.background():
        eventually(lambda: worker.worn_out, PATIENCE)
    go.set()
    task = submit("echo")
    with worker.background():
        assert ended(task).succeeded
    assert not worker.worn_out


class TestBurst:
    def test_it_ends_when_there_is_nothing_to_run(self, registry: Registry) -> None:
        quick(registry, poll_interval=60).run(burst=True)

    def test_without_any_handler_there_is_nothing_to_run(self) -> None:
        submit("echo")
        quick(Registry()).run(burst=True)

    def test_a_handler_that_hangs_at_its_ceiling_does_not_keep_it(self, go: threading.Event) -> None:
        registry = Registry()

        @registry.task(concurrency=1, max_run=0.1, max_attempts=1)
        def hang(ctx: TaskContext, payload: Any) -> None:
            wait_for(go)

        task = submit(hang)
        worker = quick(registry)
        worker.run(burst=True)
        assert get(task.pk).failed
        assert worker.hanging == 1

    def test_it_runs_what_is_due_and_its_retries_and_what_those_submit(self, registry: Registry) -> None:
        @registry.task
        def fail_once(ctx: TaskContext, payload: Any) -> None:
            if ctx.attempt == 1:
                raise ValueError("again")
            ctx.submit("echo", "from the retry")

        submit(fail_once)
        quick(registry, poll_interval=60).run(burst=True)
        assert list(Task.objects.values_list("status", flat=True)) == ["succeeded", "succeeded"]

    def test_tasks_that_are_delayed_do_not_hold_it(self, registry: Registry) -> None:
        task = submit("echo", delay=3600)
        quick(registry).run(burst=True)
        assert get(task.pk).is_queued

    def test_nor_do_tasks_of_other_handlers_and_queues_and_workers(
        self, registry: Registry, go: threading.Event
    ) -> None:
        @registry.task
        def wait(ctx: TaskContext, payload: Any) -> None:
            wait_for(go)

        others = [submit("unknown"), submit("echo", queue="other")]
        held = submit(wait)
        with quick(registry, concurrency=1).background():
            running(held)
            task = submit("echo")
            quick(registry).run(burst=True)
            assert get(task.pk).succeeded
            assert get(held.pk).is_running
            go.set()
        assert [get(other.pk).is_queued for other in others] == [True, True]

    def test_it_can_be_stopped(self, registry: Registry) -> None:
        worker = quick(registry, concurrency=1)

        @registry.task
        def stop(ctx: TaskContext, payload: Any) -> None:
            worker.stop()

        first, second = submit(stop), submit(stop)
        worker.run(burst=True)
        assert get(first.pk).succeeded
        assert get(second.pk).is_queued
