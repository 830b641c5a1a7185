"""Say in one line whether the queue is well, within a bounded time, for probes that look at the exit status."""

from __future__ import annotations

import json
import sys
import threading
from argparse import ArgumentTypeError

from django.core.management.base import CommandError, OutputWrapper
from django.db import connections

from ..arguments import seconds
from ..limits import SHORTEST
from ..monitoring.health import Health, read_health


def probe(out: OutputWrapper, *, using: str, timeout: float, as_json: bool) -> None:
    """Write how the queue is. Raises `CommandError` if it is not well; `SystemExit` if that was written as JSON."""
    found = _within(timeout, using)
    if as_json:
        out.write(json.dumps(found.as_json()))
        if not found.is_well:
            sys.exit(1)
    elif found.is_well:
        out.write(_sentence(found))
    else:
        raise CommandError(f"Not well: {found.reasons}")


def patience(text: str) -> float:
    """The seconds that an option says. Raises `ArgumentTypeError`."""
    try:
        number = float(text)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no number of seconds, as 10 or 0.5") from None
    try:
        return seconds(number, "the timeout", minimum=SHORTEST)
    except ValueError as error:
        raise ArgumentTypeError(str(error)) from None


def _within(timeout: float, using: str) -> Health:
    """What is found in a thread of its own: nothing bounds how long a server takes that is cut off."""
    found: list[Health] = []

    def read() -> None:
        try:
            found.append(read_health(using))
        finally:
            connections.close_all()

    # The process may end while it hangs.
    thread = threading.Thread(target=read, name="cairnq-health", daemon=True)
    thread.start()
    thread.join(timeout)
    if found:
        return found[0]
    return Health({"database": {"ok": False, "reason": f"The database did not answer within {timeout:g} s"}})


def _sentence(found: Health) -> str:
    live = found.checks["workers"]["live"]
    longest, queue = found.checks["waiting"]["longest_wait"], found.checks["waiting"]["queue"]
    waits = f"the longest wait is {longest:.0f} s, in queue {queue!r}" if queue is not None else "nothing waits"
    return f"Well: {live} {'worker' if live == 1 else 'workers'}, {waits}."
