from __future__ import annotations

import pytest
from django.core.management import call_command
from django.db import connection

from cairnq_django.models import Task, TaskAttempt
from tests.factories import TaskAttemptFactory, TaskFactory

VACUUMS = {"autovacuum_vacuum_scale_factor": "0.02", "autovacuum_vacuum_threshold": "1000"}


def storage_parameters() -> dict[str, str]:
    if connection.vendor != "postgresql":
        return {}
    with connection.cursor() as cursor:
        cursor.execute("SELECT reloptions FROM pg_class WHERE oid = %s::regclass", [Task._meta.db_table])
        ((options,),) = cursor.fetchall()
    return dict(option.split("=") for option in options or [])


@pytest.mark.django_db(transaction=True)
def test_postgresql_is_told_to_vacuum_tasks_more_often_and_migrating_back_takes_that_away() -> None:
    told = VACUUMS if connection.vendor == "postgresql" else {}
    assert storage_parameters() == told
    call_command("migrate", "cairnq_django", "0002", verbosity=0)
    try:
        assert storage_parameters() == {}
    finally:
        call_command("migrate", "cairnq_django", verbosity=0)
    assert storage_parameters() == told


@pytest.mark.django_db(transaction=True)
def test_attempts_of_before_are_told_what_they_are_grouped_by() -> None:
    task = TaskFactory(name="charge", queue="shop", running=True)
    whole = {"type": "shop.Declined", "code": "declined", "message": "no"}
    errors = (whole, {"code": "x" * 300}, {}, "just text")
    attempts = [TaskAttemptFactory(task=task, error=error, error_code="") for error in errors]
    call_command("migrate", "cairnq_django", "0006", verbosity=0)
    try:
        call_command("migrate", "cairnq_django", "0009", verbosity=0)
        kinds = TaskAttempt.objects.values_list("name", "queue", "error_code", "error_type")
        assert [kinds.get(pk=attempt.pk) for attempt in attempts] == [
            ("charge", "shop", "declined", "shop.Declined"),
            ("charge", "shop", "x" * 200, ""),
            ("charge", "shop", "", ""),
            ("charge", "shop", "", ""),
        ]
    finally:
        call_command("migrate", "cairnq_django", verbosity=0)
