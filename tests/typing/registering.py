"""What `@task` makes of a handler."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from typing_extensions import assert_type

from cairnq_django import AsyncTaskContext, Registry, TaskContext, TaskDef, Worker, task


@task
def double(ctx: TaskContext, payload: int) -> int:
    assert_type(ctx.canceled(), bool)
    return payload * 2


@task
async def double_async(ctx: AsyncTaskContext, payload: int) -> int:
    assert_type(await ctx.canceled(), bool)
    return payload * 2


@task("shop.ship", queue="parcels", max_run=timedelta(minutes=5))
def ship(ctx: TaskContext, payload: dict[str, str]) -> list[str]:
    return list(payload)


@task(queue="parcels")
async def ship_async(ctx: AsyncTaskContext, payload: dict[str, str]) -> None: ...


@task
def anything(ctx: Any, payload: Any) -> None: ...


@task(batch=256, resource="gpu", concurrency=1)
def embed(items: list[TaskContext]) -> dict[UUID, list[float]]:
    return {item.task_id: [len(item.payload)] for item in items}


@task("shop.embed", batch=256)
async def embed_async(items: list[AsyncTaskContext]) -> None:
    for item in items:
        await item.succeed([0.5])


@task(atomic=True)
def count(ctx: TaskContext, payload: int) -> None:
    with ctx.atomic():
        ctx.succeed(payload)


assert_type(double, TaskDef[int, int])
assert_type(double_async, TaskDef[int, int])
assert_type(ship, TaskDef[dict[str, str], list[str]])
assert_type(ship_async, TaskDef[dict[str, str], None])
assert_type(anything, TaskDef[Any, None])
assert_type(double.name, str)
assert_type(embed, TaskDef[Any, Any])
assert_type(embed_async, TaskDef[Any, Any])


# A definition of its own: its handler has to fit.

contract: TaskDef[int, str] = TaskDef("shop.label", queue="labels")


@task(contract)
def label(ctx: TaskContext, payload: int) -> str:
    return str(payload)


@task(contract)
async def label_async(ctx: AsyncTaskContext, payload: int) -> str:
    return str(payload)


@task(contract)
def label_of_more(ctx: TaskContext, payload: int | None) -> str:
    return str(payload)


@task(contract)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
def label_of_text(ctx: TaskContext, payload: str) -> str:
    return payload


@task(contract)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
def label_in_bytes(ctx: TaskContext, payload: int) -> bytes:
    return bytes(payload)


assert_type(label, TaskDef[int, str])
assert_type(label_async, TaskDef[int, str])


# Any registry's decorator, and a worker's, is the same.

registry = Registry()
assert_type(registry.task(double.__call__), TaskDef[int, Any])
assert_type(registry.get("double"), TaskDef[Any, Any] | None)
worker = Worker(registry=registry)


@worker.task("whole", queue="parcels", aliases=["half"])
async def whole(ctx: AsyncTaskContext, payload: float) -> int:
    return round(payload)


@worker.task(batch=2, aliases=["sum"])
def total(items: list[TaskContext]) -> None: ...


@worker.task
def halve(ctx: TaskContext, payload: int) -> float:
    return payload / 2


assert_type(halve, TaskDef[int, float])
assert_type(whole, TaskDef[float, int])
assert_type(total, TaskDef[Any, Any])


# What takes more may stand for what takes less, and what gives less for what gives more.

narrow: TaskDef[bool, float | None] = halve
wide: TaskDef[int | str, float] = halve  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
assert_type(halve.aliases, Sequence[str])


# Called as in a unit test; an async handler is to be awaited.


async def call_handlers(ctx: Any) -> None:
    double(ctx, 21)
    double(ctx, "21")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
    embed([ctx, ctx])
    await double_async(ctx, 21)


# By itself, at its times.


@task(cron="0 3 * * *", timezone="Europe/Berlin", missed="none")
def report(ctx: TaskContext, payload: None) -> int:
    return 1


@task(every=timedelta(minutes=1), overlap="allow")
async def poll(ctx: AsyncTaskContext, payload: None) -> None: ...


assert_type(report, TaskDef[None, int])
assert_type(poll, TaskDef[None, None])


# Refused.


@task(every=60, missed="twice")  # type: ignore[call-overload, untyped-decorator]  # pyright: ignore[reportArgumentType]
def with_a_rule_that_there_is_not(ctx: TaskContext, payload: None) -> None: ...


@task  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue, reportUntypedFunctionDecorator]
def without_a_payload(ctx: TaskContext) -> None: ...


@task(batch=2)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue, reportUntypedFunctionDecorator]
def of_a_batch_with_a_payload(ctx: TaskContext, payload: int) -> None: ...


@task(retries=3)  # type: ignore[call-overload, untyped-decorator]  # pyright: ignore[reportCallIssue, reportUntypedFunctionDecorator]
def with_an_unknown_option(ctx: TaskContext, payload: int) -> None: ...


task(contract, queue="mail")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
