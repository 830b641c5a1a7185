"""The read model of failures: the attempts that failed lately, grouped by what failed and how."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

from django.db.models import Case, Count, Exists, Max, Min, OuterRef, QuerySet, Value, When

from ..clock import Now, after
from ..expressions import Among
from ..models import Task, TaskAttempt
from ..statuses import AttemptOutcome

LOOKED_AT: Final = 100_000  # attempts, the newest
PARTS: Final = 24  # of the time looked at, for which failures are counted apart

# An attempt that was to be canceled has not failed, whatever it ended with.
_FAILED: Final = (AttemptOutcome.RETRIED, AttemptOutcome.FAILED)


class Span(NamedTuple):
    """The time that is looked at, up to now by the database's clock; shorter than asked for if that held too much."""

    since: datetime
    until: datetime
    is_cut: bool


class FailureKind(NamedTuple):
    """What failures have in common: the task's name, the error's code and its type."""

    name: str
    code: str
    type: str


@dataclass
class FailureGroup:
    """The failures of one kind."""

    kind: FailureKind
    first: datetime
    last: datetime
    newest: int  # the id of an attempt
    attempts: int = 0
    for_good: int = 0  # of the attempts: those after which the task was failed
    counts: list[int] = field(default_factory=lambda: [0] * PARTS)  # of attempts, by part of the time


@dataclass
class Failures:
    """Groups by their kind, of the queue and the name asked for; and which queues and names have failures at all."""

    groups: dict[FailureKind, FailureGroup]
    queues: set[str]
    names: set[str]


def recent(using: str, seconds: float) -> Span | None:
    """The last `seconds`, or the part of them that holds the newest `LOOKED_AT` attempts; None if there are none."""
    attempts = TaskAttempt.objects.using(using).filter(ended_at__gte=after(-seconds)).order_by("-ended_at")
    now = attempts.values_list(Now(), flat=True).first()
    if now is None:
        return None
    oldest = attempts.values_list("ended_at", flat=True)[LOOKED_AT - 1 : LOOKED_AT].first()
    return Span(oldest or now - timedelta(seconds=seconds), now, oldest is not None)


def grouped(using: str, span: Span, *, queue: str | None = None, name: str | None = None) -> Failures:
    """The failures of `span` by their kind. One query, which reads as many attempts as the span holds."""
    found = Failures({}, set(), set())
    columns = ("name", "error_code", "error_type", "queue", "outcome", "part")
    attempts = _failed(using, span.since).annotate(part=_part_of(span)).values_list(*columns)
    sums = attempts.annotate(Count("pk"), Min("ended_at"), Max("ended_at"), Max("pk")).order_by()
    for *kind, its_queue, outcome, part, count, first, last, newest in sums:
        found.queues.add(its_queue)
        found.names.add(kind[0])
        if queue not in (None, its_queue) or name not in (None, kind[0]):
            continue
        group = found.groups.setdefault(FailureKind(*kind), FailureGroup(FailureKind(*kind), first, last, newest))
        group.first = min(first, group.first)
        group.last = max(last, group.last)
        group.newest = max(newest, group.newest)
        group.attempts += count
        group.for_good += count if outcome == AttemptOutcome.FAILED else 0
        group.counts[part] += count
    return found


def members(using: str, kind: FailureKind, since: datetime, upto: int | None = None) -> QuerySet[TaskAttempt]:
    """The attempts that failed in this way since then; of those whose id is not above `upto`, if that is given."""
    attempts = _failed(using, since).filter(name=kind.name, error_code=kind.code, error_type=kind.type)
    return attempts if upto is None else attempts.filter(pk__lte=upto)


def latest(attempts: QuerySet[TaskAttempt], using: str, kind: FailureKind, since: datetime) -> QuerySet[TaskAttempt]:
    """Those of these `members` after which their tasks have not failed in another way."""
    later = _failed(using, since).filter(task_id=OuterRef("task_id"), pk__gt=OuterRef("pk"))
    otherwise = later.exclude(error_code=kind.code, error_type=kind.type)
    return attempts.exclude(Exists(otherwise))


def tasks_after(attempts: QuerySet[TaskAttempt], task_id: UUID | None, limit: int) -> list[UUID]:
    """The ids of the first `limit` tasks of these attempts, in the order of their ids, that come after `task_id`."""
    ids = attempts.order_by("task_id").values_list("task_id", flat=True).distinct()
    return list((ids if task_id is None else ids.filter(task_id__gt=task_id))[:limit])


def statuses(using: str, attempts: QuerySet[TaskAttempt]) -> dict[str, int]:
    """How many of the tasks of these attempts are in which status by now."""
    tasks = Task.objects.using(using).filter(Among("pk", attempts.order_by().values("task_id").distinct()))
    return dict(tasks.order_by().values_list("status").annotate(Count("pk")))


def _failed(using: str, since: datetime) -> QuerySet[TaskAttempt]:
    return TaskAttempt.objects.using(using).filter(ended_at__gte=since, outcome__in=_FAILED)


def _part_of(span: Span) -> Case:
    """The number of the part of the span in which an attempt ended."""
    starts: Sequence[Any] = [span.since + (span.until - span.since) * part / PARTS for part in range(PARTS)]
    latest_first = reversed(range(1, PARTS))
    return Case(*(When(ended_at__gte=starts[part], then=Value(part)) for part in latest_first), default=Value(0))
