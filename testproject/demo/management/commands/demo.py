"""Shows the example at work: web server, worker and a handful of tasks, in one terminal."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from testproject.demo.show import Show


class Command(BaseCommand):
    help = (
        "Migrates, creates the login admin/admin, starts a web server and a worker, submits tasks through the site and "
        "shows what becomes of them. Ctrl-C stops everything it started."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--port", type=int, default=8000, help="the web server's port, or the next free one")
        parser.add_argument("--concurrency", type=int, default=4, help="how many tasks the worker runs at a time")

    def handle(self, *args: Any, port: int, concurrency: int, **options: Any) -> None:
        Show(self.say, port=port, concurrency=concurrency).run()

    def say(self, line: str = "") -> None:
        self.stdout.write(line)
        self.stdout.flush()
