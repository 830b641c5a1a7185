from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, connection, models, transaction
from django.db.migrations.writer import MigrationWriter
from django.db.models import Q

from cairnq_django.columns import ExactCharField, PartialIndex
from cairnq_django.models import Task, TaskKey
from tests.factories import TaskFactory

LOOK_ALIKES = ["mail", "Mail", "MAIL", "mail ", " mail", "ma\u00efl", "mai\u0308l", "mail\t", "ma\u0131l", "\uff4dail"]


@pytest.mark.django_db
@pytest.mark.parametrize("column", ["name", "queue", "key", "worker_id", "correlation_id"])
def test_text_equals_itself_alone(column: str) -> None:
    tasks = {text: TaskFactory(**{column: text}) for text in LOOK_ALIKES}
    for text, task in tasks.items():
        assert list(Task.objects.filter(**{column: text})) == [task]
        assert getattr(task.refresh(), column) == text
        assert set(Task.objects.exclude(**{column: text})) == set(tasks.values()) - {task}
    assert Task.objects.values(column).distinct().count() == len(tasks)


@pytest.mark.django_db
def test_unique_text_may_look_alike() -> None:
    for text in LOOK_ALIKES:
        TaskKey.objects.create(key=text)
    with transaction.atomic(), pytest.raises(IntegrityError):
        TaskKey.objects.create(key="mail")
    assert set(TaskKey.objects.values_list("key", flat=True)) == set(LOOK_ALIKES)


@pytest.mark.django_db
@pytest.mark.parametrize("column", ["name", "queue", "key", "worker_id", "correlation_id"])
@pytest.mark.parametrize("character", ["x", "é", "\U0001f600"])
def test_text_of_full_length_is_stored(column: str, character: str) -> None:
    text = character * Task._meta.get_field(column).max_length
    TaskFactory(**{column: text})
    assert getattr(Task.objects.get(), column) == text


@pytest.mark.django_db
@pytest.mark.skipif(connection.vendor != "mysql", reason="other databases compare exactly by themselves")
def test_text_is_compared_exactly_within_the_server_too() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT column_name, collation_name FROM information_schema.columns"
            " WHERE table_schema = database() AND table_name = %s AND column_name IN ('name', 'queue', 'key')",
            [Task._meta.db_table],
        )
        collations = dict(cursor.fetchall())
    assert set(collations) == {"name", "queue", "key"}
    assert set(collations.values()) <= {"utf8mb4_nopad_bin", "utf8mb4_0900_bin"}


def test_an_exact_column_is_itself_in_migrations() -> None:
    field = ExactCharField(max_length=5, null=True)
    _, path, args, kwargs = field.deconstruct()
    assert (path, args, kwargs) == ("cairnq_django.columns.ExactCharField", [], {"max_length": 5, "null": True})


def partial() -> PartialIndex:
    return PartialIndex(
        name="some_index", fields=["queue", "-priority"], where=Q(status="queued"), otherwise=["status"]
    )


def test_a_partial_index_is_itself_in_migrations() -> None:
    index = partial()
    assert index.clone() == index
    written, imports = MigrationWriter.serialize(index)
    assert imports >= {"import cairnq_django.columns"}
    assert "where=" in written
    assert "otherwise=['status']" in written


def test_partial_indexes_that_differ_are_not_equal() -> None:
    other = PartialIndex(name="some_index", fields=["queue", "-priority"], where=Q(), otherwise=["status"])
    another = PartialIndex(name="some_index", fields=["queue", "-priority"], where=Q(status="queued"), otherwise=["id"])
    assert partial() != other
    assert partial() != another


@pytest.mark.django_db
def test_a_partial_index_has_its_condition_where_the_database_knows_them() -> None:
    sql = str(partial().create_sql(Task, connection.schema_editor(collect_sql=True)))
    if connection.vendor == "mysql":
        assert sql.endswith("(`status`)")
    else:
        assert sql.endswith("""("queue", "priority" DESC) WHERE "status" = 'queued'""")


@pytest.mark.django_db
def test_the_indexes_are_in_the_database() -> None:
    with connection.cursor() as cursor:
        found = connection.introspection.get_constraints(cursor, Task._meta.db_table)
    for index in Task._meta.indexes:
        assert found[index.name]["columns"] == columns_of(index)
        assert found[index.name]["index"]
    if connection.vendor != "mysql" or connection.mysql_version >= (10, 8):
        orders = found["cairnq_task_claim"]["orders"]
        assert orders == (["ASC"] * (connection.vendor == "mysql") + ["ASC", "ASC", "DESC", "ASC", "ASC", "ASC"])


def columns_of(index: models.Index) -> list[Any]:
    fields = index.otherwise if connection.vendor == "mysql" and isinstance(index, PartialIndex) else index.fields
    return [field.removeprefix("-") for field in fields]
