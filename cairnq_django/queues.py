"""Queues as a whole: pause them, resume them, ask which there are."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from . import limits, notify
from .arguments import Seconds, seconds, text
from .clock import after
from .conf import get_settings
from .models import PausedQueue
from .notify import Channel
from .registry import default_registry
from .store import pauses
from .store.activity import read_clock
from .store.engine import task_database
from .store.pauses import Paused
from .submission import in_utc
from .twins import twin


def pause_queue(queue: str, *, until: Seconds | datetime | None = None, by: str = "") -> PausedQueue:
    """Have `queue` give out no more tasks, and return what is recorded of it: who paused it, when and until when.

    It takes submits as before, tasks that are running go on, and leases and expiries are seen to. No claim that begins
    after the commit gets a task of it. `until` (seconds or a `timedelta` from now, or an aware datetime) ends the pause
    by itself; by default it lasts until `resume_queue()`. `by` names who paused it, to people. Pausing a queue that is
    paused replaces all three. Joins the caller's transaction. Raises `TypeError` or `ValueError` naming the argument,
    also for an `until` that has passed by the database's clock.
    """
    return request_pause(queue, until=until, by=by, anew=True).pause


def resume_queue(queue: str) -> bool:
    """Have `queue` give out tasks again, and return whether it was paused. Idle workers look for its tasks at once.

    Joins the caller's transaction. Raises `TypeError` or `ValueError` for what cannot be a queue.
    """
    return request_resume(queue) is not None


def paused_queues() -> list[PausedQueue]:
    """The queues that are paused, in the order of their names."""
    return list(PausedQueue.objects.using(task_database()).in_force().order_by("pk"))


apause_queue = twin(pause_queue)
aresume_queue = twin(resume_queue)
apaused_queues = twin(paused_queues)


def request_pause(
    queue: str,
    *,
    until: Seconds | datetime | None = None,
    by: str = "",
    anew: bool = False,
    using: str | None = None,
) -> Paused:
    """`pause_queue()`, also saying whether it changed anything; unless `anew`, it leaves a pause as it is.

    In the database `using`, if not in the one that tasks live in.
    """
    by = text(by, "by", maximum=limits.USER_LENGTH) if by != "" else by
    paused = pauses.pause(using or task_database(), _checked(queue), until=_moment(until), by=by, anew=anew)
    if paused is None:
        raise _too_late(until)
    return paused


def pause_to_be(queue: str, *, until: Seconds | datetime | None = None, using: str) -> PausedQueue:
    """What `pause_queue()` would record in the database `using`, which this only reads. Raises what that raises."""
    queue, moment, now = _checked(queue), _moment(until), read_clock(using)
    end = moment if isinstance(moment, datetime) or until is None else now + timedelta(seconds=seconds(until, "until"))
    if end is not None and end <= now:
        raise _too_late(until)
    return PausedQueue(queue=queue, paused_at=now, until=end)


def pause_of(queue: str, *, using: str) -> PausedQueue | None:
    """How the queue is paused, if it is. Raises `TypeError` or `ValueError` for what cannot be a queue."""
    return PausedQueue.objects.using(using).in_force().filter(pk=_checked(queue)).first()


def request_resume(queue: str, *, since: datetime | None = None, using: str | None = None) -> Paused | None:
    """`resume_queue()` that leaves any other pause than that `since` then, also saying which there was.

    In the database `using`, if not in the one that tasks live in.
    """
    queue = _checked(queue)
    using = using or task_database()
    resumed = pauses.resume(using, queue, since=since)
    notify.announce(using, Channel.QUEUED, [queue])
    return resumed


def declared_queues() -> set[str]:
    """The queues that settings and handlers name, whether or not they have tasks."""
    return {*get_settings().queues, *(definition.queue for definition in default_registry)}


def _checked(queue: str) -> str:
    return text(queue, "queue", maximum=limits.QUEUE_LENGTH)


def _too_late(until: object) -> ValueError:
    return ValueError(f"until must be in the future, got {until!r}: that has passed by the database's clock")


def _moment(until: Seconds | datetime | None) -> Any:
    if until is None:
        return None
    if isinstance(until, datetime):
        return in_utc(until, "until")
    if not isinstance(until, (int, float, timedelta)):
        raise TypeError(f"until must be a number of seconds, a timedelta or an aware datetime, got {until!r}")
    return after(seconds(until, "until"))
