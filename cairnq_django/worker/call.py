"""One call of a handler as a pipeline: run it, classify how it ended, settle what it left open."""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .. import envelopes
from ..errors import SerializationError
from ..registry import TaskDef
from ..serialization import normalize
from .aio import OwnThread
from .attempt import Attempt, Failure, Success
from .connections import one_request
from .context import AsyncTaskContext, CallingSide, TaskContext

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Returned:
    value: Any


@dataclass(frozen=True)
class Raised:
    exception: BaseException


Ending = Returned | Raised
Outcome = Success | Failure


class Call:
    """A handler's invocation. It runs on a handler thread or the event loop; the worker's loop settles it."""

    def __init__(
        self, definition: TaskDef[Any, Any], attempt: Attempt, calling_side: CallingSide, *, max_run: float | None
    ) -> None:
        self.definition = definition
        self.attempt = attempt
        self.max_run = max_run  # seconds
        self.deadline = time.monotonic() + max_run if max_run is not None else None
        self.outcome: Outcome | None = None  # None after the end: there is nothing to record
        self.stop: Callable[[], None] = lambda: None  # takes the call off its thread or loop, as far as that goes
        self._calling_side = calling_side
        self._concluding = threading.Lock()  # guards _concluded
        self._concluded = False

    def __str__(self) -> str:
        lease = self.attempt.claim.lease
        return f"{self.definition.name} {lease.task_id} (attempt {lease.attempt})"

    def run(self) -> None:
        """Run a sync handler to its end, whatever that is. Never raises."""
        ending: Ending
        try:
            with one_request():
                ctx = TaskContext(self.attempt, self._calling_side)
                ending = Returned(self.definition(ctx, ctx.payload))
        except BaseException as exception:
            ending = Raised(exception)
        self._conclude(ending)

    async def run_async(self) -> None:
        """Run an async handler to its end, whatever that is. Never raises: the event loop would not survive some."""
        ending: Ending
        try:
            async with OwnThread():
                ctx = AsyncTaskContext(self.attempt, self._calling_side)
                ending = Returned(await self.definition(ctx, ctx.payload))
        except BaseException as exception:
            ending = Raised(exception)
        self._conclude(ending)

    def time_out(self) -> bool:
        """End the call here and now because its time is up, and return whether it had not ended by itself."""
        assert self.max_run is not None
        return self.abandon(Failure(envelopes.handler_timeout(self.max_run)))

    def abandon(self, outcome: Outcome | None) -> bool:
        """End the call for the worker, wherever its handler is, and return whether it had not ended by itself."""
        if not self._end(outcome):
            return False
        self.attempt.lose()
        self.stop()
        return True

    def settle(self) -> None:
        """Record what the handler has not recorded itself. Raises `LostLease` or the database's error."""
        if self.outcome is not None:
            self.attempt.settle(self.outcome)

    def _conclude(self, ending: Ending) -> None:
        if self._concluded:
            return
        self.attempt.forget_what_rolled_back()
        outcome: Outcome | None
        try:
            outcome = self._classify(ending)
        except BaseException as error:
            # From a result's own methods, or the project's logging.
            outcome = Failure(envelopes.from_exception(error, max_depth=self.attempt.json_depth))
        self._end(outcome)

    def _end(self, outcome: Outcome | None) -> bool:
        """Let the call end with this outcome, and return whether it had none yet."""
        with self._concluding:
            if self._concluded:
                return False
            self._concluded = True
        self.outcome = outcome
        return True

    def _classify(self, ending: Ending) -> Outcome | None:
        if self.attempt.settled:
            if isinstance(ending, Raised):
                logger.error("%s raised after it was settled", self, exc_info=ending.exception)
            return None
        if self.attempt.lost:
            # The handler may have stopped for that: then it has neither succeeded nor failed.
            logger.warning("%s lost its lease: how its handler ended is not recorded", self)
            return None
        if isinstance(ending, Raised):
            return Failure(envelopes.from_exception(ending.exception, max_depth=self.attempt.json_depth))
        return self._succeeded_with(ending.value)

    def _succeeded_with(self, value: Any) -> Outcome:
        if inspect.iscoroutine(value):
            value.close()
        try:
            return Success(normalize(value, root="result", max_depth=self.attempt.json_depth))
        except SerializationError as error:
            return Failure(envelopes.unserializable_result(error))
