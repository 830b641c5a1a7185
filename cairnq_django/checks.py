"""System checks: mistakes in a project's settings, found before they cost a task."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from django.apps import AppConfig, apps
from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register
from django.db import connections, router
from django.db.backends.base.base import BaseDatabaseWrapper

from . import conf
from .registry import default_registry
from .worker.connections import connections_needed

TAG = "cairnq_django"

_POOL_SIZE = 4  # of psycopg_pool, unless it is told another one
_UTC = (None, "UTC", "Etc/UTC")
_WAL = re.compile(r"journal_mode\s*[=(]\s*['\"]?wal", re.IGNORECASE)


@register(TAG)
def check_settings(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """E001: every problem with `CAIRNQ`."""
    return [Error(problem, id="cairnq_django.E001") for problem in conf.problems(getattr(settings, conf.SETTING, {}))]


@register(TAG)
def check_setting_names(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """W006: a setting that looks like one of this app's, which has one dictionary for all."""
    return [
        Warning(f"Nothing reads the setting {name}.", hint=f"Did you mean {meant}?", obj=name, id="cairnq_django.W006")
        for name in sorted(dir(settings))
        if name.isupper() and name != conf.SETTING and (meant := _setting_meant(name))
    ]


@register(TAG)
def check_routing(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """E004: rows of the queue in several databases, or not in the one that `CAIRNQ["DATABASE"]` names."""
    named = conf.database()
    tasks = named or _queue_connection().alias
    elsewhere = {
        model.__name__: alias
        for model in apps.get_app_config("cairnq_django").get_models()
        if (alias := router.db_for_write(model)) != tasks
    }
    if named and elsewhere:
        others = ", ".join(map(repr, sorted(set(elsewhere.values()))))
        what = "tasks" if "Task" in elsewhere else _listed(elsewhere)
        return [
            Error(
                f"CAIRNQ['DATABASE'] is {named!r}, but {what} are written to {others}.",
                hint="Put 'cairnq_django.routers.CairnQRouter' first in DATABASE_ROUTERS, or leave out the setting.",
                id="cairnq_django.E004",
            )
        ]
    if elsewhere:
        found = ", ".join(f"{model} to {alias!r}" for model, alias in elsewhere.items())
        return [
            Error(
                f"Tasks are written to the database {tasks!r}, but {found}: they are written together.",
                hint="Have DATABASE_ROUTERS send all models of cairnq_django to one database, as "
                "'cairnq_django.routers.CairnQRouter' does.",
                id="cairnq_django.E004",
            )
        ]
    barred = [
        model.__name__
        for model in apps.get_app_config("cairnq_django").get_models()
        if not router.allow_migrate_model(tasks, model)
    ]
    if not barred:
        return []
    return [
        Error(
            f"Tasks live in the database {tasks!r}, but DATABASE_ROUTERS allow no tables there for {_listed(barred)}.",
            hint="Put 'cairnq_django.routers.CairnQRouter' first in DATABASE_ROUTERS, and set CAIRNQ['DATABASE'].",
            id="cairnq_django.E004",
        )
    ]


@register(TAG)
def check_transactions(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """W007: tasks in a database that the project's transactions do not reach, and no word that this is meant."""
    tasks = _queue_connection().alias
    others = {router.db_for_write(model) for model in apps.get_models() if model._meta.app_label != "cairnq_django"}
    if conf.database() == tasks or not others or tasks in others:
        return []
    return [
        Warning(
            f"Tasks live in the database {tasks!r}, where no other model is written: submit() cannot share a "
            "transaction with what it belongs to.",
            hint="Call submit_on_commit() in transactions, so that no task is left of one that is rolled back, and set "
            f"CAIRNQ['DATABASE'] = {tasks!r} to say that this is meant, or route tasks to the other models' database.",
            id="cairnq_django.W007",
        )
    ]


@register(TAG)
def check_connections(app_configs: Sequence[AppConfig] | None, **kwargs: Any) -> list[CheckMessage]:
    """W008 and W009: a worker that gets no connection, or whose transactions nobody commits."""
    connection = _queue_connection()
    where = f"DATABASES[{connection.alias!r}]"
    messages: list[CheckMessage] = []
    size = pool_size(connection)
    if size is not None and not conf.problems(getattr(settings, conf.SETTING, {})):
        options = conf.get_settings()
        needed = connections_needed(concurrency=options.concurrency, sweeps=bool(options.retention))
        if size < needed:
            messages.append(
                Warning(
                    f"The connection pool of the database {connection.alias!r} holds {size}, but a worker with a "
                    f"concurrency of {options.concurrency} may need {needed} at the same time. Its handlers would wait "
                    "for each other, and its heartbeat for them, until it loses its tasks.",
                    hint=f"Set {where}['OPTIONS']['pool'] = {{'max_size': {needed}}}, or lower CAIRNQ['CONCURRENCY'].",
                    id="cairnq_django.W008",
                )
            )
    if not connection.settings_dict["AUTOCOMMIT"]:
        messages.append(
            Warning(
                f"The database {connection.alias!r}, which holds the tasks, is used without autocommit: nobody commits "
                "what a worker writes, so its tasks never end.",
                hint=f"Remove AUTOCOMMIT from {where}, at least in the settings of workers.",
                id="cairnq_django.W009",
            )
        )
    return messages


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


def pool_size(connection: BaseDatabaseWrapper) -> int | None:
    """How many connections to the database its pool holds at the most; None if it has no pool."""
    pool = connection.settings_dict["OPTIONS"].get("pool")
    if not pool:
        return None
    options = pool if isinstance(pool, dict) else {}
    size = options.get("max_size") or options.get("min_size", _POOL_SIZE)
    return int(size)


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


def _setting_meant(name: str) -> str | None:
    """What someone may have meant by a setting that nobody reads."""
    key = name.removeprefix(f"{conf.SETTING}_")
    if key != name and key in conf.KEYS:
        return f"{conf.SETTING}[{key!r}]"
    if not name.startswith(conf.SETTING) and not get_close_matches(name, [conf.SETTING], cutoff=0.8):
        return None
    value = getattr(settings, name)
    holds_keys = isinstance(value, dict) and any(str(key).upper() in conf.KEYS for key in value)
    return conf.SETTING if holds_keys else None


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))
