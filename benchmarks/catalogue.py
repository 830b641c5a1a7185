"""What is measured, in the order of the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from benchmarks.contenders.contender import POSTGRES, SQLITE
from benchmarks.measures import (
    GROWTH,
    LEASES,
    PRODUCERS,
    Bench,
    Figures,
    call,
    claim_growth,
    drain,
    growth,
    heartbeat,
    idle,
    memory,
    ours,
    pick_up,
    submit,
    submit_by_turns,
    submit_many,
)

if TYPE_CHECKING:
    from benchmarks.contenders.contender import Contender
    from benchmarks.subjects import Subject


@dataclass(frozen=True)
class Measure:
    name: str
    title: str
    unit: str
    run: Callable[[Bench, Subject], Figures]
    database: str = POSTGRES
    takes: Callable[[type[Contender]], bool] = lambda contender: True  # whether a contender can be measured
    quick: bool = False  # part of a quick run
    once: bool = False  # takes long, and varies little


def runs(kind: str) -> Callable[[type[Contender]], bool]:
    return lambda contender: kind in contender.settings


def waits(contender: type[Contender]) -> bool:
    """Whether it waits for tasks, as the limit does not."""
    return not contender.is_limit


MEASURES = [
    Measure("submit", "Submit one by one, one producer", "tasks/s", submit(), quick=True),
    Measure("submit-8", "Submit one by one, 8 producers", "tasks/s", submit(PRODUCERS)),
    Measure(
        "submit-8-busy",
        "Submit one by one, 8 producers and a busy worker",
        "tasks/s",
        submit_by_turns,
        takes=ours,
    ),
    Measure(
        "submit-many",
        "Submit 1000 at once",
        "tasks/s",
        submit_many,
        takes=lambda contender: contender.bulk,
        quick=True,
    ),
    Measure("drain", "Drain, synchronous handlers", "tasks/s", drain("sync"), takes=runs("sync"), quick=True),
    Measure("drain-async", "Drain, asynchronous handlers", "tasks/s", drain("async"), takes=runs("async"), quick=True),
    Measure("drain-2", "Drain, 2 processes, synchronous handlers", "tasks/s", drain("sync", 2), takes=runs("sync")),
    Measure("drain-batch", "Drain, batches of 100", "tasks/s", drain("batch"), takes=runs("batch"), quick=True),
    Measure("drain-batch-2", "Drain, 2 processes, batches of 100", "tasks/s", drain("batch", 2), takes=runs("batch")),
    Measure(
        "pickup",
        "Commit to start, idle worker, synchronous handlers",
        "ms",
        pick_up("sync"),
        takes=lambda contender: waits(contender) and runs("sync")(contender),
        quick=True,
    ),
    Measure(
        "pickup-async",
        "Commit to start, idle worker, asynchronous handlers",
        "ms",
        pick_up("async"),
        takes=lambda contender: waits(contender) and runs("async")(contender),
    ),
    Measure("call", "Submit, wait and return the result", "ms", call, takes=lambda contender: contender.callable),
    Measure("growth", "Drain as the table grows", "tasks/s", growth(GROWTH), takes=waits, once=True),
    Measure("growth-claim", "Claim as the table grows", "ms", claim_growth(GROWTH), takes=ours),
    Measure("idle", "Idle worker", "statements/s", idle, takes=waits, quick=True, once=True),
    Measure("heartbeat", f"Heartbeat with {LEASES} leases", "statements/beat", heartbeat, takes=ours, once=True),
    Measure("memory", "Memory of a worker", "MiB", memory, takes=waits, once=True),
    Measure("sqlite-submit", "SQLite: submit one by one", "tasks/s", submit(), SQLITE, quick=True),
    Measure("sqlite-drain", "SQLite: drain, synchronous handlers", "tasks/s", drain("sync"), SQLITE, quick=True),
    Measure("sqlite-drain-2", "SQLite: drain, 2 processes", "tasks/s", drain("sync", 2), SQLITE),
    Measure(
        "sqlite-drain-batch",
        "SQLite: drain, batches of 100",
        "tasks/s",
        drain("batch"),
        SQLITE,
        takes=runs("batch"),
    ),
]
