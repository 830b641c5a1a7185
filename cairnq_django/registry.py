"""Which handler runs a task: `@task`, the definitions it makes and the registry that holds them."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from asgiref.sync import iscoroutinefunction

from .arguments import Seconds, choice, integer, seconds, text
from .limits import MAX_ATTEMPTS, MAX_BATCH, MAX_PRIORITY, MIN_PRIORITY, NAME_LENGTH, QUEUE_LENGTH, SHORTEST
from .statuses import Missed, Overlap
from .timing import Cron, timing

if TYPE_CHECKING:
    from typing import Literal, TypeAlias

    from .worker.context import AsyncTaskContext, TaskContext

    MissedRule: TypeAlias = Literal["once", "none", "all"]
    OverlapRule: TypeAlias = Literal["skip", "allow"]

# What handles more payloads, or gives less, may stand for what handles fewer.
P = TypeVar("P", contravariant=True)
R = TypeVar("R", covariant=True)

DEFAULT_QUEUE = "default"


@dataclass(frozen=True)
class TaskDef(Generic[P, R]):
    """What is known of a task before it is submitted: its name, how it is submitted and, where it runs, its handler.

    Without a handler it names a task that another program runs. Called, it calls its handler, as a unit test would.
    Raises `TypeError` or `ValueError` naming the argument that is wrong.
    """

    name: str
    _: KW_ONLY
    queue: str = DEFAULT_QUEUE
    max_attempts: int | None = None  # None: `CAIRNQ["MAX_ATTEMPTS"]`
    priority: int = 0  # higher first
    max_run: float | None = None  # seconds that one call may take; None: the worker's own limit
    retry_backoff: float | None = None  # seconds before the first retry, then doubling; None: the worker's
    retry_backoff_max: float | None = None  # seconds; None: the worker's, or `retry_backoff` if that is longer
    batch: int | None = None  # tasks that one call takes at the most; its handler gets a list of contexts
    concurrency: int | None = None  # calls at the same time in one worker; None: the worker's own limit
    resource: str | None = None  # whose ceiling on calls the name shares; the worker declares it
    atomic: bool = False  # whether what the handler writes commits together with its success
    aliases: Sequence[str] = ()  # earlier names, whose tasks its handler runs, too; kept as a tuple
    cron: str | None = None  # when workers submit it by themselves, or, instead:
    every: float | None = None  # seconds from one time to the next
    timezone: str | None = None  # of the cron expression; None: the project's `TIME_ZONE`
    missed: MissedRule = "once"  # what they do about the times when no worker ran
    overlap: OverlapRule = "skip"  # and while the latest task has not ended
    handler: Callable[..., Any] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {
            "name": text(self.name, "name", maximum=NAME_LENGTH),
            "queue": text(self.queue, "queue", maximum=QUEUE_LENGTH),
            "priority": integer(self.priority, "priority", minimum=MIN_PRIORITY, maximum=MAX_PRIORITY),
            "max_run": seconds(self.max_run, "max_run", minimum=SHORTEST, allow_none=True),
            "retry_backoff": seconds(self.retry_backoff, "retry_backoff", allow_none=True),
            "retry_backoff_max": seconds(self.retry_backoff_max, "retry_backoff_max", allow_none=True),
        }
        for argument, maximum in (("max_attempts", MAX_ATTEMPTS), ("batch", MAX_BATCH), ("concurrency", None)):
            value = getattr(self, argument)
            if value is not None:
                checked[argument] = integer(value, argument, minimum=1, maximum=maximum)
        if self.aliases != ():
            checked["aliases"] = _aliases(self.aliases, checked["name"])
        if self.resource is not None:
            checked["resource"] = text(self.resource, "resource", maximum=NAME_LENGTH)
        if not isinstance(self.atomic, bool):
            raise TypeError(f"atomic must be True or False, got {self.atomic!r}")
        checked |= _checked_schedule(self)
        if self.handler is not None:
            _check_handler(self.handler, checked["name"], takes_batch=self.batch is not None)
        if self.atomic:
            _refuse_atomic(self)
        # String and integer enums, timedeltas: from here on they are plain values.
        for argument, value in checked.items():
            object.__setattr__(self, argument, value)

    @overload
    def __call__(self, ctx: Any, payload: P) -> Any: ...
    @overload
    def __call__(self, items: Sequence[Any], /) -> Any: ...
    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """What the handler returns; of an async one, something to await. One with `batch` takes a list of contexts."""
        if self.handler is None:
            raise TypeError(f"Task {self.name!r} has no handler here; it is run by another program")
        return self.handler(*arguments, **named)

    @property
    def is_periodic(self) -> bool:
        """Whether workers submit it by themselves."""
        return self.cron is not None or self.every is not None

    @property
    def names(self) -> tuple[str, ...]:
        """All names whose tasks its handler runs, its own first."""
        return (self.name, *self.aliases)

    @cached_property
    def is_async(self) -> bool:
        """Whether the handler is a coroutine function, or an object whose `__call__` is one."""
        handler: Any = self.handler
        while isinstance(handler, partial):
            handler = handler.func
        call_of_object = getattr(type(handler), "__call__", None)  # noqa: B004 - it is looked at, not tested for
        return iscoroutinefunction(handler) or iscoroutinefunction(call_of_object)


_OPTIONS = {option.name for option in fields(TaskDef)} - {"name", "handler"}


class Registry:
    """The handlers that a worker runs, by name. Iterated over, it gives each definition once."""

    def __init__(self) -> None:
        self._tasks: dict[str, TaskDef[Any, Any]] = {}  # by each of their names

    def __iter__(self) -> Iterator[TaskDef[Any, Any]]:
        return iter([definition for name, definition in self._tasks.items() if name == definition.name])

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in self._tasks

    @property
    def names(self) -> tuple[str, ...]:
        """All names whose tasks there is a handler for, aliases included."""
        return tuple(sorted(self._tasks))

    def get(self, name: str) -> TaskDef[Any, Any] | None:
        """The definition that has this name, or has it as an alias."""
        return self._tasks.get(name)

    # A TaskDef comes first: to type checkers it is one more function that takes (ctx, payload).
    @overload
    def task(self, definition: TaskDef[P, R], /) -> Callable[[Handler[P, R]], TaskDef[P, R]]: ...
    @overload
    def task(self, handler: Callable[[AsyncTaskContext, P], Awaitable[R]], /) -> TaskDef[P, R]: ...
    @overload
    def task(self, handler: Callable[[TaskContext, P], R], /) -> TaskDef[P, R]: ...
    @overload
    def task(
        self,
        name: str | None = None,
        /,
        *,
        queue: str = DEFAULT_QUEUE,
        max_attempts: int | None = None,
        priority: int = 0,
        max_run: Seconds | None = None,
        retry_backoff: Seconds | None = None,
        retry_backoff_max: Seconds | None = None,
        concurrency: int | None = None,
        resource: str | None = None,
        atomic: bool = False,
        aliases: Sequence[str] = (),
        cron: str | None = None,
        every: Seconds | None = None,
        timezone: str | None = None,
        missed: MissedRule = "once",
        overlap: OverlapRule = "skip",
    ) -> Decorator: ...
    @overload
    def task(
        self,
        name: str | None = None,
        /,
        *,
        batch: int,
        queue: str = DEFAULT_QUEUE,
        max_attempts: int | None = None,
        priority: int = 0,
        max_run: Seconds | None = None,
        retry_backoff: Seconds | None = None,
        retry_backoff_max: Seconds | None = None,
        concurrency: int | None = None,
        resource: str | None = None,
        aliases: Sequence[str] = (),
        cron: str | None = None,
        every: Seconds | None = None,
        timezone: str | None = None,
        missed: MissedRule = "once",
        overlap: OverlapRule = "skip",
    ) -> BatchDecorator: ...

    def task(self, what: Any = None, /, **options: Any) -> Any:
        """Register a handler: `@task`, `@task("name", queue="mail")` or `@task(definition)`.

        Returns its `TaskDef`, which `submit()` takes and which can be called like the handler. Without a name the
        function's own is taken.

        `queue`, `priority` and `max_attempts` are what a submit takes if it is not told otherwise. `max_run` bounds a
        call, in seconds. A failed attempt is retried after `retry_backoff` seconds, twice as long after each further
        one, up to `retry_backoff_max`; where one is not said, the worker's is taken. `concurrency` bounds the calls of
        this name that one worker makes at the same time, and `resource` names a ceiling that several names share:
        `CAIRNQ["RESOURCES"]` or `Worker(resources=...)` says how high it is.

        With `batch`, the handler takes a list of up to that many contexts, and what it does not settle itself is
        settled by how the call ends: returned, each task has succeeded, with its result from a returned mapping of
        task ids to results if it is in there; raised, each has failed.

        With `atomic`, a sync handler runs in a transaction on the database that tasks live in, and what it wrote there
        commits together with its task's success, or is rolled back.

        With `cron`, or with `every` (seconds or a `timedelta`, at least a second), running workers submit it at these
        times by themselves, each of them once, with None for its payload. `timezone` is that of the cron expression,
        the project's `TIME_ZONE` by default. `missed` says what to do about the times when no worker ran: `"once"`, one
        task for all of them, `"none"` or `"all"`. `overlap` says what to do while its latest task has not ended:
        `"skip"` that time or `"allow"` another one beside it.

        `aliases` are names that the task had before: its handler runs what is queued under them, too, and such a task
        keeps the name that it was submitted under. Ceilings count the calls of all its names together, and a batch may
        hold tasks of several.

        Raises `ValueError` for a name or alias that is taken, or a handler that has no name; `TypeError` for a handler
        that does not take `(ctx, payload)`, or the list if there is a `batch`, and for options beside a `TaskDef`,
        which holds its own.
        """
        if unknown := sorted(options.keys() - _OPTIONS):
            raise TypeError(f"@task has no option {unknown[0]!r}; its options are {', '.join(sorted(_OPTIONS))}")
        if isinstance(what, TaskDef):
            if options:
                raise TypeError(f"Task {what.name!r} is defined by its TaskDef; set {', '.join(sorted(options))} there")
            if what.handler is not None:
                raise ValueError(f"Task {what.name!r} has a handler already: {_where(what.handler)}")
            return lambda handler: self._register(replace(what, handler=handler))
        if what is None or isinstance(what, str):
            return lambda handler: self._register(
                TaskDef(_own_name(handler) if what is None else what, handler=handler, **options)
            )
        return self._register(TaskDef(_own_name(what), handler=what, **options))

    def replace(self, definition: TaskDef[P, R]) -> TaskDef[P, R]:
        """Register a definition in the place of the one that has its name, if there is any."""
        name = definition.name
        self._tasks = {each: present for each, present in self._tasks.items() if present.name != name}
        return self._register(definition)

    def _register(self, definition: TaskDef[P, R]) -> TaskDef[P, R]:
        for name in definition.names:
            if name in self._tasks:
                raise _taken(name, self._tasks[name], definition)
        self._tasks.update(dict.fromkeys(definition.names, definition))
        return definition


if TYPE_CHECKING:
    from typing import Protocol, TypeAlias

    Handler: TypeAlias = Callable[[Any, P], R] | Callable[[Any, P], Awaitable[R]]

    class Decorator(Protocol):
        @overload
        def __call__(self, handler: Callable[[AsyncTaskContext, P], Awaitable[R]], /) -> TaskDef[P, R]: ...
        @overload
        def __call__(self, handler: Callable[[TaskContext, P], R], /) -> TaskDef[P, R]: ...

    class BatchDecorator(Protocol):
        @overload
        def __call__(self, handler: Callable[[list[AsyncTaskContext]], Awaitable[Any]], /) -> TaskDef[Any, Any]: ...
        @overload
        def __call__(self, handler: Callable[[list[TaskContext]], Any], /) -> TaskDef[Any, Any]: ...


def _own_name(handler: Any) -> str:
    if not callable(handler):
        raise TypeError(f"A handler is a function that takes (ctx, payload), got {handler!r}")
    name = getattr(handler, "__name__", "<lambda>")
    if name == "<lambda>":
        raise ValueError(f'{handler!r} has no name to register it under; give it one: @task("...")')
    return str(name)


def _aliases(aliases: Any, name: str) -> tuple[str, ...]:
    if not isinstance(aliases, (list, tuple)):
        raise TypeError(f"aliases of task {name!r} must be a list of names, got {aliases!r}")
    checked = [text(alias, f"aliases[{place}]", maximum=NAME_LENGTH) for place, alias in enumerate(aliases)]
    for place, alias in enumerate(checked):
        if alias == name or alias in checked[:place]:
            again = "is its name already" if alias == name else "is there twice"
            raise ValueError(f"aliases of task {name!r} must be other names of it, but {alias!r} {again}")
    return tuple(checked)


def _taken(name: str, present: TaskDef[Any, Any], other: TaskDef[Any, Any]) -> ValueError:
    if name == present.name == other.name:
        return ValueError(
            f"Two handlers are named {name!r}: {_where(present.handler)} and "
            f'{_where(other.handler)}. Give one of them a name of its own: @task("...")'
        )
    told = [
        f"{_where(each.handler)}, which {'has that name' if each.name == name else f'is {each.name!r} with that alias'}"
        for each in (present, other)
    ]
    return ValueError(f"Two handlers are to run tasks named {name!r}: {' and '.join(told)}. Leave it to one of them")


def _check_handler(handler: Any, name: str, *, takes_batch: bool) -> None:
    expected = "a list of contexts (it has a batch)" if takes_batch else "(ctx, payload)"
    if not callable(handler) or isinstance(handler, TaskDef):
        raise TypeError(f"The handler of task {name!r} is to be a function that takes {expected}, got {handler!r}")
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        # Some callables written in C do not say what they take.
        return
    try:
        signature.bind(*[None] * (1 if takes_batch else 2))
    except TypeError as error:
        raise TypeError(
            f"The handler of task {name!r} is to take {expected}, but {_where(handler)} takes {signature}"
        ) from error


def _refuse_atomic(definition: TaskDef[Any, Any]) -> None:
    """Raises `ValueError` for a definition whose handler cannot run in one transaction with its settlement."""
    if definition.batch is not None:
        raise ValueError(
            f"Task {definition.name!r} cannot have both atomic and batch: the tasks of a batch end one by one. Let its "
            "handler open transactions of its own"
        )
    if definition.is_async:
        raise ValueError(
            f"Task {definition.name!r} cannot be atomic: its handler is async, and a transaction of Django's lives in "
            "one thread. Make the handler a plain function"
        )


def _checked_schedule(definition: TaskDef[Any, Any]) -> dict[str, Any]:
    """Raises `TypeError` or `ValueError` naming the option that is wrong."""
    checked: dict[str, Any] = {
        "missed": choice(definition.missed, "missed", Missed).value,
        "overlap": choice(definition.overlap, "overlap", Overlap).value,
    }
    rules = {"timezone": None, "missed": "once", "overlap": "skip"}
    if not definition.is_periodic:
        for option, default in rules.items():
            if (given := getattr(definition, option)) != default:
                raise ValueError(f"{option} goes with cron or every, got {given!r} without either")
        return checked
    # Whatever the zone is, the expression is read in the same way; the project's may not be known yet.
    zone = "UTC" if definition.timezone is None and definition.every is None else definition.timezone
    when = timing(cron=definition.cron, every=definition.every, zone=zone)
    if checked["missed"] == Missed.ALL and checked["overlap"] == Overlap.SKIP:
        raise ValueError(
            'missed="all" submits several tasks at once, of which overlap="skip" would skip all but one; set '
            'overlap="allow"'
        )
    return {**checked, **({"cron": when.expression} if isinstance(when, Cron) else {"every": when.seconds})}


def _where(handler: Any) -> str:
    module, name = getattr(handler, "__module__", None), getattr(handler, "__qualname__", None)
    if not module or not name:
        return repr(handler)
    code = getattr(inspect.unwrap(handler), "__code__", None)
    return f"{module}.{name} (line {code.co_firstlineno})" if code else f"{module}.{name}"


default_registry = Registry()
task = default_registry.task
