"""Purge by hand: check what is asked for, show on a terminal how far it is, end early when told to."""

from __future__ import annotations

import re
import sys
import threading
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext

from django.core.management.base import CommandError, OutputWrapper

from ..client import checked_limit, ended_tasks
from ..store import maintenance
from ..worker.shutdown import stopping_on_signals
from .serving import refuse_without_tables

INTERRUPTED = 130  # the exit status of a process that Ctrl-C ended

_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


def purge(
    out: OutputWrapper,
    *,
    using: str,
    older_than: float,
    statuses: list[str] | None,
    queue: str | None,
    name: str | None,
    limit: int | None,
    dry_run: bool,
) -> None:
    """Delete what is asked for, or count it, and say how many tasks that were.

    Ctrl-C ends it after the batch that is being deleted. Raises `CommandError` then, and for what cannot work.
    """
    try:
        ended = ended_tasks(older_than, status=statuses, queue=queue, name=name)
        most = checked_limit(limit)
    except (TypeError, ValueError) as error:
        raise CommandError(str(error)) from error
    refuse_without_tables(using)
    done = "Would delete" if dry_run else "Deleted"
    parts = maintenance.count(using, ended) if dry_run else _deleted(using, ended, most)
    interrupted = threading.Event()
    with _interruptible(interrupted.set):
        total = _add_up(parts, sys.maxsize if most is None else most, interrupted, _Progress(out, done))
    if interrupted.is_set():
        raise CommandError(f"Interrupted. {_sentence(done, total)}", returncode=INTERRUPTED)
    out.write(_sentence(done, total))


def age(text: str) -> float:
    """The seconds that "90", "15m", "12h" or "30d" stands for. Raises `ArgumentTypeError`."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text.strip())
    if match is None:
        raise ArgumentTypeError(f"{text!r} is no age; write seconds, or a number with m, h or d, as in 12h or 30d")
    return float(match[1]) * _UNITS[match[2]]


class _Progress:
    """One line on a terminal, written over and over; nothing elsewhere."""

    def __init__(self, out: OutputWrapper, done: str) -> None:
        self._out = out
        self._done = done

    def show(self, total: int) -> None:
        if self._out.isatty():
            self._out.write(f"\r{self._done} {total:,} so far", ending="")
            self._out.flush()

    def clear(self) -> None:
        if self._out.isatty():
            self._out.write("\r\x1b[K", ending="")
            self._out.flush()


def _add_up(parts: Iterator[int], limit: int, interrupted: threading.Event, progress: _Progress) -> int:
    total = 0
    try:
        for part in parts:
            total = min(total + part, limit)
            progress.show(total)
            if interrupted.is_set() or total >= limit:
                break
    finally:
        progress.clear()
    return total


def _deleted(using: str, ended: maintenance.Ended, limit: int | None) -> Iterator[int]:
    for step in maintenance.purge_steps(using, ended, size=maintenance.PURGE_BATCH, limit=limit):
        yield step.deleted


def _interruptible(stop: Callable[[], None]) -> AbstractContextManager[None]:
    # Signals reach the main thread alone; a handler that calls the command runs in another.
    in_main_thread = threading.current_thread() is threading.main_thread()
    return stopping_on_signals(stop) if in_main_thread else nullcontext()


def _sentence(done: str, total: int) -> str:
    return f"{done} {total:,} {'task' if total == 1 else 'tasks'}."
