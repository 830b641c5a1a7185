"""Run what was submitted in the test's own thread: when the test says so, or at each submit."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ContextDecorator, suppress
from functools import wraps
from inspect import isclass, iscoroutinefunction
from typing import Any, TypeVar, cast
from uuid import UUID

from .. import client
from ..arguments import integer, text
from ..limits import QUEUE_LENGTH
from ..models import Task
from ..querysets import TaskQuerySet
from ..registry import Registry, TaskDef, default_registry
from ..store import control
from ..store.pauses import unless_paused
from ..submission import definition_of
from ..twins import twin
from ..worker.attempt import Attempt
from .runner import Runner

F = TypeVar("F", bound=Callable[..., Any])


def run_pending(
    *tasks: TaskDef[Any, Any] | str,
    queues: str | Iterable[str] | None = None,
    limit: int | None = None,
    retries: bool = True,
    delayed: bool = False,
    fail_silently: bool = False,
    registry: Registry | None = None,
) -> list[Task]:
    """Run the tasks that are due, in the calling thread and on its connection, and return them as they are then.

    Also inside Django's `TestCase`. One after another in claim order, those submitted meanwhile included, until none
    is due; each is claimed, handled and settled as by a worker. If `tasks` (what `@task` made, or names) or `queues`
    are given, only those run; if `limit` is, so many attempts are made at the most.

    What failed and waits for its retry is made due once nothing else is, and tried until it has ended; with
    `retries=False` it is left waiting. With `delayed=True`, what is delayed at the beginning is made due, too. What its
    handler snoozes is left.

    Raises `TaskFailed`, from what the handler raised, as soon as a task has failed for good; with `fail_silently=True`
    it goes on to the next. `ValueError` for a task that has no handler in `registry`, by default the one of `@task`.
    """
    pending = _Pending(tasks, queues, registry if registry is not None else default_registry)
    left = integer(limit, "limit", minimum=0) if limit is not None else sys.maxsize
    ran: dict[UUID, None] = {}  # in order
    pending.runner.tidy_up()
    if delayed:
        pending.make_delayed_due()
    while left:
        attempts = pending.run_first(left)
        if attempts is None:
            if retries and pending.make_retries_due():
                continue
            break
        left -= len(attempts)
        ran.update(dict.fromkeys(attempt.claim.lease.task_id for attempt in attempts))
        if not fail_silently:
            pending.runner.raise_failure()
    found = Task.objects.using(pending.runner.using).in_bulk(list(ran))
    return [found[task_id] for task_id in ran if task_id in found]


arun_pending = twin(run_pending)


class immediate(ContextDecorator):
    """While the context lasts, each submit runs its task before it returns it, as the task has ended.

    In the thread that submits and on its connection, also inside Django's `TestCase`; claimed, handled and settled as
    by a worker, with its retries, none of which is waited for. What a handler submits runs at once, too. What is
    delayed is left in its queue, unless `delayed` is true; so is what has no handler in `registry` (by default the one
    of `@task`), is in a paused queue, or was submitted before.

    The submit raises `TaskFailed`, from what the handler raised, if the task has failed for good; not with
    `fail_silently`, and not to a handler that submits: then the outermost submit does. For `with`, and to decorate
    functions, also `async` ones.
    """

    def __init__(self, *, delayed: bool = False, fail_silently: bool = False, registry: Registry | None = None) -> None:
        self._delayed = delayed
        self._fail_silently = fail_silently
        self._registry = registry if registry is not None else default_registry
        self._before: list[Callable[[list[Task]], None] | None] = []

    def __enter__(self) -> None:
        self._before.append(client.run_at_once)
        client.run_at_once = self._run

    def __exit__(self, *exc_info: object) -> None:
        client.run_at_once = self._before.pop()

    def __call__(self, func: F) -> F:
        if isclass(func):
            raise TypeError(
                f"immediate() decorates functions, and {func.__qualname__} is a class; in its setUp(), call "
                "self.enterContext(immediate())"
            )
        if not iscoroutinefunction(func):
            return super().__call__(func)

        @wraps(func)
        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            with self:
                return await func(*args, **kwargs)

        return cast("F", wrapped)

    def _run(self, tasks: list[Task]) -> None:
        definition = self._registry.get(tasks[0].name) if tasks else None
        if definition is None:
            return
        runner = Runner(self._registry)
        if self._delayed:
            for task in tasks:
                control.run_now(runner.using, task.pk)
        runner.run_to_the_end(definition, [task.pk for task in tasks])
        for task in tasks:
            with suppress(Task.DoesNotExist):
                task.refresh_from_db(using=runner.using)
        if not self._fail_silently:
            runner.raise_failure()


class _Pending:
    """The tasks that a run is about: those of these names and queues that someone may claim."""

    def __init__(
        self, tasks: Iterable[TaskDef[Any, Any] | str], queues: str | Iterable[str] | None, registry: Registry
    ) -> None:
        self.runner = Runner(registry)
        self._registry = registry
        self._names = _names(tasks, registry)
        self._queues = _queues(queues)
        self._left: set[UUID] = set()  # to others, and for later

    def run_first(self, limit: int) -> Sequence[Attempt] | None:
        """Make the next call, for up to `limit` tasks, and return its attempts; None if nothing is due."""
        due = unless_paused(self._rows().due().exclude(pk__in=self._left)).in_claim_order()
        name = due.values_list("name", flat=True).first()
        definition = self._registry.get(name) if name is not None else None
        if definition is None:
            return None
        size = min(definition.batch or 1, limit)
        task_ids = list(due.filter(name__in=definition.names).values_list("pk", flat=True)[:size])
        attempts = self.runner.run(definition, task_ids)
        # Also what someone else has claimed meanwhile: it is not ours to wait for.
        self._left.update({*task_ids} - {each.claim.lease.task_id for each in attempts})
        self._left.update(each.claim.lease.task_id for each in attempts if each.due_in and each.counts_as != "retried")
        return attempts

    def make_delayed_due(self) -> bool:
        return self._make_due(self._rows().delayed().filter(attempt=0))

    def make_retries_due(self) -> bool:
        """Whether there were any."""
        return self._make_due(self._rows().delayed().filter(attempt__gt=0).exclude(pk__in=self._left))

    def _make_due(self, rows: TaskQuerySet) -> bool:
        task_ids = list(rows.order_by("run_at", "pk").values_list("pk", flat=True))
        for task_id in task_ids:
            control.run_now(self.runner.using, task_id)
        return bool(task_ids)

    def _rows(self) -> TaskQuerySet:
        rows = Task.objects.using(self.runner.using).for_handlers(self._names)
        return rows if self._queues is None else rows.filter(queue__in=self._queues)


def _names(tasks: Iterable[TaskDef[Any, Any] | str], registry: Registry) -> Collection[str]:
    """Those of the tasks, with their aliases; all that there are if none are given."""
    names: list[str] = []
    for task in tasks:
        name = definition_of(task).name
        definition = registry.get(name)
        if definition is None:
            known = ", ".join(map(repr, registry.names)) or "none"
            raise ValueError(f"Task {name!r} has no handler to run here (there are handlers for: {known})")
        names += definition.names
    return names or registry.names


def _queues(queues: str | Iterable[str] | None) -> list[str] | None:
    if queues is None:
        return None
    names = [queues] if isinstance(queues, str) else queues
    return [text(name, "queues", maximum=QUEUE_LENGTH) for name in names]
