"""What callers pass in and get back."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, TypedDict
from uuid import UUID

from typing_extensions import assert_type

import cairnq_django
from cairnq_django import (
    AsyncTaskContext,
    Task,
    TaskContext,
    TaskDef,
    acall,
    aget,
    asubmit,
    asubmit_many,
    asubmit_on_commit,
    await_,
    call,
    cancel,
    get,
    queue_depth,
    retry,
    stats,
    submit,
    submit_many,
    submit_on_commit,
    task,
    wait,
)


class Order(TypedDict):
    number: int


@task
def count(ctx: TaskContext, payload: dict[str, int]) -> int:
    return sum(payload.values())


@task
async def ship(ctx: AsyncTaskContext, payload: Order) -> str:
    return str(payload["number"])


@task
def tick(ctx: TaskContext, payload: None) -> None: ...


@task
def ship_any(ctx: TaskContext, payload: Order | None) -> bool:
    assert_type(ctx.submit(count, {"apples": 3}, key="count", delay=5), Task)
    assert_type(ctx.submit(tick), Task)
    assert_type(ctx.submit("by.name", [1, "2"]), Task)
    assert_type(ctx.wait(ctx.task_id, timeout=timedelta(seconds=5)), Task)
    ctx.submit(count, {"apples": "three"})  # type: ignore[misc]  # pyright: ignore[reportArgumentType, reportCallIssue]
    ctx.submit(count)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]
    ctx.submit(tick, parent=ctx.task_id)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    return payload is None


@task
async def ship_later(ctx: AsyncTaskContext, payload: Order) -> None:
    assert_type(await ctx.submit(ship_any, payload, run_at=None), Task)
    assert_type(await ctx.submit(ship_any), Task)
    assert_type(await ctx.wait(await ctx.submit(tick)), Task)
    await ctx.submit(count, payload)  # type: ignore[misc]  # pyright: ignore[reportArgumentType, reportCallIssue]


elsewhere: TaskDef[Any, bytes] = TaskDef("elsewhere")


def callers() -> None:
    assert_type(submit(count, {"apples": 3}), Task)
    assert_type(submit(tick), Task)
    assert_type(submit_on_commit(count, {"apples": 3}, using="shop", delay=5), UUID)
    assert_type(submit_on_commit(tick, using="shop"), UUID)
    assert_type(submit_on_commit("by.name"), UUID)
    submit_on_commit(count)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert_type(submit("by.name", {"anything": [1, "2"]}), Task)
    assert_type(submit(elsewhere, object()), Task)
    assert_type(submit(ship, Order(number=7), key="ship:7", conflict="replace", delay=timedelta(hours=1)), Task)
    assert_type(submit(tick, parent=get("..."), run_at=None, expires=timedelta(hours=2)), Task)
    assert_type(submit(tick, max_queue_depth=100, max_queue_wait=timedelta(seconds=5)), Task)

    # A dictionary that is written out, mypy does not take for a TypedDict here.
    submit(ship, {"number": 7})  # type: ignore[misc]
    submit(ship, {"nummer": 7})  # type: ignore[misc]  # pyright: ignore[reportArgumentType, reportCallIssue]
    submit(ship)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]
    submit(ship, None)  # type: ignore[misc]  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert_type(submit(ship_any), Task)
    assert_type(submit(ship_any, None), Task)
    assert_type(submit(ship_any, Order(number=7)), Task)
    submit(tick, 7)  # type: ignore[misc]  # pyright: ignore[reportArgumentType, reportCallIssue]

    submit(count, {"apples": "three"})  # type: ignore[misc]  # pyright: ignore[reportArgumentType, reportCallIssue]
    submit(ship, "7")  # type: ignore[misc]  # pyright: ignore[reportArgumentType, reportCallIssue]
    submit(7)  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    submit(tick, conflict="ignore")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    submit(tick, delay="5")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    submit(tick, max_queue_depth={"default": 100})  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    submit(tick, expires="5")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
    submit(tick, retries=3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]

    assert_type(submit_many(count, [{"apples": 3}], key=lambda payload: f"k:{payload['apples']}"), list[Task])
    assert_type(submit_many("by.name", range(3), key=str), list[Task])
    submit_many(count, [{"apples": "three"}])  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
    submit_many(tick, 7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

    assert_type(call(count, {"apples": 3}), int)
    assert_type(call(ship, Order(number=7), timeout=5, queue="bulk", max_queue_wait=0), str)
    assert_type(call(elsewhere), bytes)
    assert_type(call(ship_any, timeout=5), bool)
    assert_type(call(tick), None)
    call(count)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert_type(call("by.name", {"anything": 1}, timeout=timedelta(seconds=5)), Any)
    call(count, {"apples": "three"})  # type: ignore[misc]  # pyright: ignore[reportArgumentType, reportCallIssue]
    call(count, retries=3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    call(count, priority="high")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]

    row = get("0199...")
    assert_type(row, Task)
    assert_type(wait(row.id, timeout=5), Task)
    assert_type(wait(row), Task)
    assert_type(retry(cancel(str(row.id))), Task)
    assert_type(row.id, UUID)
    assert_type(row.name, str)
    assert_type(row.key, str | None)
    assert_type(row.run_at, datetime)
    assert_type(row.succeeded, bool)
    assert_type(row.cancel().refresh(), Task)
    assert_type(cancel(row, family=True), Task)
    assert_type(queue_depth("default", 100), int)
    assert_type(stats()["default"].queued, int)
    get(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def async_callers() -> None:
    assert_type(await asubmit(count, {"apples": 3}), Task)
    assert_type(await asubmit_many(count, [{"apples": 3}], delay=5), list[Task])
    await asubmit(count, {"apples": "three"})  # type: ignore[misc]  # pyright: ignore[reportArgumentType, reportCallIssue]
    await asubmit_many(tick, [None], max_queue_wait="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await asubmit(tick, retries=3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    assert_type(await asubmit(tick, key="tick"), Task)
    await asubmit(ship)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert_type(await acall(count, {"apples": 3}), int)
    assert_type(await acall(ship_any, Order(number=7)), bool)
    await acall(count, {"apples": "three"})  # type: ignore[misc]  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert_type(await acall("by.name"), Any)
    assert_type(await asubmit_on_commit(tick), UUID)
    await asubmit_on_commit(count)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue]
    row = await aget("0199...")
    assert_type(row, Task)
    assert_type(await await_(row.id), Task)
    assert_type(await row.acancel(family=True), Task)


cairnq_django.sumbit  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType] # noqa: B018
