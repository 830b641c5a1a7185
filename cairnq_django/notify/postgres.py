"""PostgreSQL's NOTIFY, and who listens for it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.db import Error, connections, transaction

from .channels import Channel
from .listener import Subscription, listener_of_this_process

logger = logging.getLogger(__name__)


# PostgreSQL commits transactions that notify one at a time: this one does not wait until it is on the disk. Who listens
# shares the channel's lock, so where it is to be had nobody does; then this only reads.
_NOTIFY = """
SELECT set_config('synchronous_commit', 'off', true), pg_notify(%s, payload) FROM unnest(%s::text[]) AS payload
WHERE (SELECT NOT pg_try_advisory_xact_lock(%s))
"""


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


@dataclass
class _Announcement:
    using: str
    channel: Channel
    payloads: set[str]

    def __call__(self) -> None:
        with _at_best(), connections[self.using].cursor() as cursor:
            cursor.execute(_NOTIFY, [self.channel.value, sorted(self.payloads), self.channel.presence])


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
