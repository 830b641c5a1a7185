"""One run of a worker: settle what ended, claim what fits, start it, sleep; drain when told to stop."""

from __future__ import annotations

import logging
import os
import socket
import sys
import time
import uuid
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from typing import Any
from uuid import UUID

from django.dispatch import Signal

from .. import __version__, client, notify, waiting
from ..limits import HOST_LENGTH
from ..notify import Channel
from ..registry import Registry, TaskDef
from ..serialization import clean_text
from ..signals import worker_error, worker_started, worker_stopping
from ..store import claim as claims
from ..store import maintenance, pauses, settle
from ..store import stats as read_model
from ..store.claim import Claim
from ..store.engine import has_one_write_lock, task_database
from ..store.look import Look, look
from ..store.workers import WorkerState
from .agenda import Agenda, Load
from .aio import AsyncHandlers
from .bookkeeper import Bookkeeper
from .budgets import Plan
from .call import Call
from .connections import one_request, refresh
from .context import CallingSide
from .dispatcher import Dispatcher
from .heartbeat import Heartbeat
from .inbox import Inbox
from .lookahead import AHEAD, Lookahead
from .memory import resident_mib
from .options import WorkerOptions
from .presence import Presence
from .scheduler import Scheduler
from .settlement import Settlement
from .slots import Slots
from .sweeper import Sweeper
from .threads import HandlerThreads

logger = logging.getLogger(__name__)

RETRY_PAUSE = 0.25  # seconds before the next try at what the database failed
MAX_RECOVERY_INTERVAL = 5.0  # seconds
LINGER = 0.001  # seconds
SHORTEST_WRITE = 0.001  # seconds; a handler that takes less, on average, does not write
MAX_SLEEP = 60.0  # seconds
REPEAT_INTERVAL = 60.0  # seconds before an error that goes on is told again

_calling_side = CallingSide(
    submit=client.submit_child, asubmit=client.asubmit_child, wait=waiting.wait, await_=waiting.await_
)


