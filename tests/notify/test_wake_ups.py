"""An idle worker starts a task as soon as it is committed, and at the next poll where nobody can tell it."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from itertools import repeat
from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction

from cairnq_django import Registry, Task, Worker, call, submit, wait, waiting
from cairnq_django.clock import after
from cairnq_django.notify import lanes, listener, postgres
from cairnq_django.notify.listener import listener_of_this_process
from tests.factories import TaskFactory
from tests.helpers import eventually, in_threads
from tests.notify.postgres import PATIENCE, announce_elsewhere, listening_backends, on_postgresql, subscribed, terminate
from tests.store.sessions import another_transaction
from tests.workers import reports

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.db.models import Model
    from pytest_django.fixtures import SettingsWrapper

pytestmark = pytest.mark.django_db(transaction=True)

NEVER = 600.0  # seconds: a poll that no test waits for


@pytest.fixture
def started() -> threading.Event:
    """Set when the handler runs."""
    return threading.Event()


@pytest.fixture
def registry(started: threading.Event) -> Registry:
    registry = Registry()

    @registry.task
    def tell(ctx: Any, payload: Any) -> Any:
        started.set()
        return payload

    return registry


@pytest.fixture
def idle_worker(registry: Registry) -> Iterator[Worker]:
    """A worker that has looked at its empty queue and will not look again by itself."""
    worker = Worker(registry=registry, poll_interval=NEVER)
    with worker.background():
        assert listener_of_this_process("default").wait_until_hearing(PATIENCE)
        # It looks once more when it hears; what is submitted from here on is a wake-up's to find.
        assert call("tell", timeout=PATIENCE) is None
        yield worker


@on_postgresql
def test_an_idle_worker_starts_a_committed_task_at_once(idle_worker: Worker, started: threading.Event) -> None:
    started.clear()
    submit("tell")
    assert started.wait(PATIENCE)


@on_postgresql
def test_it_starts_at_the_commit_and_not_before(idle_worker: Worker, started: threading.Event) -> None:
    started.clear()
    with transaction.atomic(), subscribed("fence") as fence:
        submit("tell")
        announce_elsewhere("fence")
        fence.wait()
        assert not started.is_set()
    assert started.wait(PATIENCE)


@on_postgresql
def test_a_retried_task_is_started_at_once(idle_worker: Worker, started: threading.Event) -> None:
    task = submit("tell", delay=NEVER).cancel()
    started.clear()
    task.retry()
    assert started.wait(PATIENCE)


@on_postgresql
def test_a_worker_whose_listener_is_cut_off_says_so_polls_and_hears_again(
    registry: Registry, started: threading.Event
) -> None:
    with reports() as reported, Worker(registry=registry, poll_interval=0.05).background():
        assert listener_of_this_process("default").wait_until_hearing(PATIENCE)
        terminate(listening_backends())
        assert call("tell", timeout=PATIENCE) is None
        eventually(lambda: "listen" in reported.phases)
        assert listener_of_this_process("default").wait_until_hearing(PATIENCE)
        terminate(listening_backends())
        eventually(lambda: [phase for phase, _ in reported] == ["listen", "listen"])


@on_postgresql
def test_what_was_announced_while_it_was_deaf_is_found_when_it_hears_again(
    idle_worker: Worker, started: threading.Event
) -> None:
    started.clear()
    terminate(listening_backends())
    submit("tell")
    assert started.wait(PATIENCE)


@on_postgresql
def test_what_another_session_has_locked_is_started_when_it_lets_go_though_nobody_says_so(
    idle_worker: Worker, started: threading.Event
) -> None:
    """Whoever claims it may have no room for what was submitted beside it, without a word."""
    held = TaskFactory(name="tell", payload="held", run_at=after(-1))
    with another_transaction(lambda: Task.objects.select_for_update().get(pk=held.pk)):
        assert call("tell", "free", timeout=PATIENCE) == "free"
    assert wait(held.pk, PATIENCE).result == "held"


@on_postgresql
def test_many_waiters_in_one_process_share_the_worker_s_connection(idle_worker: Worker) -> None:
    before = listening_backends()
    assert in_threads(8, lambda i: call("tell", i, timeout=PATIENCE)) == list(range(8))
    assert listening_backends() == before


@on_postgresql
@pytest.mark.parametrize("producers", [1, 3])
@pytest.mark.parametrize("most", [lanes.MOST, 0])
def test_whatever_is_submitted_when_finds_its_worker(
    producers: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A submit is not announced where an earlier one was, and the worker falls asleep between any two of them."""
    monkeypatch.setattr(lanes, "MOST", most)
    registry = Registry()
    started: dict[Any, threading.Event] = defaultdict(threading.Event)

    @registry.task
    def tell(ctx: Any, payload: Any) -> None:
        started[payload].set()

    def produce(producer: int) -> None:
        chance = random.Random(producer)
        for turn in range(600 // producers if most else 150):
            number = chance.choice([1, 1, 2, 3])
            for n in range(number):
                submit("tell", f"{producer} {turn} {n}")
                # From none to about as long as it takes a worker to claim, run and settle a task.
                time.sleep(chance.choice([0, 0, 0.001, 0.004]) * chance.random())
            for n in range(number):
                payload = f"{producer} {turn} {n}"
                assert started[payload].wait(PATIENCE), f"task {payload} was never started"

    with Worker(registry=registry, concurrency=2, poll_interval=NEVER).background():
        assert listener_of_this_process("default").wait_until_hearing(PATIENCE)
        in_threads(producers, produce)


@on_postgresql
def test_a_worker_that_stops_before_it_looked_again_has_others_look(
    registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "LOOK_AGAIN", NEVER)
    with subscribed("default") as hearing:
        with Worker(registry=registry, poll_interval=NEVER).background():
            assert call("tell", timeout=PATIENCE) is None
            hearing.woken.clear()
        hearing.wait()


@on_postgresql
def test_whoever_waits_hears_of_the_end(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a task is not announced where nobody waits, and its worker asks while others begin to wait."""
    monkeypatch.setattr(listener, "LINGER", 0.002)
    monkeypatch.setattr(waiting, "poll_intervals", lambda: repeat(NEVER))

    def wait_again_and_again(i: int) -> None:
        chance = random.Random(i)
        for n in range(100):
            assert call("tell", n, timeout=PATIENCE) == n
            time.sleep(chance.choice([0, 0.002, 0.004]) * chance.random())

    with Worker(registry=registry, poll_interval=NEVER).background():
        assert listener_of_this_process("default").wait_until_hearing(PATIENCE)
        in_threads(3, wait_again_and_again)


class ToTheDedicatedDatabase:
    def db_for_read(self, model: type[Model], **hints: Any) -> str | None:
        return "dedicated" if model._meta.app_label == "cairnq_django" else None

    db_for_write = db_for_read


@on_postgresql
@pytest.mark.django_db(transaction=True, databases=["default", "dedicated"])
def test_wake_ups_come_from_the_database_that_the_queue_is_in(registry: Registry, settings: SettingsWrapper) -> None:
    settings.DATABASE_ROUTERS = [f"{__name__}.{ToTheDedicatedDatabase.__name__}"]
    with Worker(registry=registry, poll_interval=NEVER).background():
        assert listener_of_this_process("dedicated").wait_until_hearing(PATIENCE)
        assert [call("tell", i, timeout=PATIENCE) for i in range(3)] == [0, 1, 2]


def test_everywhere_polling_is_enough(registry: Registry) -> None:
    with Worker(registry=registry, poll_interval=0.05).background():
        task = submit("tell", "by polling")
        assert wait(task.pk, PATIENCE).result == "by polling"
        assert call("tell", "once more", timeout=PATIENCE) == "once more"
