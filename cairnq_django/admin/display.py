"""How the values of a task are put into words and safe HTML, whatever the row holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.utils import formats, timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..envelopes import MESSAGE_LIMIT, TRACEBACK_LIMIT
from ..models import Task
from ..serialization import clean_text
from ..statuses import TaskStatus
from .documents import LaidOut, lay_out

_UNITS: Final = (
    (86_400, gettext_lazy("%(number)s d")),
    (3_600, gettext_lazy("%(number)s h")),
    (60, gettext_lazy("%(number)s min")),
    (1, gettext_lazy("%(number)s s")),
)
_ENVELOPE_FIELDS: Final = ("type", "code", "message", "retryable")

# On a square of 16, to be told apart without colours: a clock, a triangle, a tick, a cross and a ring with a bar; then
# a funnel for who takes nothing more, an open ring for who is silent, two bars for what is paused and a triangle
# with an exclamation mark.
_SHAPES: Final[dict[str, str]] = {
    TaskStatus.QUEUED: "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2zM8 5v3.2l2.2 1.6",
    TaskStatus.RUNNING: "M5 3.5v9l7.5-4.5z",
    TaskStatus.SUCCEEDED: "M3 8.6l3.4 3.4L13 4.6",
    TaskStatus.FAILED: "M4 4l8 8M12 4l-8 8",
    TaskStatus.CANCELED: "M8 2a6 6 0 1 0 0 12A6 6 0 0 0 8 2zM3.8 3.8l8.4 8.4",
    "draining": "M2.5 3h11L9.5 8v5l-3-1.5V8z",
    "silent": "M13.2 5A6 6 0 1 0 13.2 11M8 5v3M8 11v.1",
    "paused": "M5 3v10M11 3v10",
    "warning": "M8 2.5L14 13.5H2zM8 6.5v3.2M8 11.6v.1",
}
_ICON: Final = (
    '<svg class="cairnq-icon cairnq-shape-{}" viewBox="0 0 16 16" width="12" height="12" aria-hidden="true"'
    ' focusable="false"><path d="{}"/></svg>'
)


def duration(seconds: float) -> str:
    """A length of time in its two largest units, such as "2 h 5 min"; below ten seconds with more digits."""
    if seconds < 1:
        return _("%(number)s ms") % {"number": max(0, int(seconds * 1000))}
    if seconds < 10:
        return _UNITS[-1][1] % {"number": formats.number_format(int(seconds * 10) / 10, 1)}
    rest = int(seconds)
    largest = next(index for index, (size, _text) in enumerate(_UNITS) if rest >= size)
    parts = []
    for size, text in _UNITS[largest : largest + 2]:
        number, rest = divmod(rest, size)
        if number:
            parts.append(text % {"number": number})
    return " ".join(parts)


def rough_duration(seconds: float) -> str:
    """A length of time in its largest unit alone, such as "2 h"."""
    size, text = next((unit for unit in _UNITS if seconds >= unit[0]), _UNITS[-1])
    return text % {"number": max(0, int(seconds)) // size}


def moment(when: datetime, text: str | None = None) -> SafeString:
    """A time in the current time zone, or `text` in its place; hovering shows it in ISO format to the microsecond."""
    here = local(when)
    return format_html('<time datetime="{0}" title="{0}">{1}</time>', here.isoformat(), text or _to_the_second(here))


def moment_and_distance(when: datetime) -> SafeString:
    """A time, and how far away it is."""
    return format_html('{} <span class="cairnq-quiet cairnq-unbroken">({})</span>', moment(when), distance(when))


def ago(when: datetime) -> SafeString:
    """Roughly how far away a time is."""
    return moment(when, distance(when, rough_duration))


def number(value: int) -> str:
    """A number of things, however large."""
    return formats.number_format(value, force_grouping=True)


def distance(when: datetime, spoken: Callable[[float], str] = duration) -> str:
    """How far away a time is, such as "in 2 h 5 min" or "3 min ago"."""
    away = (when - timezone.now()).total_seconds()
    if away > 0:
        return _("in %(duration)s") % {"duration": spoken(away)}
    return _("%(duration)s ago") % {"duration": spoken(-away)}


def icon(kind: str) -> SafeString:
    """The shape of a task's status, or of another thing that there is one for."""
    return format_html(_ICON, kind, _SHAPES.get(kind, ""))


