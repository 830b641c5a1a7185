from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from django.db import DEFAULT_DB_ALIAS as DB
from django.db import connection, transaction

import cairnq_django
from cairnq_django.clock import after
from cairnq_django.models import Task, TaskKey
from cairnq_django.store.claim import Draw, claim
from cairnq_django.store.insert import BATCH_SIZE
from cairnq_django.store.submit import Conflict, submit
from tests.factories import in_turn, new_task
from tests.store.sessions import in_another_session, only_data, row, statements

pytestmark = pytest.mark.django_db


def test_a_submitted_task_is_queued_and_knows_what_the_database_filled_in() -> None:
    (task,) = submit(DB, [new_task(payload={"order": 7})], Conflict.REUSE).tasks
    assert row(Task) == {field.attname: getattr(task, field.attname) for field in Task._meta.concrete_fields}
    assert task.is_queued
    assert task.created_at == task.updated_at == task.run_at
    assert task.created_at.utcoffset() == timedelta(0)


def test_a_keyed_task_knows_what_the_database_filled_in() -> None:
    (task,) = submit(DB, [new_task(key="order:7")], Conflict.REUSE).tasks
    assert row(Task) == {field.attname: getattr(task, field.attname) for field in Task._meta.concrete_fields}


def test_a_delay_counts_from_the_database_s_now() -> None:
    (task,) = submit(DB, [new_task(run_at=after(90.5))], Conflict.REUSE).tasks
    assert task.run_at - task.created_at == timedelta(seconds=90.5)


def test_a_moment_to_run_at_is_kept_to_the_microsecond() -> None:
    moment = datetime(2031, 2, 3, 4, 5, 6, 789_012, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    (task,) = submit(DB, [new_task(run_at=moment)], Conflict.REUSE).tasks
    assert task.run_at == moment
    assert Task.objects.get().run_at == moment


def test_many_tasks_come_back_in_order_and_are_claimed_in_order() -> None:
    tasks = submit(DB, [new_task(payload=n) for n in range(BATCH_SIZE + 500)], Conflict.REUSE).tasks
    assert [task.payload for task in tasks] == list(range(BATCH_SIZE + 500))
    assert all(isinstance(task.created_at, datetime) and isinstance(task.run_at, datetime) for task in tasks)
    claimed = claim(DB, in_turn(Draw(("default",), ("work",), BATCH_SIZE + 500)), worker_id="worker-1", lease=30)
    assert [task.payload for task in claimed] == list(range(BATCH_SIZE + 500))


def test_a_thousand_tasks_take_one_statement_where_the_database_can() -> None:
    tasks = [new_task() for _ in range(BATCH_SIZE)]
    sent = only_data(statements(lambda: submit(DB, tasks, Conflict.REUSE).tasks))
    assert all("INSERT INTO" in sql for sql in sent)
    # SQLite takes fewer values in one statement.
    assert len(sent) == 1 or connection.vendor == "sqlite"


def test_a_submit_joins_its_caller_s_transaction() -> None:
    with transaction.atomic():
        submit(DB, [new_task(), new_task(key="order:7")], Conflict.REUSE)
        transaction.set_rollback(True)
    assert not Task.objects.exists()
    assert not TaskKey.objects.exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("key", [None, "order:7"])
def test_a_task_is_there_for_others_once_its_transaction_commits(key: str | None) -> None:
    with transaction.atomic():
        submit(DB, [new_task(key=key)], Conflict.REUSE)
        assert in_another_session(Task.objects.count) == 0
    assert in_another_session(Task.objects.count) == 1


def test_a_task_is_its_own_root() -> None:
    task = cairnq_django.submit("work")
    assert (task.root_id, task.parent_id) == (task.pk, None)


def test_a_child_takes_over_root_and_correlation_id() -> None:
    root = cairnq_django.submit("work", correlation_id="request-1")
    child = cairnq_django.submit("work", parent=root)
    grandchild = cairnq_django.submit("work", parent=child.pk, correlation_id="request-2")
    grandchild.refresh()
    assert (child.parent_id, child.root_id, child.correlation_id) == (root.pk, root.pk, "request-1")
    assert (grandchild.parent_id, grandchild.root_id, grandchild.correlation_id) == (child.pk, root.pk, "request-2")
