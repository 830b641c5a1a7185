"""What becomes of enqueued tasks, run by a worker beside its other handlers, and what their results tell of it."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.utils import timezone

from cairnq_django import Snooze, Task, TaskCanceled, TaskError, cancel, get, retry, run_now, submit
from cairnq_django.envelopes import expired
from cairnq_django.errors import LostLease
from cairnq_django.registry import Registry, default_registry
from cairnq_django.store.claim import Draw, claim
from cairnq_django.store.engine import task_database
from cairnq_django.tasks_backend import task_options
from cairnq_django.tasks_backend.framework import TaskResultStatus, task_backends, task_started
from cairnq_django.worker.worker import Worker
from tests.app.models import Counter
from tests.factories import TaskAttemptFactory, TaskFactory, in_turn
from tests.hearing import receiving
from tests.tasks_backend import tasks
from tests.tasks_backend.conftest import BACKEND, IMMEDIATE
from tests.tasks_backend.tasks import Refused, TaskContext, task
from tests.workers import ended, expire, handlers_wait_for, quick, runs_workers, wait_for
from tests.workers import run as run_worker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cairnq_django.tasks_backend import CairnQBackend

pytestmark = runs_workers


@task
def wait() -> str:
    wait_for(go)
    return "done"


@task
@task_options(max_run=0.3, max_attempts=1)
def take_long() -> None:
    wait_for(go)


@task_options(max_attempts=2)
@task(takes_context=True)
def refuse_for_good(context: TaskContext, code: str) -> None:
    raise TaskError("No", code=code, retryable=False)


@task(takes_context=True)
def snooze_once(context: TaskContext) -> int:
    if get(context.task_result.id).run_at == context.task_result.enqueued_at:
        raise Snooze(0.1)
    return context.attempt


@task
@task_options(atomic=True, max_attempts=1)
def count_and_fail(name: str) -> None:
    tasks.count.call(name)
    raise Refused("after it wrote")


@task
@task_options(atomic=True, max_attempts=1)
def count_once(name: str) -> None:
    tasks.count.call(name)


@task
@task_options(aliases=["shop.old.place.moved"])
def moved(value: int) -> int:
    return value


@task
def note(value: Any) -> None:
    noted.append(value)


noted: list[Any] = []
go = threading.Event()


@pytest.fixture(autouse=True)
def _go() -> Iterator[None]:
    global go
    go = threading.Event()
    yield
    go.set()


def run(*results: Any, **options: Any) -> Worker:
    """Run all there is to run, and read these results again."""
    worker = run_worker(default_registry, **options)
    for result in results:
        result.refresh()
    return worker


CALLS: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (tasks.add, (1,), {"b": 2}),
    (tasks.add_async, (1, 2), {}),
    (tasks.add, (), {}),
    (tasks.echo, (1, ("a", None)), {"key": {"b": [2.5, True]}}),
    (tasks.count, ("sync",), {}),
    (tasks.count_async, ("async",), {}),
    (tasks.refuse, ("because",), {}),
    (tasks.refuse_async, ("because",), {}),
    (tasks.divide, (1, 0), {}),
    (tasks.leave, (), {}),
    (tasks.fails_within, (), {}),
    (tasks.return_bytes, (), {}),
    (tasks.return_a_function, (), {}),
    (tasks.tell_context, ("more",), {}),
    (tasks.tell_context_async, (), {"extra": "more"}),
]


def test_one_tasks_file_has_the_same_outcomes_as_with_djangos_own_backend(
    settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes = []
    for backend, options in ((IMMEDIATE, {}), (BACKEND, {"max_attempts": 1})):
        settings.TASKS = {"default": {"BACKEND": backend, "QUEUES": [], "OPTIONS": options}}
        results = [task.enqueue(*args, **kwargs) for task, args, kwargs in CALLS]
        if backend == BACKEND:
            run(*results)
        outcomes.append([outcome_of(result) for result in results])
        assert Counter.objects.count() == 2
        Counter.objects.all().delete()

    immediate, ours = outcomes
    assert ours == immediate
    assert {outcome["status"] for outcome in ours} == {TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED}
    caplog.clear()


def outcome_of(result: Any) -> dict[str, Any]:
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert result.last_attempted_at == result.started_at
    return {
        "task": result.task,
        "arguments": (result.args, result.kwargs),
        "status": result.status,
        "value": result.return_value if result.status == TaskResultStatus.SUCCESSFUL else None,
        "errors": [error.exception_class for error in result.errors],
        "attempts": result.attempts,
        "backend": result.backend,
        "told": [told(error) for error in result.errors],
    }


def told(error: Any) -> tuple[str, bool] | None:
    if error.exception_class is TypeError:
        # Of what is no JSON, each tells in its own way.
        return None
    return error.traceback.splitlines()[-1], "KeyError: 'inner'" in error.traceback


def test_the_id_in_the_context_is_that_of_the_result() -> None:
    result = tasks.tell_id.enqueue()
    run(result)
    assert result.return_value == result.id


def test_each_failed_attempt_is_an_error(backend: CairnQBackend) -> None:
    result = tasks.refuse.enqueue("because")
    worker = run(result)

    assert (result.status, result.attempts, result.worker_ids) == (TaskResultStatus.FAILED, 3, [worker.id] * 3)
    assert [error.exception_class for error in result.errors] == [Refused] * 3
    assert all("in refuse" in error.traceback for error in result.errors)
    assert result.started_at < result.last_attempted_at <= result.finished_at
    assert backend.get_result(result.id).errors == result.errors


def test_a_later_attempt_knows_of_those_before() -> None:
    result = tasks.fail_until.enqueue(3)
    run(result)

    refused = f"{Refused.__module__}.{Refused.__qualname__}"
    assert result.return_value == {"attempt": 3, "errors": [refused, refused]}
    assert (result.attempts, len(result.errors)) == (3, 2)


def test_an_interrupt_of_its_own_is_a_failure_like_others() -> None:
    result = tasks.interrupt.enqueue()
    after = tasks.add.enqueue(1)
    run(result, after)
    assert [error.exception_class for error in result.errors] == [KeyboardInterrupt] * 3
    assert after.return_value == 1


@pytest.mark.parametrize("task", [tasks.show_progress, tasks.show_progress_async])
def test_a_task_has_what_other_handlers_have(task: Any) -> None:
    result = task.enqueue()
    run(result)
    row = get(result.id)
    assert (result.return_value, row.progress, row.message) == (False, 0.5, "half")


def test_a_failure_may_be_final_and_have_a_code() -> None:
    result = refuse_for_good.enqueue("declined")
    run(result)

    assert (result.attempts, get(result.id).error["code"]) == (1, "declined")
    assert result.errors[0].exception_class is TaskError
    assert result.errors[0].traceback == "cairnq_django.errors.TaskError: No\n"


def test_a_task_may_ask_to_be_run_later() -> None:
    result = snooze_once.enqueue()
    with quick(default_registry).background():
        ended(get(result.id))
    result.refresh()
    assert (result.return_value, result.attempts, result.errors) == (1, 1, [])


def test_what_an_atomic_task_wrote_goes_with_its_failure() -> None:
    result = count_and_fail.enqueue("x")
    run(result)
    assert [error.exception_class for error in result.errors] == [Refused]
    assert not Counter.objects.exists()


def test_a_receiver_that_breaks_the_transaction_of_an_atomic_task_spoils_nothing_of_it() -> None:
    def spoil(task_result: Any, **kwargs: Any) -> None:
        Task(pk=task_result.id, root_id=task_result.id, name="the same again").save(force_insert=True)

    result = count_once.enqueue("x")
    with receiving(task_started, spoil):
        run(result)
    assert (result.status, Counter.objects.count()) == (TaskResultStatus.SUCCESSFUL, 1)


def test_a_task_that_is_canceled_has_failed() -> None:
    queued = wait.using(run_after=timezone.now() + timedelta(hours=1)).enqueue()
    cancel(queued.id)
    running = wait.enqueue()
    with quick(default_registry).background():
        handlers_wait_for(go)
        cancel(running.id)
        go.set()

    for result in (queued, running):
        result.refresh()
        assert result.status == TaskResultStatus.FAILED
        assert [error.exception_class for error in result.errors] == [TaskCanceled]
        assert "TaskCanceled: The task was canceled" in result.errors[0].traceback
        with pytest.raises(ValueError, match="Task failed"):
            _ = result.return_value
    assert (queued.attempts, queued.started_at, running.attempts) == (0, None, 1)


def test_a_canceled_task_that_failed_before_tells_both(backend: CairnQBackend) -> None:
    tasks.add.using()
    row = TaskFactory(name=tasks.add.module_path, canceled=True, attempt=1, error=expired(timezone.now()))
    TaskAttemptFactory(task=row, number=1, error={**row.error, "type": "gone.module.Gone", "details": None})

    errors = backend.get_result(str(row.pk)).errors

    assert [error.exception_class_path for error in errors] == ["gone.module.Gone", "cairnq_django.errors.TaskCanceled"]
    assert "The task expired at" in errors[1].traceback
    with pytest.raises(ImportError):
        _ = errors[0].exception_class


def test_a_task_that_takes_too_long_has_failed() -> None:
    result = take_long.enqueue()
    with quick(default_registry).background():
        ended(get(result.id))
        go.set()
    result.refresh()
    assert [error.exception_class for error in result.errors] == [TimeoutError]
    assert "longer than its limit of 0.3 s" in result.errors[0].traceback


def test_a_task_whose_worker_died_runs_again() -> None:
    result = tasks.add.enqueue(1)
    draw = Draw(queues=("default",), names=(tasks.add.module_path,), limit=1)
    assert claim(task_database(), in_turn(draw), worker_id="worker-0", lease=60)
    expire(get(result.id))
    worker = run(result)
    assert (result.return_value, result.worker_ids) == (1, ["worker-0", worker.id])
    assert [error.exception_class for error in result.errors] == [LostLease]


def test_a_retry_by_hand_goes_on_counting_or_begins_anew() -> None:
    result = tasks.fail_until.enqueue(4)
    run(result)
    assert result.status == TaskResultStatus.FAILED

    retry(result.id, reset_attempts=True)
    result.refresh()
    assert (result.status, result.attempts, result.errors) == (TaskResultStatus.READY, 0, [])
    run(result)
    assert (result.status, result.attempts, len(result.errors)) == (TaskResultStatus.FAILED, 3, 3)

    retry(result.id)
    run(result)
    assert result.return_value["attempt"] == result.attempts == 4
    assert len(result.errors) == 3


def test_a_task_waits_for_its_time() -> None:
    result = tasks.add.using(run_after=timezone.now() + timedelta(hours=1)).enqueue(1)
    run(result)
    assert result.status == TaskResultStatus.READY
    run_now(result.id)
    run(result)
    assert result.return_value == 1
    assert result.task.run_after - timezone.now() > timedelta(minutes=50)


def test_the_highest_priority_runs_first_and_only_queues_that_are_served() -> None:
    del noted[:]
    for priority in (-100, 0, 100, 5):
        note.using(priority=priority).enqueue(priority)
    elsewhere = note.using(queue_name="elsewhere").enqueue("elsewhere")

    run(elsewhere, concurrency=1)

    assert noted == [100, 5, 0, -100]
    assert elsewhere.status == TaskResultStatus.READY
    run(elsewhere, queues=["elsewhere"])
    assert noted[-1] == "elsewhere"


def test_a_task_that_has_moved_runs_what_was_enqueued_before(backend: CairnQBackend) -> None:
    moved.using()
    before = submit("shop.old.place.moved", {"args": [7]})
    run()
    result = backend.get_result(str(before.pk))
    assert (result.return_value, result.task) == (7, moved)


def test_it_runs_beside_other_handlers_and_can_be_submitted_as_they_are() -> None:
    registry = Registry()
    registry.task("native")(lambda ctx, payload: payload)
    result = tasks.add.enqueue(1)
    registry.replace(default_registry.get(tasks.add.module_path))  # type: ignore[arg-type]
    native = submit("native", 7)
    by_name = [submit(tasks.add.module_path, payload) for payload in ({"args": [3]}, {"kwargs": {"a": 4}}, {"a": 5})]

    run_worker(registry)

    assert get(native.pk).result == 7
    assert [get(task.pk).result for task in by_name] == [3, 4, None]
    assert get(by_name[2].pk).error["code"] == "invalid_payload"
    assert task_backends["default"].get_result(str(by_name[0].pk)).return_value == 3
    result.refresh()
    assert result.return_value == 1
