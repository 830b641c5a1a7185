from __future__ import annotations

import pytest
from django.core.management import call_command
from django.db import connection

from cairnq_django.models import Task

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
