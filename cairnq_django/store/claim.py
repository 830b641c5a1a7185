"""Hand tasks to a worker: the arrow from `queued` to `running`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import F

from ..clock import Now, after
from ..models import Task
from ..querysets import TaskQuerySet
from ..statuses import TaskStatus
from .engine import in_transaction
from .lanes import Lane, ahead, lanes_of
from .leases import Lease

# How many times as far a claim looks when others, who claim at this moment, hold some of the first due tasks. What they
# hold of all of these, too, is passed over lane by lane, in which order between lanes is no longer kept.
_FURTHER = 4


@dataclass(frozen=True)
class Draw:
    """One claim query: whose tasks, from where, and how many at the most."""

    queues: tuple[str, ...]
    names: tuple[str, ...]
    limit: int


@dataclass(frozen=True)
class Claim:
    """A task as its attempt sees it: what was submitted, and the lease it runs under."""

    lease: Lease
    name: str
    queue: str
    payload: Any
    metadata: dict[str, Any]
    max_attempts: int
    key: str | None
    parent_id: UUID | None
    root_id: UUID
    correlation_id: str | None
    run_at: datetime


def claim(using: str, draws: Sequence[Draw], *, worker_id: str, lease: float) -> list[Claim]:
    """Claim due tasks for `worker_id` under a lease of `lease` seconds, each draw's in claim order.

    One short transaction; what another worker is claiming at this moment is passed over, not waited for.
    """

    def work() -> list[Claim]:
        return [task for draw in draws for task in _claim_draw(using, draw, worker_id, lease)]

    return in_transaction(using, work) if draws else []


def _claim_draw(using: str, draw: Draw, worker_id: str, lease: float) -> list[Claim]:
    taken = sorted(_lock(using, draw), key=lambda task: (-task.priority, task.run_at, task.pk))
    if taken:
        Task.objects.using(using).queued().filter(pk__in=[task.pk for task in taken]).update(
            status=TaskStatus.RUNNING,
            attempt=F("attempt") + 1,
            worker_id=worker_id,
            lease_until=after(lease),
            started_at=Now(),
            updated_at=Now(),
        )
    return [_claimed(task, worker_id) for task in taken]


def _lock(using: str, draw: Draw) -> list[Task]:
    lanes = lanes_of(draw.queues, draw.names)
    if not lanes or not draw.limit:
        return []
    if len(lanes) == 1:
        return list(_to_lock(lanes[0].due(using))[: draw.limit])
    return _lock_across(using, lanes, draw.limit)


def _lock_across(using: str, lanes: Sequence[Lane], limit: int) -> list[Task]:
    locked: list[Task] = []
    tried: set[UUID] = set()
    for reach in (limit, _FURTHER * limit):
        places = ahead(using, lanes, reach)
        rest = [place.task_id for place in places if place.task_id not in tried]
        while rest and (missing := limit - len(locked)):
            locked += _to_lock(Task.objects.using(using).due().filter(pk__in=rest[:missing]))
            tried.update(rest[:missing])
            rest = rest[missing:]
        if len(locked) == limit or len(places) < reach:
            return locked
    for lane in dict.fromkeys(place.lane for place in places):
        if missing := limit - len(locked):
            locked += _to_lock(lane.due(using).exclude(pk__in=[task.pk for task in locked]))[:missing]
    return locked


def _to_lock(due: TaskQuerySet) -> TaskQuerySet:
    # The text of an earlier failure is not the handler's business.
    return due.defer("result", "error", "message").select_for_update(skip_locked=True)


def _claimed(task: Task, worker_id: str) -> Claim:
    return Claim(
        lease=Lease(task.pk, worker_id, task.attempt + 1),
        name=task.name,
        queue=task.queue,
        payload=task.payload,
        metadata=task.metadata,
        max_attempts=task.max_attempts,
        key=task.key,
        parent_id=task.parent_id,
        root_id=task.root_id,
        correlation_id=task.correlation_id,
        run_at=task.run_at,
    )
