"""Wake-ups between processes: hints that save waiting, on which nothing correct depends."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from django.db.models.expressions import DatabaseDefault

from ..store.engine import is_postgresql
from . import polling, postgres
from .channels import Channel

if TYPE_CHECKING:
    from ..models import Task
    from ..store.insert import Afterwards

__all__ = ["Channel", "announce", "announcement_of_submit", "look_again", "subscribed"]


def announce(using: str, channel: Channel, payloads: Iterable[str]) -> None:
    """Wake whoever subscribed to one of `payloads`, once the current transaction commits. Never raises."""
    news = set(payloads)
    if news:
        _backend(using).announce(using, channel, news)


def announcement_of_submit(using: str, task: Task, *, is_awaited: bool) -> Afterwards | None:
    """What announces that `task` was submitted, to be run right after its insert has been committed.

    None where it takes `announce()`, or nobody can be told. `is_awaited`: somebody waits for its end, so it is not left
    for workers to find when they look again.
    """
    due: Any = task.run_at
    if not isinstance(due, DatabaseDefault):
        return None
    announcement: Afterwards | None = _backend(using).announcement_of_submit(using, task, is_awaited=is_awaited)
    return announcement


def look_again(using: str) -> float | None:
    """In how many seconds whoever was woken, or claimed tasks, has to look for what was not announced; None: never."""
    seconds: float | None = _backend(using).LOOK_AGAIN
    return seconds


def subscribed(
    using: str,
    channel: Channel,
    payloads: Iterable[str],
    wake: Callable[[], None],
    report: Callable[[BaseException], None] | None = None,
) -> AbstractContextManager[None]:
    """While the context lasts, call `wake()` when one of `payloads` is announced, and when news may have been missed.

    `report(error)` is called once each time wake-ups are cut off; they come back by themselves. Both are called from
    another thread and must be quick.
    """
    context: AbstractContextManager[None] = _backend(using).subscribed(using, channel, payloads, wake, report)
    return context


def _backend(using: str) -> ModuleType:
    return postgres if is_postgresql(using) else polling
