"""The queue in a database of its own, which `CairnQRouter` sends it to."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction

import cairnq_django
from cairnq_django.errors import AlreadyExists
from cairnq_django.models import Task, TaskAttempt, TaskKey
from cairnq_django.statuses import TaskStatus
from cairnq_django.store import control, maintenance, settle, stats
from cairnq_django.store.claim import Claim, Draw, claim
from cairnq_django.store.engine import can_see_the_end, in_open_transaction, task_database
from cairnq_django.store.maintenance import Ended
from cairnq_django.store.submit import Conflict, submit
from tests.factories import TaskFactory, an_error, in_turn, lease_of, new_task
from tests.helpers import in_threads

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "dedicated"])

ROUTED = "dedicated"


@pytest.fixture(autouse=True)
def _routed(settings: Any) -> None:
    settings.CAIRNQ = {"DATABASE": ROUTED}
    settings.DATABASE_ROUTERS = ["cairnq_django.routers.CairnQRouter"]


@pytest.fixture(autouse=True)
def _nothing_in_the_default_database(_routed: None) -> Any:
    yield
    for model in (Task, TaskKey, TaskAttempt):
        assert not model.objects.using("default").exists()


def claim_all() -> list[Claim]:
    return claim(ROUTED, in_turn(Draw(("default",), ("work",), 10)), worker_id="worker-1", lease=30)


def test_tasks_live_where_they_are_routed() -> None:
    assert task_database() == ROUTED
    assert Task.objects.db == ROUTED


def test_a_task_lives_its_whole_life_there() -> None:
    (task,) = submit(ROUTED, [new_task(key="order:7")], Conflict.REUSE).tasks
    assert submit(ROUTED, [new_task(key="order:7")], Conflict.REUSE).tasks == [task]
    assert stats.queued_up_to(ROUTED, "default", 10) == 1
    (first,) = claim_all()
    control.progress(ROUTED, first.lease, value=0.5, message="half")
    assert control.renew(ROUTED, [first.lease], lease=60).renewed == {first.lease}
    assert settle.fail(ROUTED, first.lease, an_error(retryable=False), retry_delay=0) == TaskStatus.FAILED
    assert control.retry(ROUTED, task.pk).changed
    (second,) = claim_all()
    assert settle.release(ROUTED, [second.lease]).queued == [second.lease.task_id]
    (third,) = claim_all()
    assert not control.cancel_requested(ROUTED, third.lease)
    assert settle.complete(ROUTED, third.lease, "done") == TaskStatus.SUCCEEDED
    assert task.refresh().result == "done"
    assert task.attempts.count() == 1
    assert Task.objects.by_key("order:7").get() == task
    assert stats.queue_stats(ROUTED)["default"].succeeded == 1
    assert maintenance.purge(ROUTED, Ended(older_than=0)) == 1
    assert not TaskKey.objects.exists()


def test_every_strategy_and_recovery_work_there() -> None:
    task = TaskFactory(key="order:7")
    with pytest.raises(AlreadyExists):
        submit(ROUTED, [new_task(key="order:7")], Conflict.REJECT)
    (replacement,) = submit(ROUTED, [new_task(key="order:7")], Conflict.REPLACE).tasks
    assert task.refresh().canceled
    assert Task.objects.by_key("order:7").get() == replacement
    expired = TaskFactory(expired=True)
    assert maintenance.recover(ROUTED).queued == [expired]


def test_a_row_acts_there() -> None:
    task = TaskFactory()
    assert task.cancel().canceled
    assert task.retry().is_queued
    assert cairnq_django.get(task.pk) == task


def test_a_transaction_of_another_database_does_not_hold_the_task_back() -> None:
    with transaction.atomic(using="default"):
        (task,) = submit(ROUTED, [new_task()], Conflict.REUSE).tasks
        assert not in_open_transaction(ROUTED)
        assert can_see_the_end(ROUTED, task.pk)
        transaction.set_rollback(True, using="default")
    assert Task.objects.get() == task


def test_many_submits_of_one_key_at_once_make_one_task_there() -> None:
    tasks = in_threads(10, lambda n: submit(ROUTED, [new_task(key="order:7")], Conflict.REUSE).tasks[0])
    assert {task.pk for task in tasks} == {Task.objects.get().pk}


def test_workers_claim_each_task_once_there() -> None:
    submit(ROUTED, [new_task() for _ in range(30)], Conflict.REUSE)
    claimed = [task.lease for tasks in in_threads(4, lambda n: claim_all()) for task in tasks]
    claimed += [task.lease for task in claim_all()]
    assert len(claimed) == len(set(claimed)) == 30
    assert {lease_of(task) for task in Task.objects.running()} == set(claimed)
