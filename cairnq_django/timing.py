"""When something that comes again and again is due: by a cron expression in a time zone, or every so many seconds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from difflib import get_close_matches
from typing import Any
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from .arguments import seconds, text
from .limits import CRON_LENGTH, SHORTEST_INTERVAL, ZONE_LENGTH

_SECOND = timedelta(seconds=1)


@dataclass(frozen=True)
class Cron:
    """The times of a cron expression, as the clocks in a time zone show them.

    Where they are put forward, a fixed time that is left out comes right after the gap; where they are put back, it
    comes once. What comes each hour or more often keeps its distance.
    """

    expression: str
    zone: ZoneInfo

    def after(self, moment: datetime) -> datetime | None:
        """The first time that is later than `moment`, in UTC; None if there is none."""
        try:
            times: Iterator[datetime] = CronSim(self.expression, moment.astimezone(self.zone))
            # In the hour that comes twice, a fixed time is looked for from the first of the two on.
            return next((time for time in map(_in_utc, times) if time > moment), None)
        except OverflowError:
            return None

    def latest(self, due: datetime, until: datetime) -> datetime:
        """The latest time that is not after `until`; `due` is one."""
        # There may be any number in between. No time lies between `end` and `until`.
        found, end = due, until
        while end - found >= _SECOND:
            middle = found + (end - found) / 2
            later = self.after(middle)
            if later is None or later > until:
                end = middle
            else:
                found = later
        return found


@dataclass(frozen=True)
class Every:
    """Times at the same distance from each other."""

    seconds: float

    def after(self, moment: datetime) -> datetime | None:
        """The time that comes after `moment`, which is one; None if there is none."""
        try:
            return moment + self._interval
        except OverflowError:
            return None

    def latest(self, due: datetime, until: datetime) -> datetime:
        """The latest time that is not after `until`; `due` is one."""
        return due + max(0, (until - due) // self._interval) * self._interval

    @property
    def _interval(self) -> timedelta:
        return timedelta(seconds=self.seconds)


Timing = Cron | Every


def timing(*, cron: Any = None, every: Any = None, zone: Any = None) -> Timing:
    """The timing that either `cron` and its time zone or `every` describes.

    Raises `TypeError` or `ValueError` naming the argument, `timezone` for the zone, and the value that is wrong.
    """
    if cron is not None and every is not None:
        raise ValueError(f"Give cron or every, not both; got {cron!r} and {every!r}")
    if cron is not None:
        return _cron(cron, time_zone(zone))
    if zone is not None:
        raise ValueError(f"timezone goes with cron, got {zone!r} without one")
    if every is None:
        raise ValueError("Give cron or every")
    return Every(seconds(every, "every", minimum=SHORTEST_INTERVAL))


def time_zone(name: Any) -> ZoneInfo:
    """The time zone of this name. Raises `TypeError` or `ValueError`."""
    name = text(name, "timezone", maximum=ZONE_LENGTH)
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        close = get_close_matches(name, available_timezones(), n=1)
        hint = f"did you mean {close[0]!r}?" if close else "this computer knows none of that name"
        raise ValueError(
            f'timezone must be the name of a time zone, such as "Europe/Berlin", got {name!r}; {hint}'
        ) from None


def _cron(expression: Any, zone: ZoneInfo) -> Cron:
    expression = " ".join(text(expression, "cron", maximum=CRON_LENGTH).split())
    try:
        # Some versions take a sixth one, of seconds.
        if expression.count(" ") != 4:
            raise CronSimError("it has five fields")
        CronSim(expression, _SOME_TIME)
    except CronSimError as error:
        raise ValueError(
            'cron must be minute, hour, day of the month, month and day of the week, such as "*/5 * * * *", got '
            f"{expression!r}: {str(error).lower()}"
        ) from None
    cron = Cron(expression, zone)
    if cron.after(_SOME_TIME) is None:
        raise ValueError(f"cron must come due at some time, got {expression!r}, which never does")
    return cron


def _in_utc(moment: datetime) -> datetime:
    return moment.astimezone(timezone.utc)


_SOME_TIME = datetime(2024, 1, 1, tzinfo=timezone.utc)
