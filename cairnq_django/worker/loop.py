"""One run of a worker: settle what ended, claim what fits, start it, sleep; drain when told to stop."""

from __future__ import annotations

import logging
import os
import random
import socket
import time
import uuid
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from heapq import heappop, heappush
from typing import Any
from uuid import UUID

from .. import client, notify, waiting
from ..backoff import retry_delay
from ..notify import Channel
from ..registry import Registry
from ..serialization import clean_text
from ..signals import worker_error
from ..store import claim as claims
from ..store import maintenance, settle
from ..store import stats as read_model
from ..store.claim import Claim
from ..store.engine import json_depth, task_database
from .aio import AsyncHandlers
from .attempt import Attempt
from .budgets import plan_draws
from .call import Call
from .connections import refresh
from .context import CallingSide
from .heartbeat import Heartbeat
from .inbox import Inbox
from .options import WorkerOptions
from .settlement import Settlement
from .threads import HandlerThreads

logger = logging.getLogger(__name__)

RETRY_PAUSE = 0.25  # seconds before the next try at what the database failed
MAX_RECOVERY_INTERVAL = 5.0  # seconds
MAX_SLEEP = 60.0  # seconds
REPEAT_INTERVAL = 60.0  # seconds before an error that goes on is told again

_calling_side = CallingSide(submit=client.submit, wait=waiting.wait, await_=waiting.await_)


