"""django-tasks-db: Django's tasks on the ORM; its worker runs one task at a time."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import django_tasks_db  # noqa: F401  (where it is not installed, this module is not either)
from django.core.management import call_command
from django.db import transaction

from .contender import POSTGRES, SQLITE, Body, Contender
from .django_project import migrate, set_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


class DjangoTasksDB(Contender):
    packages = ("django-tasks-db", "Django", "psycopg")
    databases = (POSTGRES, SQLITE)
    settings = {
        "sync": "one task at a time, which is all there is",
    }

    tables = ("django_tasks_database_dbtaskresult",)
    succeeded = (
        "SELECT count(*) FROM django_tasks_database_dbtaskresult WHERE status = 'SUCCESSFUL' AND backend_name <> ''"
    )
    ended = (
        "SELECT count(*) FROM django_tasks_database_dbtaskresult WHERE status IN ('SUCCESSFUL', 'FAILED') "
        "AND backend_name <> ''"
    )
    copies = {POSTGRES: {"id": "gen_random_uuid()"}, SQLITE: {"id": "lower(hex(randomblob(16)))"}}
    kinds = {
        "finished": {"status": "'SUCCESSFUL'", "finished_at": "now()", "backend_name": "''"},
        "delayed": {"run_after": "now() + interval '1 day'", "priority": "10"},
        "last attempt": {},
    }

    def __init__(self, url: str) -> None:
        super().__init__(url)
        set_up(url, "django_tasks_db")
        # Tasks can be declared only after that.
        self._tasks = import_module("benchmarks.contenders.django_tasks_db_tasks")

    def install(self) -> None:
        migrate()

    def submit(self, numbers: Iterable[int]) -> None:
        for n in numbers:
            self._tasks.handle.enqueue(n=n)

    def submit_many(self, batches: Iterable[Sequence[int]]) -> None:
        # There is no other way to submit many at once.
        for batch in batches:
            with transaction.atomic():
                self.submit(batch)

    def work(self, kind: str, body: Body, go: Callable[[], None], names: int, queues: int, concurrency: int) -> None:
        self._tasks.bodies.append(body)
        go()
        call_command("db_worker", queue_name="default", startup_delay=False, reload=False, verbosity=0)
