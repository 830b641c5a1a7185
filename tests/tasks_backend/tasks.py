"""One tasks file, as a project would have it: nothing in it knows which backend runs it."""

from __future__ import annotations

from typing import Any

import django

from cairnq_django import current_task
from tests.app.models import Counter

if django.VERSION >= (6, 0):
    from django.tasks import TaskContext, task
else:
    from django_tasks import TaskContext, task


class Refused(Exception):
    """What a task of this file may raise."""


@task
def add(a: int, b: int = 0) -> int:
    return a + b


@task()
async def add_async(a: int, b: int = 0) -> int:
    return a + b


@task
def echo(*args: Any, **kwargs: Any) -> Any:
    return {"args": args, "kwargs": kwargs}


@task
def count(name: str) -> None:
    Counter.objects.create(name=name, value=1)


@task
async def count_async(name: str) -> None:
    await Counter.objects.acreate(name=name, value=1)


@task
def refuse(why: str) -> None:
    raise Refused(why)


@task
async def refuse_async(why: str) -> None:
    raise Refused(why)


@task
def divide(a: int, b: int) -> float:
    return a / b


@task
def leave() -> None:
    raise SystemExit("left")


@task
def interrupt() -> None:
    raise KeyboardInterrupt


@task
def return_a_function() -> Any:
    return add


@task
def return_bytes() -> Any:
    return (b"bytes", {"in": ("a", "tuple")})


@task
def fails_within() -> None:
    try:
        raise KeyError("inner")
    except KeyError as error:
        raise Refused("outer") from error


@task(takes_context=True)
def tell_id(context: TaskContext) -> str:
    return context.task_result.id


@task(takes_context=True)
def tell_context(context: TaskContext, extra: str) -> dict[str, Any]:
    result = context.task_result
    return {
        "attempt": context.attempt,
        "status": result.status,
        "args": result.args,
        "workers": len(result.worker_ids),
        "errors": [error.exception_class_path for error in result.errors],
        "backend": result.backend,
    }


@task(takes_context=True)
async def tell_context_async(context: TaskContext, extra: str) -> dict[str, Any]:
    result = context.task_result
    return {"attempt": context.attempt, "status": result.status, "args": result.args}


@task
def show_progress() -> bool:
    ctx: Any = current_task()
    ctx.progress(0.5, "half")
    return bool(ctx.canceled())


@task
async def show_progress_async() -> bool:
    ctx: Any = current_task()
    await ctx.progress(0.5, "half")
    return bool(await ctx.canceled())


@task(takes_context=True)
def fail_until(context: TaskContext, attempt: int) -> dict[str, Any]:
    result = context.task_result
    if context.attempt < attempt:
        raise Refused(f"attempt {context.attempt}")
    return {"attempt": context.attempt, "errors": [error.exception_class_path for error in result.errors]}
