"""System checks: mistakes in a project's settings, found before they cost a task."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from django.apps import AppConfig, apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register
from django.db import connections, router
from django.db.backends.base.base import BaseDatabaseWrapper

from . import conf
from .registry import default_registry

TAG = "cairnq_django"

_UTC = (None, "UTC", "Etc/UTC")
_WAL = re.compile(r"journal_mode\s*[=(]\s*['\"]?wal", re.IGNORECASE)


@register(TAG)
def check_settings(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """E001: every problem with `CAIRNQ`."""
    return [Error(problem, id="cairnq_django.E001") for problem in conf.problems(getattr(settings, conf.SETTING, {}))]


@register(TAG)
def check_time_zones(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """E002 and E003: a task's times are the database's clock in UTC."""
    messages: list[CheckMessage] = []
    if not settings.USE_TZ:
        messages.append(
            Error("Tasks need time zone support.", hint="Set USE_TZ = True.", obj="USE_TZ", id="cairnq_django.E002")
        )
    connection = _queue_connection()
    time_zone = connection.settings_dict["TIME_ZONE"]
    # With time zone support of its own, a database knows its times for what they are.
    if not connection.features.supports_timezones and time_zone not in _UTC:
        messages.append(
            Error(
                f"The database {connection.alias!r}, which holds the tasks, stores times in {time_zone}, but its clock "
                "tells them in UTC.",
                hint=f"Remove TIME_ZONE from DATABASES[{connection.alias!r}], or route the queue to another database.",
                id="cairnq_django.E003",
            )
        )
    return messages


@register(TAG)
def check_runworker(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """W001: Django Channels ships a command named `runworker`, too."""
    # Of two apps that ship a command, Django takes the one that comes first.
    contenders = [config.name for config in apps.get_app_configs() if config.name in ("channels", "cairnq_django")]
    if len(contenders) < 2:
        return []
    return [
        Warning(
            f"Both channels and cairnq_django ship a command named runworker; here it is that of {contenders[0]}.",
            hint="Start task workers with `manage.py cairnq_worker`. runworker is the command of whichever of the two "
            "comes first in INSTALLED_APPS.",
            id="cairnq_django.W001",
        )
    ]


@register(TAG)
def check_sqlite(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """W002 and W003: what SQLite needs to be written to by several processes."""
    connection = _queue_connection()
    if connection.vendor != "sqlite":
        return []
    options = connection.settings_dict["OPTIONS"]
    where = f"DATABASES[{connection.alias!r}]['OPTIONS']"
    messages: list[CheckMessage] = []
    if str(options.get("transaction_mode")).upper() not in ("IMMEDIATE", "EXCLUSIVE"):
        messages.append(
            Warning(
                f"Transactions on the SQLite database {connection.alias!r} begin without the write lock. Under "
                'concurrent writes they fail with "database is locked", whatever the timeout.',
                hint=f"Set {where}['transaction_mode'] = 'IMMEDIATE'.",
                id="cairnq_django.W002",
            )
        )
    if not _WAL.search(str(options.get("init_command"))) and _is_file_without_wal(connection):
        messages.append(
            Warning(
                f"The SQLite database {connection.alias!r} is not in WAL mode: readers and writers block each other.",
                hint=f"Set {where}['init_command'] = 'PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;'.",
                id="cairnq_django.W003",
            )
        )
    return messages


@register(TAG)
def check_atomic_handlers(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """W004: an atomic handler in an app whose models are written to another database than the tasks'."""
    tasks = router.db_for_write(apps.get_model("cairnq_django", "Task"))
    messages: list[CheckMessage] = []
    for definition in default_registry:
        config = apps.get_containing_app_config(getattr(definition.handler, "__module__", None) or "")
        if not definition.atomic or config is None:
            continue
        others = sorted({router.db_for_write(model) for model in config.get_models()} - {tasks})
        if others:
            written_to = ", ".join(map(repr, others))
            messages.append(
                Warning(
                    f"Task {definition.name!r} is atomic on the database {tasks!r}, where tasks live, but models of "
                    f"its app, {config.label}, are written to {written_to}.",
                    hint="What it writes there stays when the task fails or runs again. Route tasks and models to the "
                    "same database, or leave out atomic=True and make the handler repeatable.",
                    obj=definition.name,
                    id="cairnq_django.W004",
                )
            )
    return messages


@register(TAG)
def check_resources(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """W005: a handler of a resource that the settings do not declare."""
    raw = getattr(settings, conf.SETTING, {})
    if conf.problems(raw):
        return []
    declared = conf.get_settings().resources
    return [
        Warning(
            f"Task {definition.name!r} draws on the resource {definition.resource!r}, which CAIRNQ['RESOURCES'] does "
            "not declare.",
            hint=f"Declare it there, {{{definition.resource!r}: 1}}, or start each worker with --resource "
            f"{definition.resource}=1; 0 means that a worker runs none of its tasks.",
            obj=definition.name,
            id="cairnq_django.W005",
        )
        for definition in default_registry
        if definition.resource is not None and definition.resource not in declared
    ]


def _queue_connection() -> BaseDatabaseWrapper:
    return connections[router.db_for_write(apps.get_model("cairnq_django", "Task"))]


def _is_file_without_wal(connection: Any) -> bool:
    """Whether the database is a file that is not in WAL mode; a file that does not exist yet is not."""
    if connection.is_in_memory_db():
        return False
    try:
        with Path(connection.settings_dict["NAME"]).open("rb") as file:
            header = file.read(20)
    except OSError:
        return True
    # The file format's "write version" and "read version": 2 is WAL.
    return header[18:20] != b"\x02\x02"
