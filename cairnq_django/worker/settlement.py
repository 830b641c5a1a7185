"""Record the ends of calls, whatever the database makes of it."""

from __future__ import annotations

import logging
from collections.abc import Callable

from django.db import Error, InterfaceError, OperationalError, connections

from .. import envelopes
from ..envelopes import Envelope
from ..errors import LostLease, SerializationError
from ..serialization import clean_text
from ..store.engine import is_conflict
from .attempt import Failure, Success
from .call import Call

logger = logging.getLogger(__name__)

MAX_TRIES = 10  # at a statement that a database which is otherwise well refuses


class Settlement:
    """The calls that have ended and are not recorded yet; for the worker's loop alone."""

    def __init__(self, using: str, report: Callable[[str, BaseException], None]) -> None:
        self._using = using
        self._report = report
        self._ended: list[Call] = []
        self._refusals: dict[Call, int] = {}
        self._substituted: set[Call] = set()

    def __len__(self) -> int:
        return len(self._ended)

    def add(self, call: Call) -> None:
        self._ended.append(call)

    def drop(self) -> None:
        """Let go of what is not recorded; its leases will run out."""
        for call in self._ended:
            logger.error("%s: its end is not recorded before the worker's", call)
        self._ended = []

    def run(self) -> list[Call]:
        """Settle what has ended and return the calls that are done with; what the database failed at stays."""
        done: list[Call] = []
        left: list[Call] = []
        for call in self._ended:
            (done if self._settle(call) else left).append(call)
        self._ended = left
        for call in done:
            self._refusals.pop(call, None)
            self._substituted.discard(call)
        return done

    def _settle(self, call: Call) -> bool:
        try:
            call.settle()
        except LostLease as error:
            logger.warning("%s: its end is not recorded. %s", call, error)
        except Exception as error:
            self._report("settle", error)
            return self._give_up(call, error)
        return True

    def _give_up(self, call: Call, error: Exception) -> bool:
        """Whether there is no point in trying again; if another outcome may be recorded, the call has that one now."""
        if call.attempt.expired:
            logger.error("%s: its end is not recorded, the database failed for longer than its lease", call)
            return True
        if self._may_pass(call, error):
            return False
        if call in self._substituted or call.outcome is None:
            logger.error("%s: its end is not recorded, the database refuses it", call)
            return True
        self._substituted.add(call)
        call.outcome = Failure(_refused(call.outcome, error))
        return False

    def _may_pass(self, call: Call, error: Exception) -> bool:
        if is_conflict(error) or not self._database_is_well():
            return True
        self._refusals[call] = self._refusals.get(call, 0) + 1
        return isinstance(error, (OperationalError, InterfaceError)) and self._refusals[call] < MAX_TRIES

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


def _refused(outcome: Success | Failure, error: Exception) -> Envelope:
    """What can be recorded instead of what the database does not take."""
    if isinstance(outcome, Success):
        return envelopes.unserializable_result(SerializationError("result", f"the database refused it: {error}"))
    message = clean_text(f"The handler failed, and the database refused its error: {error}", envelopes.MESSAGE_LIMIT)
    return Envelope(
        type=outcome.error["type"],
        code=outcome.error["code"],
        message=message,
        retryable=outcome.error["retryable"],
        details=None,
    )
