"""Run a worker."""

from __future__ import annotations

from argparse import Action, ArgumentError
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from ..base import heard
from ..lifeline import is_supervised
from ..serving import serve

_OPTIONS = (
    "queues",
    "concurrency",
    "lease",
    "heartbeat_interval",
    "poll_interval",
    "claim_batch",
    "resources",
    "max_in_flight_bytes",
    "retry_backoff",
    "retry_backoff_max",
    "max_run",
    "drain_timeout",
    "max_tasks",
    "max_memory",
    "processes",
    "burst",
    "autoreload",
)


class Resources(Action):
    """Collects `gpu=2` and `disk=1` to `{"gpu": 2, "disk": 1}`."""

    def __call__(self, parser: Any, namespace: Any, value: Any, option: str | None = None) -> None:
        name, equals, calls = str(value).rpartition("=")
        if not equals or not name or not calls.isdecimal():
            raise ArgumentError(self, f"must be a resource's name and its calls, such as gpu=2, got {value!r}")
        setattr(namespace, self.dest, {**(getattr(namespace, self.dest) or {}), name: int(calls)})


class Command(BaseCommand):
    help = (
        "Claims queued tasks and runs their handlers, until SIGINT or SIGTERM. Defaults come from the CAIRNQ setting."
    )
    is_typed = False  # whether the process was started for it

    def add_arguments(self, parser: CommandParser) -> None:
        option = parser.add_argument
        option("--concurrency", type=int, metavar="N", help="Handler calls at the same time (8).")
        option(
            "--queue",
            action="append",
            dest="queues",
            metavar="NAME",
            help="A queue to serve; give it again for another one (default).",
        )
        option("--lease", type=float, metavar="SECONDS", help="How long a claim holds without a heartbeat (30).")
        option(
            "--heartbeat-interval",
            type=float,
            metavar="SECONDS",
            help="Time between two renewals of the leases (a third of the lease).",
        )
        option("--poll-interval", type=float, metavar="SECONDS", help="Time between two looks at an empty queue (1).")
        option(
            "--claim-batch",
            type=int,
            metavar="N",
            help="Calls to claim tasks for at once, at the most (no limit).",
        )
        option(
            "--resource",
            action=Resources,
            dest="resources",
            metavar="NAME=CALLS",
            help="Handler calls at the same time that share a resource; give it again for another one.",
        )
        option(
            "--max-in-flight-bytes",
            type=int,
            metavar="BYTES",
            help="Payloads of running calls together; a larger one runs alone (no limit).",
        )
        option(
            "--retry-backoff", type=float, metavar="SECONDS", help="Time before the first retry, doubling; 0: none (1)."
        )
        option("--retry-backoff-max", type=float, metavar="SECONDS", help="The longest time before a retry (30).")
        option("--max-run", type=float, metavar="SECONDS", help="The longest an attempt may run (no limit).")
        option(
            "--drain-timeout",
            type=float,
            metavar="SECONDS",
            help="After a signal, give back what still runs after this time (no limit).",
        )
        option(
            "--processes",
            type=int,
            metavar="N",
            help="Keep N worker processes up, each with its own concurrency (one, in this process).",
        )
        option("--max-tasks", type=int, metavar="N", help="Replace a process after so many tasks (no limit).")
        option(
            "--max-memory",
            type=int,
            metavar="MIB",
            help="Replace a process that holds more memory, after a task (no limit).",
        )
        ending = parser.add_mutually_exclusive_group().add_argument
        ending("--burst", action="store_true", help="Exit when nothing is left to run.")
        ending("--autoreload", action="store_true", help="Restart when code changes; what runs ends first.")

    def check(self, *args: Any, **kwargs: Any) -> None:
        # A database that is away, perhaps one that the queue is not even in, does not keep a worker from starting.
        # What is found, the supervisor of this process has said already.
        if not is_supervised():
            super().check(*args, **{"databases": [], **kwargs})

    def run_from_argv(self, argv: list[str]) -> None:
        self.is_typed = True
        super().run_from_argv(argv)

    def handle(self, **options: Any) -> None:
        out = heard(self.stdout, options["verbosity"])
        serve(out, is_typed=self.is_typed, **{name: options[name] for name in _OPTIONS})
