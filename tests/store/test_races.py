"""Everything at once: workers that claim and settle, one that dies, callers that cancel, and who cleans up."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import pytest
from django.db import DEFAULT_DB_ALIAS as DB

from cairnq_django.models import Task, TaskAttempt
from cairnq_django.statuses import AttemptOutcome, TaskStatus
from cairnq_django.store.claim import Claim, Draw, claim
from cairnq_django.store.control import cancel
from cairnq_django.store.maintenance import recover
from cairnq_django.store.settle import complete, fail
from cairnq_django.store.submit import Conflict, submit
from tests.factories import an_error, in_turn, new_task
from tests.helpers import in_threads

pytestmark = pytest.mark.django_db(transaction=True)

TASKS = 240
WORKERS = 5
PATIENCE = 60  # seconds


class Tally:
    """What became of the tasks, as those who ended them were told."""

    def __init__(self) -> None:
        self.lock = threading.Lock()  # guards ends
        self.ends: Counter[tuple[Any, str]] = Counter()

    def add(self, task_id: Any, status: str) -> None:
        if status != TaskStatus.QUEUED:
            with self.lock:
                self.ends[task_id, str(status)] += 1


def settle(task: Claim) -> TaskStatus:
    """Every third succeeds at once, every third after a failure, the others fail for good."""
    kind = task.payload % 3
    if kind == 0 or (kind == 1 and task.lease.attempt > 1):
        return complete(DB, task.lease, task.payload)
    return fail(DB, task.lease, an_error(retryable=kind == 1), retry_delay=0)


def test_every_task_ends_once_and_no_attempt_is_missing() -> None:
    tasks = submit(DB, [new_task(payload=n) for n in range(TASKS)], Conflict.REUSE).tasks
    tally = Tally()
    deadline = time.monotonic() + PATIENCE

    def there_is_more() -> bool:
        assert time.monotonic() < deadline
        return Task.objects.live().exists()

    def claim_some(n: int, limit: int, lease: float) -> list[Claim]:
        return claim(DB, in_turn(Draw(("default",), ("work",), limit)), worker_id=f"worker-{n}", lease=lease)

    def work(n: int) -> None:
        while there_is_more():
            for task in claim_some(n, limit=5, lease=60):
                tally.add(task.lease.task_id, settle(task))

    def die(n: int) -> None:
        for _ in range(10):
            claim_some(n, limit=2, lease=0.01)

    def cancel_some(n: int) -> None:
        for task in tasks[n::7]:
            canceled, changed = cancel(DB, task.pk)
            if changed and canceled.is_terminal:
                tally.add(task.pk, canceled.status)

    def clean_up(n: int) -> None:
        while there_is_more():
            recover(DB, limit=10)

    roles = [die, cancel_some, cancel_some, clean_up, *[work] * WORKERS]
    in_threads(len(roles), lambda n: roles[n](n))

    ended = {task.pk: task for task in Task.objects.all()}
    assert len(ended) == TASKS
    assert all(task.is_terminal for task in ended.values())
    assert set(tally.ends.values()) == {1}
    assert all(ended[task_id].status == status for task_id, status in tally.ends)
    # Those that nobody was told of died, were canceled meanwhile or had no attempt left.
    untold = ended.keys() - {task_id for task_id, _ in tally.ends}
    assert all(not ended[task_id].succeeded for task_id in untold)
    for task in ended.values():
        assert attempts_of(task) == expected_attempts(task), task


def attempts_of(task: Task) -> list[tuple[int, str]]:
    return list(TaskAttempt.objects.filter(task=task).values_list("number", "outcome"))


def expected_attempts(task: Task) -> list[tuple[int, str]]:
    retried = [(number, str(AttemptOutcome.RETRIED)) for number in range(1, task.attempt)]
    if task.succeeded:
        return retried
    if task.failed:
        return [*retried, (task.attempt, str(AttemptOutcome.FAILED))]
    if task.cancel_requested:
        return [*retried, (task.attempt, str(AttemptOutcome.CANCELED))]
    # It was canceled while it waited, for its first attempt or for the next.
    return [*retried, (task.attempt, str(AttemptOutcome.RETRIED))] if task.attempt else []
