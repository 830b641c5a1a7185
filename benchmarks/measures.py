"""How things are measured: functions that take one subject once and return figures by their labels."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import processes
from benchmarks.processes import Failed
from benchmarks.stamps import ADDRESS, Stamps
from benchmarks.statements import Statements

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.contenders.contender import Contender
    from benchmarks.subjects import Subject

PRODUCERS = 8
LEASES = 256
BEAT = 1.0  # seconds, a third of the lease
BEATS = 10


@dataclass(frozen=True)
class Sizes:
    """How much of it, in numbers of tasks and seconds."""

    submit: int = 2_000  # by one producer
    submit_beside: int = 8_000  # by several, together
    turns: int = 6  # of announcements on, and off
    turn: float = 4.0  # the seconds of each
    submit_many: int = 10_000
    drain: int = 20_000
    drain_for: float = 4.0  # at the most; the rate is that of what was done by then
    pick_ups: int = 200
    pause: float = 0.02  # between two of them
    calls: int = 50
    few: int = 1_000
    many: int = 100_000
    masses: int = 1_000_000
    grown_for: float = 3.0
    claims: int = 100
    idle_for: float = 10.0
    memory: int = 50_000
    memory_for: float = 120.0
    peers_memory_for: float = 12.0
    failures: int = 10_000


QUICK = Sizes(
    submit=1_600,
    submit_beside=1_600,
    turns=2,
    submit_many=5_000,
    drain_for=1.2,
    pick_ups=50,
    pause=0.01,
    calls=10,
    many=20_000,
    masses=100_000,
    grown_for=1.5,
    claims=50,
    idle_for=2.0,
    memory=5_000,
    memory_for=5.0,
    peers_memory_for=5.0,
    failures=1_000,
)


@dataclass(frozen=True)
class Bench:
    """What a measure needs beside its subject."""

    sizes: Sizes
    server: str  # the URL
    folder: Path  # for files that do not outlive the run
    notes: set[str]  # what is to be said below the table


Figures = dict[str, float]


def submit(producers: int = 1) -> Callable[[Bench, Subject], Figures]:
    def run(bench: Bench, subject: Subject) -> Figures:
        subject.empty()
        each = bench.sizes.submit if producers == 1 else bench.sizes.submit_beside // producers
        with processes.ready(producers, subject.name, subject.url, "submit", each) as started:
            figures = rate_of_producers(subject, started, each)
        check(subject, subject.waiting(), each * producers)
        return figures

    return run


def submit_by_turns(bench: Bench, subject: Subject) -> Figures:
    """The rate of several producers beside a worker, announcements on and off by turns: it differs by less than noise.

    What a producer has submitted comes as the moment of a stamp.
    """
    subject.empty()
    turns, turn = bench.sizes.turns, bench.sizes.turn
    with Stamps(str(bench.folder / "stamps")) as stamps:
        env = {ADDRESS: stamps.path}
        with subject.workers("sync") as workers:
            workers[0].go()
            with processes.ready(
                PRODUCERS, subject.name, subject.url, "submit_by_turns", turns, turn, env=env
            ) as producers:
                for process in producers:
                    process.go()
                on, off = map(sum, received(stamps, {"on": PRODUCERS, "off": PRODUCERS}))
                check(subject, subject.succeeded(), int(on + off), least=0.5)
    seconds = turns * turn / 2
    return {"announcements on": on / seconds, "announcements off": off / seconds}


def rate_of_producers(subject: Subject, started: Sequence[processes.Process], each: int) -> Figures:
    began = time.monotonic()
    for process in started:
        process.go()
    for process in started:
        process.wait_for("done")
    took = time.monotonic() - began
    return {"": each * len(started) / took}


def submit_many(bench: Bench, subject: Subject) -> Figures:
    subject.empty()
    count = bench.sizes.submit_many
    with processes.ready(1, subject.name, subject.url, "submit_many", count, 1000) as started:
        figures = rate_of_producers(subject, started, count)
    check(subject, subject.waiting(), count)
    return figures


def drain(kind: str, workers: int = 1) -> Callable[[Bench, Subject], Figures]:
    def run(bench: Bench, subject: Subject) -> Figures:
        subject.empty()
        # Tasks that cannot be copied are submitted one by one.
        count = bench.sizes.drain * subject.times // (1 if subject.contender.copies else 8)
        subject.fill(count)
        subject.settle()
        with subject.workers(kind, count=workers) as started:
            return {"": throughput(subject, started, count, bench.sizes.drain_for)}

    return run


def throughput(subject: Subject, workers: Sequence[processes.Process], count: int, limit: float) -> float:
    """Tasks a second, from the first that are seen to have succeeded until all have, or the time is over."""
    for worker in workers:
        worker.go()
    began = time.monotonic()
    done, first = 0, None
    while done < count:
        now = time.monotonic()
        done = subject.succeeded()
        looked_for = time.monotonic() - now
        if done and first is None:
            first = (now, done)
        if first and now - first[0] > limit:
            break
        for worker in workers:
            if worker.has_ended:
                raise worker.failure("the worker has ended")
        if first is None and now - began > processes.PATIENCE:
            raise workers[0].failure(f"nothing was done in {processes.PATIENCE} seconds")
        # Looking must not cost much of what there is to see.
        time.sleep(max(0.03, 15 * looked_for))
    if first[1] == done:
        return done / (now - began)
    return (done - first[1]) / (now - first[0])


def pick_up(kind: str) -> Callable[[Bench, Subject], Figures]:
    def run(bench: Bench, subject: Subject) -> Figures:
        subject.empty()
        subject.settle()
        count = bench.sizes.pick_ups
        with Stamps(str(bench.folder / "stamps")) as stamps:
            env = {ADDRESS: stamps.path}
            with subject.workers(kind, body="start", env=env) as workers:
                workers[0].go()
                time.sleep(1)  # to become idle
                with processes.ready(
                    1, subject.name, subject.url, "pick_up", count, bench.sizes.pause, env=env
                ) as producers:
                    producers[0].go()
                    submitted, started = received(stamps, {"submitted": count, "started": count})
        check(subject, subject.succeeded(), len(started), least=0.9)
        # The moment after the commit is taken when the call has returned, a little late, hence not below zero.
        return percentiles([max(0.0, after - before) for before, after in zip(submitted, started, strict=True)])

    return run


def call(bench: Bench, subject: Subject) -> Figures:
    subject.empty()
    count = bench.sizes.calls
    with Stamps(str(bench.folder / "stamps")) as stamps:
        env = {ADDRESS: stamps.path}
        with subject.workers("sync") as workers:
            workers[0].go()
            with processes.ready(1, subject.name, subject.url, "call", count, bench.sizes.pause, env=env) as callers:
                callers[0].go()
                called, answered = received(stamps, {"called": count, "answered": count})
    return percentiles([after - before for before, after in zip(called, answered, strict=True)])


def received(stamps: Stamps, wanted: dict[str, int]) -> Iterator[list[float]]:
    """The moments of each kind, in the order of their numbers."""
    moments: dict[str, list[float]] = {what: [] for what in wanted}
    while any(len(moments[what]) < count for what, count in wanted.items()):
        stamp = stamps.next(timeout=30)
        if stamp is None:
            raise Failed(f"only {', '.join(f'{len(found)} {what}' for what, found in moments.items())}")
        moments[stamp.what].append(stamp.seconds)
    # One after the other: with a pause after each, they come in the order of their numbers.
    return (sorted(found) for found in moments.values())


def percentiles(seconds: Sequence[float]) -> Figures:
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return {f"p{p}": 1000 * cuts[p - 1] for p in (50, 95, 99)}


@dataclass(frozen=True)
class Growth:
    """What is in the table beside the tasks that are to run, or of what kind these are."""

    title: str
    kind: str | None = None  # of what lies there
    size: str = "masses"
    lies_beside: bool = True  # rather than being what is to run
    names: int = 1
    queues: int = 1


GROWTH = [
    Growth("1 k queued", size="few", lies_beside=False),
    Growth("100 k queued", size="many", lies_beside=False),
    Growth("1 M queued", lies_beside=False),
    Growth("1 M finished", "finished"),
    Growth("100 k delayed, higher priority", "delayed", "many"),
    Growth("100 k of other names", "foreign", "many"),
    Growth("3 queues", "three queues", "drain", lies_beside=False, queues=3),
    Growth("10 queues", "queues", "drain", lies_beside=False, queues=10),
    Growth("30 names", "names", "drain", lies_beside=False, names=30),
]


def growth(cases: Sequence[Growth]) -> Callable[[Bench, Subject], Figures]:
    def run(bench: Bench, subject: Subject) -> Figures:
        figures = {}
        for case in cases:
            if case.kind in (None, *subject.contender.kinds):
                count = prepare(case, bench, subject)
                with subject.workers("sync", names=case.names, queues=case.queues) as workers:
                    figures[case.title] = throughput(subject, workers, count, bench.sizes.grown_for)
        return figures

    return run


def claim_growth(cases: Sequence[Growth]) -> Callable[[Bench, Subject], Figures]:
    def run(bench: Bench, subject: Subject) -> Figures:
        figures = {}
        for case in cases:
            prepare(case, bench, subject)
            count = bench.sizes.claims
            with Stamps(str(bench.folder / "stamps")) as stamps:
                arguments = (subject.name, subject.url, "claims", count, case.names, case.queues)
                with processes.ready(1, *arguments, env={ADDRESS: stamps.path}) as started:
                    started[0].go()
                    (seconds,) = received(stamps, {"claim": count})
            figures[case.title] = 1000 * statistics.median(seconds)
        return figures

    return run


def prepare(case: Growth, bench: Bench, subject: Subject) -> int:
    """Fill the table; return how many tasks are to run."""
    subject.empty()
    size = getattr(bench.sizes, case.size)
    subject.fill(size, case.kind)
    count = size
    if case.lies_beside:
        count = bench.sizes.drain
        subject.fill(count)
    subject.settle()
    return count


def idle(bench: Bench, subject: Subject) -> Figures:
    subject.empty()
    statements = Statements(subject, bench.server)
    bench.notes.add(f"Statements are counted from {statements.source}.")
    with subject.workers("sync") as workers:
        workers[0].go()
        time.sleep(1)
        statements.reset()
        time.sleep(bench.sizes.idle_for)
        found = statements.count() / bench.sizes.idle_for
        held = subject.value(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND pid <> pg_backend_pid() AND state LIKE 'idle in transaction%'"
        )
        return {"": found, "open transactions": held, "memory, MiB": workers[0].resident()}


def heartbeat(bench: Bench, subject: Subject) -> Figures:
    """Statements a beat with many leases: the worker's, while all its handlers do nothing for a long time."""
    subject.empty()
    subject.fill(LEASES)
    statements = Statements(subject, bench.server)
    env = {"BENCHMARK_LEASE": str(3 * BEAT)}
    with subject.workers("sync", body="rest", concurrency=LEASES, env=env) as workers:
        workers[0].go()
        until(lambda: subject.value("SELECT count(*) FROM cairnq_django_task WHERE status = 'running'") == LEASES)
        statements.reset()
        time.sleep(BEATS * BEAT)
        return {"": statements.count('SET "lease_until"') / BEATS}


