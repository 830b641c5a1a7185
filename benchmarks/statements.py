"""How many statements reach a PostgreSQL server, by what it lets one see."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from benchmarks.subjects import maintenance

if TYPE_CHECKING:
    from benchmarks.subjects import Subject

LOGGED = re.compile(r"^(?P<database>\S+) LOG:  (?:statement|execute [^:]*): (?P<statement>.*)")


class Statements:
    """Counts them for one database, since it was made: those of sessions that began after that.

    From `pg_stat_statements` where it is loaded, else from the server's log where it can be read, else transactions
    from `pg_stat_database`; `source` says from which.
    """

    def __init__(self, subject: Subject, server: str) -> None:
        self._subject = subject
        self._name = subject.value("SELECT current_database()")
        self._log: Path | None = None
        if self._has_extension():
            self.source = "pg_stat_statements"
            subject.value("SELECT pg_stat_statements_reset()::text")
            return
        with suppress(psycopg.Error, OSError):
            folder = Path(subject.value("SHOW data_directory"))
            if subject.value("SHOW log_line_prefix") == "%d " and (folder / "log").is_file():
                self._log = folder / "log"
        self.source = "pg_stat_database.xact_commit, transactions instead" if self._log is None else "log_statement"
        with psycopg.connect(maintenance(server), autocommit=True) as connection:
            if self._log is not None:
                connection.execute(f"ALTER DATABASE {self._name} SET log_statement = 'all'")
        self._sizes = self._size()
        self._commits = self._committed()

    def reset(self) -> None:
        """Count from now on."""
        if self.source == "pg_stat_statements":
            self._subject.value("SELECT pg_stat_statements_reset()::text")
        elif self._log is not None:
            self._sizes = self._size()
        else:
            self._commits = self._committed()

    def count(self, containing: str = "") -> int:
        """Those whose text contains something; transactions have no text."""
        if self.source == "pg_stat_statements":
            return self._subject.value(
                "SELECT coalesce(sum(calls), 0)::bigint FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid "
                f"WHERE datname = current_database() AND query ILIKE '%{containing}%' "
                "AND query NOT ILIKE '%pg_stat_statements%'"
            )
        if self._log is None:
            return self._committed() - self._commits
        with self._log.open(errors="replace") as log:
            log.seek(self._sizes)
            found = [LOGGED.match(line) for line in log]
        return sum(
            line["database"] == self._name and containing.lower() in line["statement"].lower() for line in found if line
        )

    def _has_extension(self) -> bool:
        try:
            self._subject._database.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
            self._subject.value("SELECT count(*) FROM pg_stat_statements")
        except psycopg.Error:
            return False
        return True

    def _size(self) -> int:
        return self._log.stat().st_size if self._log else 0

    def _committed(self) -> int:
        return self._subject.value("SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()")
