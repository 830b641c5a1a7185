"""The exceptions this package raises, and those that its handlers raise."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.utils import timezone
from django.utils.functional import Promise

if TYPE_CHECKING:
    from .envelopes import Envelope
    from .models import Task


class CairnQError(Exception):
    """The base of every exception this package raises on its own account."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception's own __reduce__ calls the constructor with self.args, which hold only the message.
        return _restore, (type(self), self.args), self.__dict__


class TaskError(CairnQError):
    """
    Raised by a handler to say how its attempt failed.

    `code` names the kind of failure for programs, `message` tells a person. A `retryable` failure is tried again while
    attempts are left, any other is final at once. `details` is any value JSON can represent.

    Raises `TypeError` or `ValueError` for arguments that are none of these.
    """

    def __init__(
        self,
        message: str | Promise,
        *,
        code: str = "task_error",
        retryable: bool = True,
        details: Any = None,
    ) -> None:
        _check_type("message", message, (str, Promise), "a string (convert it with str())")
        _check_type("code", code, (str,), "a string")
        _check_type("retryable", retryable, (bool,), "True or False")
        if not code:
            raise ValueError('code must not be empty; leave it out for "task_error"')
        self.message = _plain(message)
        self.code = _plain(code)
        self.retryable = retryable
        self.details = details
        super().__init__(self.message)


class Snooze(CairnQError):
    """
    Raised by a handler to have its task again in `delay` (seconds or a `timedelta`), without spending the attempt.

    A tenth of a second is the shortest. What is no delay, or a negative one, fails the attempt.
    """

    def __init__(self, delay: float | timedelta) -> None:
        self.delay = delay
        super().__init__(f"To be run again in {delay}")


class TaskFailed(CairnQError):
    """
    Raised by `call()` for a task that ended `failed`.

    `error` is the task's error envelope; its fields are attributes of their own: `type`, `code`, `message`,
    `retryable`, `details`.
    """

    def __init__(self, task: Task) -> None:
        error: Any = task.error or {}
        self.task = task
        self.task_id: UUID = task.pk
        self.error: Envelope = error
        self.type: str = error.get("type", "")
        self.code: str = error.get("code", "")
        self.message: str = error.get("message", "")
        self.retryable: bool = error.get("retryable", False)
        self.details: Any = error.get("details")
        super().__init__(
            f"Task {task.pk} ({task.name}) failed in attempt {task.attempt} of {task.max_attempts}: "
            f"{self.type} [{self.code}] {self.message}"
        )


class TaskCanceled(CairnQError):
    """Raised by `call()` for a task that ended `canceled`; `error` is its envelope if it expired, else None."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.task_id: UUID = task.pk
        self.error: Envelope | None = task.error
        reason = f": {self.error['message']}" if self.error is not None else ""
        super().__init__(f"Task {task.pk} ({task.name}) was canceled{reason}")


class TaskTimeout(CairnQError, TimeoutError):
    """
    Raised by `wait()` and `call()` when the task has not ended within `timeout` seconds; the task itself goes on.

    `task` is the row as it was last read; the message says what it was stuck in.
    """

    def __init__(self, task: Task, timeout: float, *, is_paused: bool = False) -> None:
        self.task = task
        self.task_id: UUID = task.pk
        self.timeout = timeout
        super().__init__(f"Task {task.pk} ({task.name}) {_stuck_in(task, f'after {timeout:g} s', is_paused)}")


class AlreadyExists(CairnQError):
    """Raised by `submit(conflict="reject")` when `key` has a live task already: `task`."""

    def __init__(self, key: str, task: Task) -> None:
        self.key = key
        self.task = task
        super().__init__(f"Key {key!r} already has a live task: {task.pk} ({task.name}, {task.status})")


class QueueFull(CairnQError):
    """
    Raised by `submit()` when `queue` still holds `depth` tasks, its limit, after it `waited` so many seconds.

    For a `submit_many()` of as many `tasks` as do not fit beside those, `depth` may be below the `limit`. With
    `in_transaction` it did not wait, because of the transaction that is open.
    """

    def __init__(
        self,
        queue: str,
        depth: int,
        waited: float,
        *,
        limit: int | None = None,  # None: `depth`
        tasks: int = 1,
        in_transaction: bool = False,
    ) -> None:
        self.queue = queue
        self.depth = depth
        self.waited = waited
        self.limit = depth if limit is None else limit
        self.tasks = tasks
        self.in_transaction = in_transaction
        super().__init__(f"Queue {queue!r} {self._problem()}{self._when()}")

    def _problem(self) -> str:
        held = f"it {'holds' if self.in_transaction else 'still held'} {self.depth}"
        if self.tasks == 1:
            return f"is full: {held} tasks"
        return f"has no room for {self.tasks} tasks: {held} of at most {self.limit}"

    def _when(self) -> str:
        if not self.in_transaction:
            return f" after waiting {round(self.waited, 2):g} s"
        return (
            ". In the open transaction submit() does not wait for room: its locks might be what keeps others from "
            "making any. Submit outside of the atomic block, for example with submit_on_commit(), or allow more with "
            "max_queue_depth"
        )


class LostLease(CairnQError):
    """Raised when a worker writes for an attempt that is no longer its own; nothing was written."""

    def __init__(self, task_id: UUID, attempt: int) -> None:
        self.task_id = task_id
        self.attempt = attempt
        super().__init__(
            f"Attempt {attempt} of task {task_id} lost its lease: it ran out, or the task ended or was handed on. "
            "Nothing more can be recorded for this attempt"
        )


class SerializationError(CairnQError, TypeError):
    """Raised for a value that JSON cannot represent on every database; `path` says where inside the value."""

    def __init__(self, path: str, problem: str) -> None:
        self.path = path
        super().__init__(f"{path}: {problem}")


def _restore(cls: type[CairnQError], args: tuple[Any, ...]) -> CairnQError:
    error = cls.__new__(cls)
    error.args = args
    return error


def _check_type(name: str, value: object, types: tuple[type, ...], expected: str) -> None:
    if not isinstance(value, types):
        raise TypeError(f"{name} must be {expected}, got {type(value).__name__}")


def _plain(text: str | Promise) -> str:
    # str() hands back subclasses of str as they are: SafeString, string enums.
    return str.__str__(text if isinstance(text, str) else str(text))


def _stuck_in(task: Task, elapsed: str, is_paused: bool) -> str:
    attempt = f"attempt {task.attempt} of {task.max_attempts}"
    if task.status == "running":
        canceling = ", cancel requested" if task.cancel_requested_at else ""
        return f"is still running {elapsed} ({attempt}, worker {task.worker_id}{canceling})"
    if task.status != "queued":
        return f"had not ended {elapsed}; it has now: {task.status}"
    # The host's clock decides on the wording alone.
    if task.run_at > timezone.now():
        waiting = "waiting for its retry" if task.attempt else "delayed"
        return (
            f"is still queued {elapsed}: {waiting}, due at {task.run_at.isoformat()} (queue {task.queue!r}, {attempt})"
        )
    if task.expires_at is not None and task.expires_at <= timezone.now():
        return f"is still queued {elapsed}: it expired at {task.expires_at.isoformat()}, and no worker has ended it yet"
    if is_paused:
        return f"is still queued {elapsed}: its queue is paused (queue {task.queue!r}, {attempt})"
    unclaimed = "no worker claimed its retry" if task.attempt else "no worker claimed it"
    return (
        f"is still queued {elapsed}: {unclaimed} (queue {task.queue!r}, {attempt}); is a worker running that serves "
        "this queue and has a handler of this name?"
    )
