"""How an attempt may end, and what is recorded of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..envelopes import Envelope
from ..statuses import TaskStatus


@dataclass(frozen=True)
class Success:
    """The attempt is to be settled as succeeded."""

    result: Any  # plain JSON


@dataclass(frozen=True)
class Failure:
    """The attempt is to be settled as failed."""

    error: Envelope
    exception: BaseException | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Snoozed:
    """The task is to be given back for later, as if this attempt had not been."""

    delay: float  # seconds


@dataclass(frozen=True)
class CancelSeen:
    """The task is to end as canceled, as an atomic handler's transaction saw that it was asked to; it is rolled back.

    If the handler itself had asked for it there, that is rolled back with it, and the attempt has failed.
    """


Outcome = Success | Failure | Snoozed | CancelSeen


class Settled(NamedTuple):
    """What is recorded of an attempt."""

    status: TaskStatus  # of the task, by this
    result: Any = None
    error: Envelope | None = None
    exception: BaseException | None = None
    delay: float | None = None  # seconds until it is due again, if it is queued again
