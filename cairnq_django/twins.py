"""Async twins of the functions that touch the database."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

from asgiref.sync import sync_to_async

P = ParamSpec("P")
R = TypeVar("R")


def twin(function: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    """The same for async callers, on the thread that Django keeps their database connections in."""

    @twin_of(function)
    async def awaitable(*args: Any, **kwargs: Any) -> R:
        return await sync_to_async(function)(*args, **kwargs)

    return awaitable


def twin_of(
    function: Callable[P, R],
) -> Callable[[Callable[..., Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R]]]:
    """Make what is decorated the twin of `function`: it takes the same, and bears its name with an "a" before it."""
    takes = signature(function)

    def decorate(awaitable: Callable[..., Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        @wraps(function)
        async def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            takes.bind(*args, **kwargs)
            return await awaitable(*args, **kwargs)

        checked.__name__ = checked.__qualname__ = f"a{function.__name__}"
        checked.__doc__ = f"As `{function.__name__}()`, for async callers."
        return checked

    return decorate
