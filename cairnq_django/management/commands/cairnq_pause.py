"""Pause a queue."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from ..pausing import moment, pause


class Command(BaseCommand):
    help = (
        "Has a queue give out no more tasks. It takes submits as before, and running tasks go on. "
        "Undone by cairnq_resume."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        option = parser.add_argument
        option("queue", metavar="QUEUE", help="The queue's name.")
        option(
            "--until",
            type=moment,
            metavar="TIME",
            help="When it goes on by itself: seconds from now, a number with m, h or d, as in 30m, or an ISO time, in "
            "the project's time zone unless it names another (not before it is resumed).",
        )

    def handle(self, **options: Any) -> None:
        pause(self.stdout, queue=options["queue"], until=options["until"])
