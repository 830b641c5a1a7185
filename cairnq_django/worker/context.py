"""What a handler is given: its task, and the ways to speak up while it runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, overload
from uuid import UUID

from asgiref.sync import sync_to_async

from .. import envelopes
from ..arguments import Seconds, seconds
from ..envelopes import Envelope
from ..errors import CairnQError
from ..models import Task
from ..serialization import normalize
from .attempt import Attempt
from .connections import on_a_sound_connection
from .outcomes import Failure, Outcome, Snoozed, Success

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ..client import ChildOptions
    from ..registry import TaskDef

P = TypeVar("P")


@dataclass(frozen=True)
class CallingSide:
    """What contexts need of the calling side; it is handed in, because they stay below it."""

    submit: Callable[..., Task]
    asubmit: Callable[..., Awaitable[Task]]
    wait: Callable[..., Task]
    await_: Callable[..., Awaitable[Task]]


class _Context:
    """What sync and async handlers see alike."""

    def __init__(self, attempt: Attempt, calling_side: CallingSide, *, in_batch: bool = False) -> None:
        claim = attempt.claim
        self.task_id: UUID = claim.lease.task_id
        self.name: str = claim.name
        self.queue: str = claim.queue
        self.priority: int = claim.priority
        self.attempt: int = claim.lease.attempt  # 1 for the first delivery
        self.max_attempts: int = claim.max_attempts
        self.payload: Any = claim.payload
        self.metadata: dict[str, Any] = claim.metadata
        self.key: str | None = claim.key
        self.parent_id: UUID | None = claim.parent_id
        self.root_id: UUID = claim.root_id
        self.correlation_id: str | None = claim.correlation_id
        self.created_at: datetime = claim.created_at
        self.started_at: datetime = claim.started_at  # of this attempt
        self.worker_id: str = claim.lease.worker_id
        self._attempt = attempt
        self._calling_side = calling_side
        self._in_batch = in_batch

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} {self.task_id} attempt {self.attempt}>"

    @property
    def settled(self) -> bool:
        """Whether this handler settled its task already."""
        attempt = self._attempt
        return (attempt.settled or attempt.decided is not None) and not attempt.lost

    @property
    def lost_lease(self) -> bool:
        """Whether the task is no longer this attempt's: stop, nothing more is recorded."""
        return self._attempt.lost

    @property
    def error(self) -> Envelope | None:
        """The envelope of the failure that this handler settled its task with, if it did."""
        decided = self._attempt.decided
        return decided.error if isinstance(decided, Failure) else self._attempt.error

    def _succeed(self, result: Any) -> None:
        plain = normalize(result, root="result", max_depth=self._attempt.json_depth)
        self._settle(Success(plain))

    def _fail(self, message: str, code: str, retryable: bool, details: Any) -> None:
        depth = self._attempt.json_depth
        self._settle(
            Failure(envelopes.custom(message, code=code, retryable=retryable, details=details, max_depth=depth))
        )

    def _snooze(self, delay: Seconds) -> None:
        self._settle(Snoozed(seconds(delay, "delay")))

    def _settle(self, outcome: Outcome) -> None:
        attempt = self._attempt
        attempt.forget_what_rolled_back()
        attempt.check_lease()
        if attempt.in_atomic:
            attempt.settle_with_writes(outcome)
        elif attempt.decided is None:
            on_a_sound_connection(attempt.using, lambda: attempt.settle(outcome))

    def _here(self) -> Task:
        """This task, as the parent of others."""
        return Task(id=self.task_id, root_id=self.root_id, correlation_id=self.correlation_id)


