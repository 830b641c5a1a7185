"""The framework's signals: one when a task is enqueued, one for each attempt, and one when it ended, however it did."""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.utils import timezone

from cairnq_django import cancel, get, submit
from cairnq_django.clock import after
from cairnq_django.registry import Registry, default_registry
from cairnq_django.store.claim import Draw, claim
from cairnq_django.store.engine import task_database
from cairnq_django.tasks_backend import CairnQBackend, task_options
from cairnq_django.tasks_backend.framework import (
    TaskResultStatus,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from tests.factories import TaskFactory, in_turn
from tests.hearing import receiving
from tests.tasks_backend import tasks
from tests.tasks_backend.tasks import Refused, task
from tests.workers import ended, expire, handlers_wait_for, quick, runs_workers, wait_for
from tests.workers import run as run_worker

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = runs_workers

SIGNALS = {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}


@task
def wait() -> None:
    wait_for(go)


@task
@task_options(max_run=0.3, max_attempts=1)
def take_long() -> None:
    wait_for(go)


@task
@task_options(max_attempts=1)
def once() -> None: ...


go = threading.Event()


@pytest.fixture(autouse=True)
def _go() -> Iterator[None]:
    global go
    go = threading.Event()
    yield
    go.set()


@dataclass(frozen=True)
class Heard:
    name: str
    sender: Any
    result: Any
    handled: BaseException | None  # the exception that was being handled


@contextmanager
def hearing() -> Iterator[list[Heard]]:
    heard: list[Heard] = []
    with ExitStack() as connected:
        for name, signal in SIGNALS.items():
            connected.enter_context(receiving(signal, ear(name, heard)))
        yield heard


def ear(name: str, heard: list[Heard]) -> Any:
    def receive(sender: Any, task_result: Any, **kwargs: Any) -> None:
        heard.append(Heard(name, sender, task_result, sys.exc_info()[1]))

    return receive


@pytest.mark.parametrize("task", [tasks.add, tasks.add_async])
def test_each_step_of_a_success_is_told(task: Any) -> None:
    with hearing() as heard:
        result = task.enqueue(1)
        run_worker(default_registry)

    assert [each.name for each in heard] == ["enqueued", "started", "finished"]
    assert [each.result.status for each in heard] == ["READY", "RUNNING", "SUCCESSFUL"]
    assert {each.sender for each in heard} == {CairnQBackend}
    result.refresh()
    started, finished = heard[1].result, heard[2].result
    assert (started.id, started.started_at, started.worker_ids) == (result.id, result.started_at, result.worker_ids)
    assert (started.enqueued_at, started.finished_at, started.args) == (result.enqueued_at, None, [1])
    # When it was finished, not when that was recorded.
    assert result.started_at <= finished.finished_at <= result.finished_at
    assert replace(finished, finished_at=result.finished_at) == replace(result)
    assert finished.return_value == 1


@pytest.mark.parametrize("task", [tasks.refuse, tasks.refuse_async])
def test_a_failure_is_told_once_it_is_final_while_its_exception_is_handled(task: Any) -> None:
    with hearing() as heard:
        result = task.enqueue("because")
        run_worker(default_registry)

    assert [each.name for each in heard] == ["enqueued", *["started"] * 3, "finished"]
    assert [each.result.attempts for each in heard] == [0, 1, 2, 3, 3]
    finished = heard[-1]
    result.refresh()
    assert finished.result == result
    assert [error.exception_class for error in finished.result.errors] == [Refused] * 3
    assert isinstance(finished.handled, Refused)
    assert finished.handled.args == ("because",)


def test_the_frameworks_own_log_has_the_traceback(caplog: pytest.LogCaptureFixture) -> None:
    logger = task_backends.__class__.__module__
    with caplog.at_level("DEBUG", logger=logger):
        tasks.refuse.enqueue("because")
        run_worker(default_registry)

    records = [record for record in caplog.records if record.name == logger]
    assert [record.levelname for record in records] == ["DEBUG", *["INFO"] * 3, "ERROR"]
    assert f"path={tasks.refuse.module_path} state=FAILED" in records[-1].getMessage()
    assert records[-1].exc_info is not None
    assert records[-1].exc_info[0] is Refused
    caplog.clear()


def cancel_while_queued() -> Any:
    result = wait.using(run_after=timezone.now() + timedelta(hours=1)).enqueue()
    cancel(result.id)
    return result


def cancel_while_running() -> Any:
    result = wait.enqueue()
    with quick(default_registry).background():
        handlers_wait_for(go)
        cancel(result.id)
        go.set()
        ended(get(result.id))
    return result


def take_too_long() -> Any:
    result = take_long.enqueue()
    with quick(default_registry).background():
        ended(get(result.id))
        go.set()
    return result


def lose_its_worker() -> Any:
    result = once.enqueue()
    draw = Draw(queues=("default",), names=(once.module_path,), limit=1)
    assert claim(task_database(), in_turn(draw), worker_id="worker-0", lease=60)
    expire(get(result.id))
    run_worker(default_registry)
    return result


def start_too_late() -> Any:
    result = once.enqueue()
    TaskFactory._meta.model.objects.filter(pk=result.id).update(expires_at=after(-1))
    run_worker(default_registry)
    return result


@pytest.mark.parametrize(
    "way", [cancel_while_queued, cancel_while_running, take_too_long, lose_its_worker, start_too_late]
)
def test_an_end_that_no_handler_brought_about_is_told_too(way: Any) -> None:
    with hearing() as heard:
        result = way()

    (finished,) = [each for each in heard if each.name == "finished"]
    result.refresh()
    assert finished.result.status == result.status == TaskResultStatus.FAILED
    assert (finished.result.id, finished.result.finished_at) == (result.id, result.finished_at)
    assert finished.result.errors == result.errors
    assert len(result.errors) == 1
    assert finished.handled is None


def test_of_other_handlers_the_framework_hears_nothing() -> None:
    registry = Registry()
    registry.task("native")(lambda ctx, payload: payload)
    tasks.add.using()
    with hearing() as heard:
        submit("native", 7)
        run_worker(registry)
        cancel(submit("native", 8).pk)
        cancel(submit(tasks.add.module_path, "not a call").pk)
    assert heard == []


def test_receivers_that_raise_harm_nobody(caplog: pytest.LogCaptureFixture) -> None:
    def receive(**kwargs: Any) -> None:
        raise OSError("no route")

    with receiving(task_started, receive), receiving(task_finished, receive):
        results = [tasks.add.enqueue(1), tasks.add_async.enqueue(1)]
        run_worker(default_registry)
    for result in results:
        result.refresh()
        assert (result.return_value, result.attempts) == (1, 1)
    assert caplog.text.count("OSError: no route") == 4
    caplog.clear()


def test_the_sender_is_the_backend_that_it_was_enqueued_with(settings: Any) -> None:
    settings.TASKS = {
        **settings.TASKS,
        "special": {"BACKEND": f"{__name__}.SpecialBackend"},
    }
    with hearing() as heard:
        result = tasks.add.using(backend="special").enqueue(1)
        run_worker(default_registry)
    assert {each.sender for each in heard} == {SpecialBackend}
    assert [each.result.backend for each in heard] == ["special"] * 3

    settings.TASKS = {name: params for name, params in settings.TASKS.items() if name != "special"}
    with hearing() as heard:
        row = submit(tasks.add.module_path, {"args": [1]}, metadata=get(result.id).metadata)
        run_worker(default_registry)
    assert get(row.pk).result == 1
    assert len(heard) == 2


class SpecialBackend(CairnQBackend):
    pass