def badge(kind: str, text: str) -> SafeString:
    """What a shape and a colour repeat, in words."""
    return format_html('<span class="cairnq-status cairnq-{}">{}{}</span>', kind, icon(kind), text)


def percent(share: float) -> str:
    """A share of a hundred, rounded; all of it only where nothing is left."""
    hundredths = round(share * 100)
    return f"{formats.number_format(min(hundredths, 99) if share < 1 else hundredths)}\u00a0%"


def progress(task: Task) -> SafeString:
    return format_html(
        '<span class="cairnq-progress"><progress value="{}" max="1" aria-label="{}"></progress>'
        ' <span class="cairnq-percent">{}</span></span>',
        str(task.progress),
        _("progress"),
        percent(task.progress or 0),
    )


def status(task: Task) -> SafeString:
    """The status as a badge that says in words what its colour repeats, with what is about to change it."""
    shown = badge(task.status, task.get_status_display())
    if task.is_running and task.cancel_requested_at is not None:
        return noted(shown, moment(task.cancel_requested_at, _("cancel requested")))
    if task.is_queued and task.run_at > timezone.now():
        due = (task.run_at - timezone.now()).total_seconds()
        text = _("retry in %(duration)s") if task.attempt else _("due in %(duration)s")
        return noted(shown, moment(task.run_at, text % {"duration": rough_duration(due)}))
    return shown


def status_and_progress(task: Task) -> SafeString:
    """As `status()`, with how far a running task is, where it says so."""
    if task.is_running and task.progress is not None:
        return format_html("{} {}", status(task), progress(task))
    return status(task)


def running_time(task: Task) -> float | None:
    """How many seconds the latest attempt took, or has taken so far; None where that is not known."""
    if task.started_at is None or task.is_queued:
        return None
    if task.is_running:
        return max(0.0, (timezone.now() - task.started_at).total_seconds())
    # A task that was canceled between two attempts ended long after the attempt did.
    if task.completed_at is None or (task.canceled and not task.cancel_requested):
        return None
    return max(0.0, (task.completed_at - task.started_at).total_seconds())


@dataclass(frozen=True)
class Failure:
    """An error envelope taken apart for showing; whatever has no place of its own is in `details`."""

    type: str
    code: str
    message: str
    retryable: bool | None
    traceback: str
    details: LaidOut | None


def failure(envelope: Any) -> Failure:
    """Take an envelope apart. Rows of other versions may hold other fields, or something else altogether."""
    if not isinstance(envelope, dict):
        return Failure("", "", "", None, "", lay_out(envelope))
    details = envelope.get("details")
    traceback = ""
    if isinstance(details, dict) and isinstance(details.get("traceback"), str):
        traceback = details["traceback"]
        details = {name: value for name, value in details.items() if name != "traceback"}
    unknown = {name: value for name, value in envelope.items() if name not in (*_ENVELOPE_FIELDS, "details")}
    if unknown:
        details = {**unknown, **({"details": details} if details else {})}
    retryable = envelope.get("retryable")
    return Failure(
        type=_text(envelope.get("type")),
        code=_text(envelope.get("code")),
        message=_text(envelope.get("message")),
        retryable=retryable if isinstance(retryable, bool) else None,
        traceback=clean_text(traceback, TRACEBACK_LIMIT),
        details=lay_out(details) if details else None,
    )


def noted(shown: SafeString, note: SafeString) -> SafeString:
    return format_html('{} <span class="cairnq-quiet">{}</span>', shown, note)


def local(when: datetime) -> datetime:
    """In the current time zone, as far as that has such a time."""
    try:
        return timezone.localtime(when)
    except OverflowError:
        return when  # the last hours of the year 9999


def _to_the_second(when: datetime) -> str:
    # The formats of most languages stop at the minute, which is a long time for a task.
    return f"{formats.date_format(when, 'DATE_FORMAT')}, {formats.time_format(when, 'H:i:s')}"


def _text(value: Any) -> str:
    if value is None:
        return ""
    return clean_text(value if isinstance(value, str) else lay_out(value).text, MESSAGE_LIMIT)
