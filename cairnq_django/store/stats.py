"""The read model: what people and machines ask about the whole of a queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import Count, Min, Q

from ..clock import Now
from ..models import Task


@dataclass(frozen=True)
class QueueStats:
    """How one queue stands: tasks in each status, how many of the queued are due, how long the oldest has waited."""

    queued: int = 0
    due: int = 0
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    canceled: int = 0
    oldest_wait: float | None = None  # seconds since the longest waiting due task became due


def queue_stats(using: str) -> dict[str, QueueStats]:
    """Each queue that has rows, by name. Counts every row: for people, not for hot paths."""
    tasks = Task.objects.using(using)
    counts: dict[str, dict[str, int]] = {}
    for queue, status, count in tasks.values_list("queue", "status").annotate(count=Count("pk")).order_by():
        counts.setdefault(queue, {})[status] = count
    due = {
        queue: {"due": count, "oldest_wait": max(0.0, (now - oldest).total_seconds())}
        for queue, count, oldest, now in tasks.due()
        .values_list("queue")
        .annotate(count=Count("pk"), oldest=Min("run_at"), now=Now())
        .order_by()
    }
    return {queue: QueueStats(**counts[queue], **due.get(queue, {})) for queue in sorted(counts)}


def queued_up_to(using: str, queue: str, limit: int) -> int:
    """How many tasks wait in `queue`, delayed ones included; counting stops at `limit`."""
    return Task.objects.using(using).queued().filter(queue=queue)[:limit].count()


def runnable(using: str, queues: Sequence[str], names: Sequence[str]) -> bool:
    """Whether a task of these handlers is due, or waits for its retry."""
    waiting = Task.objects.using(using).queued().in_time().filter(queue__in=queues).for_handlers(names)
    return waiting.filter(Q(run_at__lte=Now()) | Q(attempt__gt=0)).exists()
