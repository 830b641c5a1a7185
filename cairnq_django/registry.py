"""Which handler runs a task: `@task`, the definitions it makes and the registry that holds them."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

from asgiref.sync import iscoroutinefunction

from .arguments import Seconds, integer, seconds, text
from .limits import MAX_ATTEMPTS, MAX_PRIORITY, MIN_PRIORITY, NAME_LENGTH, QUEUE_LENGTH, SHORTEST

if TYPE_CHECKING:
    from .worker.context import AsyncTaskContext, TaskContext

P = TypeVar("P")
R = TypeVar("R")

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
    max_run: float | None = None  # seconds that one attempt may take; None: the worker's own limit
    handler: Callable[..., Any] | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {
            "name": text(self.name, "name", maximum=NAME_LENGTH),
            "queue": text(self.queue, "queue", maximum=QUEUE_LENGTH),
            "priority": integer(self.priority, "priority", minimum=MIN_PRIORITY, maximum=MAX_PRIORITY),
            "max_run": seconds(self.max_run, "max_run", minimum=SHORTEST, allow_none=True),
        }
        if self.max_attempts is not None:
            checked["max_attempts"] = integer(self.max_attempts, "max_attempts", minimum=1, maximum=MAX_ATTEMPTS)
        if self.handler is not None:
            _check_handler(self.handler, checked["name"])
        # String and integer enums, timedeltas: from here on they are plain values.
        for argument, value in checked.items():
            object.__setattr__(self, argument, value)

    def __call__(self, ctx: Any, payload: P) -> Any:
        """What the handler returns; of an async one, something to await."""
        if self.handler is None:
            raise TypeError(f"Task {self.name!r} has no handler here; it is run by another program")
        return self.handler(ctx, payload)

    @property
    def is_async(self) -> bool:
        """Whether the handler is a coroutine function, or an object whose `__call__` is one."""
        handler: Any = self.handler
        while isinstance(handler, partial):
            handler = handler.func
        call_of_object = getattr(type(handler), "__call__", None)  # noqa: B004 - it is looked at, not tested for
        return iscoroutinefunction(handler) or iscoroutinefunction(call_of_object)


class Registry:
    """The handlers that a worker runs, by name."""

    def __init__(self) -> None:
        self._tasks: dict[str, TaskDef[Any, Any]] = {}

    def __iter__(self) -> Iterator[TaskDef[Any, Any]]:
        return iter(self._tasks.values())

    def __len__(self) -> int:
        return len(self._tasks)

    def __contains__(self, name: object) -> bool:
        return name in self._tasks

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._tasks))

    def get(self, name: str) -> TaskDef[Any, Any] | None:
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
    ) -> Decorator: ...

    def task(self, what: Any = None, /, **options: Any) -> Any:
        """Register a handler: `@task`, `@task("name", queue="mail")` or `@task(definition)`.

        Returns its `TaskDef`, which `submit()` takes and which can be called like the handler. Without a name the
        function's own is taken.

        Raises `ValueError` for a name that is taken, or a handler that has none; `TypeError` for a handler that does
        not take `(ctx, payload)`, and for options beside a `TaskDef`, which holds its own.
        """
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

    def _register(self, definition: TaskDef[P, R]) -> TaskDef[P, R]:
        present = self._tasks.get(definition.name)
        if present is not None:
            raise ValueError(
                f"Two handlers are named {definition.name!r}: {_where(present.handler)} and "
                f'{_where(definition.handler)}. Give one of them a name of its own: @task("...")'
            )
        self._tasks[definition.name] = definition
        return definition


if TYPE_CHECKING:
    from typing import Protocol, TypeAlias

    Handler: TypeAlias = Callable[[Any, P], R] | Callable[[Any, P], Awaitable[R]]

    class Decorator(Protocol):
        @overload
        def __call__(self, handler: Callable[[AsyncTaskContext, P], Awaitable[R]], /) -> TaskDef[P, R]: ...
        @overload
        def __call__(self, handler: Callable[[TaskContext, P], R], /) -> TaskDef[P, R]: ...


def _own_name(handler: Any) -> str:
    if not callable(handler):
        raise TypeError(f"A handler is a function that takes (ctx, payload), got {handler!r}")
    name = getattr(handler, "__name__", "<lambda>")
    if name == "<lambda>":
        raise ValueError(f'{handler!r} has no name to register it under; give it one: @task("...")')
    return str(name)


def _check_handler(handler: Any, name: str) -> None:
    if not callable(handler) or isinstance(handler, TaskDef):
        raise TypeError(f"The handler of task {name!r} is to be a function that takes (ctx, payload), got {handler!r}")
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        # Some callables written in C do not say what they take.
        return
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise TypeError(
            f"The handler of task {name!r} is to take (ctx, payload), but {_where(handler)} takes {signature}"
        ) from error


def _where(handler: Any) -> str:
    module, name = getattr(handler, "__module__", None), getattr(handler, "__qualname__", None)
    if not module or not name:
        return repr(handler)
    code = getattr(inspect.unwrap(handler), "__code__", None)
    return f"{module}.{name} (line {code.co_firstlineno})" if code else f"{module}.{name}"


default_registry = Registry()
task = default_registry.task