class TaskContext(_Context):
    """A sync handler's `ctx`. Its methods raise `LostLease` once the task is no longer this attempt's."""

    @property
    def settled(self) -> bool:
        """Whether this handler settled its task already."""
        self._attempt.forget_what_rolled_back()
        return super().settled

    @property
    def lease_lost(self) -> threading.Event:
        """Set when the lease is lost, to wait for."""
        return self._attempt.lease_lost

    def progress(self, value: float | None = None, message: str | None = None) -> None:
        """Show how far the task is, from 0 to 1, and a note; None leaves what was shown.

        Written at once, or when the transaction that the handler has open commits, if the task is not settled by then.
        """
        self._attempt.progress(value, message)

    def heartbeat(self) -> None:
        """Renew the lease now. The worker does so by itself, and it alone while the handler has a transaction open."""
        self._attempt.heartbeat()

    def canceled(self) -> bool:
        """Whether someone asked for this task to be canceled; a "no" may be half a second old."""
        return self._attempt.canceled()

    def succeed(self, result: Any = None) -> None:
        """Settle the task as succeeded now, in the handler's open transaction if there is one.

        Once the task is settled, this and what the handler returns or raises change nothing. Raises
        `SerializationError`.
        """
        self._succeed(result)

    def fail(self, message: str, *, code: str = "task_error", retryable: bool = True, details: Any = None) -> None:
        """Settle the attempt as failed now; as for `succeed()`, and with what `TaskError` takes."""
        self._fail(message, code, retryable, details)

    def snooze(self, delay: Seconds) -> None:
        """Give the task back now, to be run again in `delay` (seconds or a `timedelta`), the attempt not spent.

        As raising `Snooze(delay)`, which ends the handler, too. A tenth of a second is the shortest.
        """
        self._snooze(delay)

    @contextmanager
    def atomic(self) -> Iterator[None]:
        """A transaction, on the database that tasks live in, that ends with `succeed()`.

        What the block writes there commits together with the task's success. It is rolled back if the block raises, if
        the lease was lost or a cancel requested, and if the block settles the task as anything else; that is recorded
        afterwards. Progress that it reports does not show. Raises `CairnQError` for a block that ends without settling
        or after an error of the database that it caught, for a task that is settled, and in a batch, whose tasks end
        one by one; `RuntimeError` inside another transaction.
        """
        self._attempt.forget_what_rolled_back()
        self._refuse_atomic()
        with self._attempt.atomic():
            yield

    def _refuse_atomic(self) -> None:
        if self._in_batch:
            raise CairnQError(
                "ctx.atomic() is not for a batch, whose tasks end one by one; open a transaction of its own"
            )
        if self._attempt.in_atomic:
            raise CairnQError("ctx.atomic() is not needed here: this handler runs in such a transaction (atomic=True)")
        if self.settled:
            raise CairnQError(f"Task {self.task_id} is settled; ctx.atomic() is to end with its settlement")

    @overload
    def submit(self, task: TaskDef[P, Any], payload: P, **options: Unpack[ChildOptions]) -> Task: ...
    @overload
    def submit(self, task: TaskDef[None, Any], **options: Unpack[ChildOptions]) -> Task: ...
    @overload
    def submit(self, task: str, payload: Any = None, **options: Unpack[ChildOptions]) -> Task: ...
    def submit(self, task: TaskDef[Any, Any] | str, payload: Any = None, **options: Any) -> Task:
        """Submit a child of this task, as `cairnq_django.submit()` does, with root and correlation id taken over.

        This call keeps its slot while that waits for room in the child's queue, in vain if only this worker's slots
        could make any.
        """
        return self._calling_side.submit(self._attempt.check_lease, task, payload, parent=self._here(), **options)

    def wait(self, task: Task | UUID | str, timeout: Seconds | None = None) -> Task:
        """Wait for another task, as `cairnq_django.wait()` does. This call keeps its slot meanwhile."""
        return self._calling_side.wait(task.pk if isinstance(task, Task) else task, timeout)


class AsyncTaskContext(_Context):
    """An async handler's `ctx`: as `TaskContext`, awaitable where it touches the database."""

    def __init__(self, attempt: Attempt, calling_side: CallingSide, *, in_batch: bool = False) -> None:
        super().__init__(attempt, calling_side, in_batch=in_batch)
        #: Set when the lease is lost, to await.
        self.lease_lost = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        attempt.on_lease_lost = self._flag_lease_lost
        if attempt.lost:
            self.lease_lost.set()

    async def progress(self, value: float | None = None, message: str | None = None) -> None:
        await sync_to_async(self._attempt.progress)(value, message)

    async def heartbeat(self) -> None:
        await sync_to_async(self._attempt.heartbeat)()

    async def canceled(self) -> bool:
        return await sync_to_async(self._attempt.canceled)()

    async def succeed(self, result: Any = None) -> None:
        await sync_to_async(self._succeed)(result)

    async def fail(
        self, message: str, *, code: str = "task_error", retryable: bool = True, details: Any = None
    ) -> None:
        await sync_to_async(self._fail)(message, code, retryable, details)

    async def snooze(self, delay: Seconds) -> None:
        await sync_to_async(self._snooze)(delay)

    def atomic(self) -> NoReturn:
        raise CairnQError(
            "ctx.atomic() is for sync handlers: a transaction of Django's lives in one thread. Make the handler a "
            "plain function"
        )

    @overload
    async def submit(self, task: TaskDef[P, Any], payload: P, **options: Unpack[ChildOptions]) -> Task: ...
    @overload
    async def submit(self, task: TaskDef[None, Any], **options: Unpack[ChildOptions]) -> Task: ...
    @overload
    async def submit(self, task: str, payload: Any = None, **options: Unpack[ChildOptions]) -> Task: ...
    async def submit(self, task: TaskDef[Any, Any] | str, payload: Any = None, **options: Any) -> Task:
        check = self._attempt.check_lease
        return await self._calling_side.asubmit(check, task, payload, parent=self._here(), **options)

    async def wait(self, task: Task | UUID | str, timeout: Seconds | None = None) -> Task:
        return await self._calling_side.await_(task.pk if isinstance(task, Task) else task, timeout)

    def _flag_lease_lost(self) -> None:
        self._loop.call_soon_threadsafe(self.lease_lost.set)
