"""Record the ends of calls, whatever the database makes of it."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from uuid import UUID

from django.db import Error, InterfaceError, OperationalError, connections

from .. import envelopes, notify
from ..envelopes import Envelope
from ..errors import LostLease, SerializationError
from ..logs import about_this
from ..notify import Channel
from ..serialization import clean_text, dumped_size
from ..store.engine import is_conflict
from ..store.leases import Lease
from ..store.settle import complete_together
from .attempt import Attempt
from .call import Call
from .outcomes import Failure, Outcome, Success

logger = logging.getLogger(__name__)

SLICE = 0.1  # seconds that one run takes, and what its last attempt takes longer
TOGETHER = 1000  # successes that one statement records at the most
TOGETHER_BYTES = 1_000_000  # of their results, before the last one
MAX_TRIES = 10  # at a statement that a database which is otherwise well refuses


class Settlement:
    """The calls that have ended and are not recorded yet; for the worker's loop alone."""

    def __init__(self, using: str, report: Callable[[str, BaseException, UUID], None]) -> None:
        self._using = using
        self._report = report
        self.calls: list[Call] = []  # that have ended
        self.was_cut_short = False  # whether the latest run left some untried
        self._refusals: Counter[Attempt] = Counter()
        self._substituted: set[Attempt] = set()
        self._database_is_away = False  # found out in this run

    def __len__(self) -> int:
        return len(self.calls)

    def add(self, call: Call) -> None:
        self.calls.append(call)

    def drop(self) -> None:
        """Let go of what is not recorded; its leases will run out."""
        for call in self.calls:
            for attempt in call.outcomes:
                logger.error(
                    "%s: its end is not recorded before the worker's", attempt, extra=about_this(attempt.claim)
                )
        self.calls = []

    def run(self) -> list[Call]:
        """Settle what has ended and return the calls that are done with; what the database failed at stays.

        After a while it breaks off, so that large batches do not keep the loop from its other work.
        """
        self._database_is_away = False
        over = time.monotonic() + SLICE
        for successes in self._successes():
            if not self._complete_together(successes) or time.monotonic() >= over:
                break
        self.was_cut_short = False
        done: list[Call] = []
        left: list[Call] = []
        for call in self.calls:
            for attempt in list(call.outcomes):
                if self.was_cut_short:
                    break
                if self._settle(call, attempt):
                    del call.outcomes[attempt]
                    self._refusals.pop(attempt, None)
                    self._substituted.discard(attempt)
                self.was_cut_short = time.monotonic() >= over and not self._database_is_away
            (left if call.outcomes else done).append(call)
        self.was_cut_short &= bool(left)
        self.calls = left
        return done

    def _successes(self) -> Iterator[dict[Lease, tuple[Call, Attempt, Success]]]:
        """What can be recorded together, in parts for a statement each."""
        part: dict[Lease, tuple[Call, Attempt, Success]] = {}
        size = 0
        for call in self.calls:
            for attempt, outcome in list(call.outcomes.items()):
                if isinstance(outcome, Success) and not attempt.settled and attempt not in self._refusals:
                    part[attempt.claim.lease] = call, attempt, outcome
                    size += dumped_size(outcome.result)
                if len(part) == TOGETHER or size > TOGETHER_BYTES:
                    yield part
                    part, size = {}, 0
        yield part

    def _complete_together(self, successes: Mapping[Lease, tuple[Call, Attempt, Success]]) -> bool:
        """Record them in one go, and return whether that worked. What it cannot do, for whatever reason, is left."""
        if len(successes) < 2:
            return False
        try:
            results = {lease: outcome.result for lease, (_, _, outcome) in successes.items()}
            completed = complete_together(self._using, results)
        except Exception:
            logger.debug("Successes are recorded one by one, since they could not be together", exc_info=True)
            return False
        for lease in completed:
            call, attempt, success = successes[lease]
            attempt.completed(success)
            del call.outcomes[attempt]
        notify.announce(self._using, Channel.ENDED, [str(lease.task_id) for lease in completed])
        return True

    def _settle(self, call: Call, attempt: Attempt) -> bool:
        """Whether this attempt is done with. What goes wrong with it never keeps the others from their turn."""
        if self._database_is_away:
            # Trying the rest of a large batch would take as long as each connection needs to fail.
            return self._has_expired(attempt)
        try:
            attempt.settle(call.outcomes[attempt])
        except LostLease as error:
            lost_with = _lost_with(call.outcomes[attempt])
            extra = about_this(attempt.claim)
            logger.warning("%s: its end is not recorded. %s%s", attempt, error, lost_with, extra=extra)
        except Exception as error:
            self._report("settle", error, attempt.claim.lease.task_id)
            return self._give_up(call, attempt, error)
        return True

    def _give_up(self, call: Call, attempt: Attempt, error: Exception) -> bool:
        """Whether there is no point in trying again; if another outcome may be recorded, the call has that one now."""
        if self._has_expired(attempt):
            return True
        if self._may_pass(attempt, error):
            return False
        if attempt in self._substituted:
            extra = about_this(attempt.claim)
            logger.error("%s: its end is not recorded, the database refuses it", attempt, extra=extra)
            return True
        self._substituted.add(attempt)
        call.outcomes[attempt] = _instead_of(call.outcomes[attempt], error, attempt.json_depth)
        return False

    def _has_expired(self, attempt: Attempt) -> bool:
        if attempt.expired:
            extra = about_this(attempt.claim)
            logger.error(
                "%s: its end is not recorded, the database failed for longer than its lease", attempt, extra=extra
            )
        return attempt.expired

    def _may_pass(self, attempt: Attempt, error: Exception) -> bool:
        if is_conflict(error):
            return True
        if not self._database_is_well():
            self._database_is_away = True
            return True
        self._refusals[attempt] += 1
        return isinstance(error, (OperationalError, InterfaceError)) and self._refusals[attempt] < MAX_TRIES

    def _database_is_well(self) -> bool:
        connection = connections[self._using]
        try:
            # A server may also break the connection over a statement that it does not take.
            if connection.connection is None or not connection.is_usable():
                connection.close()
                connection.ensure_connection()
            return connection.is_usable()
        except Error:
            return False


def _lost_with(outcome: Outcome) -> str:
    if not isinstance(outcome, Failure):
        return ""
    return f". It had failed: {outcome.error['type']} [{outcome.error['code']}] {outcome.error['message']}"


def _instead_of(outcome: Outcome, error: Exception, max_depth: int) -> Failure:
    """What can be recorded instead of what the database does not take."""
    problem = f"the database refused it: {error}"
    if isinstance(outcome, Success):
        return Failure(envelopes.unserializable_result(SerializationError("result", problem)), error)
    if isinstance(outcome, Failure):
        message = clean_text(f"The handler failed, and {problem}", envelopes.MESSAGE_LIMIT)
        return Failure(Envelope(**{**outcome.error, "message": message, "details": None}), outcome.exception)
    return Failure(envelopes.from_exception(error, max_depth=max_depth), error)
