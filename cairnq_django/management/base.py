"""What the commands that look at a queue or change it have in common: its database, how much is said, what it fails."""

from __future__ import annotations

from io import StringIO
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser, OutputWrapper
from django.db import InterfaceError, OperationalError, ProgrammingError, connections

from ..store.engine import task_database


class DatabaseCommand(BaseCommand):
    """A command with `--database`, whose option `database` is always an alias.

    What a database raises that is away, refuses, or has other tables than this version, becomes a `CommandError` of
    one line; so do settings that are wrong.
    """

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--database",
            metavar="ALIAS",
            choices=tuple(connections),
            help="The alias of the database whose tasks are meant (the one that DATABASE_ROUTERS send tasks to).",
        )

    def execute(self, *args: Any, **options: Any) -> Any:
        using = options.get("database") or task_database()
        try:
            return super().execute(*args, **{**options, "database": using})
        except (OperationalError, InterfaceError, ProgrammingError) as error:
            raise CommandError(f"Database {using!r}: {' '.join(str(error).split())}") from error
        except ImproperlyConfigured as error:
            raise CommandError(str(error)) from error

    def out(self, options: dict[str, Any]) -> OutputWrapper:
        """What to write to: nobody hears it at verbosity 0; from 2 on, it has told which database is meant."""
        if options["verbosity"] > 1 and not options.get("json"):
            self.stdout.write(f"Database {shown_database(options['database'])}")
        return heard(self.stdout, options["verbosity"])


def heard(out: OutputWrapper, verbosity: int) -> OutputWrapper:
    """`out`, or what nobody hears at verbosity 0."""
    return out if verbosity else OutputWrapper(StringIO())


def shown_database(using: str) -> str:
    """The alias, the product, and what the settings say of where it is."""
    connection: Any = connections[using]
    settings = connection.settings_dict
    server = f" at {settings['HOST']}" if settings["HOST"] else ""
    return f"{using}: {_product(connection)} {settings['NAME']}{server}"


def _product(connection: Any) -> str:
    try:
        return str(connection.display_name)
    except OperationalError:
        # Only a MySQL server that answers says whether it is MariaDB.
        return str(connection.vendor)
