"""One call after another in the calling thread and on its connections, each as a worker makes it."""

from __future__ import annotations

import os
import threading
import time
from asyncio import CancelledError
from collections.abc import Collection, Iterable, Sequence
from contextvars import Context
from typing import Any, NamedTuple
from uuid import UUID

from asgiref.sync import async_to_sync, sync_to_async

from .. import client, waiting
from ..arguments import Seconds
from ..errors import TaskFailed
from ..models import Task
from ..registry import Registry, TaskDef
from ..store import control, maintenance, pauses
from ..store.claim import claim_these
from ..store.engine import task_database
from ..submission import TaskId, as_task_id
from ..worker.attempt import Attempt
from ..worker.call import Call
from ..worker.context import CallingSide
from ..worker.dispatcher import News, Teller
from ..worker.options import WorkerOptions
from ..worker.settlement import Settlement
from .isolation import as_if_alone, as_if_alone_async

LEASE = 86400.0  # seconds; nobody renews it, and a test may stand still in a debugger

# What else is raised is for the test: Ctrl-C, or pytest's ways to fail and to skip.
_OF_HANDLERS = (Exception, SystemExit, GeneratorExit, CancelledError)


class _Failure(NamedTuple):
    task_id: UUID
    exception: BaseException | None  # what the handler raised


class _Nesting(threading.local):
    """What has failed for good while the thread's outermost call runs; None outside of calls."""

    failures: list[_Failure] | None = None


_nesting = _Nesting()


class Runner:
    """Claims, runs and settles like a worker with a concurrency of one."""

    def __init__(self, registry: Registry) -> None:
        self.using = task_database()
        self._registry = registry
        self._worker_id = f"testing-{os.getpid()}"
        self._options = WorkerOptions.build(None, concurrency=1, lease=LEASE)
        self._calling_side = CallingSide(
            submit=client.submit_child, asubmit=client.asubmit_child, wait=self._wait, await_=self._await
        )
        self._teller = Teller(self.using, _tell)
        self._failures: list[_Failure] = []

    def tidy_up(self) -> None:
        """See to what a worker sees to before it claims."""
        while any(recovered := maintenance.recover(self.using)):
            self._teller.recovered(*recovered)
        while expired := maintenance.expire(self.using):
            self._teller.canceled(expired)
        pauses.end_those_over(self.using)

    def run(self, definition: TaskDef[Any, Any], task_ids: Collection[UUID]) -> Sequence[Attempt]:
        """Make one call for those of these tasks that are due, and record how it ends."""
        leased_at = time.monotonic()
        claims = claim_these(self.using, task_ids, worker_id=self._worker_id, lease=LEASE)
        if not claims:
            return ()
        call = Call.of(
            definition,
            claims,
            self._calling_side,
            using=self.using,
            options=self._options,
            leased_at=leased_at,
            tell=self._teller.settled,
        )
        for attempt in call.attempts:
            # Whoever asks for it to be canceled does so in no time.
            attempt.cancel_check_interval = 0
        failures = self._handle(call)
        self._settle(call)
        failures += [
            _Failure(attempt.claim.lease.task_id, call.raised)
            for attempt in call.attempts
            if attempt.counts_as == "failed"
        ]
        # Where this is within another call, its handler would not hear of it from a worker either.
        (self._failures if _nesting.failures is None else _nesting.failures).extend(failures)
        if call.raised is not None and not isinstance(call.raised, _OF_HANDLERS):
            raise call.raised
        return call.attempts

    def run_to_the_end(self, definition: TaskDef[Any, Any], task_ids: Iterable[UUID]) -> None:
        """Run those of these tasks that are due, with their retries."""
        left = list(task_ids)
        size = definition.batch or 1
        while left:
            attempts = self.run(definition, left[:size])
            again = [attempt.claim.lease.task_id for attempt in attempts if attempt.counts_as == "retried"]
            for task_id in again:
                control.run_now(self.using, task_id)
            left = left[size:] + again

    def raise_failure(self) -> None:
        """Raise `TaskFailed` for the first task that has failed for good, if this is not within another call."""
        if self._failures and _nesting.failures is None:
            task_id, exception = self._failures[0]
            raise TaskFailed(Task.objects.using(self.using).get(pk=task_id)) from exception

    def _handle(self, call: Call) -> list[_Failure]:
        """Call the handler, and return what failed for good within that."""
        outer = _nesting.failures
        failures: list[_Failure] = []
        _nesting.failures = failures
        try:
            call.begin()
            # As on a worker's threads: a language or time zone that the test has activated is not the handler's.
            Context().run(_run, call)
        finally:
            _nesting.failures = outer
        return failures

    def _settle(self, call: Call) -> None:
        settlement = Settlement(self.using, _raise)
        settlement.add(call)
        while len(settlement):
            settlement.run()

    def _wait(self, task_id: TaskId, timeout: Seconds | None = None) -> Task:
        self._run_awaited(task_id)
        return waiting.wait(task_id, timeout)

    async def _await(self, task_id: TaskId, timeout: Seconds | None = None) -> Task:
        await sync_to_async(self._run_awaited)(task_id)
        return await waiting.await_(task_id, timeout)

    def _run_awaited(self, task_id: TaskId) -> None:
        """Run what a handler waits for: while it waits, nobody else does."""
        task = Task.objects.using(self.using).filter(pk=as_task_id(task_id)).only("name").first()
        definition = self._registry.get(task.name) if task is not None else None
        if task is not None and definition is not None:
            self.run_to_the_end(definition, [task.pk])


def _run(call: Call) -> None:
    if call.definition.is_async:
        async_to_sync(call.run_async)(as_if_alone_async)
    else:
        call.run(as_if_alone)


def _tell(news: News) -> None:
    with as_if_alone():
        news.send()


def _raise(phase: str, error: BaseException, task_id: UUID) -> None:
    """What a worker reports, and survives, is for the test to know."""
    raise error
