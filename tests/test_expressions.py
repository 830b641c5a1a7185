from __future__ import annotations

import pytest
from django.db import DEFAULT_DB_ALIAS, connection, transaction

from cairnq_django import cancel
from cairnq_django.expressions import Among
from cairnq_django.ids import new_task_id
from cairnq_django.models import Task, TaskAttempt
from cairnq_django.store.settle import complete_together
from tests.factories import TaskFactory, lease_of
from tests.store.sessions import in_another_session, locks_rows


@pytest.mark.django_db
def test_among_finds_the_rows_of_a_list_of_ids_and_of_a_query() -> None:
    wanted, other = TaskFactory.create_batch(3), TaskFactory(name="another")
    ids = [task.pk for task in wanted]
    assert set(Task.objects.filter(Among("pk", ids))) == set(wanted)
    assert set(Task.objects.filter(Among("pk", iter(ids[:1])))) == set(wanted[:1])
    assert not Task.objects.filter(Among("pk", [])).exists()
    assert set(Task.objects.exclude(Among("pk", ids))) == {other}
    assert set(Task.objects.filter(Among("id", Task.objects.filter(name="work").values("pk")))) == set(wanted)


@pytest.mark.django_db
def test_among_takes_a_foreign_key() -> None:
    failed = TaskFactory(failed=True)
    TaskFactory(failed=True)
    assert {attempt.task_id for attempt in TaskAttempt.objects.filter(Among("task", [failed.pk]))} == {failed.pk}


@pytest.mark.django_db
@pytest.mark.skipif(connection.vendor != "postgresql", reason="The others take a parameter for each id")
def test_among_is_one_parameter_on_postgresql() -> None:
    _, params = Task.objects.filter(Among("pk", [new_task_id(), new_task_id()])).query.sql_with_params()
    assert len(params) == 1


@pytest.mark.django_db
@locks_rows
def test_among_locks_in_the_query_itself_where_it_is_told_to() -> None:
    free = Task.objects.filter(name="work").values("pk")
    sql = str(Task.objects.filter(Among("pk", free, lock=True)).query)
    query = sql[sql.index("work") :]
    assert "FOR UPDATE SKIP LOCKED" in query, "its conditions would be read from a snapshot, and be old"
    assert "FOR UPDATE" not in str(Task.objects.filter(Among("pk", free)).query)


@locks_rows
@pytest.mark.django_db(transaction=True)
def test_a_task_whose_cancel_was_just_requested_is_not_recorded_as_succeeded_with_others() -> None:
    tasks = [TaskFactory(running=True) for _ in range(3)]
    leases = {lease_of(task): None for task in tasks}
    with transaction.atomic():
        assert Task.objects.count() == 3  # what this transaction reads without locks is from now, on MySQL
        in_another_session(lambda: cancel(tasks[0].pk))
        completed = complete_together(DEFAULT_DB_ALIAS, leases)
    assert {lease.task_id for lease in completed} == {task.pk for task in tasks[1:]}
    assert Task.objects.get(pk=tasks[0].pk).is_running
