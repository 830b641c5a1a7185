"""Resume a queue."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from ..base import DatabaseCommand
from ..pausing import resume


class Command(DatabaseCommand):
    help = "Has a queue that was paused give out tasks again; idle workers look for them at once."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("queue", metavar="QUEUE", help="The queue's name.")
        parser.add_argument("--dry-run", action="store_true", help="Only say what would be done.")

    def handle(self, **options: Any) -> None:
        resume(self.out(options), using=options["database"], queue=options["queue"], dry_run=options["dry_run"])
