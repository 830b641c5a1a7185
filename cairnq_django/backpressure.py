"""Hold producers back while a queue is full: its limit, the headroom under it, and who may use that."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from django.core.signals import setting_changed

from .arguments import Seconds, integer, seconds
from .backoff import headroom_intervals
from .conf import SETTING, get_settings
from .errors import QueueFull
from .limits import MAX_QUEUE_DEPTH
from .store.engine import may_hold_locks
from .store.stats import queued_up_to

GRANT = 64  # tasks that one look at a queue may allow a process to submit, unless a single submit needs more


def admission(
    using: str, queue: str, tasks: int, *, max_depth: int | None, max_wait: Seconds | None
) -> Admission | None:
    """What so many tasks have to pass to get into `queue`, under these limits or those of `CAIRNQ`; None: no limit.

    Raises `TypeError` or `ValueError` naming the limit that is wrong, or that so many tasks can never keep.
    """
    settings = get_settings()
    depth, wait = settings.max_queue_depth, settings.max_queue_wait
    if isinstance(depth, dict):
        depth = depth.get(queue)
    if max_depth is not None:
        depth = integer(max_depth, "max_queue_depth", minimum=1, maximum=MAX_QUEUE_DEPTH)
    if max_wait is not None:
        wait = seconds(max_wait, "max_queue_wait")
    if depth is None or not tasks:
        return None
    if tasks > depth:
        raise ValueError(
            f"{tasks:,} tasks never fit into queue {queue!r}, which takes at most {depth:,} (max_queue_depth); split "
            "them up into several submits"
        )
    return Admission(_grants(using, queue, depth), tasks, wait)


def forget_grants() -> None:
    """Let what earlier looks at queues allowed lapse: the next submit looks for itself."""
    global _making
    _making = threading.Lock()
    _make_grants.cache_clear()


class Admission:
    """One submit before a queue with a limit: it asks for a grant, pauses, and asks again until its time is up."""

    def __init__(self, grants: _Grants, tasks: int, wait: float) -> None:
        self._grants = grants
        self._tasks = tasks
        self._wait = wait  # seconds
        self._intervals = headroom_intervals()
        self._paused = 0.0  # seconds, before this look
        self.begin()

    def begin(self) -> None:
        """Its time runs from here on."""
        self._began = time.monotonic()
        self._deadline = self._began + self._wait

    @contextmanager
    def granted(self) -> Iterator[bool]:
        """Yield whether the tasks may be inserted now, in this context. Raises `QueueFull` if there is no more waiting.

        Blocks for the time of a look at the queue, never for room in it.
        """
        now = time.monotonic()
        in_transaction = may_hold_locks(self._grants.using)
        # While others wait too, a look of theirs will do; what is final is seen with one's own eyes.
        fresh = now - self._paused / 2 if now < self._deadline else now
        room = self._grants.take(self._tasks, fresh=fresh, alone=in_transaction)
        granted = room >= self._tasks
        if not granted and (in_transaction or now >= self._deadline):
            raise self._full(room, now - self._began, in_transaction)
        try:
            yield granted
        finally:
            if granted:
                self._grants.inserted(self._tasks)

    def pause(self) -> float:
        """Seconds until the next look."""
        self._paused = max(0.0, min(next(self._intervals), self._deadline - time.monotonic()))
        return self._paused

    def _full(self, room: int, waited: float, in_transaction: bool) -> QueueFull:
        queue, limit = self._grants.queue, self._grants.depth
        return QueueFull(queue, limit - room, waited, limit=limit, tasks=self._tasks, in_transaction=in_transaction)


class _Grants:
    """What this process may still submit to one queue under one limit, going by its latest look at the queue.

    A look counts as taken what the process has under way, so alone it never exceeds the limit. Others do not see what
    it has left: that is how far the queue may exceed its limit for each process.
    """

    def __init__(self, using: str, queue: str, depth: int) -> None:
        self.using = using
        self.queue = queue
        self.depth = depth
        self._looking = threading.Lock()  # held by who looks, so that the others wait for what they get
        self._counting = threading.Lock()  # guards the counts
        self._left = 0  # tasks that may be submitted without another look
        self._room = 0  # tasks that there was room for, less those taken since
        self._looked_at = float("-inf")  # when the latest look began, on the monotonic clock
        self._taken = 0  # tasks, ever
        self._under_way = 0  # tasks taken that may not be in the queue yet

    def take(self, tasks: int, *, fresh: float, alone: bool) -> int:
        """Take room for so many tasks, if there is, and return how much there was; `inserted()` must follow then.

        A look that found too little counts if it is no older than `fresh`. `alone` is for who may hold locks that the
        others' looks wait for, and must not wait for those.
        """
        if self._take_granted(tasks):
            return tasks
        if alone:
            return self._look_and_take(tasks)
        with self._looking:
            if self._take_granted(tasks):
                return tasks
            with self._counting:
                if self._looked_at >= fresh and self._room < tasks:
                    return max(0, self._room)
            return self._look_and_take(tasks)

    def inserted(self, tasks: int) -> None:
        """What was taken is in the queue, or will never be."""
        with self._counting:
            self._under_way -= tasks

    def _take_granted(self, tasks: int) -> bool:
        with self._counting:
            if tasks > self._left:
                return False
            self._count(tasks)
            return True

    def _look_and_take(self, tasks: int) -> int:
        with self._counting:
            looked_at, taken, under_way = time.monotonic(), self._taken, self._under_way
        room = self.depth - queued_up_to(self.using, self.queue, self.depth) - under_way
        with self._counting:
            # What was taken meanwhile may have been inserted after the look.
            room = max(0, room - (self._taken - taken))
            self._looked_at, self._room, self._left = looked_at, room, min(room, GRANT)
            if tasks <= room:
                self._count(tasks)
            return room

    def _count(self, tasks: int) -> None:
        self._left = max(0, self._left - tasks)
        self._room -= tasks
        self._taken += tasks
        self._under_way += tasks


_making = threading.Lock()


def _grants(using: str, queue: str, depth: int) -> _Grants:
    with _making:
        return _make_grants(using, queue, depth)


# Bounded, for programs that name queues after their customers; what is pushed out is only looked up again.
_make_grants = lru_cache(maxsize=1024)(_Grants)


def _forget_changed(*, setting: str, **kwargs: Any) -> None:
    if setting == SETTING:
        forget_grants()


setting_changed.connect(_forget_changed, dispatch_uid="cairnq_django.backpressure")

if hasattr(os, "register_at_fork"):
    # A lock that another thread of the parent held would never be released.
    os.register_at_fork(after_in_child=forget_grants)
