"""One call of a handler as a pipeline: run it, classify how it ended, settle what it left open."""

from __future__ import annotations

import inspect
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from .. import envelopes
from ..arguments import seconds
from ..current import working_on
from ..errors import SerializationError, Snooze
from ..instrumentation import around_call
from ..logs import about_these, about_this
from ..models import Task
from ..registry import TaskDef
from ..serialization import normalize
from ..signals import task_started
from ..store.claim import Claim
from ..store.engine import json_depth
from .aio import OwnThread
from .attempt import Attempt
from .connections import one_request
from .context import AsyncTaskContext, CallingSide, TaskContext
from .dispatcher import anyone_hears_of_ends, as_started
from .options import WorkerOptions
from .outcomes import Failure, Outcome, Settled, Snoozed, Success

logger = logging.getLogger(__name__)


C = TypeVar("C", TaskContext, AsyncTaskContext)


@dataclass(frozen=True)
class Returned:
    value: Any


@dataclass(frozen=True)
class Raised:
    exception: BaseException


Ending = Returned | Raised


class Call:
    """A handler's invocation, for one task or a batch of them.

    It runs on a handler thread or the event loop; the worker's loop settles what it left open.
    """

    def __init__(
        self,
        definition: TaskDef[Any, Any],
        attempts: Sequence[Attempt],
        calling_side: CallingSide,
        *,
        max_run: float | None,
    ) -> None:
        self.definition = definition
        self.attempts = tuple(attempts)
        self.payload_bytes = sum(attempt.claim.payload_bytes for attempt in attempts)  # where they are measured
        self.max_run = max_run  # seconds
        self.deadline: float | None = None  # on the monotonic clock, once it has been started
        self.outcomes: dict[Attempt, Outcome] = {}  # after the end: what is to be recorded
        self.seconds = 0.0  # after the end: how long its handler took
        self.raised: BaseException | None = None  # by its handler
        self.stop: Callable[[], None] = lambda: None  # takes the call off its thread or loop, as far as that goes
        self._takes_batch = definition.batch is not None
        self._calling_side = calling_side
        self._handling_since = time.monotonic()
        self._concluding = threading.Lock()  # guards _concluded
        self._concluded = False

    @classmethod
    def of(
        cls,
        definition: TaskDef[Any, Any],
        claims: Sequence[Claim],
        calling_side: CallingSide,
        *,
        using: str,
        options: WorkerOptions,
        leased_at: float,
        tell: Callable[[Attempt, Settled], None],
    ) -> Call:
        """The call that runs these claims of `definition`'s tasks, as `options` say."""
        delay = partial(options.retry_delay, definition)
        attempts = [
            Attempt(
                claim,
                using=using,
                json_depth=json_depth(using),
                lease=options.lease,
                leased_at=leased_at,
                retry_delay=delay,
                tell=tell,
            )
            for claim in claims
        ]
        max_run = definition.max_run if definition.max_run is not None else options.max_run
        return cls(definition, attempts, calling_side, max_run=max_run)

    def __str__(self) -> str:
        first, *others = self.attempts
        return f"{first} and {len(others)} more of its batch" if others else str(first)

    @property
    def about(self) -> dict[str, Any]:
        """The `extra` of a log record about it."""
        return about_these([attempt.claim for attempt in self.attempts], in_batch=self._takes_batch)

    def begin(self) -> None:
        """It is being started: its time runs from here on."""
        self._handling_since = time.monotonic()
        if self.max_run is not None:
            self.deadline = self._handling_since + self.max_run

    def run(self, around: Callable[[], AbstractContextManager[Any]] = one_request) -> None:
        """Run a sync handler to its end, whatever that is, in the context `around()`. Never raises."""
        ending: Ending
        try:
            contexts = self._contexts(TaskContext)
            with working_on(contexts, in_batch=self._takes_batch), around():
                if task_started.receivers:
                    for attempt in self.attempts:
                        task_started.send_robust(Task, task=as_started(attempt))
                self._begin_to_handle()
                with around_call(contexts, in_batch=self._takes_batch):
                    ending = Returned(self._handle(contexts))
        except BaseException as exception:
            ending = Raised(exception)
        self._conclude(ending)
        # Its traceback holds this frame; only the garbage collector would end what the handler's frames hold.
        del ending

    async def run_async(self, around: Callable[[], AbstractAsyncContextManager[Any]] = OwnThread) -> None:
        """Run an async handler to its end, whatever that is, in the context `around()`.

        Never raises: the event loop would not survive some.
        """
        ending: Ending
        try:
            contexts = self._contexts(AsyncTaskContext)
            with working_on(contexts, in_batch=self._takes_batch):
                async with around():
                    if task_started.receivers:
                        for attempt in self.attempts:
                            await task_started.asend_robust(Task, task=as_started(attempt))
                    self._begin_to_handle()
                    with around_call(contexts, in_batch=self._takes_batch):
                        ending = Returned(await self._handle_async(contexts))
        except BaseException as exception:
            ending = Raised(exception)
        self._conclude(ending)
        # Its traceback holds this frame; only the garbage collector would end what the handler's frames hold.
        del ending

    def time_out(self) -> bool:
        """End the call here and now because its time is up, and return whether it had not ended by itself."""
        assert self.max_run is not None
        return self.abandon(Failure(envelopes.handler_timeout(self.max_run)))

    def abandon(self, outcome: Outcome | None) -> bool:
        """End the call for the worker, wherever its handler is, and return whether it had not ended by itself.

        What its handler did not settle is to end with `outcome`, or is not recorded.
        """
        if not self._end(dict.fromkeys(self.attempts, outcome) if outcome is not None else {}):
            return False
        for attempt in self.attempts:
            attempt.lose()
        self.stop()
        return True

    def let_go(self) -> None:
        """After all is recorded: forget what holds the call itself, so that it goes without the garbage collector."""
        self.raised = None
        for attempt in self.attempts:
            attempt.context = attempt.on_lease_lost = None

    def _begin_to_handle(self) -> None:
        self._handling_since = time.monotonic()
        for attempt in self.attempts:
            attempt.began = self._handling_since

    def _handle(self, contexts: Sequence[TaskContext]) -> Any:
        if not anyone_hears_of_ends():
            return self._handle_here(contexts)
        self._note_context()
        try:
            return self._handle_here(contexts)
        finally:
            self._note_context()

    def _handle_here(self, contexts: Sequence[TaskContext]) -> Any:
        arguments = self._arguments(contexts)
        if not self.definition.atomic:
            return self.definition(*arguments)
        (attempt,) = self.attempts
        with attempt.atomic():
            value = self.definition(*arguments)
            attempt.settle_with_writes(self._succeeded_with(value))
        return value

    async def _handle_async(self, contexts: Sequence[AsyncTaskContext]) -> Any:
        if not anyone_hears_of_ends():
            return await self.definition(*self._arguments(contexts))
        self._note_context()
        try:
            return await self.definition(*self._arguments(contexts))
        finally:
            self._note_context()

    def _note_context(self) -> None:
        """What its handler's context holds by now, for those who hear how it ended."""
        context = copy_context()
        for attempt in self.attempts:
            attempt.context = context

    def _contexts(self, context: type[C]) -> list[C]:
        return [context(attempt, self._calling_side, in_batch=self._takes_batch) for attempt in self.attempts]

    def _arguments(self, contexts: Sequence[TaskContext] | Sequence[AsyncTaskContext]) -> tuple[Any, ...]:
        return (contexts,) if self._takes_batch else (contexts[0], contexts[0].payload)

    def _conclude(self, ending: Ending) -> None:
        if self._concluded:
            return
        if isinstance(ending, Raised):
            self.raised = ending.exception
        for attempt in self.attempts:
            attempt.forget_what_rolled_back()
        try:
            outcomes = self._classify(ending)
        except BaseException as error:
            # From the methods of what was returned or raised, or the project's logging.
            outcomes = dict.fromkeys(self.attempts, self._failed(error))
        self._end(outcomes)

    def _end(self, outcomes: dict[Attempt, Outcome]) -> bool:
        """Let the call end with these outcomes, and return whether it had none yet."""
        with self._concluding:
            if self._concluded:
                return False
            self._concluded = True
        # Not from when it was started: until its thread has its turn, a busy loop may take longer than the handler.
        self.seconds = time.monotonic() - self._handling_since
        for attempt in self.attempts:
            attempt.seconds = self.seconds
        self.outcomes = {attempt: attempt.decided or outcome for attempt, outcome in outcomes.items()}
        return True

    def _classify(self, ending: Ending) -> dict[Attempt, Outcome]:
        """How each attempt ends that is still this call's to end: the same rule for one task and for a batch."""
        left = [attempt for attempt in self.attempts if self._is_left(attempt)]
        undecided = [attempt for attempt in left if attempt.decided is None]
        if isinstance(ending, Raised) and not undecided and not any(attempt.lost for attempt in self.attempts):
            logger.error("%s raised after it was settled", self, exc_info=ending.exception, extra=self.about)
        if isinstance(ending, Raised):
            return dict.fromkeys(left, self._raised(ending.exception)) if left else {}
        results = self._results(ending.value)
        return {attempt: self._succeeded_with(results.get(attempt.claim.lease.task_id)) for attempt in left}

    def _is_left(self, attempt: Attempt) -> bool:
        """Whether the handler's end is this attempt's; if the lease is lost, it may have stopped for that."""
        if attempt.settled:
            return False
        if attempt.lost:
            extra = about_this(attempt.claim, duration=attempt.duration)
            logger.warning("%s lost its lease: how its handler ended is not recorded", attempt, extra=extra)
            return False
        return True

    def _results(self, value: Any) -> dict[UUID | None, Any]:
        """What was returned for each task."""
        if not self._takes_batch:
            return {self.attempts[0].claim.lease.task_id: value}
        if inspect.iscoroutine(value):
            value.close()
        if not isinstance(value, Mapping):
            if value is not None:
                what = "%s returned a %s; only a mapping of task ids to results counts"
                logger.warning(what, self, type(value), extra=self.about)
            return {}
        return {_as_uuid(key): result for key, result in value.items()}

    def _succeeded_with(self, value: Any) -> Outcome:
        if inspect.iscoroutine(value):
            value.close()
        try:
            return Success(normalize(value, root="result", max_depth=self._json_depth))
        except SerializationError as error:
            return Failure(envelopes.unserializable_result(error), error)
        except BaseException as error:
            # From the value's own methods; the others of its batch are none the worse for it.
            return self._failed(error)

    def _raised(self, exception: BaseException) -> Outcome:
        if not isinstance(exception, Snooze):
            return self._failed(exception)
        return Snoozed(seconds(exception.delay, "delay"))

    def _failed(self, exception: BaseException) -> Failure:
        return Failure(envelopes.from_exception(exception, max_depth=self._json_depth), exception)

    @property
    def _json_depth(self) -> int:
        return self.attempts[0].json_depth


def _as_uuid(key: Any) -> UUID | None:
    """The id that a key of a batch's results is; nothing else is anybody's."""
    if isinstance(key, UUID):
        return key
    try:
        return UUID(key)
    except (TypeError, ValueError, AttributeError):
        return None
