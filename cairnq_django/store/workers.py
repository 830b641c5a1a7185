"""The rows by which workers are seen. Nobody needs them to run a task or to take one back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Final

from ..clock import Now, after
from ..models import WorkerProcess
from ..querysets import WORKER_SILENCE
from .stats import QueueFigures

FORGOTTEN_AFTER: Final = 900.0  # seconds after which the row of a worker that says nothing more is deleted
FORGET_BATCH: Final = 500  # rows


@dataclass(frozen=True)
class WorkerState:
    """What a worker says of itself."""

    host: str
    pid: int
    version: str
    queues: Sequence[str]
    names: Sequence[str]  # of the tasks that it runs
    concurrency: int
    busy: int  # calls whose handlers are at work
    bytes_in_flight: int | None  # of payloads; None: not measured
    abandoned: int  # calls that it gave up, and whose handlers go on
    draining: bool


def say(using: str, worker_id: str, state: WorkerState, *, said: WorkerState | None, age: float) -> None:
    """Write that the worker runs, and what differs from what it `said` before; `age` is for how many seconds it has.

    One statement, without a transaction or a second try, two where there is no row.
    """
    differences = _columns(state, said)
    if WorkerProcess.objects.using(using).filter(pk=worker_id).update(**differences, seen_at=Now()):
        return
    everything = _columns(state, None)
    WorkerProcess.objects.using(using).create(pk=worker_id, **everything, started_at=after(-age))


def leave(using: str, worker_id: str) -> None:
    """Delete the worker's row: it has ended."""
    WorkerProcess.objects.using(using).filter(pk=worker_id)._raw_delete(using)


def forget(using: str) -> list[str]:
    """Delete the rows of workers that have long said nothing, and return their ids. A short query where there are none.

    Up to `FORGET_BATCH` rows in one statement, without a transaction.
    """
    silent = WorkerProcess.objects.using(using).silent_for(FORGOTTEN_AFTER)
    # Read first: MySQL would lock every row that a deletion looks at.
    gone = list(silent.order_by("pk").values_list("pk", flat=True)[:FORGET_BATCH])
    if gone:
        silent.filter(pk__in=gone)._raw_delete(using)
    return gone


def live_workers(using: str) -> list[WorkerProcess]:
    """The workers that said lately that they run, by host and start; without their names, which may be thousands."""
    return list(WorkerProcess.objects.using(using).heard_of().defer("names").order_by("host", "started_at", "pk"))


def lost_workers(using: str) -> list[WorkerProcess]:
    """The workers that ended without a word, or are cut off, the latest first; others soon forget them."""
    silent = WorkerProcess.objects.using(using).silent_for(WORKER_SILENCE)
    return list(silent.defer("names").order_by("-seen_at", "pk")[:FORGET_BATCH])


def handled_names(using: str) -> dict[str, set[str]]:
    """By queue, the names whose tasks a live worker claims there; those that drain claim nothing.

    One query. Workers of one version say the same, and are read once.
    """
    handled: dict[str, set[str]] = {}
    claiming = WorkerProcess.objects.using(using).heard_of().filter(draining=False)
    for queues, names in claiming.order_by().values_list("queues", "names").distinct():
        for queue in _texts(queues):
            handled.setdefault(queue, set()).update(_texts(names))
    return handled


def unhandled(using: str, queues: Iterable[QueueFigures]) -> dict[str, dict[str, float]]:
    """By queue, the names that wait there though no live worker runs them, and for how many seconds they have.

    Of queues that are not paused and that a live worker serves: what waits in the others waits for that.
    """
    waiting = [figures for figures in queues if figures.waits and figures.pause is None]
    handled = handled_names(using) if waiting else {}
    found = {
        figures.queue: {
            name: wait for name, wait in sorted(figures.waits.items()) if name not in handled[figures.queue]
        }
        for figures in waiting
        if figures.queue in handled
    }
    return {queue: names for queue, names in found.items() if names}


def _texts(values: Any) -> list[str]:
    """The texts of a JSON list, whatever it holds."""
    return [value for value in values if isinstance(value, str)] if isinstance(values, list) else []


def _columns(state: WorkerState, said: WorkerState | None) -> dict[str, Any]:
    """What the row's columns are to hold, where that differs from what was `said`."""
    columns = {field.name: getattr(state, field.name) for field in fields(state)}
    return {name: value for name, value in columns.items() if said is None or getattr(said, name) != value}
