"""Say how the queues stand, and which workers run."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from ..base import DatabaseCommand
from ..standing import show


class Command(DatabaseCommand):
    help = (
        "Shows each queue with its queued, due, delayed and running tasks and its oldest wait, and the workers that "
        "were heard of lately. Counts no more than 10,000 tasks of a queue, however many there are."
    )
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--json", action="store_true", help="Say it as one JSON document.")

    def handle(self, **options: Any) -> None:
        show(self.out(options), using=options["database"], as_json=options["json"])
