"""Which submits need not ask whether workers have to be told: those in a row, while tasks are left."""

from __future__ import annotations

from math import inf
from uuid import UUID, uuid4

from cairnq_django.notify.lanes import ASK_AGAIN, BEHIND, IN_A_ROW, LOOK_AGAIN, MOST, SAMPLE, TELL_AGAIN, Lane

STEP = IN_A_ROW / 100  # seconds between two submits, far less than any pause that counts


def submit(lane: Lane, now: float, *, told: bool = False, unless_left: bool = True) -> bool:
    """Submit one task; whether it asked."""
    asks = lane.is_to_ask(now)
    if asks:
        lane.asked(now, told=told, unless_left=unless_left)
    lane.submitted(uuid4(), now)
    return asks


def sample_of(lane: Lane, told: int, *, start: float = 0.0) -> float:
    """Submit tasks one right after the other that all ask, so many of which have somebody to tell; the next moment."""
    for n in range(SAMPLE):
        assert submit(lane, start + n * STEP, told=n < told)
    return start + SAMPLE * STEP


def test_once_most_tasks_are_left_the_next_ones_need_not_ask() -> None:
    lane = Lane()
    now = sample_of(lane, told=SAMPLE - MOST)
    assert not submit(lane, now)


def test_where_more_are_taken_at_once_all_ask() -> None:
    lane, now = Lane(), 0.0
    for _ in range(10):
        now = sample_of(lane, told=SAMPLE - MOST + 1, start=now)


def test_the_first_one_after_a_pause_asks() -> None:
    lane = Lane()
    now = sample_of(lane, told=0) + IN_A_ROW
    assert submit(lane, now, told=True)
    assert not submit(lane, now + STEP)


def test_in_a_long_run_one_asks_now_and_then() -> None:
    lane = Lane()
    after = sample_of(lane, told=0)
    last_asked_at = after - STEP
    count = int((BEHIND - 2 * STEP) / STEP)
    asked = [submit(lane, after + n * STEP) for n in range(count)]
    assert sum(asked) == round(BEHIND / ASK_AGAIN) - 1
    assert asked.index(True) == round((last_asked_at + ASK_AGAIN - after) / STEP)


def test_after_a_while_there_is_another_sample_which_what_was_asked_meanwhile_has_no_part_in() -> None:
    lane, now = Lane(), 0.0
    last_asked_at = sample_of(lane, told=0) - STEP
    now = last_asked_at + STEP
    while now < last_asked_at + BEHIND:
        submit(lane, now)
        now += STEP
    sample_of(lane, told=SAMPLE, start=now)


def test_that_workers_are_told_because_it_has_been_a_while_says_nothing_about_what_is_left() -> None:
    lane = Lane()
    for n in range(SAMPLE):
        assert submit(lane, n * STEP, told=True, unless_left=False)
    now = sample_of(lane, told=0, start=SAMPLE * STEP)
    assert not submit(lane, now)


def test_what_need_not_ask_is_committed_before_whoever_took_the_one_before_it_looks_again() -> None:
    lane = Lane()
    assert lane.seen_until == -inf
    lane.submitted(uuid4(), 1.0)
    lane.asked(2.0, told=True, unless_left=True)
    assert lane.seen_until == 1.0 + LOOK_AGAIN > 1.0 + IN_A_ROW


def test_a_task_that_is_left_does_for_later_ones_only_for_a_while_after_workers_were_told() -> None:
    lane, task_id = Lane(), UUID(int=1)
    lane.submitted(task_id, 0.0)
    lane.asked(0.0, told=False, unless_left=False)
    assert lane.left_at(0.0) is None, "nobody was ever told"
    lane.asked(1.0, told=True, unless_left=False)
    assert lane.left_at(1.0) == task_id
    assert lane.left_at(1.0 + TELL_AGAIN) is None
