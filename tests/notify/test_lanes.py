"""Which submits need not ask whether workers have to be told: those of a long run, while tasks are left."""

from __future__ import annotations

from math import inf
from uuid import uuid4

from cairnq_django.notify.lanes import BEHIND, FEW, LOOK_AGAIN, QUIET, TELL_AGAIN, Lane

STEP = QUIET / 100  # seconds between two submits, far less than any pause that counts


def submit(lane: Lane, now: float, *, told: bool) -> bool:
    """Submit one task; whether it asked."""
    asks = lane.is_to_ask(now)
    if asks:
        lane.asked(now, told=told)
    return asks


def run_of(lane: Lane, count: int, *, start: float = 0.0, told: bool = False) -> float:
    """Submit so many tasks one right after the other, all of which ask; return the moment after it."""
    for n in range(count):
        assert submit(lane, start + n * STEP, told=told)
    return start + count * STEP


def test_the_first_of_a_run_all_ask() -> None:
    lane = Lane()
    after = run_of(lane, FEW)
    assert not submit(lane, after, told=False)


def test_a_run_is_over_with_a_pause() -> None:
    lane = Lane()
    after = run_of(lane, FEW)
    run_of(lane, FEW, start=after + QUIET)


def test_who_waits_for_each_task_and_so_finds_none_of_them_left_always_asks() -> None:
    run_of(Lane(), 10 * FEW, told=True)


def test_in_a_long_run_one_asks_now_and_then() -> None:
    lane = Lane()
    after = run_of(lane, FEW)
    last_asked_at = after - STEP
    asked = [submit(lane, after + n * STEP, told=False) for n in range(1000)]
    assert 9 <= sum(asked) <= 11
    assert asked.index(True) == round((last_asked_at + QUIET - after) / STEP)


def test_once_no_task_has_been_left_for_a_while_each_asks_again() -> None:
    lane = Lane()
    found_nobody_at = run_of(lane, FEW) - STEP
    now = found_nobody_at + STEP
    while now < found_nobody_at + BEHIND:
        submit(lane, now, told=True)
        now += STEP
    run_of(lane, FEW, start=now, told=True)


def test_what_need_not_ask_is_committed_before_the_workers_look_again() -> None:
    lane = Lane()
    assert lane.seen_until == -inf
    lane.asked(1.0, told=True)
    lane.asked(0.5, told=False)  # by another thread, whose answer took longer
    assert lane.seen_until == 1.0 + LOOK_AGAIN > 1.0 + QUIET


def test_a_task_that_is_left_does_for_later_ones_only_for_a_while_after_workers_were_told() -> None:
    lane, task_id = Lane(), uuid4()
    lane.submitted(task_id)
    lane.asked(0.0, told=False)
    assert lane.left_at(0.0) is None, "nobody was ever told"
    lane.asked(1.0, told=True)
    assert lane.left_at(1.0) == task_id
    assert lane.left_at(1.0 + TELL_AGAIN) is None
