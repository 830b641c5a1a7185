"""Resume a queue."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from ..pausing import resume


class Command(BaseCommand):
    help = "Has a queue that was paused give out tasks again; idle workers look for them at once."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("queue", metavar="QUEUE", help="The queue's name.")

    def handle(self, **options: Any) -> None:
        resume(self.stdout, queue=options["queue"])
