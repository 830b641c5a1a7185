"""What workers did, added up by queue and span of time: written by workers, read by people.

A week of work is a few rows, so that nobody has to count its tasks.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any, Final, NamedTuple

from django.db.models import F, Max, Q, QuerySet, Sum
from django.db.models.functions import Coalesce, Greatest

from ..clock import Now
from ..models import Activity
from .engine import in_transaction

MINUTE: Final = 60  # seconds
HOUR: Final = 3_600

#: How long spans of each length are kept, in seconds.
KEPT: Final = {MINUTE: 26 * HOUR, HOUR: 5 * 7 * 24 * HOUR}

_COUNTS: Final = ("started", "succeeded", "failed", "retried", "canceled", "waited")


@dataclass
class Work:
    """What became of tasks. One that was given back or snoozed was started, and did not end."""

    started: int = 0
    succeeded: int = 0
    failed: int = 0  # for good
    retried: int = 0  # failed and queued again
    canceled: int = 0  # while they were running
    waited: float = 0.0  # seconds from due to started, of all that were started together
    longest_wait: float = 0.0  # seconds

    @property
    def ended(self) -> int:
        return self.succeeded + self.failed + self.canceled

    def add(self, other: Work) -> None:
        if other.started:
            self.waits(other.longest_wait)
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def waits(self, seconds: float) -> None:
        """Take in a longest wait; by a clock that is behind, it may be negative."""
        self.longest_wait = max(self.longest_wait, seconds) if self.started else seconds


def add(using: str, done: Mapping[str, Work]) -> dict[str, Work]:
    """Add what was done for each queue to its current minute and hour, by the database's clock.

    Returns what was not added, since others hold its rows at this moment: they are not waited for. The waiting times
    end by this host's clock; what that is off is put right. A short transaction, and others before it for rows that are
    not there yet; who begins an hour deletes what is too old.
    """
    sent_at = time.time()
    now = read_clock(using)
    ahead = now.timestamp() - (sent_at + time.time()) / 2  # of this host's clock
    spans = [_Span(seconds, begin_of_span(now, seconds), queue) for seconds in KEPT for queue in sorted(done)]
    existing = _existing(using, spans)
    missing = sorted(set(spans) - existing.keys())
    if any(span.seconds == HOUR for span in missing):
        for seconds, kept in KEPT.items():
            in_transaction(using, lambda span=seconds, end=now - timedelta(seconds=kept): _forget(using, span, end))  # type: ignore[misc]
    if missing:
        # Not in the transaction that adds: two that hold rows and wait for each other's new ones would never end.
        in_transaction(using, lambda: _make(using, missing))
        existing = _existing(using, spans)
    held = in_transaction(using, lambda: _add(using, existing, done, ahead))
    return {queue: work for queue, work in done.items() if queue in held}


def by_queue(using: str, *, seconds: int, since: datetime) -> dict[str, Work]:
    """What was done for each queue in the spans of this length that began at `since` or later."""
    rows = _since(using, seconds, since).values_list("queue").annotate(**_totals()).order_by("queue")
    return {queue: Work(*work) for queue, *work in rows}


def by_time(using: str, *, seconds: int, since: datetime) -> dict[datetime, Work]:
    """What was done for all queues in each span of this length that began at `since` or later, the earliest first."""
    rows = _since(using, seconds, since).values_list("begins_at").annotate(**_totals()).order_by("begins_at")
    return {begins_at: Work(*work) for begins_at, *work in rows}


def read_clock(using: str) -> datetime:
    """The database's current time."""
    # An aggregate is a row also where there are none.
    nothing = Activity.objects.using(using).filter(pk=0)
    now: datetime = nothing.aggregate(now=Coalesce(Max("begins_at"), Now()))["now"]
    return now


def begin_of_span(moment: datetime, seconds: int) -> datetime:
    """When the span of this length that `moment` lies in began; the first one ever began with 1970 in UTC."""
    return datetime.fromtimestamp(moment.timestamp() // seconds * seconds, timezone.utc)


class _Span(NamedTuple):
    """A row's key; rows are locked in the order of their keys."""

    seconds: int
    begins_at: datetime
    queue: str


def _existing(using: str, spans: Collection[_Span]) -> dict[_Span, int]:
    """The rows that are there, and their ids."""
    begun = {(span.seconds, span.begins_at) for span in spans}
    current = Q(*(Q(seconds=seconds, begins_at=begins_at) for seconds, begins_at in begun), _connector=Q.OR)
    rows = Activity.objects.using(using).filter(current)
    wanted = set(spans)
    columns = rows.values_list("seconds", "begins_at", "queue", "pk")
    return {span: pk for *key, pk in columns if (span := _Span._make(key)) in wanted}


def _make(using: str, spans: Collection[_Span]) -> None:
    rows = [Activity(**span._asdict()) for span in spans]
    Activity.objects.using(using).bulk_create(rows, ignore_conflicts=True)


def _add(using: str, spans: Mapping[_Span, int], done: Mapping[str, Work], ahead: float) -> set[str]:
    """Return the queues of which another holds a row, or has deleted one: nothing is added for them."""
    rows = Activity.objects.using(using).filter(pk__in=spans.values()).order_by("pk")
    locked = set(rows.select_for_update(skip_locked=True).values_list("pk", flat=True))
    whole = {queue for queue in done if {pk for span, pk in spans.items() if span.queue == queue} <= locked}
    for span, pk in spans.items():
        if span.queue not in whole:
            continue
        work = done[span.queue]
        more: dict[str, Any] = {name: F(name) + getattr(work, name) for name in _COUNTS[:-1]}
        if work.started:
            more["waited"] = F("waited") + max(0.0, work.waited + ahead * work.started)
            more["longest_wait"] = Greatest(F("longest_wait"), max(0.0, work.longest_wait + ahead))
        Activity.objects.using(using).filter(pk=pk).update(**more)
    return set(done) - whole


def _forget(using: str, seconds: int, end: datetime) -> None:
    Activity.objects.using(using).filter(seconds=seconds, begins_at__lt=end).delete()


def _since(using: str, seconds: int, since: datetime) -> QuerySet[Activity]:
    return Activity.objects.using(using).filter(seconds=seconds, begins_at__gte=since)


def _totals() -> dict[str, Any]:
    """In the order of the fields of `Work`."""
    totals: dict[str, Any] = {f"total_{name}": Sum(name) for name in _COUNTS}
    return {**totals, "longest": Max("longest_wait")}
