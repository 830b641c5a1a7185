"""The signals that ask a worker's process to stop."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest

from cairnq_django import Registry, TaskContext, get, submit
from cairnq_django.worker.shutdown import STOP_SIGNALS, stopping_on_signals
from tests.helpers import eventually
from tests.workers import quick, runs_workers

if TYPE_CHECKING:
    from collections.abc import Iterator


def mine(number: int, frame: Any) -> None:
    pytest.fail(f"signal {number} reached the handler that was there before")


@pytest.fixture(autouse=True)
def handlers_before() -> Iterator[None]:
    before = {number: signal.signal(number, mine) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def dispositions() -> list[Any]:
    return [signal.getsignal(number) for number in STOP_SIGNALS]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_asks_to_stop_and_lets_a_second_one_kill(number: int) -> None:
    stops = []
    with stopping_on_signals(lambda: stops.append(number)):
        assert mine not in dispositions()
        os.kill(os.getpid(), number)
        assert stops == [number]
        assert dispositions() == [signal.SIG_DFL, signal.SIG_DFL]
    assert dispositions() == [mine, mine]


def test_without_a_signal_all_is_as_it_was_before() -> None:
    with stopping_on_signals(lambda: pytest.fail("nobody asked")):
        pass
    assert dispositions() == [mine, mine]


def test_after_an_error_too() -> None:
    with pytest.raises(ValueError, match="inside"), stopping_on_signals(lambda: None):
        raise ValueError("inside")
    assert dispositions() == [mine, mine]


@runs_workers
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_worker_that_serves_lets_its_tasks_end_and_returns(number: int) -> None:
    registry = Registry()

    @registry.task
    def signal_and_go_on(ctx: TaskContext, payload: Any) -> str:
        os.kill(os.getpid(), number)
        eventually(lambda: worker._inbox.stopped)
        return "to the end"

    worker = quick(registry, concurrency=1)
    first, second = submit(signal_and_go_on), submit(signal_and_go_on)
    worker.serve()
    assert get(first.pk).result == "to the end"
    assert get(second.pk).is_queued
    assert dispositions() == [mine, mine]


@runs_workers
def test_a_worker_in_the_background_leaves_signals_alone() -> None:
    with quick(Registry()).background():
        assert dispositions() == [mine, mine]
