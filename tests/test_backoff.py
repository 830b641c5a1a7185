from __future__ import annotations

from itertools import islice

import pytest

from cairnq_django.backoff import headroom_intervals, poll_intervals, retry_delay


@pytest.mark.parametrize(
    ("attempt", "window"), [(1, 1), (2, 2), (3, 4), (5, 16), (6, 30), (7, 30), (1_000, 30), (10_000, 30)]
)
def test_the_delay_is_drawn_from_the_upper_half_of_a_doubling_window(attempt: int, window: float) -> None:
    delays = [retry_delay(attempt, base=1, cap=30) for _ in range(300)]
    assert window / 2 <= min(delays) < window * 0.6
    assert window * 0.9 < max(delays) <= window


def test_no_base_means_no_delay() -> None:
    assert retry_delay(1, base=0, cap=30) == 0
    assert retry_delay(10_000, base=0, cap=30) == 0


def test_a_cap_below_the_base_wins() -> None:
    assert 0.05 <= retry_delay(1, base=60, cap=0.1) <= 0.1
    assert retry_delay(3, base=60, cap=0) == 0


def test_the_first_look_comes_after_100_ms_and_the_pauses_grow_to_500_ms() -> None:
    assert list(islice(poll_intervals(), 6)) == pytest.approx([0.1, 0.15, 0.225, 0.3375, 0.5, 0.5])


def test_looking_never_ends() -> None:
    assert list(islice(poll_intervals(), 10_000, 10_002)) == [0.5, 0.5]


def test_the_pauses_before_looks_at_a_full_queue_grow_from_50_ms_to_1_s_and_vary() -> None:
    runs = [list(islice(headroom_intervals(), 12)) for _ in range(300)]
    for longest, pauses in zip([0.05, 0.075, 0.1125], zip(*runs, strict=True), strict=False):
        assert longest / 2 <= min(pauses) < longest * 0.6
        assert longest * 0.9 < max(pauses) <= longest
    assert 0.9 < max(run[-1] for run in runs) <= 1
    assert len({run[0] for run in runs}) > 200
