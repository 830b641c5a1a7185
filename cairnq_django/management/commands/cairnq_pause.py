"""Pause a queue."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from ..base import DatabaseCommand
from ..pausing import moment, pause

_OPTIONS = ("queue", "until", "dry_run")


class Command(DatabaseCommand):
    help = (
        "Has a queue give out no more tasks. It takes submits as before, and running tasks go on. "
        "Undone by cairnq_resume."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        option = parser.add_argument
        option("queue", metavar="QUEUE", help="The queue's name.")
        option(
            "--until",
            type=moment,
            metavar="TIME",
            help="When it goes on by itself: seconds from now, a number with m, h or d, as in 30m, or an ISO time, in "
            "the project's time zone unless it names another (not before it is resumed).",
        )
        option("--dry-run", action="store_true", help="Only say what would be done.")

    def handle(self, **options: Any) -> None:
        pause(self.out(options), using=options["database"], **{name: options[name] for name in _OPTIONS})
