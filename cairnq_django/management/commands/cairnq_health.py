"""Say whether the queue is well."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from ..base import DatabaseCommand
from ..probing import patience, probe


class Command(DatabaseCommand):
    help = (
        "Exits 0 if the queue's database answers, a worker was heard of lately and no due task has waited for longer "
        "than CAIRNQ['HEALTH_MAX_WAIT']; else 1, and says why. The verdict is that of health/ in cairnq_django.urls."
    )
    # A probe comes every few seconds, and asks nothing of the rest of the project.
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--timeout",
            type=patience,
            default=10.0,
            metavar="SECONDS",
            help="How long the database may take to answer (10).",
        )
        parser.add_argument("--json", action="store_true", help="Say it as health/ does.")

    def handle(self, **options: Any) -> None:
        probe(self.out(options), using=options["database"], timeout=options["timeout"], as_json=options["json"])
