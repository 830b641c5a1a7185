"""Workers sweep by the rules of `CAIRNQ["RETENTION"]` beside their work, one at a time."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from cairnq_django import Registry, Task, Worker, retention, submit
from cairnq_django.clock import after
from cairnq_django.models import Duty
from tests.factories import new_task
from tests.helpers import eventually
from tests.workers import (
    PATIENCE,
    echo_and_wait,
    ended,
    quick,
    reports,
    running,
    runs_workers,
    sweeps_in_batches_of,
    table_away,
)

if TYPE_CHECKING:
    from pytest_django.fixtures import SettingsWrapper

pytestmark = runs_workers


@pytest.fixture
def registry(go: threading.Event) -> Registry:
    return echo_and_wait(go)


@pytest.fixture(autouse=True)
def _retention(settings: SettingsWrapper, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.CAIRNQ = {"RETENTION": 3600}
    monkeypatch.setattr(retention, "SWEEP_INTERVAL", 0.05)


def leave_behind(count: int) -> None:
    """Tasks that ended longer ago than they are kept."""
    Task.objects.bulk_create(new_task(status="succeeded", completed_at=after(-4000), name="old") for _ in range(count))


def left() -> int:
    return Task.objects.filter(name="old").count()


def swept() -> None:
    eventually(lambda: not left(), PATIENCE, "everything old is deleted")


def is_sweeping() -> bool:
    return any(thread.name == "cairnq-sweeper" for thread in threading.enumerate())


def holder() -> str:
    return eventually(lambda: Duty.objects.values_list("worker_id", flat=True).first(), PATIENCE, "someone's duty")


def test_a_worker_sweeps_while_it_works(registry: Registry, go: threading.Event) -> None:
    leave_behind(5)
    with quick(registry).background():
        waiting = submit("wait")
        running(waiting)
        swept()
        leave_behind(5)
        swept()
        assert ended(submit("echo")).succeeded
        go.set()
        assert ended(waiting).succeeded


def test_without_the_setting_nobody_sweeps(registry: Registry, settings: SettingsWrapper) -> None:
    settings.CAIRNQ = {}
    leave_behind(1)
    with quick(registry).background():
        assert ended(submit("echo")).succeeded
        assert not is_sweeping()
    assert left() == 1


def test_a_burst_does_not_sweep(registry: Registry) -> None:
    leave_behind(1)
    submit("echo")
    quick(registry).run(burst=True)
    assert not Duty.objects.exists()
    assert left() == 1


def test_of_two_workers_one_sweeps_and_the_other_when_it_is_gone(registry: Registry) -> None:
    workers = [quick(registry), quick(registry)]

    def sweeper() -> Worker:
        return next(worker for worker in workers if worker.id == holder())

    leave_behind(1)
    with workers[0].background(), workers[1].background():
        swept()
        first = sweeper()
        for _ in range(5):
            leave_behind(1)
            swept()
            assert sweeper() is first
        first.stop()
        eventually(lambda: holder() not in ("", first.id), PATIENCE, "the other has the duty")
        leave_behind(1)
        swept()


def test_the_duty_of_a_sweeper_that_was_killed_is_taken_over(registry: Registry) -> None:
    Duty.objects.create(name=retention.DUTY, worker_id="killed", held_until=after(0.3))
    leave_behind(1)
    with quick(registry).background() as worker:
        swept()
        assert holder() == worker.id


def test_a_stop_interrupts_the_sweep_though_a_handler_still_runs(
    registry: Registry, go: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeps_in_batches_of(1, monkeypatch)
    leave_behind(500)
    waiting = submit("wait")
    with quick(registry).background() as worker:
        running(waiting)
        eventually(lambda: left() < 500, PATIENCE, "the sweep has begun")
        worker.stop()
        eventually(lambda: not is_sweeping(), PATIENCE, "the sweep has ended")
        assert left() > 0
        assert waiting.refresh().is_running
        go.set()
    assert Duty.objects.get().worker_id == "", "the next worker need not wait for it"


def test_a_sweep_that_fails_is_reported_and_repeated(registry: Registry) -> None:
    with reports() as reported, quick(registry).background():
        holder()
        with table_away():
            eventually(lambda: "sweep" in reported.phases, PATIENCE)
        leave_behind(1)
        swept()


def test_it_says_what_it_deleted(registry: Registry, caplog: Any) -> None:
    leave_behind(3)
    with caplog.at_level("INFO", "cairnq_django.worker.sweeper"), quick(registry).background():
        swept()
    assert "Deleted, as CAIRNQ['RETENTION'] says: 3 tasks" in caplog.messages
