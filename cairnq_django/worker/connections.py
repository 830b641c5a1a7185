"""Database connections of a worker's threads, treated as Django treats a request's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import close_old_connections, connections, reset_queries


@contextmanager
def one_request() -> Iterator[None]:
    """Around a handler call: `CONN_MAX_AGE`, `CONN_HEALTH_CHECKS` and pools work as they do around a view."""
    reset_queries()
    close_old_connections()
    try:
        yield
    finally:
        close_old_connections()


def refresh(using: str) -> None:
    """For threads that run as long as the worker, before a statement: replace a connection that broke or is too old.

    `CONN_MAX_AGE = 0` means "closed after each request" for a request; such a thread would reconnect at each poll.
    """
    reset_queries()
    connection = connections[using]
    if connection.errors_occurred or connection.settings_dict["CONN_MAX_AGE"] != 0:
        connection.close_if_unusable_or_obsolete()
