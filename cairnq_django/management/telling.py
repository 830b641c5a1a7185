"""What `runworker` tells a person: what starts, what it waits for when it is to stop, why it ends."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Any

from django import get_version
from django.core.management.base import OutputWrapper

from .. import __version__
from ..registry import TaskDef
from ..store.engine import task_database
from ..worker.worker import Worker
from .base import shown_database


class Voice:
    """Speaks for one worker, or for `processes` of them. That nobody listens any more is no error."""

    def __init__(self, out: OutputWrapper, worker: Worker, processes: int | None) -> None:
        self._out = out
        self._worker = worker
        self._processes = processes

    def starts(self) -> None:
        self._say(banner(self._worker, self._processes))

    def stops(self) -> None:
        """It is told to. For a signal handler, too."""
        self._say(f"Stopping{self._waiting()}; a second Ctrl-C kills.")

    def ends(self) -> None:
        if self._worker.recycled:
            self._say(f"Ended, to be started again ({_recycling(self._worker)}).")
        elif self._worker.worn_out:
            self._say("Ended, to be started again: handlers that were given up do not end.")
        else:
            self._say("Ended.")

    def _waiting(self) -> str:
        running = self._worker.running_tasks
        if self._processes is not None:
            what = f"the running tasks of {_count(self._processes, 'process', 'processes')}"
        elif running:
            what = _count(running, "running task", "running tasks")
        else:
            return ""
        timeout = self._worker.options.drain_timeout
        return f": waiting for {what}" + (f", {timeout:g} s at most" if timeout is not None else "")

    def _say(self, text: str) -> None:
        with suppress(OSError):
            self._out.write(text)
            self._out.flush()


def banner(worker: Worker, processes: int | None = None) -> str:
    """What a person wants to know of a worker that starts."""
    options = worker.options
    handlers = sorted(worker.registry, key=lambda definition: definition.name)
    claim_batch = f", claiming up to {options.claim_batch} at once" if options.claim_batch is not None else ""
    each = " in each process" if processes is not None else ""
    lines = [
        f"cairnq-django {__version__} on Django {get_version()}, process {os.getpid()}",
        f"  database      {shown_database(task_database())}",
        f"  queues        {', '.join(options.queues)}",
        f"  handlers      {', '.join(map(_handler, handlers))}",
        f"  concurrency   {options.concurrency} calls{each}{claim_batch}",
        f"  lease         {options.lease:g} s, a heartbeat every {options.heartbeat_interval:g} s",
        f"  polling       every {options.poll_interval:g} s",
        f"  retries       after {options.retry_backoff:g} s, doubling up to {options.retry_backoff_max:g} s",
        f"  limits        {_limit('run', options.max_run)}, {_limit('drain', options.drain_timeout)}",
    ]
    if processes is not None:
        lines.append(f"  processes     {processes}")
    if recycling := _recycling(worker):
        lines.append(f"  recycling     {recycling}")
    unserved = [handler for handler in handlers if handler.queue not in options.queues]
    if unserved:
        names = ", ".join(f"{handler.name} ({handler.queue})" for handler in unserved)
        lines.append(f"  not served    {names}: submitted to their own queues, they wait for another worker")
    lines.append("Stop with Ctrl-C: running tasks end first. A second Ctrl-C kills.")
    return "\n".join(lines)


def _handler(definition: TaskDef[Any, Any]) -> str:
    return f"{', also '.join(definition.names)} ({definition.queue})"


def _limit(what: str, seconds: float | None) -> str:
    return f"{what} {seconds:g} s" if seconds is not None else f"{what} without limit"


def _recycling(worker: Worker) -> str:
    max_tasks, max_memory = worker.options.max_tasks, worker.options.max_memory
    tasks = f"after {max_tasks} tasks" if max_tasks is not None else ""
    memory = f"past {max_memory} MiB" if max_memory is not None else ""
    return ", ".join(filter(None, [tasks, memory]))


def _count(number: int, one: str, many: str) -> str:
    return f"{number} {one if number == 1 else many}"
