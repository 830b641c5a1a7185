"""Who is measured: this project, the limit that the database sets, and peers; one module for each."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .contender import Contender

# Names, in the order of the report, and where their classes are. Peers are imported only when they run.
CONTENDERS = {
    "cairnq-django": "cairnq_django_:CairnQDjango",
    "limit": "raw:Raw",
    "procrastinate": "procrastinate_:Procrastinate",
    "pgqueuer": "pgqueuer_:PgQueuer",
    "django-tasks-db": "django_tasks_db_:DjangoTasksDB",
    "cairnq": "cairnq_:CairnQ",
    "huey": "huey_:Huey",
}


def load(name: str) -> type[Contender]:
    """Return a contender's class. Raises `ImportError` where it is not installed."""
    module, _, attribute = CONTENDERS[name].partition(":")
    return getattr(import_module(f"benchmarks.contenders.{module}"), attribute)


def version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
