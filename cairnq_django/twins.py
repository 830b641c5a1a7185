"""Async twins of the functions that touch the database."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from asgiref.sync import sync_to_async

P = ParamSpec("P")
R = TypeVar("R")


def twin(function: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    """The same for async callers, on the thread that Django keeps their database connections in."""

    @wraps(function)
    async def awaitable(*args: P.args, **kwargs: P.kwargs) -> R:
        return await sync_to_async(function)(*args, **kwargs)

    awaitable.__name__ = awaitable.__qualname__ = f"a{function.__name__}"
    awaitable.__doc__ = f"As `{function.__name__}()`, for async callers."
    return awaitable
