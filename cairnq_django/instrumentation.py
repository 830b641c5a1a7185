"""Where tracing and error reporting take part: context managers around each submit and around each call of a handler.

They see the exception that ends what they surround, and cannot hold it back. What they raise is logged. A submit that
rolls back has been surrounded all the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from .models import Task
    from .worker.context import AsyncTaskContext, TaskContext

    #: Takes the rows that are about to be inserted, all with the same metadata, which it may replace.
    AroundSubmit: TypeAlias = Callable[[Sequence[Task]], AbstractContextManager[Any]]
    #: Takes the contexts that the handler gets, and whether it takes batches. Runs in the handler's thread and context.
    AroundCall: TypeAlias = Callable[
        [Sequence[TaskContext] | Sequence[AsyncTaskContext], bool], AbstractContextManager[Any]
    ]

logger = logging.getLogger(__name__)

_around_submits: tuple[Any, ...] = ()
_around_calls: tuple[Any, ...] = ()


def surround(*, submits: AroundSubmit | None = None, calls: AroundCall | None = None) -> Callable[[], None]:
    """Put these context managers around every submit and every call of a handler from now on, inside those there are.

    What is there already stays where it is. Returns a function that takes them away again.
    """
    global _around_submits, _around_calls
    if submits is not None and submits not in _around_submits:
        _around_submits += (submits,)
    if calls is not None and calls not in _around_calls:
        _around_calls += (calls,)

    def undo() -> None:
        global _around_submits, _around_calls
        _around_submits = tuple(each for each in _around_submits if each != submits)
        _around_calls = tuple(each for each in _around_calls if each != calls)

    return undo


def around_submit(rows: Sequence[Task]) -> AbstractContextManager[Any]:
    return _all(_around_submits, rows) if _around_submits else _nothing


def around_call(tasks: Sequence[Any], *, in_batch: bool) -> AbstractContextManager[Any]:
    return _all(_around_calls, tasks, in_batch) if _around_calls else _nothing


@contextmanager
def _all(factories: Sequence[Callable[..., AbstractContextManager[Any]]], *arguments: Any) -> Any:
    with ExitStack() as entered:
        for factory in factories:
            try:
                manager = factory(*arguments)
                manager.__enter__()
            except Exception:
                logger.exception("What was to surround a submit or a call could not begin")
            else:
                entered.push(_Leaving(manager))
        yield


class _Leaving(AbstractContextManager[None]):
    """Leaves `manager`, which has been entered, and lets neither what it raises nor what it holds back count."""

    def __init__(self, manager: AbstractContextManager[Any]) -> None:
        self._manager = manager

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._manager.__exit__(kind, error, trace)
        except Exception as raised:
            if raised is not error:
                logger.exception("What surrounds a submit or a call could not end")


_nothing: AbstractContextManager[None] = nullcontext()
