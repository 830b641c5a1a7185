from __future__ import annotations

import pytest

from cairnq_django.clock import after
from cairnq_django.ids import new_task_id
from cairnq_django.models import Task
from tests.factories import WORKER, TaskFactory

pytestmark = pytest.mark.django_db

STATES = ["due", "delayed", "too_late", "running", "expired", "cancel_requested", "succeeded", "failed", "canceled"]


@pytest.fixture
def tasks() -> dict[str, Task]:
    return {state: TaskFactory(**({state: True} if state != "due" else {})) for state in STATES}


@pytest.mark.parametrize(
    ("question", "states"),
    [
        ("queued", {"due", "delayed", "too_late"}),
        ("running", {"running", "expired", "cancel_requested"}),
        ("succeeded", {"succeeded"}),
        ("failed", {"failed"}),
        ("canceled", {"canceled"}),
        ("live", {"due", "delayed", "too_late", "running", "expired", "cancel_requested"}),
        ("terminal", {"succeeded", "failed", "canceled"}),
        ("due", {"due"}),
        ("delayed", {"delayed"}),
        ("too_late", {"too_late"}),
        ("expired", {"expired"}),
    ],
)
def test_a_question_finds_the_tasks_it_asks_for(tasks: dict[str, Task], question: str, states: set[str]) -> None:
    found = getattr(Task.objects, question)()
    assert set(found) == {tasks[state] for state in states}


def test_questions_can_be_put_together(tasks: dict[str, Task]) -> None:
    other = TaskFactory(name="other", running=True)
    assert list(Task.objects.live().running().for_handlers(["other", "third"])) == [other]
    assert not Task.objects.queued().terminal().exists()
    assert not Task.objects.for_handlers([]).exists()


def test_claim_order_is_priority_then_due_time_then_age() -> None:
    last = TaskFactory(priority=-1, run_at=after(-60))
    first = TaskFactory(priority=1)
    ids = [new_task_id() for _ in range(3)]
    twins = [TaskFactory(id=pk, run_at=first.run_at) for pk in reversed(ids)]
    earlier = TaskFactory(run_at=after(-60))
    assert list(Task.objects.in_claim_order()) == [first, earlier, *reversed(twins), last]


def test_a_lease_finds_the_task_it_holds_and_no_other() -> None:
    task = TaskFactory(running=True, attempt=2)
    TaskFactory(running=True, attempt=2)
    assert list(Task.objects.leased(WORKER, 2, task.pk)) == [task]
    assert not Task.objects.leased(WORKER, 1, task.pk).exists()
    assert not Task.objects.leased("worker-2", 2, task.pk).exists()
    assert not Task.objects.leased("Worker-1", 2, task.pk).exists()


@pytest.mark.parametrize("state", ["expired", "succeeded", "failed", "canceled"])
def test_a_lease_that_is_over_finds_nothing(state: str) -> None:
    task = TaskFactory(**{state: True}, worker_id=WORKER)
    assert not Task.objects.leased(WORKER, task.attempt, task.pk).exists()


def test_a_key_finds_its_current_task() -> None:
    TaskFactory(key="order:7", failed=True)
    current = TaskFactory(key="order:7")
    TaskFactory(key="Order:7")
    assert Task.objects.by_key("order:7").get() == current
    assert not Task.objects.by_key("order:8").exists()
