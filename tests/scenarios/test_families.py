"""Tasks that submit tasks: who is whose child, what they take over, and how they wait for each other."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import transaction

from cairnq_django import AsyncTaskContext, Registry, Task, TaskContext, cancel, get, submit
from cairnq_django.notify import Channel
from tests.factories import a_great_many
from tests.helpers import eventually
from tests.notify.postgres import on_postgresql, subscribed
from tests.workers import PATIENCE, ended, quick, run, running, runs_workers, wait_for

pytestmark = runs_workers


@pytest.fixture
def registry() -> Registry:
    registry = Registry()

    @registry.task
    def add(ctx: TaskContext, payload: list[int]) -> int:
        return sum(payload)

    @registry.task
    def descend(ctx: TaskContext, levels: int) -> None:
        if levels:
            ctx.submit("descend", levels - 1)

    @registry.task
    async def descend_async(ctx: AsyncTaskContext, levels: int) -> None:
        if levels:
            await ctx.submit("descend_async", levels - 1)

    return registry


@pytest.mark.parametrize("name", ["descend", "descend_async"])
def test_children_and_grandchildren_take_over_root_and_correlation_id(registry: Registry, name: str) -> None:
    top = submit(name, 2, correlation_id="order-7")
    run(registry)
    child = Task.objects.get(parent_id=top.pk)
    grandchild = Task.objects.get(parent_id=child.pk)
    assert [task.root_id for task in (top, child, grandchild)] == [top.pk] * 3
    assert [task.correlation_id for task in (top, child, grandchild)] == ["order-7"] * 3
    assert not Task.objects.filter(parent_id=grandchild.pk).exists()


def test_a_child_may_have_a_correlation_id_and_all_else_of_its_own(registry: Registry) -> None:
    @registry.task
    def work(ctx: TaskContext, payload: Any) -> str:
        options = {"correlation_id": "its-own", "queue": "other", "key": "k", "priority": 3, "metadata": {"a": 1}}
        return str(ctx.submit("child", {"x": 1}, **options).pk)

    top = submit(work, correlation_id="order-7", queue="default")
    run(registry)
    child = get(get(top.pk).result)
    assert (child.parent_id, child.root_id) == (top.pk, top.pk)
    assert (child.correlation_id, child.queue, child.key, child.priority) == ("its-own", "other", "k", 3)
    assert (child.payload, child.metadata) == ({"x": 1}, {"a": 1})


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_handler_may_wait_for_its_children(registry: Registry, kind: str) -> None:
    @registry.task("sync")
    def handler(ctx: TaskContext, payload: Any) -> list[int]:
        children = [ctx.submit("add", [number, 1]) for number in range(3)]
        forms = [children[0], children[1].pk, str(children[2].pk)]
        return [ctx.wait(child, timeout=PATIENCE).result for child in forms]

    @registry.task("async")
    async def async_handler(ctx: AsyncTaskContext, payload: Any) -> list[int]:
        children = [await ctx.submit("add", [number, 1]) for number in range(3)]
        forms = [children[0], children[1].pk, str(children[2].pk)]
        return [(await ctx.wait(child, timeout=PATIENCE)).result for child in forms]

    task = submit(kind)
    run(registry, concurrency=2)
    assert get(task.pk).result == [1, 2, 3], get(task.pk).error


def test_waiting_raises_what_wait_raises(registry: Registry) -> None:
    @registry.task(max_attempts=1)
    def work(ctx: TaskContext, payload: Any) -> None:
        ctx.wait(ctx.submit("nobody's"), timeout=0.01)

    task = submit(work)
    run(registry)
    assert get(task.pk).error["type"] == "cairnq_django.errors.TaskTimeout"


def test_a_child_submitted_in_a_transaction_that_rolls_back_never_was(registry: Registry) -> None:
    @registry.task(max_attempts=1)
    def work(ctx: TaskContext, payload: Any) -> None:
        with transaction.atomic():
            ctx.submit("add", [1])
            raise ValueError("rolled back")

    task = submit(work)
    run(registry)
    assert get(task.pk).failed
    assert Task.objects.count() == 1


def test_a_burst_ends_when_the_children_have_ended_too(registry: Registry) -> None:
    submit("descend", 5)
    submit("descend_async", 5)
    quick(registry, poll_interval=60).run(burst=True)
    assert Task.objects.succeeded().count() == 12


def test_a_family_that_is_canceled_stops_wherever_it_has_got_to(registry: Registry, go: threading.Event) -> None:
    @registry.task
    def fan_out(ctx: TaskContext, payload: Any) -> None:
        for number in range(3):
            ctx.submit("wait" if number else "nobody's", number)

    @registry.task
    def wait(ctx: TaskContext, payload: Any) -> str:
        ctx.submit("nobody's")
        wait_for(go)
        return "too late"

    top, other = submit(fan_out), submit("nobody's")
    with quick(registry).background():
        assert ended(top).succeeded
        waiting = list(Task.objects.filter(parent_id=top.pk, name="wait"))
        for task in waiting:
            running(task)
        eventually(lambda: Task.objects.filter(root_id=top.pk, name="nobody's").count() == 3, PATIENCE)
        assert cancel(top.pk, family=True).succeeded
        assert not Task.objects.filter(name="nobody's", root_id=top.pk).queued().exists()
        go.set()
        assert all(ended(task).canceled for task in waiting)
    assert get(other.pk).is_queued


@on_postgresql
def test_who_waits_for_a_member_of_a_family_that_is_canceled_is_woken() -> None:
    top = submit("nobody's")
    child = submit("nobody's", parent=submit("nobody's", parent=top))
    with subscribed(str(child.pk), channel=Channel.ENDED) as hearing:
        cancel(top.pk, family=True)
        hearing.wait()


def test_a_family_of_ten_thousand_is_canceled_at_once() -> None:
    top = submit("nobody's")
    middle = submit("nobody's", parent=top)
    a_great_many(10_000, parent_id=middle.pk, root_id=top.pk)
    assert cancel(middle.pk, family=True).canceled
    assert Task.objects.canceled().count() == 10_001
    assert cancel(top.pk, family=True).canceled
    assert Task.objects.canceled().count() == 10_002
