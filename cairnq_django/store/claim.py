"""Hand tasks to a worker: the arrow from `queued` to `running`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import DateTimeField, DurationField, ExpressionWrapper, F, Value
from django.db.models.expressions import Combinable, RawSQL

from ..clock import Now, after
from ..columns import JSONSize
from ..expressions import Among, Slot
from ..models import Task
from ..querysets import TaskQuerySet
from ..statuses import TaskStatus
from .engine import (
    UpdateReturning,
    again_after_conflicts,
    has_one_write_lock,
    in_transaction,
    is_postgresql,
    returns_updated_rows,
    update_returning,
)
from .lanes import Lane, ahead, first_due_template, lane_slots, lanes_of
from .leases import Lease
from .pauses import unless_paused

# How many times as far a claim looks when others, who claim at this moment, hold some of the first due tasks. What they
# hold of all of these, too, is passed over lane by lane, in which order between lanes is no longer kept.
_FURTHER = 4

# An earlier result and error, which may be large, are not the handler's business.
_READ = (
    *("id", "attempt", "name", "queue", "payload", "metadata", "max_attempts", "key"),
    *("parent_id", "root_id", "correlation_id", "created_at", "started_at", "run_at", "priority"),
)

# What stays as it is from one attempt to the next.
_KEPT = (
    *("name", "queue", "payload", "metadata", "max_attempts", "key"),
    *("parent_id", "root_id", "correlation_id", "created_at", "priority"),
)


@dataclass(frozen=True)
class Draw:
    """One claim query: whose tasks, from where, and how many at the most."""

    queues: tuple[str, ...]
    names: tuple[str, ...]
    limit: int
    max_bytes: int | None = None  # of their payloads together; None: no limit, and they are not measured
    at_least_one: bool = False  # whether the first one may be claimed however large it is


class Claim(NamedTuple):
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
    created_at: datetime
    started_at: datetime
    run_at: datetime
    priority: int
    payload_bytes: int = 0  # as JSON text, where the draw has a limit of bytes

    @property
    def task_id(self) -> UUID:
        return self.lease.task_id

    @property
    def attempt(self) -> int:
        return self.lease.attempt

    @property
    def worker_id(self) -> str:
        return self.lease.worker_id

    def as_task(self, using: str, **current: Any) -> Task:
        """The task's row, as far as this attempt knows it and `current` says; the rest is read when it is asked for."""
        known = {name: getattr(self, name) for name in _KEPT}
        known |= {"id": self.task_id, "worker_id": self.worker_id, "attempt": self.attempt}
        known |= {"started_at": self.started_at, **current}
        fields = [field.attname for field in Task._meta.concrete_fields if field.attname in known]
        return Task.from_db(using, fields, [known[name] for name in fields])


class Drawn(NamedTuple):
    """What a draw claimed, in claim order, and whether a payload that did not fit ended it."""

    claims: list[Claim]
    cut_by_bytes: bool


