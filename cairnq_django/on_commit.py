"""Submit after the caller's transaction, for a queue in another database, which that transaction does not reach."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import DEFAULT_DB_ALIAS, connections, transaction

from .client import SubmitOptions, submit, submit_prepared
from .registry import TaskDef
from .submission import Submission, prepare
from .twins import twin_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

logger = logging.getLogger(__name__)

P = TypeVar("P")


@overload
def submit_on_commit(
    task: TaskDef[P, Any], payload: P, *, using: str | None = None, **options: Unpack[SubmitOptions]
) -> UUID: ...
@overload
def submit_on_commit(
    task: TaskDef[None, Any], *, using: str | None = None, **options: Unpack[SubmitOptions]
) -> UUID: ...
@overload
def submit_on_commit(
    task: str, payload: Any = None, *, using: str | None = None, **options: Unpack[SubmitOptions]
) -> UUID: ...
def submit_on_commit(
    task: TaskDef[Any, Any] | str,
    payload: Any = None,
    *,
    using: str | None = None,
    **options: Unpack[SubmitOptions],
) -> UUID:
    """Submit once the transaction that is open on the database `using` (`"default"`) has committed; at once if none is.

    Takes what `submit()` takes, and checks and serialises it here and now, so that whatever is wrong with it is raised
    in time to roll back. Rolled back, also to a savepoint before this, nothing is submitted. Durations (`delay`,
    `expires`, `max_queue_wait`) count from the commit.

    Returns the id that the task will have. Where a key's live task answers instead, that id never comes to exist: ask
    for the key.

    What goes wrong after the commit, such as a database of the queue that is away or a `QueueFull`, is logged, and
    raised from the block that committed. Nothing is submitted then, though what was committed stays; if the process
    dies in between, that is not even told. Where that must not be, keep the tasks in the database of the transaction.
    """
    _takes.bind(task, payload, **options)
    submission = prepare(task, payload, **options)
    alias = using or DEFAULT_DB_ALIAS
    is_deferred = connections[alias].in_atomic_block
    transaction.on_commit(partial(_after_commit if is_deferred else submit_prepared, submission), using=alias)
    return submission.rows[0].pk


@overload
async def asubmit_on_commit(
    task: TaskDef[P, Any], payload: P, *, using: str | None = None, **options: Unpack[SubmitOptions]
) -> UUID: ...
@overload
async def asubmit_on_commit(
    task: TaskDef[None, Any], *, using: str | None = None, **options: Unpack[SubmitOptions]
) -> UUID: ...
@overload
async def asubmit_on_commit(
    task: str, payload: Any = None, *, using: str | None = None, **options: Unpack[SubmitOptions]
) -> UUID: ...
@twin_of(cast("Callable[..., UUID]", submit_on_commit))  # of its overloads, a type checker would take the first
async def asubmit_on_commit(*args: Any, **options: Any) -> UUID:
    return await sync_to_async(cast("Callable[..., UUID]", submit_on_commit))(*args, **options)


_takes = signature(submit)


def _after_commit(submission: Submission) -> None:
    if submission.admission is not None:
        submission.admission.begin()
    try:
        submit_prepared(submission)
    except Exception:
        task = submission.rows[0]
        logger.error("Task %s %s was not submitted, though its transaction has committed", task.name, task.pk)
        raise
