"""Start a worker in a process of its own, or a supervisor of several: refuse what cannot work, see the rest through."""

from __future__ import annotations

import sys
from typing import Any, Final

from django.apps import apps
from django.core.management.base import CommandError, OutputWrapper
from django.db import DEFAULT_DB_ALIAS, OperationalError, connections

from ..arguments import integer
from ..models import Task
from ..registry import Registry, default_registry
from ..store.engine import task_database
from ..worker.worker import Worker
from .lifeline import RECYCLE, end_at_once, end_in_time, is_supervised, take_up
from .reloading import run_with_reloader
from .supervising import Supervisor, equal_command, same_command
from .telling import Voice
from .warning import warn

FLUSH_TIMEOUT: Final = 2.0  # seconds


def serve(
    out: OutputWrapper, *, processes: int | None, burst: bool, autoreload: bool, is_typed: bool, **options: Any
) -> None:
    """Run a worker with these `Worker` options until it is told to stop, or keep `processes` up that do.

    `is_typed` says whether this is what the process was started for. Raises `CommandError` for what cannot work.
    """
    if processes is not None and autoreload:
        raise CommandError("--autoreload is for one process; leave out --processes")
    refuse_without_handlers(default_registry)
    try:
        if processes is not None:
            integer(processes, "processes", minimum=1)
        worker = Worker(**options)
    except (TypeError, ValueError) as error:
        raise CommandError(str(error)) from error
    refuse_without_tables(task_database())
    voice = Voice(out, worker, processes)
    if is_supervised():
        take_up(worker.stop)
        connections.close_all()
        worker.serve(burst=burst)
        status = RECYCLE if worker.recycled or worker.worn_out else 0
        end_in_time(status)
    elif autoreload:
        status = run_with_reloader(worker, voice)
    elif processes is not None:
        command, env = (same_command(), {}) if is_typed else equal_command({**options, "burst": burst})
        voice.starts()
        warn(worker, is_long_lived=not burst)
        _close_all_with_pools()
        status = Supervisor(command, processes=processes, env=env, burst=burst).run(voice.stops)
        voice.ends()
    else:
        voice.starts()
        warn(worker, is_long_lived=not burst)
        # This thread only waits from here on.
        connections.close_all()
        worker.serve(burst=burst, on_stop=voice.stops)
        status = _status(worker)
        voice.ends()
    _end_process(worker, status)


def refuse_without_handlers(registry: Registry) -> None:
    if not len(registry):
        looked_in = ", ".join(f"{config.name}.tasks" for config in apps.get_app_configs())
        raise CommandError(
            f"There is nothing to run: no handler is registered. Decorate one with @task from cairnq_django, in the "
            f"tasks.py of an app in INSTALLED_APPS. Looked in: {looked_in}"
        )


def refuse_without_tables(using: str) -> None:
    try:
        tables = connections[using].introspection.table_names()
    except OperationalError:
        # A database that is away may come back; the worker reports it, and waits.
        return
    if Task._meta.db_table not in tables:
        # Elsewhere, `migrate` alone would make the tables of all other apps, too.
        options = "" if using == DEFAULT_DB_ALIAS else f" cairnq_django --database {using}"
        raise CommandError(f"Database {using!r} has no table {Task._meta.db_table!r}. Run: manage.py migrate{options}")


def _close_all_with_pools() -> None:
    connections.close_all()
    for connection in connections.all(initialized_only=True):
        # A pool would keep connections, and threads, that a supervisor has no use for.
        if hasattr(connection, "close_pool"):
            connection.close_pool()


def _status(worker: Worker) -> int:
    return 1 if worker.worn_out else 0


def _end_process(worker: Worker, status: int) -> None:
    if worker.hanging:
        # Python would wait for threads of handlers that do not end.
        _send_what_is_buffered()
        end_at_once(status)
    if status:
        sys.exit(status)


def _send_what_is_buffered() -> None:
    """What error reporting and tracing would send when Python ends, if the project has set them up."""
    sentry_sdk = sys.modules.get("sentry_sdk")
    if sentry_sdk is not None:
        sentry_sdk.flush(timeout=FLUSH_TIMEOUT)
    tracing = sys.modules.get("opentelemetry.trace")
    if tracing is not None:
        flush = getattr(tracing.get_tracer_provider(), "force_flush", None)
        if flush is not None:
            flush(int(FLUSH_TIMEOUT * 1000))
