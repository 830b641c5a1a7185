"""Rows in every state the queue knows, on the database that tasks are routed to and by its clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import factory
from django.utils import timezone
from factory.django import DjangoModelFactory

from cairnq_django.clock import Now, after
from cairnq_django.envelopes import Envelope, custom
from cairnq_django.ids import new_task_id
from cairnq_django.models import Schedule, Task, TaskAttempt, TaskKey, WorkerProcess
from cairnq_django.querysets import WORKER_SILENCE
from cairnq_django.statuses import AttemptOutcome, TaskStatus
from cairnq_django.store.engine import task_database
from cairnq_django.store.leases import Lease

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from cairnq_django.store.claim import Draw, Drawn

WORKER = "worker-1"


def an_error(message: str = "boom", *, retryable: bool = True) -> Envelope:
    return custom(message, retryable=retryable, max_depth=10)


def lease_of(task: Task) -> Lease:
    """The lease that a running task is under."""
    return Lease(task.pk, task.worker_id, task.attempt)


def in_turn(*draws: Draw) -> Callable[[], Generator[Draw, Drawn, None]]:
    """These draws as a claim takes them, whatever each of them claims."""

    def each() -> Generator[Draw, Drawn, None]:
        for draw in draws:  # noqa: UP028 - a tuple's iterator takes nothing that is sent
            yield draw

    return each


def new_task(**fields: Any) -> Task:
    """A task that is still to be submitted."""
    task_id = new_task_id()
    return Task(**{"id": task_id, "root_id": task_id, "name": "work", **fields})


def a_great_many(number: int, **fields: Any) -> list[Task]:
    """Queued tasks that are due. Their times are the host's, which takes a fraction of the time."""
    times = {**dict.fromkeys(("run_at", "created_at", "updated_at"), timezone.now()), "expires_at": None}
    tasks = [new_task(**{**times, **fields}) for _ in range(number)]
    return Task.objects.using(task_database()).bulk_create(tasks, batch_size=1_000)


class RowFactory(DjangoModelFactory):
    """Creates rows where tasks live, and reads them back: the database fills in times."""

    class Meta:
        abstract = True
        skip_postgeneration_save = True

    @classmethod
    def _create(cls, model_class: Any, *args: Any, **kwargs: Any) -> Any:
        row = model_class._base_manager.using(task_database()).create(*args, **kwargs)
        row.refresh_from_db()
        return row


class TaskAttemptFactory(RowFactory):
    class Meta:
        model = TaskAttempt

    task = factory.SubFactory("tests.factories.TaskFactory", running=True)
    number = 1
    worker_id = WORKER
    started_at = after(-60)
    outcome = AttemptOutcome.RETRIED
    error = factory.LazyFunction(an_error)
    name = factory.LazyAttribute(lambda attempt: attempt.task.name)
    queue = factory.LazyAttribute(lambda attempt: attempt.task.queue)
    error_code = factory.LazyAttribute(lambda attempt: _said(attempt.error, "code"))
    error_type = factory.LazyAttribute(lambda attempt: _said(attempt.error, "type"))


def _said(error: Any, field: str) -> str:
    said = error.get(field) if isinstance(error, dict) else ""
    return said if isinstance(said, str) else ""


class TaskFactory(RowFactory):
    """A queued task that is due, unless a state is asked for: `TaskFactory(running=True)`.

    One with a key is its key's current task. A failed one has a row for each of its attempts.
    """

    class Meta:
        model = Task

    class Params:
        delayed = factory.Trait(run_at=after(3600))
        too_late = factory.Trait(run_at=after(-60), expires_at=after(-1))
        running = factory.Trait(
            status=TaskStatus.RUNNING, attempt=1, worker_id=WORKER, started_at=after(-1), lease_until=after(60)
        )
        expired = factory.Trait(running=True, started_at=after(-61), lease_until=after(-1))
        cancel_requested = factory.Trait(running=True, cancel_requested_at=Now())
        succeeded = factory.Trait(
            status=TaskStatus.SUCCEEDED, attempt=1, worker_id=WORKER, started_at=after(-1), completed_at=Now()
        )
        failed = factory.Trait(
            status=TaskStatus.FAILED,
            attempt=3,
            worker_id=WORKER,
            started_at=after(-1),
            completed_at=Now(),
            error=factory.LazyFunction(an_error),
        )
        canceled = factory.Trait(status=TaskStatus.CANCELED, completed_at=Now())

    id = factory.LazyFunction(new_task_id)
    name = "work"
    root_id = factory.SelfAttribute("id")

    @factory.post_generation
    def current_of_its_key(task: Task, create: bool, extracted: Any) -> None:
        if create and task.key is not None:
            keys = TaskKey.objects.using(task_database())
            keys.update_or_create(key=task.key, defaults={"task": task})

    @factory.post_generation
    def failed_attempts(task: Task, create: bool, extracted: Any) -> None:
        if create and task.failed:
            for number in range(1, task.attempt + 1):
                last = number == task.attempt
                outcome = AttemptOutcome.FAILED if last else AttemptOutcome.RETRIED
                TaskAttemptFactory(task=task, number=number, outcome=outcome)


class WorkerProcessFactory(RowFactory):
    """The row of a worker that was just heard of; of one that says nothing more with `silent=True`."""

    class Meta:
        model = WorkerProcess

    class Params:
        silent = factory.Trait(seen_at=after(-WORKER_SILENCE - 1))

    id = "host-1"
    host = "host"
    pid = 1
    version = "1.0"
    queues = ("default",)
    names = ("work",)
    concurrency = 8
    started_at = after(-3600)


class ScheduleFactory(RowFactory):
    """A schedule of each minute that is due later; it is due now with `due=True`."""

    class Meta:
        model = Schedule

    class Params:
        due = factory.Trait(next_run_at=after(-1))

    name = factory.Sequence("schedule-{}".format)
    task_name = "work"
    every = 60.0
    next_run_at = after(3600)
