"""The signals about how attempts ended; one thread sends them, so that a slow receiver keeps no task waiting."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import Context
from queue import SimpleQueue
from typing import Any, Final, NamedTuple
from uuid import UUID

from django.db import connections
from django.dispatch import Signal

from .. import sending
from ..envelopes import Envelope, lease_expired
from ..models import Task
from ..signals import task_canceled, task_failed, task_retried, task_succeeded
from ..statuses import TaskStatus
from .attempt import Attempt
from .connections import one_request
from .outcomes import Settled

logger = logging.getLogger(__name__)

MAX_WAITING: Final = 1000  # signals to be sent, before the worker claims nothing more
STOP_TIMEOUT: Final = 10.0  # seconds that a stop waits for those that are left

_SIGNALS: Final[dict[str, Signal]] = {
    TaskStatus.SUCCEEDED: task_succeeded,
    TaskStatus.FAILED: task_failed,
    TaskStatus.CANCELED: task_canceled,
    TaskStatus.QUEUED: task_retried,
}

# What a task's row says no longer, once its lease was found to have run out.
_STALE: Final = ("run_at", "lease_until", "progress", "message", "result", "completed_at", "updated_at")

# Whatever the exception's class makes of these names.
_traceback_of: Final = BaseException.__dict__["__traceback__"].__get__


def anyone_hears_of_ends() -> bool:
    return bool(task_failed.receivers or task_retried.receivers or task_succeeded.receivers or task_canceled.receivers)


def as_started(attempt: Attempt) -> Task:
    return attempt.claim.as_task(attempt.using, status=TaskStatus.RUNNING, run_at=attempt.claim.run_at)


class News(NamedTuple):
    signal: Signal
    tasks: Iterable[Task]  # may have to be read
    facts: dict[str, Any] | None  # None: no attempt ended, and each task's row says why it did
    context: Context

    def send(self) -> None:
        for task in self.tasks:
            facts = self.facts or {"error": task.error, "exception": None, "duration": None}
            self.context.run(_send_while_handling, facts.get("exception"), self.signal, {"task": task, **facts})


class Teller:
    """Hands what becomes of tasks to `pass_on`, if anyone listens for it. What it is told is committed."""

    def __init__(self, using: str, pass_on: Callable[[News], None]) -> None:
        self._using = using
        self._pass_on = pass_on

    def settled(self, attempt: Attempt, settled: Settled) -> None:
        """For any thread."""
        signal = _SIGNALS[settled.status]
        if not signal.receivers:
            return
        current: dict[str, Any] = {"status": settled.status, "error": settled.error, "result": settled.result}
        if settled.status == TaskStatus.CANCELED:
            current["error"] = None
        facts: dict[str, Any] = {"duration": attempt.duration}
        if settled.status != TaskStatus.SUCCEEDED:
            facts |= {"error": settled.error, "exception": settled.exception}
        if settled.status == TaskStatus.QUEUED:
            # Another worker may have it by now, with another result of an earlier life.
            del current["result"]
            facts["delay"] = settled.delay
        context = attempt.context.copy() if attempt.context is not None else Context()
        attempt.context = None
        self._pass_on(News(signal, [attempt.claim.as_task(attempt.using, **current)], facts, context))

    def recovered(self, queued: Iterable[Task], ended: Iterable[Task]) -> None:
        """Tasks of workers that are gone were queued again, or ended."""
        for task in queued:
            self._recovered(task, TaskStatus.QUEUED)
        for task in ended:
            self._recovered(task, TaskStatus.CANCELED if task.cancel_requested else TaskStatus.FAILED)

    def canceled(self, task_ids: Iterable[UUID]) -> None:
        """Tasks were canceled without an attempt that ended: they expired, or were to be given back."""
        if task_canceled.receivers:
            # Read when it is its turn, by the thread that can wait for it.
            self._pass_on(News(task_canceled, sending.rows(self._using, task_ids), None, Context()))

    def _recovered(self, task: Task, status: TaskStatus) -> None:
        signal = _SIGNALS[status]
        if not signal.receivers:
            return
        error: Envelope = lease_expired(task.worker_id, task.attempt)
        for stale in _STALE:
            task.__dict__.pop(stale, None)
        task.status, task.error = status, None if status == TaskStatus.CANCELED else error
        facts: dict[str, Any] = {"error": error, "exception": None, "duration": None}
        if status == TaskStatus.QUEUED:
            facts["delay"] = 0.0
        self._pass_on(News(signal, [task], facts, Context()))


class Dispatcher(Teller):
    """Starts its thread with the first signal that anyone listens for."""

    def __init__(self, using: str, caught_up: Callable[[], None]) -> None:
        """`caught_up` is called when it is no longer behind, by its thread."""
        super().__init__(using, self._put)
        self._caught_up = caught_up
        self._news: SimpleQueue[News | None] = SimpleQueue()
        self._awaited = False  # whether the worker's loop claims nothing until it has caught up
        self._starting = threading.Lock()  # guards _thread until it is there
        self._thread: threading.Thread | None = None

    @property
    def is_behind(self) -> bool:
        """Whether receivers are so slow that the worker is to claim nothing more for now. For the worker's loop."""
        if self._news.qsize() < MAX_WAITING:
            return False
        if not self._awaited:
            self._awaited = True
            logger.warning("%d signals wait for slow receivers: nothing more is claimed for now", self._news.qsize())
        return True

    def stop(self) -> None:
        """Send what is left, and end the thread; a receiver that takes too long is left behind."""
        if self._thread is None:
            return
        self._news.put(None)
        self._thread.join(STOP_TIMEOUT)
        if self._thread.is_alive():
            logger.error("A receiver of a signal takes too long, and %d signals are not sent", self._news.qsize())

    def _put(self, news: News) -> None:
        self._news.put(news)
        if self._thread is None:
            with self._starting:
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="cairnq-signals", daemon=True)
                    self._thread.start()

    def _run(self) -> None:
        try:
            while (news := self._news.get()) is not None:
                self._send(news)
                # Else it is held, with an exception and all that its traceback holds, until the next one comes.
                del news
                if self._awaited and self._news.qsize() < MAX_WAITING / 2:
                    self._awaited = False
                    logger.info("The receivers of signals have caught up")
                    self._caught_up()
        finally:
            connections.close_all()

    def _send(self, news: News) -> None:
        try:
            with one_request():
                news.send()
        except BaseException:
            # The database is away, or a receiver raised what is no Exception, or what cannot even be logged.
            with suppress(BaseException):
                logger.exception("A signal could not be sent to all who listen; the worker goes on")


def _send_while_handling(exception: BaseException | None, signal: Signal, facts: dict[str, Any]) -> None:
    """Send it as from the `except` block in which the exception was caught, where `sys.exc_info()` is about it."""
    if exception is None:
        signal.send_robust(Task, **facts)
        return
    traceback = _traceback_of(exception)
    try:
        raise exception
    except BaseException as raised:
        BaseException.with_traceback(raised, traceback)
        signal.send_robust(Task, **facts)
