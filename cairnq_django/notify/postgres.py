"""PostgreSQL's NOTIFY, and who listens for it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db import Error, connections, transaction
from django.db.models.expressions import DatabaseDefault

from ..store.engine import is_between_transactions
from .channels import Channel
from .lanes import LOOK_AGAIN as LOOK_AGAIN
from .lanes import Lane
from .listener import Subscription, listener_of_this_process

if TYPE_CHECKING:
    from ..models import Task

logger = logging.getLogger(__name__)


# PostgreSQL commits transactions that notify one at a time: this one does not wait until it is on the disk. Who listens
# shares the channel's lock, so where it is to be had nobody does; then this only reads.
_ANNOUNCE = """
SELECT set_config('synchronous_commit', 'off', true), pg_notify(%s, payload) FROM unnest(%s::text[]) AS payload
WHERE (SELECT NOT pg_try_advisory_xact_lock(%s))
"""

# In a transaction that goes on, which both the setting and the lock would outlast this.
_ANNOUNCE_WITHIN = "SELECT pg_notify(%s, payload) FROM unnest(%s::text[]) AS payload"

# With its constants in it, since whatever a statement is given takes time to be put there.
_ANNOUNCE_SUBMIT = f"""
SELECT set_config('synchronous_commit', 'off', true), pg_notify('{Channel.QUEUED.value}', %s)
WHERE (SELECT NOT pg_try_advisory_xact_lock({Channel.QUEUED.presence}))
"""
# The task before it, which nobody has touched, so it is queued: who claims it looks once more afterwards, and finds
# what was committed before this is asked. Where somebody has locked it ("xmax"), a worker may have passed it over. Were
# its status asked for, a server that saw the table empty last would look for it among all that is queued, in the claim
# index.
_UNLESS_ONE_IS_LEFT = """
AND NOT EXISTS (
    SELECT 1 FROM {table} WHERE id = %s AND updated_at = created_at AND xmax = 0
)
"""
_LANES = 1024  # that a process remembers


def announce(using: str, channel: Channel, payloads: Iterable[str]) -> None:
    """Notify `channel` of each payload after the current transaction has committed, if anyone listens there.

    In a small transaction of its own, since the caller's may take long to commit.
    """
    connection = connections[using]
    savepoints = set(connection.savepoint_ids)
    hooks: list[Any] = connection.run_on_commit
    for index in reversed(range(len(hooks))):
        made_in, hook = hooks[index][:2]
        if isinstance(hook, _Announcement) and hook.channel is channel and made_in == savepoints:
            hook.payloads.update(payloads)
            # The next one finds it without a long search.
            hooks.append(hooks.pop(index))
            return
    # Not possible in a transaction that is managed by hand: nobody is told when that commits.
    with _at_best():
        transaction.on_commit(_Announcement(using, channel, set(payloads)), using=using)


def announcement_of_submit(using: str, task: Task, *, is_awaited: bool) -> _OfSubmit:
    """What notifies the queue of a submitted task, due at once, if anyone listens there who may not look by himself."""
    lane = _lane(using, task)
    expires: Any = task.expires_at
    # One that may expire could be left by all workers.
    task_id = task.pk if isinstance(expires, DatabaseDefault) else None
    now = time.monotonic()
    if not is_awaited and not lane.is_to_ask(now):
        return _OfSubmit(None, [], lane, task_id, now, seen_until=lane.seen_until)
    earlier = lane.left_at(now)
    if earlier is None:
        return _OfSubmit(_ANNOUNCE_SUBMIT, [task.queue], lane, task_id, now)
    unless = _UNLESS_ONE_IS_LEFT.format(table=connections[using].ops.quote_name(task._meta.db_table))
    return _OfSubmit(_ANNOUNCE_SUBMIT + unless, [task.queue, earlier], lane, task_id, now, unless_left=True)


_lanes: dict[tuple[str, str, str], Lane] = {}


def _lane(using: str, task: Task) -> Lane:
    key = (using, task.queue, task.name)
    lane = _lanes.get(key)
    if lane is None:
        if len(_lanes) >= _LANES:
            _lanes.clear()
        lane = _lanes[key] = Lane()
    return lane


@dataclass(frozen=True)
class _OfSubmit:
    sql: str | None
    params: Sequence[Any]
    lane: Lane
    task_id: UUID | None  # None: it cannot do for others
    begun_at: float
    unless_left: bool = False
    seen_until: float = -inf

    def ran(self, found: bool) -> None:
        self.lane.asked(self.begun_at, told=found, unless_left=self.unless_left)
        self._is_seen()

    def is_needless(self) -> bool:
        needless = time.monotonic() < self.seen_until
        if needless:
            self._is_seen()
        return needless

    def _is_seen(self) -> None:
        if self.task_id is not None:
            self.lane.submitted(self.task_id, self.begun_at)


@dataclass
class _Announcement:
    using: str
    channel: Channel
    payloads: set[str]

    def __call__(self) -> None:
        news = [self.channel.value, sorted(self.payloads)]
        with _at_best(), connections[self.using].cursor() as cursor:
            if is_between_transactions(self.using):
                cursor.execute(_ANNOUNCE, [*news, self.channel.presence])
            else:
                cursor.execute(_ANNOUNCE_WITHIN, news)


@contextmanager
def _at_best() -> Iterator[None]:
    try:
        yield
    except Error:
        # Polling finds the news, a little later.
        logger.debug("Could not announce", exc_info=True)


@contextmanager
def subscribed(
    using: str,
    channel: Channel,
    payloads: Iterable[str],
    wake: Callable[[], None],
    report: Callable[[BaseException], None] | None = None,
) -> Iterator[None]:
    """Hear `channel` on this process's listener."""
    subscription = Subscription(channel, frozenset(payloads), wake, report)
    listener = listener_of_this_process(using)
    listener.add(subscription)
    try:
        yield
    finally:
        listener.remove(subscription)
        if channel is Channel.QUEUED:
            # Who waits for a task may wait for another soon; a worker that ends leaves nothing behind.
            listener.close_if_unused()
