"""How the queues stand and which workers run, as a table for people or as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from django.core.management.base import OutputWrapper
from django.utils import timezone

from ..models import PausedQueue, WorkerProcess
from ..queues import declared_queues
from ..serialization import clean_text
from ..store.stats import QueueFigures, queue_figures
from ..store.workers import live_workers
from .serving import refuse_without_tables

_QUEUE_HEADINGS = ("queue", "queued", "due", "delayed", "running", "oldest wait", "paused")
_WORKER_HEADINGS = ("worker", "queues", "busy", "state")
_LEFT = ("queue", "paused", "worker", "queues", "state")  # columns of texts; numbers are on the right
_UNITS = ((86_400, "d"), (3_600, "h"), (60, "min"))


def show(out: OutputWrapper, *, using: str, as_json: bool) -> None:
    """Write it. Raises `CommandError` where there are no tables."""
    refuse_without_tables(using)
    queues, workers = queue_figures(using, also=declared_queues()), live_workers(using)
    if as_json:
        document = {
            "database": using,
            "queues": [_queue_as_json(queue) for queue in queues],
            "workers": [_worker_as_json(worker) for worker in workers],
        }
        out.write(json.dumps(document))
        return
    out.write(_table(_QUEUE_HEADINGS, (_queue_row(queue) for queue in queues)))
    out.write("")
    out.write(
        _table(_WORKER_HEADINGS, (_worker_row(worker) for worker in workers))
        if workers
        else "No worker was heard of lately."
    )


def _queue_as_json(queue: QueueFigures) -> dict[str, Any]:
    return {
        "queue": queue.queue,
        "queued": queue.depth,
        "more_queued": queue.is_deeper,  # than were counted
        "due": queue.due,
        "delayed": queue.depth - queue.due,
        "running": queue.running,
        "more_running": queue.runs_more,
        "oldest_wait": queue.oldest_wait,
        "paused": None if queue.pause is None else _pause_as_json(queue.pause),
    }


def _pause_as_json(pause: PausedQueue) -> dict[str, Any]:
    return {
        "by": pause.paused_by,
        "since": pause.paused_at.isoformat(),
        "until": None if pause.until is None else pause.until.isoformat(),
    }


def _worker_as_json(worker: WorkerProcess) -> dict[str, Any]:
    return {
        "id": worker.pk,
        "host": worker.host,
        "pid": worker.pid,
        "version": worker.version,
        "queues": worker.queues,
        "concurrency": worker.concurrency,
        "busy": worker.busy,
        "abandoned": worker.abandoned,
        "draining": worker.draining,
        "started_at": worker.started_at.isoformat(),
        "seen_at": worker.seen_at.isoformat(),
    }


def _queue_row(queue: QueueFigures) -> list[str]:
    return [
        queue.queue,
        _at_least(queue.depth, queue.is_deeper),
        _at_least(queue.due, queue.is_deeper),
        _at_least(queue.depth - queue.due, queue.is_deeper),
        _at_least(queue.running, queue.runs_more),
        _span(queue.oldest_wait),
        _pause(queue.pause),
    ]


def _worker_row(worker: WorkerProcess) -> list[str]:
    gave_up = f"{worker.abandoned:,} given up" if worker.abandoned else ""
    return [
        str(worker.pk),
        ", ".join(map(str, worker.queues)),
        f"{worker.busy:,}/{worker.concurrency:,}",
        ", ".join(filter(None, ["draining" if worker.draining else "", gave_up])),
    ]


def _at_least(number: int, is_more: bool) -> str:
    return f"{number:,}+" if is_more else f"{number:,}"


def _span(seconds: float | None) -> str:
    if seconds is None:
        return ""
    for length, unit in _UNITS:
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def _pause(pause: PausedQueue | None) -> str:
    if pause is None:
        return ""
    by = f"by {pause.paused_by}" if pause.paused_by else "yes"
    return by if pause.until is None else f"{by}, until {timezone.localtime(pause.until):%Y-%m-%d %H:%M}"


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as their widest cell; one that is empty all the way down is left out."""
    table = [list(headings), *([_printable(cell) for cell in row] for row in rows)]
    columns = [column for column in zip(*table, strict=True) if any(column[1:])]
    aligned = []
    for heading, *cells in columns:
        width = max(map(len, [heading, *cells]))
        to_left = heading in _LEFT
        aligned.append([cell.ljust(width) if to_left else cell.rjust(width) for cell in (heading, *cells)])
    return "\n".join("  ".join(line).rstrip() for line in zip(*aligned, strict=True))


def _printable(cell: str) -> str:
    return clean_text(cell).replace("\n", r"\n").replace("\t", r"\t")
