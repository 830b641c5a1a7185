"""Hand tasks to a worker: the arrow from `queued` to `running`."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import F

from ..clock import Now, after
from ..columns import JSONSize
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
    max_bytes: int | None = None  # of their payloads together; None: no limit, and they are not measured
    at_least_one: bool = False  # whether the first one may be claimed however large it is


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
    payload_bytes: int = 0  # as JSON text, where the draw has a limit of bytes


class Drawn(NamedTuple):
    """What a draw claimed, in claim order, and whether a payload that did not fit ended it."""

    claims: list[Claim]
    cut_by_bytes: bool


def claim(
    using: str, draws: Callable[[], Generator[Draw, Drawn, None]], *, worker_id: str, lease: float
) -> list[Claim]:
    """Claim due tasks for `worker_id` under a lease of `lease` seconds, each draw's in claim order.

    `draws()` yields one draw after another and is sent what each claimed. One short transaction, in which it starts
    anew if a conflict rolled it back; what another worker is claiming at this moment is passed over, not waited for.
    """

    def work() -> list[Claim]:
        claims: list[Claim] = []
        plan = draws()
        draw = next(plan, None)
        while draw is not None:
            drawn = _claim_draw(using, draw, worker_id, lease)
            claims += drawn.claims
            try:
                draw = plan.send(drawn)
            except StopIteration:
                break
        return claims

    return in_transaction(using, work)


def _claim_draw(using: str, draw: Draw, worker_id: str, lease: float) -> Drawn:
    found = sorted(_lock(using, draw), key=lambda task: (-task.priority, task.run_at, task.pk))
    taken = found if draw.max_bytes is None else _that_fit(using, found, draw.max_bytes, at_least_one=draw.at_least_one)
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
    return Drawn([_claimed(task, worker_id) for task in taken], cut_by_bytes=len(taken) < len(found))


def _lock(using: str, draw: Draw) -> list[Task]:
    lanes = lanes_of(draw.queues, draw.names)
    if not lanes or not draw.limit:
        return []
    if len(lanes) == 1:
        return list(_to_lock(lanes[0].due(using), draw)[: draw.limit])
    return _lock_across(using, lanes, draw)


def _lock_across(using: str, lanes: Sequence[Lane], draw: Draw) -> list[Task]:
    limit = draw.limit
    locked: list[Task] = []
    tried: set[UUID] = set()
    for reach in (limit, _FURTHER * limit):
        places = ahead(using, lanes, reach)
        rest = [place.task_id for place in places if place.task_id not in tried]
        while rest and (missing := limit - len(locked)):
            locked += _to_lock(Task.objects.using(using).due().filter(pk__in=rest[:missing]), draw)
            tried.update(rest[:missing])
            rest = rest[missing:]
        if len(locked) == limit or len(places) < reach:
            return locked
    for lane in dict.fromkeys(place.lane for place in places):
        if missing := limit - len(locked):
            locked += _to_lock(lane.due(using).exclude(pk__in=[task.pk for task in locked]), draw)[:missing]
    return locked


def _to_lock(due: TaskQuerySet, draw: Draw) -> TaskQuerySet:
    # The text of an earlier failure is not the handler's business.
    rows = due.defer("result", "error", "message").select_for_update(skip_locked=True)
    return rows if draw.max_bytes is None else rows.defer("payload").annotate(payload_bytes=JSONSize("payload"))


def _that_fit(using: str, found: Sequence[Any], max_bytes: int, *, at_least_one: bool) -> list[Task]:
    """Those of `found` whose payloads fit into `max_bytes` one after another, with their payloads read."""
    left = max_bytes
    fitting: list[Any] = []
    for task in found:
        left -= task.payload_bytes
        if left < 0 and not (at_least_one and not fitting):
            break
        fitting.append(task)
    payloads = dict(Task.objects.using(using).filter(pk__in=[task.pk for task in fitting]).values_list("pk", "payload"))
    for task in fitting:
        task.payload = payloads[task.pk]
    return fitting


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
        payload_bytes=getattr(task, "payload_bytes", 0),
    )
