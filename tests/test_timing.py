"""When things are due: by the clocks of a time zone, also when these are put forward and back."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest

from cairnq_django.timing import Every, timing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cairnq_django.timing import Timing


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=timezone.utc)


def cron(expression: str, zone: str = "Europe/Berlin") -> Timing:
    return timing(cron=expression, zone=zone)


def times(timing: Timing, start: str, count: int) -> list[str]:
    def each() -> Iterator[datetime]:
        time = timing.after(utc(start))
        while time is not None:
            yield time
            time = timing.after(time)

    return [f"{time:%m-%d %H:%M}" for time in islice(each(), count)]


# In Berlin, clocks are put from 2:00 to 3:00 at 1:00 UTC of 2026-03-29, and from 3:00 back to 2:00 at that of 10-25.


@pytest.mark.parametrize(
    ("expression", "start", "expected"),
    [
        ("30 2 * * *", "2026-03-27 12:00", ["03-28 01:30", "03-29 01:00", "03-30 00:30"]),
        ("30 2,3 * * *", "2026-03-28 12:00", ["03-29 01:00", "03-29 01:30", "03-30 00:30"]),
        ("0 4 * * *", "2026-03-28 12:00", ["03-29 02:00", "03-30 02:00"]),
        ("*/30 * * * *", "2026-03-29 00:15", ["03-29 00:30", "03-29 01:00", "03-29 01:30"]),
        ("0 * * * *", "2026-03-28 23:30", ["03-29 00:00", "03-29 01:00", "03-29 02:00"]),
    ],
)
def test_where_clocks_are_put_forward_nothing_is_left_out(expression: str, start: str, expected: list[str]) -> None:
    assert times(cron(expression), start, len(expected)) == expected


@pytest.mark.parametrize(
    ("expression", "start", "expected"),
    [
        ("30 2 * * *", "2026-10-24 12:00", ["10-25 00:30", "10-26 01:30"]),
        ("*/30 * * * *", "2026-10-25 00:15", ["10-25 00:30", "10-25 01:00", "10-25 01:30", "10-25 02:00"]),
        ("0 * * * *", "2026-10-24 23:30", ["10-25 00:00", "10-25 01:00", "10-25 02:00"]),
    ],
)
def test_where_clocks_are_put_back_a_fixed_time_comes_once(expression: str, start: str, expected: list[str]) -> None:
    assert times(cron(expression), start, len(expected)) == expected


@pytest.mark.parametrize("minutes", range(0, 180, 7))
def test_from_within_the_hour_that_comes_twice_no_time_comes_again(minutes: int) -> None:
    start = utc("2026-10-25 00:00") + timedelta(minutes=minutes)
    expected = utc("2026-10-25 00:30") if minutes < 30 else utc("2026-10-26 01:30")
    assert cron("30 2 * * *").after(start) == expected


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("0 0 L * *", ["01-31 00:00", "02-28 00:00"]),
        ("0 0 * * MON#1", ["01-05 00:00", "02-02 00:00"]),
        ("0 12 1,15 JAN-FEB *", ["01-01 12:00", "01-15 12:00", "02-01 12:00"]),
        ("0 0 1 * MON", ["01-05 00:00", "01-12 00:00"]),
    ],
)
def test_days_are_named_as_cron_names_them(expression: str, expected: list[str]) -> None:
    assert times(cron(expression, "UTC"), "2026-01-01 00:00", len(expected)) == expected


def test_in_utc_clocks_stay_as_they_are() -> None:
    assert times(cron("30 2 * * *", "UTC"), "2026-03-28 12:00", 2) == ["03-29 02:30", "03-30 02:30"]


@pytest.mark.parametrize(
    "when",
    [
        cron("*/5 * * * *"),
        cron("30 2 * * *"),
        cron("15 10 1 * *"),
        cron("* * * * *"),
        Every(60),
        Every(7.5),
        Every(86_400),
    ],
    ids=str,
)
@pytest.mark.parametrize("gap", [0, 1, 59, 3_600, 86_400 * 3 + 17, 86_400 * 40])
def test_the_latest_time_is_that_which_none_follows(when: Timing, gap: int) -> None:
    due = when.after(utc("2026-10-20 10:00"))
    assert due is not None
    until = due + timedelta(seconds=gap, microseconds=5)
    latest = when.latest(due, until)
    following = when.after(latest)
    assert due <= latest <= until
    assert following is not None
    assert following > until
    if latest > due:
        assert latest in (when.after(latest - timedelta(seconds=1)), due + (latest - due))


def test_an_interval_does_not_drift() -> None:
    due = utc("2026-01-01 00:00")
    late = due + timedelta(days=1000, seconds=59)
    assert Every(60).latest(due, late) == due + timedelta(days=1000)
    assert Every(0.1 + 0.2 + 1).latest(due, due + timedelta(seconds=1.3 * 1_000_000)) == due + timedelta(
        seconds=1_300_000
    )


def test_years_of_minutes_are_passed_over_at_once() -> None:
    due, until = utc("2020-01-01 00:00"), utc("2026-06-01 12:00")
    assert cron("* * * * *").latest(due, until) == until


def test_an_interval_ends_with_the_years_that_there_are() -> None:
    assert Every(86_400).after(datetime(9999, 12, 31, tzinfo=timezone.utc)) is None
    assert cron("0 0 1 1 *").after(datetime(9999, 12, 31, tzinfo=timezone.utc)) is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"cron": "bad", "zone": "UTC"}, r"cron must be minute, .* got 'bad': it has five fields"),
        ({"cron": "61 * * * *", "zone": "UTC"}, r"got '61 \* \* \* \*': bad minute"),
        ({"cron": "@hourly", "zone": "UTC"}, "got '@hourly'"),
        ({"cron": "0 * * * * *", "zone": "UTC"}, "it has five fields"),
        ({"cron": "", "zone": "UTC"}, "cron must not be empty"),
        ({"cron": "0 0 30 2 *", "zone": "UTC"}, r"'0 0 30 2 \*'"),
        ({"cron": "* * */20 * 1L", "zone": "UTC"}, "which never does"),
        ({"cron": "* * * * *", "zone": "Europe/Berln"}, "got 'Europe/Berln'; did you mean 'Europe/Berlin'"),
        ({"cron": "* * * * *", "zone": "../etc/passwd"}, "timezone must be the name of a time zone"),
        ({"cron": "* * * * *", "zone": "Europe"}, "timezone must be the name of a time zone"),
        ({"cron": "* * * * *", "every": 60}, r"cron or every, not both; got '\* \* \* \* \*' and 60"),
        ({"every": 60, "zone": "UTC"}, "timezone goes with cron, got 'UTC'"),
        ({"every": 0.5}, "every must be at least 1 seconds, got 0.5"),
        ({"every": float("nan")}, "every must be a finite number of seconds, got nan"),
        ({}, "Give cron or every"),
    ],
)
def test_what_is_wrong_is_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        timing(**given)


@pytest.mark.parametrize(("given", "said"), [({"cron": 5, "zone": "UTC"}, "cron"), ({"every": "60"}, "every")])
def test_what_is_of_the_wrong_type_is_named(given: dict[str, Any], said: str) -> None:
    with pytest.raises(TypeError, match=f"{said} must be"):
        timing(**given)
