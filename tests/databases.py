"""The databases a test session may run on, as URLs and as Django settings."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from django.db import ConnectionHandler
from environ import Env

if TYPE_CHECKING:
    from collections.abc import Iterator

# What the documentation recommends for SQLite.
SQLITE_OPTIONS = {
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
    "timeout": 20,
    "transaction_mode": "IMMEDIATE",
}


def django_databases(url: str) -> dict[str, dict[str, Any]]:
    """Return `DATABASES` for one server: the default database, and one for tests that route the queue elsewhere."""
    databases = {"default": Env.db_url_config(url), "dedicated": Env.db_url_config(url)}
    if databases["dedicated"]["NAME"] != ":memory:":
        databases["dedicated"]["NAME"] += "_dedicated"
    for settings in databases.values():
        if _vendor(settings) == "sqlite3":
            settings["OPTIONS"] = SQLITE_OPTIONS
        if _vendor(settings) == "mysql":
            settings["TEST"] = {"CHARSET": "utf8mb4"}
    return databases


def database_url(settings: dict[str, Any]) -> str:
    """Return the URL that `django_databases` turns back into these settings."""
    vendor = _vendor(settings)
    if vendor == "sqlite3":
        return f"sqlite:///{quote(str(settings['NAME']))}"
    scheme = {"postgresql": "postgres"}.get(vendor, vendor)
    login = quote(settings["USER"], safe="")
    if settings["PASSWORD"]:
        login += ":" + quote(settings["PASSWORD"], safe="")
    server = f"{settings['HOST']}:{settings['PORT']}".rstrip(":")
    options = {name: value for name, value in settings["OPTIONS"].items() if isinstance(value, (str, int))}
    if settings["HOST"].startswith("/"):
        # A socket's folder does not fit between "//" and "/".
        server, options = "", {**options, "host": settings["HOST"], "port": settings["PORT"] or 5432}
    query = "?" + urlencode(options) if options else ""
    return f"{scheme}://{login}@{server}/{quote(settings['NAME'], safe='')}{query}"


def server_version(url: str) -> str:
    """Return the product and version of the server, such as "PostgreSQL 18.1"."""
    with connect(url) as connection:
        cursor = connection.cursor()
        cursor.execute("SELECT sqlite_version()" if url.startswith("sqlite:") else "SELECT version()")
        version = str(cursor.fetchone()[0])
    if url.startswith("sqlite:"):
        return f"SQLite {version}"
    if version.startswith("PostgreSQL"):
        return " ".join(version.split()[:2])
    return f"MariaDB {version.partition('-')[0]}" if "mariadb" in version.lower() else f"MySQL {version}"


@contextmanager
def connect(url: str) -> Iterator[Any]:
    """Open a plain connection of the driver to the server; the database in the URL need not exist."""
    settings = django_databases(url)["default"]
    settings["NAME"] = {"sqlite3": ":memory:", "postgresql": "postgres", "mysql": ""}[_vendor(settings)]
    # Not through a Django cursor: pytest-django blocks those outside of tests.
    wrapper = ConnectionHandler({"default": settings})["default"]
    connection = wrapper.get_new_connection(wrapper.get_connection_params())
    try:
        yield connection
    finally:
        connection.close()


def _vendor(settings: dict[str, Any]) -> str:
    return settings["ENGINE"].rpartition(".")[2]
