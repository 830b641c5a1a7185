"""One attempt at a task: its lease, and the writes it may make while it holds."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import Context
from typing import Any

from django.db import connections, transaction

from .. import envelopes, notify
from ..arguments import fraction
from ..envelopes import Envelope
from ..errors import CairnQError, LostLease
from ..limits import MESSAGE_LENGTH
from ..logs import about_this
from ..notify import Channel
from ..serialization import clean_text
from ..statuses import TERMINAL, TaskStatus
from ..store import control, settle
from ..store.claim import Claim
from ..store.engine import awaits_commit, holds_the_only_write_lock
from .connections import on_a_sound_connection
from .outcomes import CancelSeen, Failure, Outcome, Settled, Snoozed, Success

logger = logging.getLogger(__name__)

SHORTEST_SNOOZE = 0.1  # seconds; a task that is snoozed over and over leaves the others their turn
CANCEL_CHECK_INTERVAL = 0.5  # seconds that a "no" to `canceled()` stays good

_making_events = threading.Lock()


class Attempt:
    """Shared by the handler's thread, the worker's loop and its heartbeat."""

    def __init__(
        self,
        claim: Claim,
        *,
        using: str,
        json_depth: int,
        lease: float,
        leased_at: float,
        retry_delay: Callable[[int], float],
        tell: Callable[[Attempt, Settled], None] = lambda attempt, settled: None,
    ) -> None:
        """`tell` is called once it is committed how the attempt ended, by whichever thread did that; must be quick."""
        self.claim = claim
        self.using = using
        self.json_depth = json_depth  # levels of nesting that a result or an error may have
        self.on_lease_lost: Callable[[], None] | None = None
        self.cancel_requested = False
        self.cancel_check_interval = CANCEL_CHECK_INTERVAL
        self.due_in: float | None = None  # seconds until the task is due again, once it is queued again
        self.counts_as = ""  # once it is settled: which field of `Work` counts it, if any
        self.decided: Outcome | None = None  # by the handler, in a transaction that this rolls back
        self.error: Envelope | None = None  # once it is settled: that it failed with, if it did
        self.began: float | None = None  # its handler, on the monotonic clock
        self.seconds: float | None = None  # that its handler took, once it has ended
        self.context: Context | None = None  # that its handler runs in, or ran in, if signals are to be sent in it
        self._lease = lease  # seconds
        self._valid_until = leased_at + lease  # on the monotonic clock, from before the lease was written
        self._retry_delay = retry_delay
        self._tell = tell
        self._untold: Settled | None = None  # recorded, perhaps not committed yet
        self._cancel_checked_at = leased_at
        self._is_lost = False
        self._lease_lost: threading.Event | None = None  # once someone has asked for it
        self._settling = threading.Lock()  # guards decided, _settled, _uncommitted
        self._settled = False
        self._uncommitted = False
        self._in_atomic = False
        self._cannot_expire = False  # nobody can take the task, nor renew its lease, before the transaction ends
        self._committed_atomic = False  # the latest transaction that atomic() began

    def __str__(self) -> str:
        return f"{self.claim.name} {self.claim.lease.task_id} (attempt {self.claim.lease.attempt})"

    @property
    def settled(self) -> bool:
        return self._settled

    @property
    def duration(self) -> float | None:
        """How many seconds its handler took, or has been at work; None if it has not begun."""
        if self.seconds is None and self.began is not None:
            return time.monotonic() - self.began
        return self.seconds

    @property
    def in_atomic(self) -> bool:
        """Whether the handler is in a transaction that `atomic()` began."""
        return self._in_atomic

    @property
    def lost(self) -> bool:
        """Whether the lease is lost: the database said so, or on our own clock its time is up."""
        if self.expired:
            self.lose()
        return self._is_lost

    @property
    def lease_lost(self) -> threading.Event:
        """Set once the lease is lost. Made when it is asked for: it costs more than the rest of a short attempt."""
        with _making_events:
            if self._lease_lost is None:
                self._lease_lost = threading.Event()
        if self._is_lost:
            self._lease_lost.set()
        return self._lease_lost

    @property
    def expired(self) -> bool:
        """Whether the lease's time is up on our own clock."""
        return time.monotonic() >= self._valid_until and not self._cannot_expire

    @property
    def needs_its_lease(self) -> bool:
        """Whether there may be something to record; what is not committed may still roll back."""
        return not self.lost and (self._uncommitted or not self._settled)

    def lose(self) -> None:
        """Cut the attempt off: it writes nothing more."""
        if not self._is_lost and not self._settled:
            self._is_lost = True
            if self._lease_lost is not None:
                self._lease_lost.set()
            if self.on_lease_lost is not None:
                self.on_lease_lost()

    def found_lost(self) -> None:
        """A beat found no lease. A settlement that is under way may be what ended it, and finds out if it is not."""
        if self._settling.acquire(blocking=False):
            try:
                self.lose()
            finally:
                self._settling.release()

    def renewed(self, sent_at: float) -> None:
        """A statement sent at `sent_at`, on the monotonic clock, renewed the lease."""
        self._valid_until = sent_at + self._lease

    def settle(self, outcome: Outcome) -> None:
        """Record how the attempt ended, unless it is recorded. Raises `LostLease` if the database says it is lost."""
        with self._settling:
            if not self._settled:
                self._write(lambda: self._record(outcome))
                self._note_settled()

    def completed(self, success: Success) -> None:
        """The worker's loop has recorded, together with others, that the attempt succeeded."""
        self.counts_as = "succeeded"
        self._settled = True
        self._untold = Settled(TaskStatus.SUCCEEDED, success.result)
        self._tell_committed()

    @contextmanager
    def atomic(self) -> Iterator[None]:
        """A transaction that commits if the attempt is settled in it by `settle_with_writes()`, as succeeded.

        If something else is decided there, it is rolled back. Raises `LostLease`, `CairnQError` if it ends without
        being settled or broken, and `RuntimeError` inside another transaction.
        """
        self.check_lease()
        self._in_atomic, self._committed_atomic = True, False
        try:
            with transaction.atomic(using=self.using, durable=True):
                # The first of all hooks: one that raises keeps those behind it from running.
                transaction.on_commit(self._note_atomic_commit, using=self.using)
                self._cannot_expire = holds_the_only_write_lock(self.using)
                yield
                self._end_atomic()
        finally:
            self._in_atomic = self._cannot_expire = False

    def settle_with_writes(self, outcome: Outcome) -> None:
        """Record, in the transaction that `atomic()` began, that the attempt succeeded.

        Any other outcome, also that of a task that is to be canceled, is `decided`, to be recorded when this
        transaction has been rolled back. Raises `LostLease`.
        """
        if not awaits_commit(self.using):
            raise CairnQError(f"{self} is atomic: settle it in the thread that its transaction is in")
        self.forget_what_rolled_back()
        with self._settling:
            # Whoever let the attempt go may have recorded its end; then nothing of it may commit.
            self.check_lease()
            if self._settled or self.decided is not None:
                return
            if self._cannot_expire:
                control.keep(self.using, self.claim.lease, seconds=self._lease)
                self.renewed(time.monotonic())
            if not isinstance(outcome, Success):
                self.decided = outcome
            elif self._write(lambda: self._record(outcome)) == TaskStatus.SUCCEEDED:
                self._note_settled()
            else:
                self.decided = CancelSeen()

    def forget_what_rolled_back(self) -> None:
        """A settlement that rolled back never was. For the handler's thread, or after the handler's end."""
        with self._settling:
            if self._uncommitted and not self._commit_is_awaited():
                self._uncommitted = False
                self._settled = self._committed_atomic
                if self._settled:
                    self._tell_committed()

    def progress(self, value: float | None, message: str | None) -> None:
        checked = fraction(value, "value") if value is not None else None
        shown = clean_text(str(message), MESSAGE_LENGTH) if message is not None else None
        self.check_lease()

        def show() -> None:
            self._ask(lambda: control.progress(self.using, self.claim.lease, value=checked, message=shown))

        if awaits_commit(self.using):
            # Nobody could see it before the commit, and the row would stay locked against the heartbeat until then.
            transaction.on_commit(lambda: self._unless_lost(show), using=self.using)
        else:
            show()

    def heartbeat(self) -> None:
        self.check_lease()
        if not awaits_commit(self.using):
            sent_at = time.monotonic()
            if self._ask(self._renew):
                self.renewed(sent_at)

    def canceled(self) -> bool:
        self.check_lease()
        if not self.cancel_requested and not self._settled:
            now = time.monotonic()
            if now - self._cancel_checked_at >= self.cancel_check_interval:
                self._cancel_checked_at = now
                self.cancel_requested = self._ask(lambda: control.cancel_requested(self.using, self.claim.lease))
        return self.cancel_requested

    def check_lease(self) -> None:
        """Raises `LostLease` for an attempt that is cut off."""
        if self.lost:
            raise self.claim.lease.lost()

    def _ask(self, statement: Callable[[], Any]) -> Any:
        return on_a_sound_connection(self.using, lambda: self._write(statement))

    def _write(self, statement: Callable[[], Any]) -> Any:
        try:
            return statement()
        except LostLease:
            self.lose()
            raise

    def _unless_lost(self, show: Callable[[], None]) -> None:
        if not self.lost:
            with suppress(LostLease):
                show()

    def _note_settled(self) -> None:
        self._settled = True
        if awaits_commit(self.using):
            self._uncommitted = True
            transaction.on_commit(self._committed, using=self.using)
        else:
            self._tell_committed()

    def _record(self, outcome: Outcome) -> TaskStatus:
        lease = self.claim.lease
        due_in = None
        error: Envelope | None = None
        if isinstance(outcome, Success):
            status = settle.complete(self.using, lease, outcome.result)
        elif isinstance(outcome, Snoozed):
            due_in = max(outcome.delay, SHORTEST_SNOOZE)
            status = settle.snooze(self.using, lease, delay=due_in)
            logger.info("%s is snoozed for %g s", self, due_in, extra=about_this(self.claim, duration=self.duration))
        elif isinstance(outcome, CancelSeen):
            itself = envelopes.canceled_by_itself()
            status = settle.cancel_if_requested(self.using, lease, otherwise=itself)
            if status != TaskStatus.CANCELED:
                error = itself
                self._log(error, status, 0)
        else:
            due_in = self._retry_delay(lease.attempt)
            error = outcome.error
            status = settle.fail(self.using, lease, error, retry_delay=due_in)
            self._log(error, status, due_in)
        if status == TaskStatus.QUEUED:
            self.due_in = due_in
            self.counts_as = "" if isinstance(outcome, Snoozed) else "retried"
        elif status in TERMINAL:
            self.counts_as = status.value
            notify.announce(self.using, Channel.ENDED, [str(lease.task_id)])
        self.error = error
        if self.counts_as:
            self._untold = self._as_settled(outcome, status, error)
        return status

    def _as_settled(self, outcome: Outcome, status: TaskStatus, error: Envelope | None) -> Settled:
        if status == TaskStatus.SUCCEEDED:
            return Settled(status, outcome.result if isinstance(outcome, Success) else None)
        if error is None:
            # It was canceled, whatever its handler made of it.
            error = envelopes.canceled_while_running()
        return Settled(
            status,
            error=error,
            exception=outcome.exception if isinstance(outcome, Failure) else None,
            delay=self.due_in,
        )

    def _log(self, error: Envelope, status: TaskStatus, delay: float) -> None:
        lease, attempts = self.claim.lease, self.claim.max_attempts
        attempt = f"Attempt {lease.attempt} of {attempts} at task {lease.task_id} ({self.claim.name})"
        problem = f"{error['type']} [{error['code']}] {error['message']}"
        extra = about_this(self.claim, duration=self.duration, error_type=error["type"], error_code=error["code"])
        if status == TaskStatus.QUEUED:
            logger.warning("%s failed, to be retried in %.1f s: %s", attempt, delay, problem, extra=extra)
        elif status == TaskStatus.FAILED:
            logger.error("%s failed for good: %s", attempt, problem, extra=extra)
        else:
            logger.info("%s failed and is canceled: %s", attempt, problem, extra=extra)

    def _log_success(self) -> None:
        duration = self.duration
        extra = about_this(self.claim, duration=duration)
        logger.info("%s succeeded after %.3f s", self, duration or 0.0, extra=extra)

    def _renew(self) -> bool:
        beat = control.renew(self.using, [self.claim.lease], lease=self._lease)
        if beat.lost:
            raise self.claim.lease.lost()
        self.cancel_requested |= bool(beat.cancel_requested)
        return bool(beat.renewed)

    def _end_atomic(self) -> None:
        """Let the transaction commit only together with the settlement that is part of it."""
        self.forget_what_rolled_back()
        if self.decided is not None:
            transaction.set_rollback(True, using=self.using)
        elif transaction.get_rollback(using=self.using):
            raise CairnQError(
                f"{self} is rolled back, with all that it wrote: after an error of the database, which it caught, its "
                "transaction could not go on. Put what may fail into a transaction.atomic() block of its own"
            )
        elif not self._uncommitted:
            self.check_lease()
            raise CairnQError(
                f"{self} ended ctx.atomic() without settling, so what it wrote there is rolled back. End the block "
                "with ctx.succeed(), or use transaction.atomic() for writes that are to stand by themselves"
            )

    def _commit_is_awaited(self) -> bool:
        return any(hook == self._committed for _, hook, *_ in connections[self.using].run_on_commit)

    def _committed(self) -> None:
        self._uncommitted = False
        self._tell_committed()

    def _tell_committed(self) -> None:
        settled, self._untold = self._untold, None
        if settled is None:
            return
        if settled.status == TaskStatus.SUCCEEDED and logger.isEnabledFor(logging.INFO):
            self._log_success()
        self._tell(self, settled)

    def _note_atomic_commit(self) -> None:
        self._committed_atomic = True
