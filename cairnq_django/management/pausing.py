"""Pause and resume queues by hand: check what is asked for, say what was done."""

from __future__ import annotations

import getpass
import re
from argparse import ArgumentTypeError
from datetime import datetime, timedelta

from django.core.management.base import CommandError, OutputWrapper
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from ..limits import USER_LENGTH
from ..models import PausedQueue
from ..queues import pause_of, pause_to_be, request_pause, request_resume
from ..serialization import clean_text
from .purging import age
from .serving import refuse_without_tables


def pause(out: OutputWrapper, *, using: str, queue: str, until: float | datetime | None, dry_run: bool) -> None:
    """Pause a queue in the name of the system's user. Raises `CommandError` for what cannot work."""
    refuse_without_tables(using)
    try:
        if dry_run:
            out.write(f"Would pause {queue!r} {_end(pause_to_be(queue, until=until, using=using))}.")
            return
        paused = request_pause(queue, until=until, by=_user(), anew=True, using=using).pause
    except (TypeError, ValueError) as error:
        raise CommandError(str(error)) from error
    out.write(f"Paused {queue!r} {_end(paused)}. It takes submits; running tasks go on.")


def resume(out: OutputWrapper, *, using: str, queue: str, dry_run: bool) -> None:
    """Resume a queue. Raises `CommandError` for what cannot be one."""
    refuse_without_tables(using)
    done = "Would resume" if dry_run else "Resumed"
    try:
        was_paused = pause_of(queue, using=using) if dry_run else request_resume(queue, using=using)
    except (TypeError, ValueError) as error:
        raise CommandError(str(error)) from error
    out.write(f"{done} {queue!r}." if was_paused else f"{queue!r} {'is' if dry_run else 'was'} not paused.")


def moment(text: str) -> float | datetime:
    """What "90", "30m" or "2026-11-30T18:00" stands for: seconds from now, or a time in the project's time zone.

    Raises `ArgumentTypeError`.
    """
    if re.fullmatch(r"[\d.]+[a-z]?", text.strip()):
        return age(text)
    try:
        found = parse_datetime(text.strip())
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} is no time: {error}") from None
    if found is None:
        raise ArgumentTypeError(
            f"{text!r} is no time; write seconds, a number with m, h or d, as in 30m, or an ISO time, as in "
            f"{_example()}"
        )
    return timezone.make_aware(found) if timezone.is_naive(found) else found


def _example() -> str:
    return (timezone.localtime() + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M")


def _user() -> str:
    try:
        return clean_text(getpass.getuser(), USER_LENGTH)
    except (OSError, KeyError, ImportError):
        return ""  # in a container whose user has no name


def _end(paused: PausedQueue) -> str:
    if paused.until is None:
        return "until it is resumed"
    try:
        until = timezone.localtime(paused.until)
    except OverflowError:
        until = paused.until  # the last hours of the year 9999
    return f"until {until.isoformat(sep=' ', timespec='seconds')}"
