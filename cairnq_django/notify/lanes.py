"""Whether the workers of a queue and a name have to be told of one more task, as far as a process knows; no I/O."""

from __future__ import annotations

from math import inf
from uuid import UUID

# A worker that was told of a task, or has claimed some, looks for more so many seconds later. What is committed until
# then need not be announced.
LOOK_AGAIN = 0.05
QUIET = 0.8 * LOOK_AGAIN  # seconds after a question in which no other is asked; the rest is for what is under way
FEW = 16  # tasks one right after the other that are asked about each, so that they are picked up at once
BEHIND = 0.5  # seconds for which a question that found nobody to tell says that tasks come faster than they are taken
TELL_AGAIN = 1.0  # seconds for which the workers of what is left count as told; they may have no room, others some


class Lane:
    """A queue and a name, in one process; moments are on the monotonic clock. For any thread.

    A question is the statement that follows an insert and tells whoever listens, unless the latest task is left as it
    was submitted: who claims that one looks once more afterwards.
    """

    def __init__(self) -> None:
        self._latest: UUID | None = None  # that was submitted here, and is nothing but due
        self._submitted_at = -inf
        self._in_a_row = 0  # without a longer pause than `QUIET`
        self._asked_at = -inf
        self._told_at = -inf
        self._found_nobody_at = -inf

    def is_to_ask(self, now: float) -> bool:
        """Whether a submit that begins now has to ask, once it is committed."""
        self._in_a_row = self._in_a_row + 1 if now - self._submitted_at < QUIET else 1
        self._submitted_at = now
        # Who submits one task after the other and waits for each finds none of them left, and goes on asking.
        is_behind = now - self._found_nobody_at < BEHIND
        return not (is_behind and self._in_a_row > FEW and now - self._asked_at < QUIET)

    @property
    def seen_until(self) -> float:
        """When what has been committed by then is seen by the workers without being told."""
        return self._asked_at + LOOK_AGAIN

    def left_at(self, now: float) -> UUID | None:
        """The task that does for a later one, if it is left."""
        return self._latest if now - self._told_at < TELL_AGAIN else None

    def submitted(self, task_id: UUID) -> None:
        """A task is committed which every worker that may run the lane's next ones may run as well."""
        self._latest = task_id

    def asked(self, at: float, *, told: bool) -> None:
        """A question that was sent at `at` or later has told the workers, or found nobody to tell."""
        self._asked_at = max(self._asked_at, at)
        if told:
            self._told_at = at
        else:
            self._found_nobody_at = at
