"""Error envelopes: what a task's row says of a failed attempt, whatever was raised."""

from __future__ import annotations

import builtins
import sys
import traceback
from collections.abc import Callable, Iterator
from datetime import datetime
from reprlib import Repr
from textwrap import indent
from types import TracebackType
from typing import Any, Final, TypedDict, TypeVar

from django.utils.functional import Promise

from .errors import LostLease, SerializationError, TaskCanceled, TaskError
from .limits import ERROR_KIND_LENGTH, WORKER_ID_LENGTH
from .serialization import clean_text, dumped_size, normalize, type_name

T = TypeVar("T")

MESSAGE_LIMIT: Final = 4_000  # characters
TRACEBACK_LIMIT: Final = 16_000  # characters
DETAILS_LIMIT: Final = 65_536  # bytes of JSON

UNEXPECTED: Final = "unexpected_exception"  # the code of what a handler did not raise on purpose

_SHOWN_EXCEPTIONS = 20  # in one traceback: causes, contexts and members of groups
_SHOWN_FRAMES = 50  # of one exception, at either end
_SHOWN_NOTES = 10  # of one exception

# Python 3.10 has no exception groups: there, no class fits.
_GROUP: tuple[type, ...] = (builtins.BaseExceptionGroup,) if sys.version_info >= (3, 11) else ()
_PACKAGE = __name__.partition(".")[0]
_CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
_CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n\n"


class Envelope(TypedDict):
    """An error as JSON."""

    type: str  # the exception's class
    code: str  # the kind of failure, for programs
    message: str  # what happened, for people
    retryable: bool
    details: Any  # {"traceback": ...} for an unexpected exception


def from_exception(exception: BaseException, *, max_depth: int) -> Envelope:
    """
    Return the envelope of what a handler raised.

    A `TaskError` says itself what goes into it. Anything else is a retryable `unexpected_exception` with its traceback.
    Details that cannot be stored, exceed `DETAILS_LIMIT`, or take the envelope to more than `max_depth` levels are
    replaced by a note that says so. Whatever the exception holds, this does not fail and takes little time and memory.
    """
    error: Any = exception
    kind = _attempt(lambda: clean_text(type_name(type(error)), ERROR_KIND_LENGTH), "(unknown type)")
    message = _attempt(lambda: _message(error), "(the message cannot be read: str() of the exception failed)")
    if issubclass(type(error), TaskError):
        code = _attempt(lambda: clean_text(error.code, ERROR_KIND_LENGTH), "task_error")
        retryable = _attempt(lambda: bool(error.retryable), True)
        details = _attempt(lambda: _details(error.details, max_depth), {"not_stored": "(the details cannot be read)"})
    else:
        code, retryable = UNEXPECTED, True
        details = {"traceback": _attempt(lambda: _traceback(error), "(the traceback cannot be read)")}
    return Envelope(type=kind, code=code, message=message, retryable=retryable, details=details)


def custom(
    message: str | Promise,
    *,
    code: str = "task_error",
    retryable: bool = True,
    details: Any = None,
    max_depth: int,
) -> Envelope:
    """Return the envelope of a failure that a handler reports without raising; raises what `TaskError` raises."""
    return from_exception(TaskError(message, code=code, retryable=retryable, details=details), max_depth=max_depth)


def handler_timeout(max_run: float) -> Envelope:
    """Return the envelope of an attempt that ran longer than `max_run` seconds."""
    return Envelope(
        type=type_name(TimeoutError),
        code="handler_timeout",
        message=f"The handler ran longer than its limit of {max_run:g} s",
        retryable=True,
        details={"max_run": max_run},
    )


def lease_expired(worker_id: str, attempt: int) -> Envelope:
    """Return the envelope of an attempt whose worker stopped renewing its lease."""
    return Envelope(
        type=type_name(LostLease),
        code="lease_expired",
        message=(
            f"Worker {clean_text(worker_id, WORKER_ID_LENGTH)} stopped renewing the lease of attempt {attempt}. Most "
            "likely its process was killed (out of memory?), it froze, or it lost the connection to the database; on "
            "SQLite, something may have held the write lock for longer than the lease"
        ),
        retryable=True,
        details={"worker_id": clean_text(worker_id, WORKER_ID_LENGTH), "attempt": attempt},
    )


def unserializable_result(error: SerializationError) -> Envelope:
    """Return the envelope of an attempt that succeeded with a result that JSON cannot represent."""
    return Envelope(
        type=type_name(type(error)),
        code="unserializable_result",
        message=clean_text(f"The handler's result cannot be stored: {error}", MESSAGE_LIMIT),
        retryable=False,
        details={"path": error.path},
    )


def canceled_while_running() -> Envelope:
    """Return the envelope of an attempt that was canceled before it ended."""
    return Envelope(
        type=type_name(TaskCanceled),
        code="canceled",
        message="The task was canceled while it was running",
        retryable=False,
        details=None,
    )


def expired(moment: datetime) -> Envelope:
    """Return the envelope of a task that no worker had started by `moment`."""
    return Envelope(
        type=type_name(TaskCanceled),
        code="expired",
        message=f"The task expired at {moment.isoformat()}: no worker had started it by then",
        retryable=False,
        details={"expires_at": moment.isoformat()},
    )


