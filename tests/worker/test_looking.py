"""A worker that does not poll for minutes finds all that it was told of, and what is beside that."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from django.db import DEFAULT_DB_ALIAS as DB

from cairnq_django import Registry, Task, Worker, submit
from cairnq_django.store import maintenance, settle
from cairnq_django.store.claim import Drawn, claim
from cairnq_django.store.look import look
from cairnq_django.worker.agenda import Agenda, Load
from cairnq_django.worker.lookahead import Lookahead
from cairnq_django.worker.loop import RETRY_PAUSE
from tests.factories import TaskFactory
from tests.helpers import eventually
from tests.workers import PATIENCE, database_refusing, ended, reports, running, runs_workers

if TYPE_CHECKING:
    from cairnq_django.worker.budgets import Plan

pytestmark = runs_workers

NEVER = 600.0  # seconds: a poll that no test waits for


class Turnstile:
    """Lets one handler after the other through."""

    def __init__(self) -> None:
        self._free = threading.Semaphore(0)

    def __call__(self, ctx: Any, payload: Any) -> None:
        assert self._free.acquire(timeout=PATIENCE)

    def let(self, handlers: int) -> None:
        self._free.release(handlers)


def test_a_wake_up_that_comes_while_other_tasks_are_being_claimed_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    registry, turnstile = Registry(), Turnstile()
    registry.task("one_by_one", concurrency=1)(turnstile)
    registry.task("free")(lambda ctx, payload: payload)
    plan = Agenda.plan
    late: list[Task] = []

    def plan_and_be_woken(self: Agenda, *args: Any, **options: Any) -> Plan:
        planned = plan(self, *args, **options)
        if armed.is_set() and [group.names for group in planned.drawing] == [("one_by_one",)]:
            armed.clear()
            late.append(TaskFactory(name="free"))
            worker._inbox.wake()
        return planned

    armed = threading.Event()
    monkeypatch.setattr(Agenda, "plan", plan_and_be_woken)
    first, *others = [submit("one_by_one") for _ in range(100)]
    worker = Worker(registry=registry, poll_interval=NEVER, concurrency=4)
    with worker.background():
        running(first)
        armed.set()
        # Each that ends makes room for the next one of its name, and for nothing else.
        eventually(lambda: late or turnstile.let(1), PATIENCE)
        ended(late[0])
        turnstile.let(len(others) + 1)
        ended(others[-1])


def test_what_was_drawn_in_full_is_looked_at_once_more_when_bytes_return() -> None:
    registry = Registry()
    for name, concurrency in (("large", 2), ("small", None)):
        registry.task(name, concurrency=concurrency)(lambda ctx, payload: payload)
    options = Worker(registry=registry, max_in_flight_bytes=300, poll_interval=NEVER).options
    agenda = Agenda(options, registry, Lookahead(options.concurrency))
    busy = Load(calls=1, running=[registry.get("large")], bytes_in_flight=150, is_idle=False)

    agenda.begin_to_look_anew(0.0)
    plan = agenda.plan(0.0, busy, woken=True)
    draws = plan.draws()
    assert next(draws).names == ("small",)
    assert draws.send(Drawn([], cut_by_bytes=False)).names == ("large",)
    with suppress(StopIteration):
        draws.send(Drawn([], cut_by_bytes=True))
    agenda.drawn(plan, 0, 0.1, woken=False, is_seen=False)
    assert not agenda.plan(0.2, busy, woken=True), "each look would weigh anew what does not fit"

    agenda.bytes_returned()
    assert [group.names for group in agenda.plan(0.3, busy, woken=False).drawing] == [("large",), ("small",)]


@pytest.mark.parametrize(("word", "phase"), [("running", "claim"), ("queued", "recover")])
def test_a_database_that_is_read_but_refuses_what_is_written_is_told_of_once(
    word: str, phase: str, caplog: pytest.LogCaptureFixture
) -> None:
    registry = Registry()
    registry.task("work")(lambda ctx, payload: payload)
    TaskFactory(name="work") if phase == "claim" else TaskFactory(expired=True)
    with (
        database_refusing(word, "status"),
        reports() as reported,
        Worker(registry=registry, poll_interval=0.05).background(),
    ):
        eventually(lambda: [each for each, _ in reported].count(phase) >= 4, PATIENCE)
    told = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [record.getMessage().split()[0] for record in told] == [phase]
    assert not [record for record in caplog.records if "works again" in record.getMessage()]


def test_a_recovery_that_fails_is_not_tried_again_at_every_look(monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[float] = []

    def fail(using: str) -> None:
        tries.append(time.monotonic())
        raise RuntimeError("no")

    monkeypatch.setattr(maintenance, "recover", fail)
    TaskFactory(name="another's", expired=True)
    with reports() as reported, Worker(registry=Registry(), poll_interval=0.01).background():
        eventually(lambda: len(tries) >= 4, PATIENCE)
    assert tries[3] - tries[0] > 2 * RETRY_PAUSE
    assert reported.phases == {"recover"}


def test_no_look_for_a_task_that_was_given_back_comes_before_the_database_takes_it_for_due() -> None:
    registry = Registry()
    registry.task("work")(lambda ctx, payload: payload)
    options = Worker(registry=registry, poll_interval=NEVER).options
    idle = Load(calls=0, running=[], bytes_in_flight=0, is_idle=True)
    task, delay = TaskFactory(name="work"), 0.0105
    agenda = Agenda(options, registry, Lookahead(options.concurrency))

    for _ in range(100):
        now = time.monotonic()
        plan = agenda.plan(now, idle, woken=False)
        agenda.begin_to_look_anew(now)
        (claimed,) = claim(DB, plan.draws, worker_id="worker-1", lease=60)
        agenda.drawn(plan, 1, now, woken=False, is_seen=True)
        agenda.begin_to_look_anew(now)  # once more, in vain
        settle.snooze(DB, claimed.lease, delay=delay)
        agenda.falls_due(time.monotonic() + delay)
        moment = agenda.next_claim(now, idle, woken=False)
        assert moment > now + delay
        while time.monotonic() < moment:
            pass
        assert look(DB, ["default"], ["work"]).due, task
