from __future__ import annotations

import pytest
from django.db import connection

from cairnq_django.expressions import Among
from cairnq_django.ids import new_task_id
from cairnq_django.models import Task, TaskAttempt
from tests.factories import TaskFactory


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
