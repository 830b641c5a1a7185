"""The queue's figures in the text format of Prometheus, at a price that does not grow with the table of tasks."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from django.db import DatabaseError, InterfaceError
from django.http import HttpRequest, HttpResponse

from ..store.engine import task_database
from ..store.stats import COUNTED, QueueFigures, queue_figures
from ..store.workers import live_workers
from .access import guarded

try:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import GaugeMetricFamily
    from prometheus_client.exposition import choose_encoder
except ImportError:
    is_installed = False
else:
    is_installed = True

logger = logging.getLogger(__name__)

_MISSING = "This needs the package prometheus-client: pip install 'cairnq-django[metrics]'\n"
_AWAY = "The database does not answer.\n"


@guarded
def metrics(request: HttpRequest) -> HttpResponse:
    """The figures, as the client accepts them; 501 without prometheus-client, 503 without the database."""
    if not is_installed:
        return _text(_MISSING, 501)
    registry = CollectorRegistry()
    encode, content_type = _encoder(request.headers.get("Accept", ""))
    try:
        registry.register(Figures(task_database()))
        return HttpResponse(encode(registry), content_type=content_type)
    except (DatabaseError, InterfaceError) as error:
        logger.warning("The queue's figures could not be read: %s", error)
        return _text(_AWAY, 503)


def _encoder(accept: str) -> tuple[Any, str]:
    try:
        return choose_encoder(accept)
    except (TypeError, ValueError):
        return choose_encoder("")  # it stumbles over versions that are no numbers


class Figures:
    """What a registry collects: read from the database each time it is asked for."""

    def __init__(self, using: str) -> None:
        self._using = using

    def collect(self) -> Iterator[Any]:
        yield from _of_queues(queue_figures(self._using))
        yield from _of_workers(self._using)


def _of_queues(queues: list[QueueFigures]) -> Iterator[Any]:
    tasks = GaugeMetricFamily(
        "cairnq_tasks",
        f"Live tasks by queue and status; queued ones, delayed ones included, are counted up to {COUNTED:,} a queue, "
        f"running ones up to {COUNTED:,} over all queues.",
        labels=["queue", "status"],
    )
    due = GaugeMetricFamily("cairnq_due_tasks", "Those of the queued tasks counted that are due.", labels=["queue"])
    wait = GaugeMetricFamily(
        "cairnq_oldest_wait_seconds", "Since the longest waiting due task became due; 0: none is.", labels=["queue"]
    )
    paused = GaugeMetricFamily("cairnq_queue_paused", "1 while the queue is paused.", labels=["queue"])
    for queue in queues:
        tasks.add_metric([queue.queue, "queued"], queue.depth)
        tasks.add_metric([queue.queue, "running"], queue.running)
        due.add_metric([queue.queue], queue.due)
        wait.add_metric([queue.queue], queue.oldest_wait or 0.0)
        paused.add_metric([queue.queue], queue.pause is not None)
    yield from (tasks, due, wait, paused)


def _of_workers(using: str) -> Iterator[Any]:
    workers = live_workers(using)
    for name, documentation, value in (
        ("workers", "Workers that were heard of lately, those that drain included.", len(workers)),
        ("draining_workers", "Those of them that claim nothing more.", sum(each.draining for each in workers)),
        ("concurrency", "Calls that the workers run at the same time.", sum(each.concurrency for each in workers)),
        ("busy_calls", "Calls whose handlers are at work.", sum(each.busy for each in workers)),
        ("abandoned_calls", "Calls given up whose handlers go on.", sum(each.abandoned for each in workers)),
        (
            "in_flight_bytes",
            "Payloads of running calls, of the workers that measure them.",
            sum(each.bytes_in_flight or 0 for each in workers),
        ),
    ):
        yield GaugeMetricFamily(f"cairnq_{name}", documentation, value=value)


def _text(text: str, status: int) -> HttpResponse:
    return HttpResponse(text, status=status, content_type="text/plain; charset=utf-8")
