"""When a worker looks for tasks, and which it asks for: the groups of its handlers, each as it fared; no I/O."""

from __future__ import annotations

import logging
import random
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any

from ..registry import Registry, TaskDef
from .budgets import Budget, Group, Plan, grouped
from .lookahead import Lookahead
from .options import WorkerOptions, refuse_undeclared_resources

logger = logging.getLogger(__name__)

SHORTEST_PAUSE = 0.002  # seconds before another look at what others have locked, doubling
GRAIN = 0.001  # seconds that the coarsest clock of a database, SQLite's, stands still for


@dataclass(frozen=True)
class Load:
    """What the worker has in hand."""

    calls: int  # claimed and not done with
    running: Sequence[TaskDef[Any, Any]]  # of the calls whose handlers are at work or will be, abandoned ones included
    bytes_in_flight: int  # of their payloads, where they are measured
    is_idle: bool  # whether there are none but abandoned ones


class Agenda:
    """For the worker's loop alone. Moments are on the monotonic clock."""

    def __init__(
        self, options: WorkerOptions, registry: Registry, lookahead: Lookahead, *, look_again: float | None = None
    ) -> None:
        """`look_again`: in how many seconds there may be more that nobody announces, see `notify.look_again()`."""
        self._options = options
        self._registry = registry
        self._lookahead = lookahead
        self._names: tuple[str, ...] | None = None  # that are in the groups
        self._groups: deque[Group] = deque()  # the first one draws first
        self.served: tuple[str, ...] = ()  # names whose tasks this worker runs, in order; any thread may read it
        self._unfinished: set[Group] = set()  # those that may have more than was drawn
        self._waits_for_bytes = False  # the next payload does not fit beside those of the running calls
        self._next_look = 0.0  # at all groups
        self._look_again = look_again
        self._looks_again_at = 0.0
        self._in_vain = 0  # claims that did not get what a look had seen, fewer again for those that got some
        self._owes_a_look = False  # once bytes come back
        self._due: list[float] = []  # a heap: when tasks that this worker gave back fall due

    def plan(self, now: float, load: Load, *, woken: bool) -> Plan:
        """What can be claimed at `now`: from all groups when it is time for that, else from those that had more."""
        self._group()
        anew = self.looks_anew(now, woken=woken)
        groups = [group for group in self._groups if anew or (group in self._unfinished and not self._waits_for_bytes)]
        budget = Budget(
            calls=min(self._room(groups, load), self._options.claim_batch or sys.maxsize),
            resources=self._options.resources,
            running=load.running,
            max_bytes=self._options.max_in_flight_bytes,
            bytes_in_flight=load.bytes_in_flight,
            is_idle=load.is_idle,
        )
        return Plan(budget, groups, self._options.queues)

    def looks_anew(self, now: float, *, woken: bool) -> bool:
        """Whether it is time to ask for all groups, also for those that had no more when they were last asked."""
        return now >= self._next_look or (woken and not self._waits_for_bytes)

    def expects_some(self, plan: Plan, *, woken: bool) -> bool:
        """Whether there is a reason to claim without a look at what is due."""
        return woken or not self._unfinished.isdisjoint(plan.drawing)

    @property
    def is_contended(self) -> bool:
        """Whether something is due that a simple claim did not get."""
        return self._in_vain > 1

    def begin_to_look_anew(self, now: float) -> None:
        while self._due and self._due[0] <= now:
            heappop(self._due)
        # Workers that were started together do not poll together for ever.
        self._next_look = min([now + self._options.poll_interval * random.uniform(1.0, 1.1), *self._due[:1]])
        if self.is_counted_on(now):
            self.look_at(self._looks_again_at)

    def is_counted_on(self, now: float) -> bool:
        """Whether others count on this worker to look again for what they do not announce."""
        return now < self._looks_again_at

    def nothing_is_due(self) -> None:
        """A look has found that out."""
        self._in_vain = 0

    def drawn(self, plan: Plan, claimed: int, now: float, *, woken: bool, is_seen: bool) -> None:
        """What the plan's draws found is claimed; `is_seen`: a look had seen before that something is due."""
        if self._look_again is not None and (claimed or woken) and plan.held_up is None:
            self._looks_again_at = now + self._look_again
            self.look_at(self._looks_again_at)
        if claimed:
            self._in_vain //= 2
        elif is_seen:
            self._in_vain += 1
        if len(plan.unfinished) < len(plan.groups):
            # Who submits beside a task that is due wakes nobody, since whoever claims that one looks once more; and who
            # finds it locked, until it is gone: the one that has it may have no room for another.
            pause = 2 ** min(self._in_vain, 16) * SHORTEST_PAUSE if self._in_vain > 1 else 0.0
            self._look_once_more(now + min(pause, self._options.poll_interval), held_up=plan.held_up is not None)
        self._unfinished.difference_update(plan.groups)
        self._unfinished.update(plan.unfinished)
        self._waits_for_bytes = plan.held_up is not None
        self._groups.rotate(-self._groups.index(plan.held_up) if plan.held_up is not None else -1)

    def failed(self, again_at: float) -> None:
        """Nothing could be claimed; the next look is at `again_at`."""
        self._unfinished.clear()
        self._next_look = again_at

    def falls_due(self, moment: float) -> None:
        """A task that this worker gave back is due then."""
        # The database's clock may not have come that far; whoever looks too early may not look again for long.
        moment += GRAIN
        heappush(self._due, moment)
        self.look_at(moment)

    def look_at(self, moment: float) -> None:
        """Look at all groups then, if not before."""
        self._next_look = min(self._next_look, moment)

    def bytes_returned(self) -> None:
        """A call has ended, and what has been waiting for its bytes may fit now."""
        self._waits_for_bytes = False
        if self._owes_a_look:
            self._owes_a_look = False
            self.look_at(0.0)

    def next_claim(self, now: float, load: Load, *, woken: bool) -> float:
        """When there may be something to claim, as far as can be known."""
        if self.plan(now, load, woken=woken):
            return now
        if self.plan(self._next_look, load, woken=woken):
            return self._next_look
        # A handler may be registered by then.
        return now + self._options.poll_interval

    def _look_once_more(self, moment: float, *, held_up: bool) -> None:
        if held_up:
            # Each look would weigh anew what does not fit.
            self._owes_a_look = True
        else:
            self.look_at(moment)

    def _room(self, groups: Sequence[Group], load: Load) -> int:
        """How many calls there is room for: free slots and, if nothing else may want those, a little ahead of them."""
        free = self._options.concurrency - load.calls
        others = [group for group in {*groups, *self._unfinished} if not group.may_be_ahead]
        if others or self._options.max_in_flight_bytes is not None:
            return free
        room = free + self._lookahead.calls
        # While there is enough to do, not for a handful.
        return room if free > 0 or 2 * room >= self._lookahead.calls else free

    def _group(self) -> None:
        """Group the names that there are; a handler may be registered at any time."""
        if self._registry.names == self._names:
            return
        self._names = self._registry.names
        found = [definition for name in self._names if (definition := self._registry.get(name)) is not None]
        definitions = list({definition.name: definition for definition in found}.values())
        for definition in definitions:
            try:
                refuse_undeclared_resources(self._options.resources, [definition])
            except ValueError as error:
                logger.error("%s", error)
        self._groups = deque(grouped(definitions, self._options.resources))
        self.served = tuple(sorted(name for group in self._groups for name in group.names))
        self._unfinished = set(self._groups)
