"""PostgreSQL's NOTIFY, and who listens for it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.db import DatabaseError, connections, transaction

from .channels import Channel
from .listener import Subscription, listener_of_this_process

logger = logging.getLogger(__name__)


def announce(using: str, channel: Channel, payloads: Iterable[str]) -> None:
    """Notify `channel` of each payload after the current transaction has committed.

    In a small transaction of its own: PostgreSQL commits transactions that notify one at a time, and the caller's may
    take long to.
    """
    connection = connections[using]
    latest: Any
    savepoints, latest = connection.run_on_commit[-1][:2] if connection.run_on_commit else (set(), None)
    same = isinstance(latest, _Announcement) and latest.channel is channel
    if same and savepoints == set(connection.savepoint_ids):
        latest.payloads.update(payloads)
    else:
        transaction.on_commit(_Announcement(using, channel, set(payloads)), using=using)


@dataclass
class _Announcement:
    using: str
    channel: Channel
    payloads: set[str]

    def __call__(self) -> None:
        try:
            with connections[self.using].cursor() as cursor:
                notify = "SELECT pg_notify(%s, payload) FROM unnest(%s::text[]) AS payload"
                cursor.execute(notify, [self.channel.value, sorted(self.payloads)])
        except DatabaseError:
            # What was to be announced is committed; polling finds it.
            logger.debug("Could not announce on %s", self.channel.value, exc_info=True)


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
