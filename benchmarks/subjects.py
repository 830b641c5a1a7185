"""A contender with a database of its own: how its tables are filled, and what they say."""

from __future__ import annotations

import os
import sqlite3
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from benchmarks import processes
from benchmarks.contenders import load
from benchmarks.contenders.contender import CONCURRENCY, POSTGRES, SQLITE
from tests.databases import SQLITE_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

NUMBERS = {
    POSTGRES: "CROSS JOIN generate_series({first}, {last}) n",
    SQLITE: "CROSS JOIN (WITH RECURSIVE numbers (n) AS (SELECT {first} UNION ALL SELECT n + 1 FROM numbers "
    "WHERE n < {last}) SELECT n FROM numbers)",
}


class Subject:
    """What is measured: a contender on one database. Everything it says, it reads from there."""

    def __init__(self, name: str, url: str) -> None:
        """Install it. Raises `ImportError` where it is not there, `Failed` where that fails."""
        self.name = name
        self.url = url
        self.vendor = SQLITE if url.startswith("sqlite:") else POSTGRES
        self.contender = load(name)
        self._copied = 0
        processes.run(name, url, "install")
        self._database = connect(url)
        if self.contender.copies is not None:
            processes.run(name, url, "submit", 1)
            self._execute(f"CREATE TABLE benchmark_template AS SELECT * FROM {self._table}")

    @property
    def times(self) -> int:
        return self.contender.times

    def empty(self) -> None:
        tables = self.contender.tables
        if self.vendor == POSTGRES:
            self._execute(f"TRUNCATE {', '.join(tables)} CASCADE")
        else:
            for table in reversed(tables):
                self._execute(f"DELETE FROM {table}")
        self._copied = 0

    def fill(self, count: int, kind: str | None = None) -> None:
        """Add so many waiting tasks, or other rows of one kind, as a submit would write them."""
        if self.contender.copies is None:
            processes.run(self.name, self.url, "submit", count)
            return
        changes = {**self.contender.copies[self.vendor], **(self.contender.kinds[kind] if kind else {})}
        columns = self._columns()
        values = ", ".join(changes.get(column, f"template.{column}") for column in columns)
        numbers = NUMBERS[self.vendor].format(first=self._copied + 1, last=self._copied + count)
        self._execute(
            f"INSERT INTO {self._table} ({', '.join(columns)}) "
            f"SELECT {values} FROM (SELECT * FROM benchmark_template LIMIT 1) template {numbers}"
        )
        self._copied += count

    def settle(self) -> None:
        """Let the server do now what it would do at some time, in the middle of a measurement perhaps."""
        if self.vendor == POSTGRES:
            for table in self.contender.tables:
                self._execute(f"VACUUM ANALYZE {table}")
            self._execute("CHECKPOINT")
        else:
            self._execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def succeeded(self) -> int:
        return self.value(self.contender.succeeded)

    def ended(self) -> int:
        return self.value(self.contender.ended)

    def waiting(self) -> int:
        """How many rows there are in the table of waiting tasks, those that ended included where it keeps them."""
        return self.value(f"SELECT count(*) FROM {self._table}")

    def value(self, statement: str) -> Any:
        return self._database.execute(statement).fetchone()[0]

    @contextmanager
    def workers(
        self,
        kind: str,
        *,
        count: int = 1,
        body: str = "nothing",
        names: int = 1,
        queues: int = 1,
        concurrency: int = CONCURRENCY,
        env: dict[str, str] | None = None,
    ) -> Iterator[list[processes.Process]]:
        """Have worker processes that are ready to start."""
        arguments = (self.name, self.url, "work", kind, body, names, queues, concurrency)
        with processes.ready(count, *arguments, env=env) as workers:
            yield workers

    def close(self) -> None:
        self._database.close()

    @property
    def _table(self) -> str:
        return self.contender.tables[0]

    def _columns(self) -> list[str]:
        if self.vendor == SQLITE:
            return [row[1] for row in self._database.execute(f"PRAGMA table_info({self._table})")]
        rows = self._database.execute(
            "SELECT column_name FROM information_schema.columns "
            "WHERE table_name = %s AND is_generated = 'NEVER' ORDER BY ordinal_position",
            [self._table],
        )
        return [row[0] for row in rows]

    def _execute(self, statement: str) -> None:
        self._database.execute(statement)


def connect(url: str) -> Any:
    """A connection beside those of the contender, on which each statement is a transaction."""
    if url.startswith("sqlite:"):
        connection = sqlite3.connect(
            url.removeprefix("sqlite:///"), timeout=SQLITE_OPTIONS["timeout"], isolation_level=None
        )
        connection.executescript(SQLITE_OPTIONS["init_command"])
        return connection
    connection = psycopg.connect(url, autocommit=True)
    # Copies of rows are not news: their triggers would announce each of them.
    connection.execute("SET session_replication_role = replica")
    return connection


@contextmanager
def subjects(
    names: list[str], vendor: str, server: str, folder: Path, missing: dict[str, str]
) -> Iterator[list[Subject]]:
    """Install contenders that run on this database, each in one of its own; `missing` is told why others do not."""
    made: list[Subject] = []
    urls = []
    try:
        for name in names:
            try:
                if vendor not in load(name).databases:
                    continue
                urls.append(new_database(name, vendor, server, folder))
                made.append(Subject(name, urls[-1]))
            except Exception as error:
                # Whatever is wrong with one of them must not keep the others from being measured.
                missing[name] = processes.in_a_line(error)
        yield made
    finally:
        for subject in made:
            subject.close()
        for url in urls:
            drop(url, server)


def new_database(name: str, vendor: str, server: str, folder: Path) -> str:
    database = f"benchmark_{os.getpid()}_{name.replace('-', '_')}"
    if vendor == SQLITE:
        return f"sqlite:///{folder}/{database}.sqlite3"
    url = urlunsplit(urlsplit(server)._replace(path=f"/{database}"))
    drop(url, server)
    with psycopg.connect(maintenance(server), autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(database)))
    return url


def drop(url: str, server: str) -> None:
    if url.startswith("sqlite:"):
        return  # its folder is temporary
    with psycopg.connect(maintenance(server), autocommit=True) as connection:
        name = sql.Identifier(urlsplit(url).path.removeprefix("/"))
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))


def maintenance(server: str) -> str:
    """The database that every server has."""
    return urlunsplit(urlsplit(server)._replace(path="/postgres"))
