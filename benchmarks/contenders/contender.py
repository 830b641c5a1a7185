"""What the suite asks of a contender."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar

POSTGRES, SQLITE = "postgresql", "sqlite"
CONCURRENCY = 8
BATCH = 100

# What a handler does with a task's number.
Body = Callable[[int], None]


def task_names(count: int) -> list[str]:
    return [f"name-{n}" for n in range(count)]


def queue_names(count: int) -> list[str]:
    return ["default", *(f"queue-{n}" for n in range(1, count))]


class Contender(ABC):
    """A task queue on one database. Class attributes and SQL are for the suite; methods run in processes of its own.

    A task is named "name-0", waits in the queue "default" and carries `{"n": 1}`, or what comes closest to that.
    """

    packages: ClassVar[Sequence[str]] = ()
    databases: ClassVar[Sequence[str]] = (POSTGRES,)
    # The kinds of handlers that it runs, "sync", "async" and "batch", and the worker's settings for each.
    settings: ClassVar[Mapping[str, str]]
    bulk: ClassVar[bool] = True  # whether many tasks can be submitted at once
    callable: ClassVar[bool] = False  # whether a caller can wait for a result
    is_limit: ClassVar[bool] = False  # whether it is no queue at all, but what bounds one

    # The tables it writes, that of waiting tasks first, and SQL that counts tasks by how they ended.
    tables: ClassVar[Sequence[str]]
    succeeded: ClassVar[str]
    ended: ClassVar[str]
    # What differs from a submitted task in the copies that fill a table, by database: column to SQL, with "n" for the
    # copy's number. None: tasks cannot be copied, and are submitted.
    copies: ClassVar[Mapping[str, Mapping[str, str]] | None]
    # The same for other kinds of rows, on PostgreSQL.
    kinds: ClassVar[Mapping[str, Mapping[str, str]]] = {}
    times: ClassVar[int] = 1  # how many times as many tasks it takes to be measured

    def __init__(self, url: str) -> None:
        self.url = url
        self.vendor = SQLITE if url.startswith("sqlite:") else POSTGRES

    @property
    def path(self) -> str:
        """The file of an SQLite database."""
        return self.url.removeprefix("sqlite:///")

    @abstractmethod
    def install(self) -> None:
        """Make the tables."""

    @abstractmethod
    def submit(self, numbers: Iterable[int]) -> None:
        """Submit a task for each number, each committed before the next is asked for. Connect before the first."""

    def submit_many(self, batches: Iterable[Sequence[int]]) -> None:
        """Submit the tasks of each batch at once, in the fastest way there is; in the same manner."""
        raise NotImplementedError

    def call(self, numbers: Iterable[int]) -> None:
        """Submit a task for each number and wait for its result, in the same manner."""
        raise NotImplementedError

    @abstractmethod
    def work(self, kind: str, body: Body, go: Callable[[], None], names: int, queues: int, concurrency: int) -> None:
        """Work until killed, with handlers of one kind. Call `go()` when nothing is left to prepare but the start."""


def payload(n: int) -> dict[str, Any]:
    return {"n": n}
