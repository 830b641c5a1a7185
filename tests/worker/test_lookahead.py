"""How many calls a worker claims before it has a slot for them."""

from __future__ import annotations

import pytest

from cairnq_django.worker.lookahead import AHEAD, MOST, Lookahead


def learned(*seconds: float, concurrency: int = 8, claims: int = 20) -> Lookahead:
    """What it is after handlers that took so long, and after many quick claims of all that it allowed."""
    lookahead = Lookahead(concurrency)
    for _ in range(claims):
        lookahead.claimed(MOST, 0.001)
    for each in seconds:
        lookahead.handled(each)
    return lookahead


def test_before_a_handler_has_ended_nothing_is_claimed_ahead() -> None:
    assert learned().calls == 0


@pytest.mark.parametrize("seconds", [0.005, 0.01, 0.02])
def test_it_is_what_all_slots_get_through_in_the_time_that_it_may_wait(seconds: float) -> None:
    lookahead = learned(*[seconds] * 100)
    assert lookahead.calls == pytest.approx(8 * AHEAD / seconds, abs=1)
    assert lookahead.calls * seconds / 8 <= AHEAD


def test_for_handlers_that_take_long_nothing_is_claimed_ahead() -> None:
    assert learned(1.0).calls == 0
    assert learned(AHEAD, concurrency=1).calls == 1


def test_it_follows_handlers_that_become_slower() -> None:
    lookahead = learned(*[0.005] * 50)
    before = lookahead.calls
    for _ in range(3):
        lookahead.handled(0.5)
    assert lookahead.calls < before / 10


def test_it_has_an_upper_limit() -> None:
    assert learned(0.0).calls == MOST


def test_it_grows_with_claims_that_are_quick_and_shrinks_with_those_that_are_not() -> None:
    lookahead = learned(0.0, claims=0)
    assert lookahead.calls == 8
    lookahead.claimed(8, 0.001)
    assert lookahead.calls == 16
    lookahead.claimed(3, 0.001)
    assert lookahead.calls == 16
    lookahead.claimed(16, 1.0)
    assert lookahead.calls == 8


def test_after_a_wait_that_was_too_long_it_begins_anew() -> None:
    lookahead = learned(0.0)
    lookahead.waited_too_long()
    assert lookahead.calls <= 8


def test_where_writing_takes_the_only_lock_it_is_for_handlers_that_do_not_write() -> None:
    lookahead = Lookahead(8, longest=0.001)
    lookahead.handled(0.0005)
    assert lookahead.calls == 8
    for _ in range(20):
        lookahead.handled(0.002)
    assert lookahead.calls == 0