def claim(
    using: str, draws: Callable[[], Generator[Draw, Drawn, None]], *, worker_id: str, lease: float
) -> list[Claim]:
    """Claim due tasks for `worker_id` under a lease of `lease` seconds, each draw's in claim order.

    Queues that are paused give out nothing: asked in the statement that finds the tasks, and in that which takes them.

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


def can_claim_at_once(using: str, draw: Draw) -> bool:
    """Whether one statement can claim this draw: the database hands back what it updates, and no payload is weighed."""
    return draw.max_bytes is None and returns_updated_rows(using)


def claim_at_once(using: str, draw: Draw, *, worker_id: str, lease: float) -> list[Claim]:
    """As `claim()` for a single draw, in one statement, which is a transaction by itself.

    Where another worker is claiming the same tasks at this moment, it may find fewer than there are, or none.
    """
    lanes = lanes_of(draw.queues, draw.names)
    if not lanes or not draw.limit:
        return []
    if is_postgresql(using):
        statement = _claim_statement(using, one_lane=len(lanes) == 1)
        slots = {"limit": draw.limit, "worker_id": worker_id, "lease": timedelta(seconds=lease), **lane_slots(lanes)}
        return again_after_conflicts(using, lambda: _claims(statement.run(**slots), worker_id))
    first = [place.task_id for place in ahead(using, lanes, draw.limit)]
    rows = unless_paused(Task.objects.using(using).due().filter(Among("pk", first)))
    return again_after_conflicts(using, lambda: _take(using, rows, worker_id, lease))


def claim_these(using: str, task_ids: Collection[UUID], *, worker_id: str, lease: float) -> list[Claim]:
    """As `claim()`, for those of these tasks that are due, whatever their queues and names. One short transaction."""
    rows = unless_paused(Task.objects.using(using).due().filter(Among("pk", task_ids)))
    return in_transaction(using, lambda: _take(using, rows, worker_id, lease))


@lru_cache
def _claim_statement(using: str, *, one_lane: bool) -> UpdateReturning:
    ids: Any = RawSQL(*first_due_template(using, one_lane=one_lane, lock=one_lane))
    if not one_lane:
        ids = Task.objects.using(using).due().filter(Among("pk", ids)).values("pk")
    lease = ExpressionWrapper(Now() + Slot("lease", DurationField()), output_field=DateTimeField())
    rows = Task.objects.using(using).filter(Among("pk", ids, lock=not one_lane))
    return UpdateReturning(rows, _running(Slot("worker_id"), lease), _READ)


def _claim_draw(using: str, draw: Draw, worker_id: str, lease: float) -> Drawn:
    found = sorted(_lock(using, draw), key=lambda task: (-task.priority, task.run_at, task.pk))
    taken = found if draw.max_bytes is None else _that_fit(found, draw.max_bytes, at_least_one=draw.at_least_one)
    claims: list[Claim] = []
    if taken:
        # By their ids alone, since they are locked: an index on their state would lock others, too.
        # A queue that was paused since they were found keeps them.
        rows = unless_paused(Task.objects.using(using).filter(Among("pk", [task.pk for task in taken])))
        sizes = {task.pk: task.payload_bytes for task in taken}
        claims = [
            claim._replace(payload_bytes=sizes[claim.lease.task_id]) for claim in _take(using, rows, worker_id, lease)
        ]
    return Drawn(claims, cut_by_bytes=len(taken) < len(found))


def _take(using: str, rows: TaskQuerySet, worker_id: str, lease: float) -> list[Claim]:
    return _claims(update_returning(rows, _running(worker_id, after(lease)), _READ), worker_id)


def _running(worker_id: str | Slot, lease_until: Combinable) -> dict[str, Any]:
    return {
        "status": TaskStatus.RUNNING,
        "attempt": F("attempt") + 1,
        "worker_id": worker_id,
        "lease_until": lease_until,
        "started_at": Now(),
        "expires_at": None,
        "updated_at": Now(),
    }


def _claims(taken: list[tuple[Any, ...]], worker_id: str) -> list[Claim]:
    taken.sort(key=_claim_order)
    return [Claim(Lease(task_id, worker_id, attempt), *columns) for task_id, attempt, *columns in taken]


def _claim_order(row: tuple[Any, ...]) -> tuple[Any, ...]:
    task_id, *_, run_at, priority = row
    return -priority, run_at, task_id


class _Found(NamedTuple):
    """A due task, locked."""

    pk: UUID
    priority: int
    run_at: datetime
    payload_bytes: int


def _lock(using: str, draw: Draw) -> list[_Found]:
    lanes = lanes_of(draw.queues, draw.names)
    if not lanes or not draw.limit:
        return []
    # SQLite asks of each task of a lane anew whether its queue is paused.
    if len(lanes) == 1 and not has_one_write_lock(using):
        return _locked(lanes[0].due(using), draw, draw.limit)
    return _lock_across(using, lanes, draw)


def _lock_across(using: str, lanes: Sequence[Lane], draw: Draw) -> list[_Found]:
    limit = draw.limit
    locked: list[_Found] = []
    tried: set[UUID] = set()
    for reach in (limit, _FURTHER * limit):
        places = ahead(using, lanes, reach)
        rest = [place.task_id for place in places if place.task_id not in tried]
        while rest and (missing := limit - len(locked)):
            locked += _locked(Task.objects.using(using).due().filter(Among("pk", rest[:missing])), draw, missing)
            tried.update(rest[:missing])
            rest = rest[missing:]
        if len(locked) == limit or len(places) < reach:
            return locked
    for lane in dict.fromkeys(place.lane for place in places):
        if missing := limit - len(locked):
            locked += _locked(lane.due(using).exclude(Among("pk", [task.pk for task in locked])), draw, missing)
    return locked


def _locked(due: TaskQuerySet, draw: Draw, limit: int) -> list[_Found]:
    size = Value(0) if draw.max_bytes is None else JSONSize("payload")
    # No index holds the last column: of one that held them all, MySQL would lock entries of other tasks, too.
    rows = due.select_for_update(skip_locked=True).values_list("pk", "priority", "run_at", size, "max_attempts")
    return [_Found(*columns) for *columns, _ in rows[:limit]]


def _that_fit(found: Sequence[_Found], max_bytes: int, *, at_least_one: bool) -> list[_Found]:
    """Those of `found` whose payloads fit into `max_bytes` one after another."""
    left = max_bytes
    fitting: list[_Found] = []
    for task in found:
        left -= task.payload_bytes
        if left < 0 and not (at_least_one and not fitting):
            break
        fitting.append(task)
    return fitting
