"""Run the suite, `python -m benchmarks [options]`, or one benchmark on an empty database, `... NAME [options]`."""

from __future__ import annotations

import logging
import os
import signal
import sys
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

import django
from django.db import connection, connections

from benchmarks import suite
from tests.servers import named_by_environment, postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = ["claims", "heavy", "pages", "sweep"]


def main() -> None:
    """A first argument that is no option names a benchmark; the others are its own."""
    # A terminated run ends like an interrupted one, so that the server it started goes with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not sys.argv[1:] or sys.argv[1].startswith("-"):
        suite.main()
    elif sys.argv[1] in NAMES:
        run_alone(sys.argv.pop(1))
    else:
        sys.exit(
            f"usage: python -m benchmarks [{{{','.join(NAMES)}}}] [--help]\n\n"
            "Starts a PostgreSQL server of its own; DATABASE_URL, where set, names another one, where test databases "
            "are created."
        )


def run_alone(name: str) -> None:
    sys.argv[0] = f"python -m benchmarks {name}"
    server = named_by_environment if "DATABASE_URL" in os.environ else postgres
    with server() as url:
        os.environ.update(DATABASE_URL=url, DJANGO_SETTINGS_MODULE="tests.settings")
        django.setup()
        logging.getLogger("cairnq_django").setLevel(logging.WARNING)
        with an_empty_database():
            import_module(f"benchmarks.{name}").main()


@contextmanager
def an_empty_database() -> Iterator[None]:
    name = connection.settings_dict["NAME"]
    connection.creation.create_test_db(verbosity=0, autoclobber=True)
    try:
        yield
    finally:
        connections.close_all()
        connection.creation.destroy_test_db(name, verbosity=0)


if __name__ == "__main__":
    main()