class Loop:
    """Runs in one thread, which alone touches its fields; the others reach it through `inbox`, and read `state()`."""

    def __init__(
        self, sender: object, options: WorkerOptions, registry: Registry, inbox: Inbox, *, burst: bool
    ) -> None:
        self.worker_id = f"{clean_text(socket.gethostname(), 100)}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self.worn_out = self.recycled = False
        self._sender = sender
        self._options = options
        self._registry = registry
        self._inbox = inbox
        self._burst = burst
        self._using = task_database()
        self._calls: set[Call] = set()  # running, or claimed ahead and waiting for a slot
        self._hanging: set[Call] = set()  # ended for the worker, their handlers go on
        self._settlement = Settlement(self._using, self._report)
        self._threads = HandlerThreads()
        self._async_handlers = AsyncHandlers()
        self._slots = Slots(options.concurrency, self._start, max_tasks=options.max_tasks)
        # With one write lock for all, handlers that write would never leave it to the loop.
        longest = SHORTEST_WRITE if has_one_write_lock(self._using) else AHEAD
        self._lookahead = Lookahead(options.concurrency, longest=longest)
        self._agenda = Agenda(options, registry, self._lookahead, look_again=notify.look_again(self._using))
        self._heartbeat = Heartbeat(
            self._using, lease=options.lease, interval=options.heartbeat_interval, report=self._report
        )
        self._sweeper = Sweeper(self._using, options.retention, worker_id=self.worker_id, report=self._report)
        self._scheduler = Scheduler(self._using, registry, wake=inbox.wake, report=self._report)
        presence = Presence(self._using, self.worker_id, self.state, self._report)
        self._bookkeeper = Bookkeeper(self._using, presence, report=self._report)
        self._dispatcher = Dispatcher(self._using, inbox.nudge)
        self._recovery_interval = min(options.lease / 3, MAX_RECOVERY_INTERVAL)
        self._next_recovery = self._tidy_from = 0.0
        self._is_blind = False  # whether the latest look failed
        self._has_settled = False  # whether calls were, in this turn
        self._drain_deadline: float | None = None  # None: not draining
        # Each phase's latest error and when it was told, since the database last answered; any thread reports.
        self._reported: dict[str, tuple[str, float]] = {}

    @property
    def hanging_calls(self) -> int:
        return len(self._hanging)

    @property
    def running_tasks(self) -> int:
        """For any thread, and for a signal handler."""
        return self._slots.tasks

    def state(self) -> WorkerState:
        """What others may know of this worker. For any thread: what it counts, it copies or takes the length of."""
        is_measured = self._options.max_in_flight_bytes is not None
        return WorkerState(
            host=clean_text(socket.gethostname(), HOST_LENGTH),
            pid=os.getpid(),
            version=__version__,
            queues=self._options.queues,
            names=self._agenda.served,
            concurrency=self._options.concurrency,
            busy=self._slots.busy,
            bytes_in_flight=self._bytes_in_flight() if is_measured else None,
            abandoned=len(self._hanging),
            draining=self._inbox.stopped,
        )

    def run(self) -> None:
        """Turn until stopped and drained. Never ends because of an error."""
        extra = {"worker_id": self.worker_id}
        logger.info("Worker %s started on queues %s", self.worker_id, ", ".join(self._options.queues), extra=extra)
        with ExitStack() as started:
            started.callback(self._dispatcher.stop)
            started.callback(self._threads.close)
            started.callback(self._async_handlers.close)
            self._heartbeat.start()
            started.callback(self._heartbeat.stop)
            self._bookkeeper.start()
            started.callback(self._bookkeeper.stop)
            if not self._burst:
                self._scheduler.start()
                started.callback(self._scheduler.stop)
            if self._options.retention and not self._burst:
                self._sweeper.start()
                started.callback(self._sweeper.stop)
            started.enter_context(self._wake_ups())
            self._tell(worker_started)
            _report_to_sentry_if_it_is_set_up()
            while not self._is_over():
                try:
                    self._turn()
                except Exception as error:
                    self._report("loop", error)
                    self._take_in(self._inbox.wait(RETRY_PAUSE))
        self._take_in(self._inbox.wait(0))
        logger.info("Worker %s ended", self.worker_id, extra=extra)

    def _turn(self) -> None:
        refresh(self._using)
        self._end_overdue_calls()
        self._settle()
        self._ask_to_be_replaced_when_due()
        self._give_back_what_waits_too_long()
        if self._drain_deadline is not None:
            self._bound_the_drain(self._drain_deadline)
        elif self._inbox.stopped:
            self._start_to_drain()
        elif not self._dispatcher.is_behind:
            self._claim_if_there_may_be_something()
        if not self._is_over():
            self._take_in(self._inbox.wait(self._patience(), self._linger()))

    def _is_over(self) -> bool:
        return self._drain_deadline is not None and not self._calls and not len(self._settlement)

    def _settle(self) -> None:
        settled = self._settlement.run()
        self._has_settled = bool(settled)
        attempts = [attempt for call in settled for attempt in call.attempts]
        self._heartbeat.remove(attempts)
        self._bookkeeper.ended(attempts)
        for due_in in [attempt.due_in for attempt in attempts if attempt.due_in is not None]:
            self._agenda.falls_due(time.monotonic() + due_in)
        for call in settled:
            call.let_go()
        if self._burst and settled and not self._calls:
            # That may have been all; a burst does not wait for the next poll to see it.
            self._agenda.look_at(time.monotonic())

    def _end_overdue_calls(self) -> None:
        now = time.monotonic()
        for call in [call for call in self._calls if call.deadline is not None and call.deadline <= now]:
            if call.time_out():
                logger.warning("%s ran longer than %g s and is abandoned", call, call.max_run, extra=call.about)
                self._abandoned(call)
                self._settlement.add(call)
        if len(self._hanging) >= self._options.concurrency and not self._inbox.stopped:
            logger.error("%d abandoned handlers do not end; this worker is to be replaced", len(self._hanging))
            self.worn_out = True
            self._inbox.stop()

    def _ask_to_be_replaced_when_due(self) -> None:
        limit = self._options.max_memory
        if self._inbox.stopped:
            return
        if self._slots.used_up:
            reason = f"has started {self._options.max_tasks} tasks"
        # Once a call has ended, so that each process gets something done.
        elif limit is not None and self._has_settled and (resident := resident_mib()) > limit:
            reason = f"has grown to {resident:.0f} MiB, past {limit}"
        else:
            return
        logger.info("Worker %s %s; it is to be replaced", self.worker_id, reason)
        self.recycled = True
        self._inbox.stop()

    def _claim_if_there_may_be_something(self) -> None:
        try:
            self._claim()
        except Exception as error:
            self._report("claim", error)
            self._agenda.failed(time.monotonic() + RETRY_PAUSE)
            self._next_recovery = max(self._next_recovery, time.monotonic() + RETRY_PAUSE)
            self._tidy_from = max(self._tidy_from, time.monotonic() + RETRY_PAUSE)

    def _claim(self) -> None:
        now = time.monotonic()
        # Taken before anything is read: what comes from here on is for the next turn.
        woken = self._inbox.take_wake_up()
        plan = self._agenda.plan(now, self._load(), woken=woken)
        drawing = plan.drawing
        if drawing and self._agenda.looks_anew(now, woken=woken):
            self._agenda.begin_to_look_anew(now)
        elif woken:
            self._inbox.woken = True
        is_expected = bool(drawing) and self._agenda.expects_some(plan, woken=woken)
        is_seen = False
        if now >= self._next_recovery or (drawing and not is_expected):
            is_seen = self._look(now, [name for group in drawing for name in group.names])
        claimed = self._draw(plan, woken=woken, is_seen=is_seen) if is_expected or is_seen else []
        self._start_all(claimed, leased_at=now)
        if self._burst and not claimed and not self._calls and not len(self._settlement) and not self._may_be_left():
            self._inbox.stop()

    def _look(self, now: float, names: Sequence[str]) -> bool:
        """Return whether tasks of these names are due; from time to time see to what nobody else may see to."""
        was_blind, self._is_blind = self._is_blind, True
        seen = look(self._using, self._options.queues, names)
        self._is_blind = False
        if was_blind:
            # Only then: a database that can be read may still refuse what is written.
            self._database_answers()
        if names and not seen.due:
            self._agenda.nothing_is_due()
        if now >= self._tidy_from:
            try:
                self._tidy_up(seen, now)
            except Exception as error:
                self._report("recover", error)
                self._tidy_from = self._next_recovery = now + RETRY_PAUSE
        return seen.due

    def _tidy_up(self, seen: Look, now: float) -> None:
        self._next_recovery = now + self._recovery_interval
        # Rather a little early than with a look of its own.
        self._tidy_from = now + self._recovery_interval / 2
        is_more = self._recover() if seen.orphaned else False
        is_more |= self._expire() if seen.too_late else False
        if seen.pauses_over:
            self._end_pauses()
        if is_more:
            # A batch a turn, so that claims get theirs in between.
            self._tidy_from = self._next_recovery = now

    def _recover(self) -> bool:
        """Whether there may be more."""
        queued, ended = maintenance.recover(self._using)
        self._bookkeeper.recovered(queued, ended)
        self._dispatcher.recovered(queued, ended)
        if queued:
            logger.warning("Queued again, since their workers are gone: %d", len(queued))
            self._announce_queued(task.queue for task in queued)
            self._inbox.woken = True
        self._announce_ended(task.pk for task in ended)
        return len(queued) + len(ended) == maintenance.RECOVERY_BATCH

    def _expire(self) -> bool:
        """Whether there may be more."""
        expired = maintenance.expire(self._using)
        self._canceled(expired)
        return len(expired) == maintenance.EXPIRE_BATCH

    def _end_pauses(self) -> None:
        queues = pauses.end_those_over(self._using)
        if queues:
            logger.info("Not paused any more, since their time has come: %s", ", ".join(queues))
            # Who has found nothing in them may be about to sleep for long.
            self._announce_queued(queues)
            self._inbox.woken = True

    def _draw(self, plan: Plan, *, woken: bool, is_seen: bool) -> list[Claim]:
        began = time.monotonic()
        claimed = self._claimed(plan)
        ended = time.monotonic()
        self._lookahead.claimed(len(claimed), ended - began)
        if claimed:
            self._database_answers()
            self._bookkeeper.started(claimed)
        self._agenda.drawn(plan, len(claimed), ended, woken=woken, is_seen=is_seen)
        return claimed

    def _claimed(self, plan: Plan) -> list[Claim]:
        lease = self._options.lease
        draw = plan.only_draw
        if draw is None or self._agenda.is_contended or not claims.can_claim_at_once(self._using, draw):
            return claims.claim(self._using, plan.draws, worker_id=self.worker_id, lease=lease)
        claimed = claims.claim_at_once(self._using, draw, worker_id=self.worker_id, lease=lease)
        plan.drawn_at_once(claimed)
        return claimed

    def _database_answers(self) -> None:
        if self._reported.pop("claim", None):
            logger.info("claim works again")
        self._reported.clear()

    def _load(self) -> Load:
        # Without a limit they are not measured, and need not be added up twice a turn.
        is_measured = self._options.max_in_flight_bytes is not None
        return Load(
            calls=len(self._calls) + len(self._settlement),
            running=[call.definition for call in (*self._calls, *self._hanging)],
            bytes_in_flight=self._bytes_in_flight() if is_measured else 0,
            is_idle=not self._calls,
        )

    def _bytes_in_flight(self) -> int:
        measured = {*self._calls, *self._hanging, *self._settlement.calls}
        return sum(call.payload_bytes for call in measured)

    def _may_be_left(self) -> bool:
        return read_model.runnable(self._using, self._options.queues, self._agenda.served)

    def _start_all(self, claimed: list[Claim], leased_at: float) -> None:
        calls = deque(self._call_of(batch, leased_at) for batch in self._in_batches(claimed))
        self._heartbeat.add(attempt for call in calls for attempt in call.attempts)
        try:
            while calls:
                self._calls.add(calls[0])
                self._slots.add(calls.popleft())
        except Exception:
            # There may be no thread to be had.
            self._give_back([*self._slots.take_back(), *calls])
            raise

    def _in_batches(self, claimed: list[Claim]) -> Iterator[list[Claim]]:
        """What is for one call each."""
        by_definition: dict[str, list[Claim]] = {}
        for claim in claimed:
            # Of any of its names: what was drawn together counts as so many calls.
            by_definition.setdefault(self._definition(claim.name).name, []).append(claim)
        for name, claims_of_one in by_definition.items():
            size = self._definition(name).batch or 1
            for first in range(0, len(claims_of_one), size):
                yield claims_of_one[first : first + size]

    def _definition(self, name: str) -> TaskDef[Any, Any]:
        definition = self._registry.get(name)
        assert definition is not None
        return definition

    def _call_of(self, batch: list[Claim], leased_at: float) -> Call:
        return Call.of(
            self._definition(batch[0].name),
            batch,
            _calling_side,
            using=self._using,
            options=self._options,
            leased_at=leased_at,
            tell=self._dispatcher.settled,
        )

    def _start(self, call: Call) -> None:
        """For any thread."""
        call.begin()
        ended = partial(self._ended, call)
        if call.definition.is_async:
            call.stop = self._async_handlers.start(call.run_async, ended).cancel
        else:
            call.stop = self._threads.start(call.run, ended).abandon
        if call.deadline is not None:
            self._inbox.nudge()

    def _ended(self, call: Call) -> None:
        """For any thread."""
        self._inbox.call_ended(call)
        self._slots.leave(call)

    def _give_back_what_waits_too_long(self) -> None:
        if self._slots.waited() > 2 * AHEAD or (self._inbox.stopped and self._slots.ready):
            self._lookahead.waited_too_long()
            self._give_back(self._slots.take_back())

    def _give_back(self, calls: list[Call]) -> int:
        """Leave their tasks to other workers, the attempts not counted, and return how many are queued again."""
        attempts = [attempt for call in calls for attempt in call.attempts]
        self._calls.difference_update(calls)
        self._heartbeat.remove(attempts)
        # A handler's open transaction that has settled its task commits by itself, and locks its row until then.
        leases = [attempt.claim.lease for attempt in attempts if not attempt.settled]
        released = settle.release(self._using, leases)
        self._announce_queued(attempt.claim.queue for attempt in attempts)
        self._canceled(released.ended)
        return len(released.queued)

    def _take_in(self, ended: list[Call]) -> None:
        for call in ended:
            if call in self._calls:
                self._calls.remove(call)
                self._settlement.add(call)
                self._agenda.bytes_returned()
                self._lookahead.handled(call.seconds)
            elif call in self._hanging:
                self._hanging.remove(call)
                logger.info("The abandoned handler of %s has ended", call, extra=call.about)

    def _patience(self) -> float:
        """How many seconds there is nothing to do for, as far as can be known."""
        moments = [call.deadline for call in self._calls if call.deadline is not None]
        now = time.monotonic()
        if self._slots.ready:
            moments.append(now + AHEAD)
        if len(self._settlement):
            moments.append(now if self._settlement.was_cut_short else now + RETRY_PAUSE)
        if self._drain_deadline is not None:
            moments.append(self._drain_deadline)
        elif not self._dispatcher.is_behind:
            moments.append(self._next_recovery)
            moments.append(self._agenda.next_claim(now, self._load(), woken=self._inbox.woken))
        return max(0.0, min([*moments, now + MAX_SLEEP]) - now)

    def _linger(self) -> float:
        """How many seconds to wait for more after the first news: it costs less to see to it together."""
        return LINGER if self._slots.ready else 0.0

    def _start_to_drain(self) -> None:
        timeout = self._options.drain_timeout
        self._drain_deadline = time.monotonic() + timeout if timeout is not None else float("inf")
        self._sweeper.interrupt()
        self._scheduler.interrupt()
        if self._agenda.is_counted_on(time.monotonic()):
            self._announce_queued(self._options.queues)
        if self._calls:
            running = sum(len(call.attempts) for call in self._calls)
            extra = {"worker_id": self.worker_id}
            logger.info("Worker %s stops claiming and waits for %d running tasks", self.worker_id, running, extra=extra)
        self._tell(worker_stopping)

    def _bound_the_drain(self, deadline: float) -> None:
        if time.monotonic() < deadline:
            return
        unfinished = [call for call in self._calls if call.abandon(None)]
        for call in unfinished:
            self._abandoned(call)
            # Its handler may have settled some of them.
            self._bookkeeper.ended(call.attempts)
        try:
            returned = self._give_back(unfinished)
            if unfinished:
                logger.warning("%d unfinished tasks are given back to their queues", returned)
        except Exception as error:
            self._report("settle", error)
        self._settlement.drop()

    def _abandoned(self, call: Call) -> None:
        self._calls.remove(call)
        self._hanging.add(call)
        self._slots.leave(call)
        self._agenda.bytes_returned()

    def _wake_ups(self) -> Any:
        report = partial(self._report, "listen")
        return notify.subscribed(self._using, Channel.QUEUED, self._options.queues, self._inbox.wake, report)

    def _announce_queued(self, queues: Iterable[str]) -> None:
        notify.announce(self._using, Channel.QUEUED, set(queues))

    def _announce_ended(self, task_ids: Iterable[UUID]) -> None:
        notify.announce(self._using, Channel.ENDED, map(str, task_ids))

    def _canceled(self, task_ids: Collection[UUID]) -> None:
        """They ended without an attempt of theirs."""
        self._announce_ended(task_ids)
        self._dispatcher.canceled(task_ids)

    def _tell(self, signal: Signal) -> None:
        if signal.receivers:
            with one_request():
                signal.send_robust(type(self._sender), worker=self._sender)

    def _report(self, phase: str, error: BaseException, task_id: UUID | None = None) -> None:
        """Tell people of an error that the worker survived. Called from any of its threads."""
        told, told_at = self._reported.get(phase, ("", 0.0))
        now = time.monotonic()
        # While a database is away the same error comes four times a second.
        if told != repr(error) or now - told_at >= REPEAT_INTERVAL:
            self._reported[phase] = (repr(error), now)
            exc_info = error if told != repr(error) else None
            what = f"{phase} of task {task_id}" if task_id is not None else phase
            extra = {"worker_id": self.worker_id, "task_id": str(task_id) if task_id is not None else None}
            logger.error("%s failed, the worker goes on trying: %s", what, error, exc_info=exc_info, extra=extra)
        facts = {"worker": self._sender, "phase": phase, "error": error, "task_id": task_id}
        for _, failure in worker_error.send_robust(type(self._sender), **facts):
            if isinstance(failure, Exception):
                logger.error("A receiver of worker_error raised", exc_info=failure)


def _report_to_sentry_if_it_is_set_up() -> None:
    sentry_sdk = sys.modules.get("sentry_sdk")
    if sentry_sdk is not None and sentry_sdk.is_initialized():
        import_module("cairnq_django.sentry").report_failures()
