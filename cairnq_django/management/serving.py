"""Start a worker in a process of its own: refuse what cannot work, say what starts, see it through."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

from django import get_version
from django.apps import apps
from django.core.management.base import CommandError, OutputWrapper
from django.db import OperationalError, connections

from .. import __version__
from ..models import Task
from ..registry import Registry, default_registry
from ..store.engine import task_database
from ..worker.worker import Worker
from .reloading import run_with_reloader


def serve(out: OutputWrapper, *, burst: bool, autoreload: bool, **options: Any) -> None:
    """Run a worker with these `Worker` options until it is told to stop. Raises `CommandError` for what cannot work."""
    refuse_without_handlers(default_registry)
    try:
        worker = Worker(**options)
    except (TypeError, ValueError) as error:
        raise CommandError(str(error)) from error
    refuse_without_tables()

    def say() -> None:
        out.write(banner(worker))
        out.flush()

    if autoreload:
        status = run_with_reloader(worker, on_start=say)
    else:
        say()
        # This thread only waits from here on.
        connections.close_all()
        worker.serve(burst=burst)
        status = 1 if worker.worn_out else 0
    _end_process(worker, status)


def refuse_without_handlers(registry: Registry) -> None:
    if not len(registry):
        looked_in = ", ".join(f"{config.name}.tasks" for config in apps.get_app_configs())
        raise CommandError(
            f"There is nothing to run: no handler is registered. Decorate one with @task from cairnq_django, in the "
            f"tasks.py of an app in INSTALLED_APPS. Looked in: {looked_in}"
        )


def refuse_without_tables() -> None:
    using = task_database()
    try:
        tables = connections[using].introspection.table_names()
    except OperationalError:
        # A database that is away may come back; the worker reports it, and waits.
        return
    if Task._meta.db_table not in tables:
        raise CommandError(
            f"Database {using!r} has no table {Task._meta.db_table!r}. Run: manage.py migrate --database {using}"
        )


def banner(worker: Worker) -> str:
    """What a person wants to know of a worker that starts."""
    options = worker.options
    connection = connections[task_database()]
    handlers = sorted(worker.registry, key=lambda definition: definition.name)
    claim_batch = f", claiming up to {options.claim_batch} at once" if options.claim_batch is not None else ""
    lines = [
        f"cairnq-django {__version__} on Django {get_version()}, process {os.getpid()}",
        f"  database      {connection.alias}: {_product(connection)} {_shown_name(connection)}",
        f"  queues        {', '.join(options.queues)}",
        f"  handlers      {', '.join(f'{handler.name} ({handler.queue})' for handler in handlers)}",
        f"  concurrency   {options.concurrency} calls{claim_batch}",
        f"  lease         {options.lease:g} s, a heartbeat every {options.heartbeat_interval:g} s",
        f"  polling       every {options.poll_interval:g} s",
        f"  retries       after {options.retry_backoff:g} s, doubling up to {options.retry_backoff_max:g} s",
        f"  limits        {_limit('run', options.max_run)}, {_limit('drain', options.drain_timeout)}",
    ]
    unserved = [handler for handler in handlers if handler.queue not in options.queues]
    if unserved:
        names = ", ".join(f"{handler.name} ({handler.queue})" for handler in unserved)
        lines.append(f"  not served    {names}: submitted to their own queues, they wait for another worker")
    lines.append("Stop with Ctrl-C: running tasks end first. A second Ctrl-C kills.")
    return "\n".join(lines)


def _product(connection: Any) -> str:
    try:
        return str(connection.display_name)
    except OperationalError:
        # Only a MySQL server that answers says whether it is MariaDB.
        return str(connection.vendor)


def _shown_name(connection: Any) -> str:
    settings = connection.settings_dict
    server = f" at {settings['HOST']}" if settings["HOST"] else ""
    return f"{settings['NAME']}{server}"


def _limit(what: str, seconds: float | None) -> str:
    return f"{what} {seconds:g} s" if seconds is not None else f"{what} without limit"


def _end_process(worker: Worker, status: int) -> None:
    if worker.hanging:
        # Python would wait for threads of handlers that do not end.
        sentry_sdk = sys.modules.get("sentry_sdk")
        if sentry_sdk is not None:
            sentry_sdk.flush(timeout=2.0)
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    if status:
        sys.exit(status)
