"""`max_in_flight_bytes` bounds the payloads of running calls; one that is larger by itself runs alone."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection

from cairnq_django import Registry, Task, TaskContext, get, submit, submit_many
from tests.workers import ended, quick, run, running, runs_workers, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = runs_workers


class InFlight:
    """The bytes of payloads that handlers hold at the same time, by their own account."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.now: list[int] = []
        self.most = 0
        self.beside: dict[int, int] = {}  # the most that was held beside a payload of this size

    @contextmanager
    def holding(self, size: int) -> Iterator[None]:
        with self._lock:
            self.now.append(size)
            self.most = max(self.most, sum(self.now))
            for held in self.now:
                self.beside[held] = max(self.beside.get(held, 0), sum(self.now) - held)
        try:
            yield
        finally:
            with self._lock:
                self.now.remove(size)


def holding(in_flight: InFlight, together: threading.Event | None = None, **options: Any) -> Registry:
    registry = Registry()

    @registry.task(**options)
    def hold(ctx: TaskContext, payload: str) -> None:
        with in_flight.holding(len(payload)):
            if together is not None:
                together.wait(0.05)

    return registry


KB = 1000


def test_payloads_in_flight_stay_below_the_budget() -> None:
    in_flight = InFlight()
    submit_many("hold", ["x" * 100 * KB] * 20)

    run(holding(in_flight, threading.Event()), concurrency=8, max_in_flight_bytes=350 * KB)

    assert Task.objects.succeeded().count() == 20
    assert in_flight.most == 300 * KB


def test_a_payload_above_the_whole_budget_runs_alone_and_in_its_turn() -> None:
    in_flight = InFlight()
    submit_many("hold", ["x" * 100 * KB] * 6, priority=2)
    submit("hold", "x" * 500 * KB, priority=1)
    submit_many("hold", ["x" * 100 * KB] * 6)

    run(holding(in_flight, threading.Event()), concurrency=8, max_in_flight_bytes=350 * KB)

    assert Task.objects.succeeded().count() == 13
    assert in_flight.beside[500 * KB] == 0
    assert in_flight.most == 500 * KB


def test_small_payloads_of_other_names_do_not_get_past_a_large_one_for_ever(go: threading.Event) -> None:
    registry = Registry()
    order: list[str] = []

    @registry.task(concurrency=4)
    def small(ctx: TaskContext, payload: str) -> None:
        order.append("small")

    @registry.task(concurrency=1)
    def large(ctx: TaskContext, payload: str) -> None:
        order.append("large")

    submit_many("small", ["x" * 100 * KB] * 100)
    submit("large", "x" * 500 * KB)
    run(registry, concurrency=4, max_in_flight_bytes=350 * KB)

    assert Task.objects.succeeded().count() == 101
    assert order.index("large") < 30


def test_a_batch_is_cut_to_what_fits() -> None:
    registry = Registry()
    sizes: list[int] = []

    @registry.task(batch=100)
    def embed(items: list[TaskContext]) -> None:
        sizes.append(len(items))

    submit_many("embed", ["x" * 100 * KB] * 7)
    run(registry, concurrency=1, max_in_flight_bytes=350 * KB)

    assert sizes == [3, 3, 1]


def test_what_does_not_fit_stays_queued_until_a_call_gives_back_its_bytes(go: threading.Event) -> None:
    registry = Registry()

    @registry.task
    def hold(ctx: TaskContext, payload: str) -> None:
        wait_for(go)

    first, second = submit_many("hold", ["x" * 200 * KB, "y" * 200 * KB])
    with quick(registry, max_in_flight_bytes=350 * KB).background():
        running(first)
        third = submit("hold", "small")
        assert get(second.pk).is_queued
        go.set()
        assert ended(second).succeeded
        assert ended(third).succeeded


def test_a_call_that_ends_makes_room_at_once_however_rarely_the_worker_polls() -> None:
    in_flight = InFlight()
    tasks = submit_many("hold", ["x" * 200 * KB] * 6)

    with quick(holding(in_flight), max_in_flight_bytes=350 * KB, poll_interval=3600).background():
        assert all(ended(task).succeeded for task in tasks)
    assert in_flight.most == 200 * KB


def test_what_abandoned_handlers_hold_counts_but_never_blocks(go: threading.Event) -> None:
    registry = Registry()
    in_flight = InFlight()

    @registry.task(max_run=0.1, max_attempts=1)
    def hang(ctx: TaskContext, payload: str) -> None:
        wait_for(go)

    @registry.task
    def hold(ctx: TaskContext, payload: str) -> None:
        with in_flight.holding(len(payload)):
            go.wait(0.02)

    hanging = submit(hang, "x" * 300 * KB)
    with quick(registry, max_in_flight_bytes=350 * KB).background():
        assert ended(hanging).failed
        tasks = submit_many("hold", ["x" * 100 * KB] * 5)
        assert all(ended(task).succeeded for task in tasks)
    assert in_flight.most == 100 * KB


def test_handlers_get_the_payloads_that_were_submitted() -> None:
    registry = Registry()

    @registry.task
    def echo(ctx: TaskContext, payload: Any) -> Any:
        return payload

    payloads: list[Any] = [None, 0, "", "text", [1, 2], {"a": {"b": None}}, "ä" * 50]
    tasks = submit_many("echo", payloads)
    run(registry, max_in_flight_bytes=KB)

    assert [get(task.pk).result for task in tasks] == payloads


@pytest.mark.parametrize("limit", [None, KB])
def test_sizes_are_measured_only_where_there_is_a_limit(limit: int | None) -> None:
    registry = Registry()
    registry.task("work")(lambda ctx, payload: None)
    submit("work", "x")

    sent: list[str] = []

    def note(execute: Any, sql: str, *arguments: Any) -> Any:
        sent.append(sql.upper())
        return execute(sql, *arguments)

    with connection.execute_wrapper(note):
        run(registry, max_in_flight_bytes=limit)

    assert any("LENGTH" in sql for sql in sent) is (limit is not None)
    assert Task.objects.succeeded().count() == 1
