"""What callers pass in and get back."""

from __future__ import annotations

from datetime import timedelta
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


elsewhere: TaskDef[Any, bytes] = TaskDef("elsewhere")


def callers() -> None:
    assert_type(submit(count, {"apples": 3}), Task)
    assert_type(submit(tick), Task)
    assert_type(submit_on_commit(count, {"apples": 3}, using="shop", delay=5), UUID)
    assert_type(submit("by.name", {"anything": [1, "2"]}), Task)
    assert_type(submit(elsewhere, object()), Task)
    assert_type(submit(ship, Order(number=7), key="ship:7", conflict="replace", delay=timedelta(hours=1)), Task)
    assert_type(submit(tick, parent=get("..."), run_at=None, expires=timedelta(hours=2)), Task)
    assert_type(submit(tick, max_queue_depth=100, max_queue_wait=timedelta(seconds=5)), Task)

    submit(count, {"apples": "three"})  # type: ignore[misc]
    submit(ship, "7")  # type: ignore[misc]
    submit(7)  # type: ignore[arg-type]
    submit(tick, conflict="ignore")  # type: ignore[arg-type]
    submit(tick, delay="5")  # type: ignore[arg-type]
    submit(tick, max_queue_depth={"default": 100})  # type: ignore[arg-type]
    submit(tick, expires="5")  # type: ignore[arg-type]
    submit(tick, retries=3)  # type: ignore[call-arg]

    assert_type(submit_many(count, [{"apples": 3}], key=lambda payload: f"k:{payload['apples']}"), list[Task])
    assert_type(submit_many("by.name", range(3), key=str), list[Task])
    submit_many(count, [{"apples": "three"}])  # type: ignore[misc]
    submit_many(tick, 7)  # type: ignore[arg-type]

    assert_type(call(count, {"apples": 3}), int)
    assert_type(call(ship, Order(number=7), timeout=5, queue="bulk", max_queue_wait=0), str)
    assert_type(call(elsewhere), bytes)
    assert_type(call("by.name", {"anything": 1}, timeout=timedelta(seconds=5)), Any)
    call(count, {"apples": "three"})  # type: ignore[misc]
    call(count, retries=3)  # type: ignore[call-overload]
    call(count, priority="high")  # type: ignore[call-overload]

    row = get("0199...")
    assert_type(row, Task)
    assert_type(wait(row.id, timeout=5), Task)
    assert_type(wait(row), Task)
    assert_type(retry(cancel(str(row.id))), Task)
    assert_type(row.id, UUID)
    assert_type(row.succeeded, bool)
    assert_type(row.cancel().refresh(), Task)
    assert_type(cancel(row, family=True), Task)
    assert_type(queue_depth("default", 100), int)
    assert_type(stats()["default"].queued, int)
    get(7)  # type: ignore[arg-type]


async def async_callers() -> None:
    assert_type(await asubmit(count, {"apples": 3}), Task)
    assert_type(await asubmit_many(count, [{"apples": 3}], delay=5), list[Task])
    await asubmit(count, {"apples": "three"})  # type: ignore[misc]
    await asubmit_many(tick, [None], max_queue_wait="5")  # type: ignore[arg-type]
    await asubmit(tick, retries=3)  # type: ignore[call-arg]
    assert_type(await acall(count, {"apples": 3}), int)
    assert_type(await acall("by.name"), Any)
    row = await aget("0199...")
    assert_type(row, Task)
    assert_type(await await_(row.id), Task)
    assert_type(await row.acancel(family=True), Task)


cairnq_django.sumbit  # type: ignore[attr-defined] # noqa: B018
