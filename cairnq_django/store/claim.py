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
from .leases import Lease


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
    candidates: list[Task] = []
    for queue in dict.fromkeys(draw.queues):
        # Queue by queue, each in the order of the claim index: over several queues at once the database would sort.
        candidates += _due(using, queue, draw.names).select_for_update(skip_locked=True)[: draw.limit]
    candidates.sort(key=lambda task: (-task.priority, task.run_at, task.pk))
    taken = candidates[: draw.limit]
    if taken:
        Task.objects.using(using).queued().filter(pk__in=[task.pk for task in taken]).update(
            status=TaskStatus.RUNNING,
            attempt=F("attempt") + 1,
            worker_id=worker_id,
            lease_until=after(lease),
            started_at=Now(),
            expires_at=None,
            updated_at=Now(),
        )
    return [_claimed(task, worker_id) for task in taken]


def _due(using: str, queue: str, names: Sequence[str]) -> TaskQuerySet:
    due = Task.objects.using(using).due().filter(queue=queue).for_handlers(names).in_claim_order()
    # The text of an earlier failure is not the handler's business.
    return due.defer("result", "error", "message")


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
