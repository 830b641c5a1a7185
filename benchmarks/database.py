"""The database that a benchmark measures on: an empty one, on a PostgreSQL server of its own."""

from __future__ import annotations

import logging
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import django
from django.db import connection, connections

from tests.servers import named_by_environment, postgres

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def a_database() -> Iterator[None]:
    """Set Django up on a new database; the server that `DATABASE_URL` names, where set, takes it."""
    server = named_by_environment if "DATABASE_URL" in os.environ else postgres
    with server() as url:
        os.environ.update(DATABASE_URL=url, DJANGO_SETTINGS_MODULE="tests.settings")
        django.setup()
        logging.getLogger("cairnq_django").setLevel(logging.WARNING)
        name = connection.settings_dict["NAME"]
        connection.creation.create_test_db(verbosity=0, autoclobber=True)
        try:
            yield
        finally:
            connections.close_all()
            connection.creation.destroy_test_db(name, verbosity=0)
