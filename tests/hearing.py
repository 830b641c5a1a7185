"""Listen to the signals that the package sends."""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from django.db import connection

from cairnq_django import Task, signals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.dispatch import Signal

TASK_SIGNALS = (
    "task_submitted",
    "task_started",
    "task_succeeded",
    "task_failed",
    "task_retried",
    "task_canceled",
)


@dataclass(frozen=True)
class Heard:
    """One signal as a receiver met it."""

    name: str
    sender: Any
    facts: dict[str, Any]
    thread: str
    in_transaction: bool
    handled: BaseException | None  # the exception that was being handled

    @property
    def task(self) -> Task:
        task: Task = self.facts["task"]
        return task

    @property
    def code(self) -> str | None:
        return self.facts["error"] and self.facts["error"]["code"]


class Ears(list[Heard]):
    def names(self, task: Task | None = None) -> list[str]:
        """What was sent, about one task or at all, without its prefix."""
        return [heard.name.removeprefix("task_") for heard in self if task is None or heard.task.pk == task.pk]

    def only(self, name: str) -> Heard:
        (heard,) = [heard for heard in self if heard.name == name]
        return heard


@contextmanager
def hearing(*names: str) -> Iterator[Ears]:
    """Collect these signals, or all about tasks, while the context lasts."""
    ears = Ears()
    with ExitStack() as connected:
        for name in names or TASK_SIGNALS:
            connected.enter_context(receiving(getattr(signals, name), _ear(name, ears)))
        yield ears


@contextmanager
def receiving(signal: Signal, receiver: Any) -> Iterator[None]:
    signal.connect(receiver, weak=False)
    try:
        yield
    finally:
        signal.disconnect(receiver)


def _ear(name: str, ears: Ears) -> Any:
    def hear(sender: Any, signal: Any, **facts: Any) -> None:
        thread = threading.current_thread().name
        ears.append(Heard(name, sender, facts, thread, connection.in_atomic_block, sys.exc_info()[1]))

    return hear
