"""All measures of all contenders, interleaved, in several rounds: `python -m benchmarks [options]`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.catalogue import MEASURES, Measure
from benchmarks.contenders import CONTENDERS
from benchmarks.contenders.contender import POSTGRES, SQLITE
from benchmarks.measures import QUICK, Bench, Sizes
from benchmarks.processes import in_a_line
from benchmarks.report import write
from benchmarks.subjects import Subject, subjects
from tests.servers import named_by_environment, postgres

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

RESULTS = Path(__file__).resolve().parent / "results"
ROUNDS = 3
# Durable, as PostgreSQL is by default.
CONFIGURATION = (
    "fsync = on\nsynchronous_commit = on\nmax_connections = 300\nshared_buffers = 512MB\nmax_wal_size = 4GB\n"
    "log_line_prefix = '%d '\n"
)


@dataclass
class Results:
    """The figures of every round: by measure and label, then by contender."""

    figures: dict[tuple[str, str], dict[str, list[float]]] = field(default_factory=lambda: defaultdict(dict))
    failures: dict[tuple[str, str], str] = field(default_factory=dict)  # by measure and contender
    missing: dict[str, str] = field(default_factory=dict)  # contenders that do not run here, and why
    notes: set[str] = field(default_factory=set)
    load: float = field(default_factory=lambda: os.getloadavg()[0])

    def add(self, measure: Measure, contender: str, figures: dict[str, float]) -> None:
        for label, figure in figures.items():
            self.figures[measure.name, label].setdefault(contender, []).append(figure)


def main(arguments: Sequence[str] | None = None) -> Results:
    options = parse(arguments)
    measures = [measure for measure in MEASURES if measure.name in options.only]
    with a_server(measures) as server:
        results = run(measures, options.contenders, server, options.sizes, options.rounds)
        for path in write(results, measures, options, server):
            say(f"{path}")
    return results


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    names = [measure.name for measure in MEASURES]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure this project, the database's own limit and other task queues side by side, on a "
        "PostgreSQL server of its own or the one that DATABASE_URL names, and on SQLite.",
    )
    parser.add_argument("--quick", action="store_true", help="fewer tasks, one round, the most telling measures")
    parser.add_argument("--only", action="append", choices=names, metavar="MEASURE", help=f"of {', '.join(names)}")
    parser.add_argument(
        "--contenders", nargs="+", choices=list(CONTENDERS), default=list(CONTENDERS), metavar="NAME", help="(all)"
    )
    parser.add_argument("--rounds", type=int, help=f"(1 if quick, else {ROUNDS})")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="FOLDER", help="(%(default)s)")
    options = parser.parse_args(arguments)
    options.only = options.only or [measure.name for measure in MEASURES if measure.quick or not options.quick]
    options.rounds = options.rounds or (1 if options.quick else ROUNDS)
    options.sizes = QUICK if options.quick else Sizes()
    return options


@contextmanager
def a_server(measures: Sequence[Measure]) -> Iterator[str]:
    if all(measure.database == SQLITE for measure in measures):
        yield ""
        return
    named = os.environ.get("DATABASE_URL")
    if named is not None and not named.startswith(("postgres:", "postgresql:")):
        sys.exit(f"DATABASE_URL must name a PostgreSQL server, got one of {named.partition(':')[0]!r}; or unset it")
    server = postgres(CONFIGURATION) if named is None else named_by_environment()
    with server as url:
        yield url


def run(measures: Sequence[Measure], names: list[str], server: str, sizes: Sizes, rounds: int) -> Results:
    """Measure round by round, in each of them one contender after the other."""
    results = Results()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cairnq-benchmarks-")))
        bench = Bench(sizes, server, folder, results.notes)
        by_database: dict[str, list[Subject]] = {}
        for database in (POSTGRES, SQLITE):
            if any(measure.database == database for measure in measures):
                made = subjects(names, database, server, folder, results.missing)
                by_database[database] = stack.enter_context(made)
        for name, reason in results.missing.items():
            say(f"{name} does not run: {reason}")
        for n in range(rounds):
            for measure in measures:
                if n and measure.once:
                    continue
                taken = [subject for subject in by_database[measure.database] if measure.takes(subject.contender)]
                # Each round begins with another one, in case the machine changes in the course of it.
                for subject in in_turn(taken, n):
                    measure_one(measure, bench, subject, results)
    return results


def in_turn(taken: list[Subject], n: int) -> list[Subject]:
    at = n % len(taken) if taken else 0
    return taken[at:] + taken[:at]


def measure_one(measure: Measure, bench: Bench, subject: Subject, results: Results) -> None:
    began = time.monotonic()
    try:
        figures = measure.run(bench, subject)
    except Exception as error:
        # Whatever a contender does wrong must not keep the others from being measured.
        results.failures[measure.name, subject.name] = in_a_line(error)
        say(f"{measure.name}, {subject.name}: failed: {in_a_line(error)}")
        return
    results.add(measure, subject.name, figures)
    found = ", ".join(f"{label} {figure:,.1f}".strip() for label, figure in figures.items())
    say(f"{measure.name}, {subject.name}: {found} {measure.unit} ({time.monotonic() - began:.1f} s)")


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
