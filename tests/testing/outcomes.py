"""Handlers that end in every way there is, what becomes of their tasks, and a check that it did."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.db.models import F

from cairnq_django import (
    AsyncTaskContext,
    Registry,
    Snooze,
    Task,
    TaskContext,
    TaskError,
    acancel,
    cancel,
    submit,
    submit_many,
)
from cairnq_django.clock import after
from cairnq_django.signals import (
    task_canceled,
    task_failed,
    task_retried,
    task_started,
    task_submitted,
    task_succeeded,
)
from tests.app.models import Counter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from django.dispatch import Signal

registry = Registry()


def count(name: str) -> None:
    Counter.objects.filter(name=name).update(value=F("value") + 1)


@registry.task
def returns(ctx: TaskContext, payload: Any) -> Any:
    return {"payload": payload, "metadata": ctx.metadata, "attempt": ctx.attempt}


@registry.task
def returns_what_is_no_json(ctx: TaskContext, payload: Any) -> Any:
    return {"when": object()}


@registry.task(max_attempts=2)
def raises(ctx: TaskContext, payload: Any) -> None:
    count("raises")
    raise ValueError(payload)


@registry.task
def gives_up(ctx: TaskContext, payload: Any) -> None:
    raise TaskError("no such order", code="no_such_order", retryable=False, details={"order": payload})


@registry.task
def succeeds_the_second_time(ctx: TaskContext, payload: Any) -> int:
    if ctx.attempt == 1:
        ctx.progress(0.9, "nearly")
        raise TimeoutError("try again")
    return ctx.attempt


@registry.task
def snoozes(ctx: TaskContext, payload: Any) -> None:
    raise Snooze(3600)


@registry.task(batch=3)
def handles_a_batch(items: list[TaskContext]) -> Any:
    first, second, third = items
    second.fail("not this one", code="refused", retryable=False)
    return {first.task_id: len(items), third.task_id: third.payload}


@registry.task(atomic=True)
def writes_and_returns(ctx: TaskContext, payload: Any) -> str:
    count("writes_and_returns")
    transaction.on_commit(lambda: count("committed"))
    return "written"


@registry.task(atomic=True, max_attempts=1)
def writes_and_raises(ctx: TaskContext, payload: Any) -> None:
    count("writes_and_raises")
    transaction.on_commit(lambda: count("committed"))
    raise ValueError("no")


@registry.task(max_attempts=1)
def breaks_a_rule_of_the_database(ctx: TaskContext, payload: Any) -> None:
    Counter.objects.create(name="raises")


@registry.task
def is_canceled_meanwhile(ctx: TaskContext, payload: Any) -> str:
    cancel(ctx.task_id)
    return "too late"


@registry.task(atomic=True)
def is_canceled_by_its_own_transaction(ctx: TaskContext, payload: Any) -> None:
    count("writes_and_raises")
    cancel(ctx.task_id)


@registry.task
def cancels_another(ctx: TaskContext, payload: Any) -> None:
    cancel(submit("returns", "never", delay=3600, parent=ctx.task_id).pk)


@registry.task
def waits_for_its_child(ctx: TaskContext, payload: Any) -> Any:
    child = ctx.wait(ctx.submit("returns", payload, priority=1), timeout=20)
    return {"child": child.result, "is_child": child.parent_id == ctx.task_id}


@registry.task
def shows_progress(ctx: TaskContext, payload: Any) -> str:
    ctx.progress(0.25, "a quarter")
    ctx.heartbeat()
    return Task.objects.get(pk=ctx.task_id).message


@registry.task
def settles_early(ctx: TaskContext, payload: Any) -> None:
    ctx.succeed("early")
    assert ctx.settled
    raise ValueError("after that")


@registry.task
def settles_with_its_writes(ctx: TaskContext, payload: Any) -> None:
    with ctx.atomic():
        count("settles_with_its_writes")
        ctx.succeed("with them")


@registry.task
def opens_transactions(ctx: TaskContext, payload: Any) -> None:
    with transaction.atomic(durable=True):
        count("opens_transactions")
        transaction.on_commit(lambda: ctx.submit("returns", "from on_commit"))


@registry.task
def leaves_a_transaction_open(ctx: TaskContext, payload: Any) -> None:
    transaction.atomic().__enter__()
    count("writes_and_raises")


@registry.task
async def awaits(ctx: AsyncTaskContext, payload: Any) -> Any:
    await ctx.progress(0.5, "half")
    await Counter.objects.filter(name="awaits").aupdate(value=F("value") + 1)
    child = await ctx.wait(await ctx.submit("returns", payload, priority=1), timeout=20)
    return child.result["payload"]


@registry.task(max_attempts=1)
async def awaits_and_raises(ctx: AsyncTaskContext, payload: Any) -> None:
    await ctx.progress(0.5, "half")
    raise ValueError("no")


@registry.task
async def is_canceled_while_it_awaits(ctx: AsyncTaskContext, payload: Any) -> None:
    await acancel(ctx.task_id)


PAYLOADS = {
    "returns": {"order": (7, None)},
    "raises": "bad",
    "gives_up": 7,
    "waits_for_its_child": "child",
    "awaits": "child of an async one",
}

SUCCEEDED, FAILED, CANCELED, QUEUED = "succeeded", "failed", "canceled", "queued"
TOLD = {
    task_submitted: "submitted",
    task_started: "started",
    task_succeeded: "succeeded",
    task_retried: "retried",
    task_failed: "failed",
    task_canceled: "canceled",
}
PLAIN = {"metadata": {}, "attempt": 1}

#: How each task ends: status, attempt, result, code of its error, and the outcomes of its attempts that failed.
ENDS: dict[str, list[tuple[Any, ...]]] = {
    "returns": [
        (SUCCEEDED, 1, {"payload": {"order": [7, None]}, **PLAIN}, None, []),
        (SUCCEEDED, 1, {"payload": "child", **PLAIN}, None, []),
        (SUCCEEDED, 1, {"payload": "child of an async one", **PLAIN}, None, []),
        (SUCCEEDED, 1, {"payload": "from on_commit", **PLAIN}, None, []),
        (CANCELED, 0, None, None, []),
    ],
    "returns_what_is_no_json": [(FAILED, 1, None, "unserializable_result", ["failed"])],
    "raises": [(FAILED, 2, None, "unexpected_exception", ["retried", "failed"])],
    "gives_up": [(FAILED, 1, None, "no_such_order", ["failed"])],
    "succeeds_the_second_time": [(SUCCEEDED, 2, 2, None, ["retried"])],
    "snoozes": [(QUEUED, 0, None, None, [])],
    "handles_a_batch": [
        (SUCCEEDED, 1, 3, None, []),
        (FAILED, 1, None, "refused", ["failed"]),
        (SUCCEEDED, 1, "third", None, []),
    ],
    "writes_and_returns": [(SUCCEEDED, 1, "written", None, [])],
    "writes_and_raises": [(FAILED, 1, None, "unexpected_exception", ["failed"])],
    "breaks_a_rule_of_the_database": [(FAILED, 1, None, "unexpected_exception", ["failed"])],
    "is_canceled_meanwhile": [(CANCELED, 1, None, None, ["canceled"])],
    "is_canceled_by_its_own_transaction": [(FAILED, 1, None, "canceled_by_itself", ["failed"])],
    "cancels_another": [(SUCCEEDED, 1, None, None, [])],
    "waits_for_its_child": [(SUCCEEDED, 1, {"child": {"payload": "child", **PLAIN}, "is_child": True}, None, [])],
    "shows_progress": [(SUCCEEDED, 1, "a quarter", None, [])],
    "settles_early": [(SUCCEEDED, 1, "early", None, [])],
    "settles_with_its_writes": [(SUCCEEDED, 1, "with them", None, [])],
    "opens_transactions": [(SUCCEEDED, 1, None, None, [])],
    "leaves_a_transaction_open": [(SUCCEEDED, 1, None, None, [])],
    "awaits": [(SUCCEEDED, 1, "child of an async one", None, [])],
    "awaits_and_raises": [(FAILED, 1, None, "unexpected_exception", ["failed"])],
    "is_canceled_while_it_awaits": [(CANCELED, 1, None, None, ["canceled"])],
}
PROGRESS = {"shows_progress": (0.25, "a quarter"), "awaits": (0.5, "half"), "awaits_and_raises": (0.5, "half")}
COUNTS = {
    "raises": 2,
    "writes_and_returns": 1,
    "committed": 1,
    "writes_and_raises": 0,
    "settles_with_its_writes": 1,
    "opens_transactions": 1,
    "awaits": 1,
}


def _told(status: str, attempt: int, result: Any, code: str | None, outcomes: list[str]) -> list[str]:
    ended = [status] if status != QUEUED else []
    return ["submitted", *["started"] * attempt, *["retried"] * outcomes.count("retried"), *ended]


#: Which signals are sent of the tasks of each name, sorted.
SIGNALS = {name: sorted(signal for end in ends for signal in _told(*end)) for name, ends in ENDS.items()}
SIGNALS["snoozes"] = ["started", "submitted"]


def submit_one_of_each() -> None:
    Counter.objects.bulk_create([Counter(name=name) for name in COUNTS])
    for definition in registry:
        if definition.batch is None:
            submit(definition, PAYLOADS.get(definition.name))
    submit_many("handles_a_batch", ["first", "second", "third"], queue="batches")


def ends() -> dict[str, list[tuple[Any, ...]]]:
    """How each task has ended, in the form of `ENDS`, those of a name in the order of their results."""
    found: dict[str, list[tuple[Any, ...]]] = {}
    for task in Task.objects.order_by("created_at", "pk"):
        outcomes = [attempt.outcome for attempt in task.attempts.order_by("number")]
        code = task.error["code"] if task.error else None
        found.setdefault(task.name, []).append((task.status, task.attempt, task.result, code, outcomes))
    # Children are submitted in the order that their parents happen to run in.
    found["returns"].sort(key=lambda end: ENDS["returns"].index(end) if end in ENDS["returns"] else -1)
    return found


def progress() -> dict[str, tuple[Any, str]]:
    rows = Task.objects.exclude(progress=None).values_list("name", "progress", "message")
    return {name: (value, message) for name, value, message in rows}


def counts() -> dict[str, int]:
    return dict(Counter.objects.values_list("name", "value"))


def is_put_off(name: str) -> bool:
    later: datetime | Any = after(3000)
    return Task.objects.filter(name=name, run_at__gt=later).exists()


@contextmanager
def signals() -> Iterator[dict[str, list[str]]]:
    """Collect which signals are sent while the context lasts, by the names of their tasks, in the form of `SIGNALS`."""
    heard: dict[str, list[str]] = {}

    def receive(signal: Signal, task: Task, **facts: Any) -> None:
        heard.setdefault(task.name, []).append(TOLD[signal])
        heard[task.name].sort()

    for signal in TOLD:
        signal.connect(receive)
    try:
        yield heard
    finally:
        for signal in TOLD:
            signal.disconnect(receive)
