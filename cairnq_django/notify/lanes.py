"""Whether the workers of a queue and a name have to be told of one more task, as far as a process knows; no I/O."""

from __future__ import annotations

from math import inf
from uuid import UUID

# A worker that was told of a task, or has claimed some, looks for more so many seconds later. Who submits a task until
# then need not announce it: either the one before it is left, or whoever claimed that one is going to look again.
LOOK_AGAIN = 0.05
IN_A_ROW = 0.8 * LOOK_AGAIN  # seconds from one submit to the next of a run; the rest is for what is under way
SAMPLE = 16  # questions that tell whether tasks come faster than they are taken
MOST = 10  # of them that told nobody, since the task before was left or nobody listens, if tasks do
BEHIND = 5.0  # seconds for which it is then taken for granted, before the next sample
ASK_AGAIN = 0.25  # seconds; someone may have canceled the task before, or killed the worker that was to look again
TELL_AGAIN = 1.0  # seconds for which the workers of what is left count as told; they may have no room, others some


class Lane:
    """A queue and a name, in one process; moments are on the monotonic clock. For any thread.

    A question is the statement that follows an insert and tells whoever listens, unless the latest task is left as it
    was submitted: who claims that one looks once more afterwards.
    """

    def __init__(self) -> None:
        self._latest: UUID | None = None
        self._submitted_at = -inf  # when the submit of that one began
        self._asked_at = -inf
        self._told_at = -inf
        self._sample: list[bool] = []  # whether a question had somebody to tell
        self._is_behind_until = -inf

    def is_to_ask(self, now: float) -> bool:
        """Whether a submit that begins now has to ask, once it is committed."""
        is_in_a_row = now - self._submitted_at < IN_A_ROW
        return not (is_in_a_row and now < self._is_behind_until and now - self._asked_at < ASK_AGAIN)

    @property
    def seen_until(self) -> float:
        """When what has been committed by then is seen by the workers without being told."""
        return self._submitted_at + LOOK_AGAIN

    def left_at(self, now: float) -> UUID | None:
        """The task that does for a later one, if it is left."""
        return self._latest if now - self._told_at < TELL_AGAIN else None

    def submitted(self, task_id: UUID, begun_at: float) -> None:
        """A task is committed that the workers see, and every one of them that may run the lane's next ones may run."""
        self._latest, self._submitted_at = task_id, begun_at

    def asked(self, at: float, *, told: bool, unless_left: bool) -> None:
        """A question of a submit that began at `at` has told the workers, or found nobody to tell.

        `unless_left`: it would not have told them, had the latest task been left.
        """
        self._asked_at = at
        if told:
            self._told_at = at
        # Of a task that few are told of, more will be left than of one that all are told of.
        if at >= self._is_behind_until and (unless_left or not told):
            self._note(at, told)

    def _note(self, at: float, told: bool) -> None:
        self._sample.append(told)
        if len(self._sample) >= SAMPLE:
            sample, self._sample = self._sample, []
            if sample.count(False) >= MOST:
                self._is_behind_until = at + BEHIND
