"""Who runs and who is next."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from cairnq_django.worker.slots import Slots
from tests.helpers import eventually, in_threads


class Started(list[Any]):
    """What was started, in order; `failing` is what cannot be."""

    failing: Any = None

    def __call__(self, call: Any) -> None:
        if call == self.failing:
            raise RuntimeError("no thread to be had")
        self.append(call)


class Batch:
    def __init__(self, size: int) -> None:
        self.attempts = [None] * size


def filled(size: int, *calls: Any) -> tuple[Slots, Started]:
    started = Started()
    slots = Slots(size, started)
    for call in calls:
        slots.add(call)
    return slots, started


def test_so_many_are_started_and_the_others_wait_for_their_turn() -> None:
    slots, started = filled(2, "a", "b", "c", "d")
    assert started == ["a", "b"]
    assert slots.ready == 2

    slots.leave("b")  # type: ignore[arg-type]
    slots.leave("a")  # type: ignore[arg-type]
    assert started == ["a", "b", "c", "d"]
    assert slots.ready == 0


def test_who_leaves_twice_makes_room_once() -> None:
    slots, started = filled(1, "a", "b", "c")
    slots.leave("a")  # type: ignore[arg-type]
    slots.leave("a")  # type: ignore[arg-type]
    assert started == ["a", "b"]


def test_what_waits_can_be_taken_back_and_is_not_started_then() -> None:
    slots, started = filled(1, "a", "b", "c")
    assert slots.take_back() == ["b", "c"]
    slots.leave("a")  # type: ignore[arg-type]
    assert started == ["a"]
    assert slots.take_back() == []


def test_it_knows_how_long_the_next_has_been_waiting() -> None:
    slots, _ = filled(1, "a")
    assert slots.waited() == 0
    for call in ("b", "c"):
        slots.add(call)  # type: ignore[arg-type]
    eventually(lambda: slots.waited() > 0.01)


def test_what_cannot_be_started_waits_and_is_tried_again() -> None:
    slots, started = filled(1, "a", "b")
    started.failing = "b"
    slots.leave("a")  # type: ignore[arg-type]
    assert (started, slots.ready) == (["a"], 1)

    with pytest.raises(RuntimeError, match="no thread"):
        slots.add("c")  # type: ignore[arg-type]
    started.failing = None
    slots.add("d")  # type: ignore[arg-type]
    assert started == ["a", "b"]
    assert slots.take_back() == ["c", "d"]


def test_threads_that_leave_at_the_same_time_start_each_call_once() -> None:
    lock = threading.Lock()
    running: set[int] = set()
    most = 0
    slots: Slots

    def start(call: Any) -> None:
        nonlocal most
        with lock:
            assert call not in running
            running.add(call)
            most = max(most, len(running))

    slots = Slots(4, start)
    for call in range(400):
        slots.add(call)  # type: ignore[arg-type]

    def work(_: int) -> int:
        done = 0
        while True:
            with lock:
                if not running:
                    return done
                call = running.pop()
            done += 1
            slots.leave(call)  # type: ignore[arg-type]

    assert sum(in_threads(4, work)) == 400
    assert most <= 4
    assert slots.ready == 0


def test_after_so_many_tasks_no_more_are_started() -> None:
    started = Started()
    slots = Slots(1, started, max_tasks=3)
    batches: list[Any] = [Batch(size) for size in (1, 2, 1)]
    for batch in batches:
        slots.add(batch)
    assert (slots.tasks, slots.used_up) == (1, False)

    slots.leave(batches[0])
    assert (slots.tasks, slots.used_up) == (2, True)

    slots.leave(batches[1])
    assert started == batches[:2]
    assert slots.take_back() == batches[2:]