def canceled_by_itself() -> Envelope:
    """Return the envelope of an atomic attempt that asked for its own cancel and so rolled that back, too."""
    return Envelope(
        type=type_name(TaskCanceled),
        code="canceled_by_itself",
        message=(
            "The handler, which is atomic, asked in its transaction for its own task to be canceled: with cancel(), or "
            "by a submit with the task's own key and conflict='replace'. That would roll back all that it wrote, the "
            "request included. Do it in transaction.on_commit(), or use another key"
        ),
        retryable=False,
        details=None,
    )


class _BoundedRepr(Repr):
    """repr() that does not write out all of a huge value."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = MESSAGE_LIMIT
        self.maxlist = self.maxtuple = self.maxdict = self.maxset = self.maxfrozenset = self.maxdeque = 50

    def repr_bytes(self, x: Any, level: int) -> str:
        return self.repr_str(x, level)

    repr_bytearray = repr_bytes


_repr = _BoundedRepr().repr
_WRITTEN_OUT_BY_STR = (bytes, bytearray, list, tuple, dict, set, frozenset)


def _attempt(read: Callable[[], T], otherwise: T) -> T:
    """What `read` returns. The methods and attributes of an exception are a handler's code and may raise anything."""
    try:
        return read()
    except BaseException:
        return otherwise


def _message(exception: BaseException) -> str:
    args, its_str = exception.args, type(exception).__str__
    shown = args[0] if len(args) == 1 else args
    if args and (
        its_str is KeyError.__str__ or (its_str is BaseException.__str__ and isinstance(shown, _WRITTEN_OUT_BY_STR))
    ):
        return clean_text(_repr(shown), MESSAGE_LIMIT)
    return clean_text(str.__str__(str(exception)), MESSAGE_LIMIT)


def _details(details: Any, max_depth: int) -> Any:
    try:
        plain = normalize(details, root="details", max_depth=max_depth - 1)
        size = dumped_size(plain)
        if size <= DETAILS_LIMIT:
            return plain
        problem = f"details: {size:,} bytes are more than the {DETAILS_LIMIT:,} that are kept"
    except Exception as error:
        problem = _message(error)
    shown = _attempt(lambda: clean_text(_repr(details), MESSAGE_LIMIT), "(repr() failed)")
    return {"not_stored": problem, "repr": shown}


def _traceback(exception: BaseException) -> str:
    return clean_text("".join(_with_causes(exception, set())), TRACEBACK_LIMIT)


def _with_causes(exception: BaseException, seen: set[int]) -> Iterator[str]:
    """The exceptions that led to this one, then this one. `seen` holds the ids of all, and so bounds them."""
    chain = [(exception, "")]
    seen.add(id(exception))
    while True:
        cause, link = _cause(chain[-1][0])
        if cause is None or id(cause) in seen:
            break
        if len(seen) >= _SHOWN_EXCEPTIONS:
            yield f"(earlier exceptions left out)\n{link}"
            break
        seen.add(id(cause))
        chain.append((cause, link))
    for error, link in reversed(chain):
        yield from _alone(error, seen)
        yield link


def _cause(exception: BaseException) -> tuple[BaseException | None, str]:
    if exception.__cause__ is not None:
        return exception.__cause__, _CAUSE
    return (None if exception.__suppress_context__ else exception.__context__), _CONTEXT


def _alone(exception: BaseException, seen: set[int]) -> Iterator[str]:
    if exception.__traceback__ is not None:
        yield "Traceback (most recent call last):\n"
        yield from _frames(exception.__traceback__)
    message = _attempt(lambda: _message(exception), "(the message cannot be read)")
    yield f"{type_name(type(exception))}: {message}\n" if message else f"{type_name(type(exception))}\n"
    for note in getattr(exception, "__notes__", ())[:_SHOWN_NOTES]:
        yield clean_text(note, MESSAGE_LIMIT) + "\n"
    if issubclass(type(exception), _GROUP):
        yield from _members(exception, seen)


def _frames(trace: TracebackType) -> Iterator[str]:
    links = [trace]
    while links[-1].tb_next is not None:
        links.append(links[-1].tb_next)
    # The worker's own frames above the handler's say nothing about the failure.
    first = next((index for index, link in enumerate(links) if not _is_ours(link)), 0)
    left_out = len(links) - first - 2 * _SHOWN_FRAMES
    if left_out <= 0:
        yield from traceback.format_tb(links[first])
    else:
        yield from traceback.format_tb(links[first], _SHOWN_FRAMES)
        yield f"  [{left_out:,} frames left out]\n"
        yield from traceback.format_tb(links[-_SHOWN_FRAMES])


def _is_ours(link: TracebackType) -> bool:
    return str(link.tb_frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE


def _members(group: Any, seen: set[int]) -> Iterator[str]:
    total = len(group.exceptions)
    for number, member in enumerate(group.exceptions, start=1):
        if len(seen) >= _SHOWN_EXCEPTIONS:
            yield f"  (exceptions {number} to {total} left out)\n"
            return
        yield f"  ---- exception {number} of {total} ----\n"
        if id(member) in seen:
            yield f"  {type_name(type(member))} (shown above)\n"
        else:
            yield from (indent(block, "  ") for block in _with_causes(member, seen))