def memory(bench: Bench, subject: Subject) -> Figures:
    figures = {}
    subject.empty()
    with subject.workers("sync") as workers:
        workers[0].go()
        time.sleep(2)
        figures["idle"] = workers[0].resident()
    for count, what, kind, body in (
        (bench.sizes.memory, "tasks", None, "nothing"),
        (bench.sizes.failures, "failures", "last attempt", "failure"),
    ):
        figures[f"after {in_thousands(count)} {what}"] = memory_after(bench, subject, count, what, kind, body)
    return figures


def memory_after(bench: Bench, subject: Subject, count: int, what: str, kind: str | None, body: str) -> float:
    subject.empty()
    subject.fill(count, kind)
    limit = bench.sizes.memory_for if ours(subject.contender) else bench.sizes.peers_memory_for
    with subject.workers("sync", body=body) as workers:
        workers[0].go()
        over = time.monotonic() + limit
        until(lambda: subject.ended() >= count or time.monotonic() > over, 2 * limit)
        done = subject.ended()
        if done < count:
            bench.notes.add(
                f"{subject.name}: memory after {done:,} instead of {count:,} {what}, which is what ran in "
                f"{limit:g} seconds."
            )
        return workers[0].resident()


def until(reached: Callable[[], bool], patience: float = 120) -> None:
    over = time.monotonic() + patience
    while not reached():
        if time.monotonic() > over:
            raise Failed(f"nothing happened for {patience:g} seconds")
        time.sleep(0.2)


def in_thousands(count: int) -> str:
    return f"{count // 1000} k" if count >= 1000 else str(count)


def check(subject: Subject, found: int, wanted: int, least: float = 1.0) -> None:
    if not least * wanted <= found <= wanted:
        raise Failed(f"{subject.name}: the database has {found} tasks instead of {wanted}")


def ours(contender: type[Contender]) -> bool:
    """Whether it is this project itself, which can be asked for more."""
    return hasattr(contender, "switch_announcements") and not contender.is_limit
