"""What is said of a worker that starts though something is not as it should be. Nothing here keeps it from starting."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from django.conf import settings
from django.db import connections

from ..checks import pool_size
from ..conf import get_settings
from ..store.engine import task_database
from ..store.stats import QueuedName, queued_names
from ..worker.connections import connections_needed
from ..worker.worker import Worker

logger = logging.getLogger(__name__)

NAMED = 10  # names that one warning tells


def warn(worker: Worker, *, is_long_lived: bool) -> None:
    """Log a warning of each thing that is likely to hurt. Never raises."""
    if is_long_lived and settings.DEBUG:
        logger.warning(
            "DEBUG is on: each call keeps the text of its last 9,000 statements, with their values, and each statement "
            "takes longer. Set DEBUG = False where this worker is to stay"
        )
    try:
        for said in (*_about_the_pool(worker), *_about_names(worker)):
            logger.warning("%s", said)
    except Exception:
        # A database that is away may come back; the worker reports it, and waits.
        logger.debug("Could not look at what is queued", exc_info=True)


def _about_the_pool(worker: Worker) -> Iterator[str]:
    """What the system check does not know of: a concurrency that is told on the command line."""
    options = worker.options
    size = pool_size(connections[task_database()])
    needed = connections_needed(concurrency=options.concurrency, sweeps=bool(options.retention))
    if size is not None and size < needed and options.concurrency != get_settings().concurrency:
        yield (
            f"The pool of {size} connections is smaller than the {needed} that this worker may need with "
            f"--concurrency {options.concurrency}"
        )


def _about_names(worker: Worker) -> Iterator[str]:
    orphans = queued_names(task_database(), worker.options.queues, without=worker.registry)
    if orphans:
        named = ", ".join(map(_shown, orphans[:NAMED]))
        others = f" and {len(orphans) - NAMED:,} other names" if len(orphans) > NAMED else ""
        yield (
            f"Tasks are queued that this worker has no handler for: {named}{others}. They wait for a worker that has "
            "one, unharmed; if none will, cancel them, or give the handler that is to run them their name as an alias"
        )


def _shown(orphan: QueuedName) -> str:
    count = f"at least {orphan.count:,}" if orphan.is_more else f"{orphan.count:,}"
    return f"{orphan.name!r} in {orphan.queue!r} ({count})"
