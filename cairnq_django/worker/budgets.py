"""How much a worker may claim now; pure arithmetic."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ..limits import MAX_BATCH
from ..registry import TaskDef
from ..store.claim import Claim, Draw, Drawn


@dataclass(frozen=True)
class Group:
    """Names that draw together. A handler that limits itself draws alone, to be left out while it is at its limit."""

    names: tuple[str, ...]  # of a handler that draws alone, its own first
    batch: int = 1  # tasks of one call
    concurrency: int | None = None  # calls at the same time
    resource: str | None = None  # whose ceiling its calls share

    @property
    def may_be_ahead(self) -> bool:
        """Whether its tasks may be claimed before there is a slot for them: none has to wait for a ceiling."""
        return (self.batch, self.concurrency, self.resource) == (1, None, None)


def grouped(definitions: Iterable[TaskDef[Any, Any]], resources: Mapping[str, int]) -> list[Group]:
    """The groups of a worker's handlers, without those whose resource this worker has none of."""
    groups: list[Group] = []
    together: list[str] = []
    for definition in sorted(definitions, key=lambda definition: definition.name):
        limits = (definition.batch, definition.concurrency, definition.resource)
        if limits == (None, None, None):
            together += definition.names
        elif definition.resource is None or resources.get(definition.resource):
            groups.append(Group(definition.names, definition.batch or 1, definition.concurrency, definition.resource))
    return [Group(tuple(together)), *groups] if together else groups


@dataclass(frozen=True)
class Budget:
    """What a worker can take on now. Calls are counted, a batch as one; bytes are those of payloads."""

    calls: int  # that its own limits allow
    resources: Mapping[str, int]  # declared calls of each
    running: Sequence[TaskDef[Any, Any]]  # of the calls whose handlers are at work, abandoned ones included
    max_bytes: int | None = None  # in flight; None: they are not measured
    bytes_in_flight: int = 0
    is_idle: bool = True  # whether no handler is at work, abandoned ones apart


class Plan:
    """The draws of one poll: each as large as what was really claimed before it leaves."""

    def __init__(self, budget: Budget, groups: Sequence[Group], queues: Sequence[str]) -> None:
        self._budget = budget
        self.groups = groups
        self._queues = tuple(queues)
        self._start()

    def _start(self) -> None:
        budget = self._budget
        self.unfinished: list[Group] = []  # groups that may have more than was drawn
        self.held_up: Group | None = None  # whose next payload has to wait until running calls give back their bytes
        self._calls = budget.calls
        self._names = Counter(definition.name for definition in budget.running)
        self._resources = Counter(definition.resource for definition in budget.running)
        self._bytes = budget.max_bytes - budget.bytes_in_flight if budget.max_bytes is not None else None
        self._is_idle = budget.is_idle

    def __bool__(self) -> bool:
        """Whether there is anything to draw."""
        return any(self._limit(group) for group in self.groups)

    @property
    def drawing(self) -> list[Group]:
        """The groups that there is room for, before the first draw."""
        return [group for group in self.groups if self._limit(group)]

    @property
    def only_draw(self) -> Draw | None:
        """The first draw, if no other follows it."""
        return next(self.draws()) if len(self.drawing) == 1 else None

    def drawn_at_once(self, claims: list[Claim]) -> None:
        """The only draw has claimed these."""
        draws = self.draws()
        next(draws)
        with suppress(StopIteration):
            draws.send(Drawn(claims, cut_by_bytes=False))

    def draws(self) -> Generator[Draw, Drawn, None]:
        """Each draw, in turn; what it claimed is to be sent back. Each time it is called it starts anew."""
        self._start()
        for index, group in enumerate(self.groups):
            limit = self._limit(group)
            if not limit:
                self.unfinished.append(group)
                continue
            at_least_one = self._bytes is not None and self._is_idle
            drawn = yield Draw(self._queues, group.names, limit, self._bytes, at_least_one)
            self._spend(group, drawn)
            if drawn.cut_by_bytes:
                # What does not fit goes first next time, and nothing smaller may get in before it for ever.
                self.held_up = group
                self.unfinished += self.groups[index:]
                return
            if len(drawn.claims) >= limit:
                self.unfinished.append(group)

    def _limit(self, group: Group) -> int:
        """How many tasks the group may draw."""
        calls = self._calls
        if group.concurrency is not None:
            calls = min(calls, group.concurrency - self._names[group.names[0]])
        if group.resource is not None:
            calls = min(calls, self._budget.resources[group.resource] - self._resources[group.resource])
        if self._bytes is not None and self._bytes <= 0 and not self._is_idle:
            return 0
        # A statement takes so many parameters, and one claim so much time.
        return max(0, min(calls, MAX_BATCH // group.batch)) * group.batch

    def _spend(self, group: Group, drawn: Drawn) -> None:
        calls = -(-len(drawn.claims) // group.batch)
        self._calls -= calls
        self._names[group.names[0]] += calls
        self._resources[group.resource] += calls
        if self._bytes is not None and drawn.claims:
            self._bytes -= sum(claim.payload_bytes for claim in drawn.claims)
            self._is_idle = False
