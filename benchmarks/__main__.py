"""Run a benchmark on an empty database: `python -m benchmarks NAME [options]`."""

from __future__ import annotations

import logging
import os
import signal
import sys
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import django
from django.db import connection, connections

from tests.servers import named_by_environment, postgres

if TYPE_CHECKING:
    from collections.abc import Iterator

NAMES = sorted(path.stem for path in Path(__file__).parent.glob("*.py") if not path.stem.startswith("_"))


def main() -> None:
    """The first argument is the benchmark's module, the others are its own."""
    if len(sys.argv) < 2 or sys.argv[1] not in NAMES:
        sys.exit(
            f"usage: python -m benchmarks {{{','.join(NAMES)}}} [--help]\n\n"
            "Starts a PostgreSQL server of its own; DATABASE_URL, where set, names another one, where a test database "
            "is created."
        )
    name = sys.argv.pop(1)
    sys.argv[0] = f"python -m benchmarks {name}"
    # A terminated run ends like an interrupted one, so that the server it started goes with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
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
