"""Database connections of a worker's threads, treated as Django treats a request's."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeVar

from django.db import InterfaceError, OperationalError, connections, reset_queries
from django.db.backends.base.base import BaseDatabaseWrapper

from ..logs import about_current

logger = logging.getLogger(__name__)

R = TypeVar("R")

# The loop, the heartbeat and the bookkeeper have one each, for as long as the worker runs; so has the scheduler, where
# there are schedules. The listener's is never one of a pool's.
OF_ITS_OWN: Final = 4


def connections_needed(*, concurrency: int, sweeps: bool) -> int:
    """How many connections to the tasks' database a worker may use at the same time.

    Each call may have one, of an async handler, too; the sweeper has one while it is at work.
    """
    return OF_ITS_OWN + concurrency + sweeps


@contextmanager
def one_request() -> Iterator[None]:
    """Around a handler call: `CONN_MAX_AGE`, `CONN_HEALTH_CHECKS` and pools work as they do around a view."""
    # What Django does before and after a request, in one pass over the thread's connections instead of four.
    for connection in connections.all(initialized_only=True):
        connection.queries_log.clear()
        connection.close_if_unusable_or_obsolete()
    try:
        yield
    finally:
        for connection in connections.all(initialized_only=True):
            if connection.in_atomic_block:
                _drop(connection)
            else:
                connection.close_if_unusable_or_obsolete()


def refresh(using: str) -> None:
    """For threads that run as long as the worker, before a statement: replace a connection that broke or is too old.

    `CONN_MAX_AGE = 0` means "closed after each request" for a request; such a thread would reconnect at each poll.
    """
    reset_queries()
    connection = connections[using]
    if connection.errors_occurred or connection.settings_dict["CONN_MAX_AGE"] != 0:
        connection.close_if_unusable_or_obsolete()


def on_a_sound_connection(using: str, statement: Callable[[], R]) -> R:
    """What `statement()` returns, run again on a new connection if the one there was had broken.

    A connection that broke in an open transaction is the affair of whoever opened that.
    """
    connection = connections[using]
    try:
        return statement()
    except (OperationalError, InterfaceError):
        if connection.in_atomic_block or connection.connection is None or connection.is_usable():
            raise
        connection.close()
        return statement()


def _drop(connection: BaseDatabaseWrapper) -> None:
    """What a handler leaves open would swallow the writes of the next one on this thread, and hold locks until then."""
    what = "A handler left a transaction open on database %r; it is rolled back"
    logger.warning(what, connection.alias, extra=about_current())
    # A connection that is closed in a transaction stays unusable.
    del connections[connection.alias]
    connection.close()
