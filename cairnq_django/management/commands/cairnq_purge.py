"""Delete tasks that have ended."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from ...statuses import TERMINAL
from ..base import DatabaseCommand
from ..purging import age, purge

_OPTIONS = ("older_than", "statuses", "queue", "name", "limit", "dry_run")


class Command(DatabaseCommand):
    help = "Deletes tasks that have ended, with their keys and attempts, the longest ended first. Live tasks stay."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        option = parser.add_argument
        option(
            "--older-than",
            type=age,
            required=True,
            metavar="AGE",
            help="Only those that ended longer ago than this: seconds, or a number with m, h or d, as in 12h or 30d.",
        )
        option(
            "--status",
            action="append",
            dest="statuses",
            choices=[str(status) for status in TERMINAL],
            help="Only those that ended so; give it again for another one (all).",
        )
        option("--queue", metavar="NAME", help="Only those of this queue.")
        option("--name", metavar="NAME", help="Only those of the handler of this name.")
        option("--limit", type=int, metavar="N", help="At most so many.")
        option("--dry-run", action="store_true", help="Only say how many there are.")

    def handle(self, **options: Any) -> None:
        purge(self.out(options), using=options["database"], **{name: options[name] for name in _OPTIONS})