class Loop:
    """Runs in one thread, which alone touches its fields; the others reach it through `inbox`."""

    def __init__(
        self, sender: object, options: WorkerOptions, registry: Registry, inbox: Inbox, *, burst: bool
    ) -> None:
        self.worker_id = f"{clean_text(socket.gethostname(), 100)}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.worn_out = False
        self._sender = sender
        self._options = options
        self._registry = registry
        self._inbox = inbox
        self._burst = burst
        self._using = task_database()
        self._calls: set[Call] = set()  # running
        self._hanging: set[Call] = set()  # ended for the worker, their handlers go on
        self._settlement = Settlement(self._using, self._report)
        self._threads = HandlerThreads()
        self._async_handlers = AsyncHandlers()
        self._heartbeat = Heartbeat(
            self._using, lease=options.lease, interval=options.heartbeat_interval, report=self._report
        )
        self._retry_delay = partial(retry_delay, base=options.retry_backoff, cap=options.retry_backoff_max)
        self._hungry = True  # the latest claim took all it could, so there may be more
        self._next_poll = 0.0
        self._retries: list[float] = []  # a heap: when those that this run left to do fall due
        self._next_recovery = 0.0
        self._drain_deadline: float | None = None  # None: not draining
        # Each phase's latest error and when it was told, since the database last answered; any thread reports.
        self._reported: dict[str, tuple[str, float]] = {}

    @property
    def hanging_calls(self) -> int:
        return len(self._hanging)

    def run(self) -> None:
        """Turn until stopped and drained. Never ends because of an error."""
        logger.info("Worker %s started on queues %s", self.worker_id, ", ".join(self._options.queues))
        with ExitStack() as started:
            started.callback(self._threads.close)
            started.callback(self._async_handlers.close)
            self._heartbeat.start()
            started.callback(self._heartbeat.stop)
            started.enter_context(self._wake_ups())
            while not self._is_over():
                try:
                    self._turn()
                except Exception as error:
                    self._report("loop", error)
                    self._take_in(self._inbox.wait(RETRY_PAUSE))
        self._take_in(self._inbox.wait(0))
        logger.info("Worker %s ended", self.worker_id)

    def _turn(self) -> None:
        refresh(self._using)
        self._end_overdue_calls()
        self._settle()
        if self._drain_deadline is not None:
            self._bound_the_drain(self._drain_deadline)
        elif self._inbox.stopped:
            self._start_to_drain()
        else:
            self._claim_if_there_may_be_something()
        if not self._is_over():
            self._take_in(self._inbox.wait(self._patience()))

    def _is_over(self) -> bool:
        return self._drain_deadline is not None and not self._calls and not len(self._settlement)

    def _settle(self) -> None:
        settled = self._settlement.run()
        for call in settled:
            self._heartbeat.remove([call.attempt])
            if call.attempt.retry_in is not None:
                heappush(self._retries, time.monotonic() + call.attempt.retry_in)
                self._next_poll = min(self._next_poll, self._retries[0])
        if self._burst and settled and not self._calls:
            # That may have been all; a burst does not wait for the next poll to see it.
            self._next_poll = time.monotonic()

    def _end_overdue_calls(self) -> None:
        now = time.monotonic()
        for call in [call for call in self._calls if call.deadline is not None and call.deadline <= now]:
            if call.time_out():
                logger.warning("%s ran longer than %g s and is abandoned", call, call.max_run)
                self._abandoned(call)
                self._settlement.add(call)
        if len(self._hanging) >= self._options.concurrency and not self._inbox.stopped:
            logger.error("%d abandoned handlers do not end; this worker is to be replaced", len(self._hanging))
            self.worn_out = True
            self._inbox.stop()

    def _claim_if_there_may_be_something(self) -> None:
        try:
            self._recover()
        except Exception as error:
            self._report("recover", error)
            self._next_recovery = max(self._next_recovery, time.monotonic() + RETRY_PAUSE)
        try:
            self._claim()
        except Exception as error:
            self._report("claim", error)
            self._hungry = self._inbox.woken = False
            self._next_poll = time.monotonic() + RETRY_PAUSE

    def _recover(self) -> None:
        now = time.monotonic()
        if now >= self._next_recovery:
            self._next_recovery = now + min(self._options.lease / 3, MAX_RECOVERY_INTERVAL)
            queued, ended = maintenance.recover(self._using)
            if queued:
                logger.warning("Queued again, since their workers are gone: %d", len(queued))
                self._announce_queued(task.queue for task in queued)
                self._inbox.woken = True
            self._announce_ended(task.pk for task in ended)
            expired = maintenance.expire(self._using)
            self._announce_ended(expired)
            if len(expired) == maintenance.EXPIRE_BATCH:
                # There may be more, a batch a turn, so that claims get theirs in between.
                self._next_recovery = now

    def _claim(self) -> None:
        now = time.monotonic()
        if not (self._hungry or self._inbox.woken or now >= self._next_poll):
            return
        draws = plan_draws(
            queues=self._options.queues,
            names=self._registry.names,
            concurrency=self._options.concurrency,
            occupied=len(self._calls) + len(self._settlement),
            claim_batch=self._options.claim_batch,
        )
        if not draws:
            return
        self._inbox.woken = False
        claimed = claims.claim(self._using, draws, worker_id=self.worker_id, lease=self._options.lease)
        if self._reported.pop("claim", None):
            logger.info("claim works again")
        self._reported.clear()
        self._hungry = len(claimed) >= sum(draw.limit for draw in draws)
        # Workers that were started together do not poll together for ever.
        self._next_poll = now + self._options.poll_interval * random.uniform(0.9, 1.0)
        while self._retries and self._retries[0] <= now:
            heappop(self._retries)
        self._next_poll = min([self._next_poll, *self._retries[:1]])
        self._start_all(claimed, leased_at=now)
        if self._burst and not claimed and not self._calls and not len(self._settlement) and not self._may_be_left():
            self._inbox.stop()

    def _may_be_left(self) -> bool:
        return read_model.runnable(self._using, self._options.queues, self._registry.names)

    def _start_all(self, claimed: list[Claim], leased_at: float) -> None:
        started = 0
        try:
            for claim in claimed:
                self._start(claim, leased_at)
                started += 1
        except Exception:
            # There may be no thread to be had.
            released = settle.release(self._using, [claim.lease for claim in claimed[started:]])
            self._announce_ended(released.ended)
            raise

    def _start(self, claim: Claim, leased_at: float) -> None:
        definition = self._registry.get(claim.name)
        assert definition is not None
        attempt = Attempt(
            claim,
            using=self._using,
            json_depth=json_depth(self._using),
            lease=self._options.lease,
            leased_at=leased_at,
            retry_delay=self._retry_delay,
        )
        max_run = definition.max_run if definition.max_run is not None else self._options.max_run
        call = Call(definition, attempt, _calling_side, max_run=max_run)
        ended = partial(self._inbox.call_ended, call)
        if definition.is_async:
            call.stop = self._async_handlers.start(call.run_async, ended).cancel
        else:
            call.stop = self._threads.start(call.run, ended).abandon
        self._calls.add(call)
        self._heartbeat.add([attempt])

    def _take_in(self, ended: list[Call]) -> None:
        for call in ended:
            if call in self._calls:
                self._calls.remove(call)
                self._settlement.add(call)
            elif call in self._hanging:
                self._hanging.remove(call)
                logger.info("The abandoned handler of %s has ended", call)

    def _patience(self) -> float:
        """How many seconds there is nothing to do for, as far as can be known."""
        moments = [call.deadline for call in self._calls if call.deadline is not None]
        now = time.monotonic()
        if len(self._settlement):
            moments.append(now + RETRY_PAUSE)
        if self._drain_deadline is not None:
            moments.append(self._drain_deadline)
        elif len(self._calls) + len(self._settlement) < self._options.concurrency:
            moments += [now if self._hungry or self._inbox.woken else self._next_poll, self._next_recovery]
        else:
            moments.append(self._next_recovery)
        return max(0.0, min([*moments, now + MAX_SLEEP]) - now)

    def _start_to_drain(self) -> None:
        timeout = self._options.drain_timeout
        self._drain_deadline = time.monotonic() + timeout if timeout is not None else float("inf")
        if self._calls:
            logger.info("Worker %s stops claiming and waits for %d running tasks", self.worker_id, len(self._calls))

    def _bound_the_drain(self, deadline: float) -> None:
        if time.monotonic() < deadline:
            return
        unfinished = [call for call in self._calls if call.abandon(None)]
        for call in unfinished:
            self._abandoned(call)
        self._heartbeat.remove([call.attempt for call in unfinished])
        try:
            released = settle.release(self._using, [call.attempt.claim.lease for call in unfinished])
            if unfinished:
                logger.warning("%d unfinished tasks are given back to their queues", len(released.queued))
            self._announce_queued(call.attempt.claim.queue for call in unfinished)
            self._announce_ended(released.ended)
        except Exception as error:
            self._report("settle", error)
        self._settlement.drop()

    def _abandoned(self, call: Call) -> None:
        self._calls.remove(call)
        self._hanging.add(call)

    def _wake_ups(self) -> Any:
        report = partial(self._report, "listen")
        return notify.subscribed(self._using, Channel.QUEUED, self._options.queues, self._inbox.wake, report)

    def _announce_queued(self, queues: Iterable[str]) -> None:
        notify.announce(self._using, Channel.QUEUED, set(queues))

    def _announce_ended(self, task_ids: Iterable[UUID]) -> None:
        notify.announce(self._using, Channel.ENDED, map(str, task_ids))

    def _report(self, phase: str, error: BaseException) -> None:
        """Tell people of an error that the worker survived. Called from any of its threads."""
        told, told_at = self._reported.get(phase, ("", 0.0))
        now = time.monotonic()
        # While a database is away the same error comes four times a second.
        if told != repr(error) or now - told_at >= REPEAT_INTERVAL:
            self._reported[phase] = (repr(error), now)
            exc_info = error if told != repr(error) else None
            logger.error("%s failed, the worker goes on trying: %s", phase, error, exc_info=exc_info)
        for _, failure in worker_error.send_robust(type(self._sender), worker=self._sender, phase=phase, error=error):
            if isinstance(failure, Exception):
                logger.error("A receiver of worker_error raised", exc_info=failure)
