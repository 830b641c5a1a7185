"""How the values of a task are put into words and safe HTML, whatever the row holds."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.template.defaultfilters import filesizeformat
from django.utils import formats, timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..envelopes import MESSAGE_LIMIT, TRACEBACK_LIMIT
from ..models import Task, TaskAttempt
from ..serialization import clean_text

SHOWN_JSON: Final = 50_000  # characters of one value

_UNITS: Final = (
    (86_400, gettext_lazy("%(number)s d")),
    (3_600, gettext_lazy("%(number)s h")),
    (60, gettext_lazy("%(number)s min")),
    (1, gettext_lazy("%(number)s s")),
)
_ENVELOPE_FIELDS: Final = ("type", "code", "message", "retryable")

_encoder = json.JSONEncoder(indent=2, ensure_ascii=False)


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
    local = _local(when)
    return format_html('<time datetime="{0}" title="{0}">{1}</time>', local.isoformat(), text or _to_the_second(local))


def moment_and_distance(when: datetime) -> SafeString:
    """A time, and how far away it is."""
    return format_html('{} <span class="cairnq-quiet cairnq-unbroken">({})</span>', moment(when), distance(when))


def distance(when: datetime) -> str:
    away = (when - timezone.now()).total_seconds()
    if away > 0:
        return _("in %(duration)s") % {"duration": duration(away)}
    return _("%(duration)s ago") % {"duration": duration(-away)}


def status(task: Task) -> SafeString:
    """The status as a badge that says in words what its colour repeats, with what is about to change it."""
    badge = format_html('<span class="cairnq-status cairnq-{}">{}</span>', task.status, task.get_status_display())
    if task.is_running and task.cancel_requested_at is not None:
        return _noted(badge, moment(task.cancel_requested_at, _("cancel requested")))
    if task.is_queued and task.run_at > timezone.now():
        due = (task.run_at - timezone.now()).total_seconds()
        text = _("retry in %(duration)s") if task.attempt else _("due in %(duration)s")
        return _noted(badge, moment(task.run_at, text % {"duration": rough_duration(due)}))
    return badge


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
class LaidOut:
    """A JSON value laid out for reading; `cut` says how much of it is missing, if any is."""

    text: str
    cut: str = ""


def lay_out(value: Any) -> LaidOut:
    """Lay out a JSON value, as far as `SHOWN_JSON` characters go."""
    parts: list[str] = []
    room, cut = SHOWN_JSON, ""
    try:
        for part in _encoder.iterencode(value):
            parts.append(part[:room])
            room -= len(part)
            if room < 0:
                cut = _("Cut after %(shown)s characters; the whole value takes %(size)s.") % {
                    "shown": formats.number_format(SHOWN_JSON, force_grouping=True),
                    "size": filesizeformat(len(json.dumps(value, ensure_ascii=False).encode(errors="replace"))),
                }
                break
    except RecursionError:
        cut = _("Cut here: what follows is nested too deep to be shown.")
    return LaidOut(clean_text("".join(parts)), cut)


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


@dataclass(frozen=True)
class FailedAttempt:
    """A row of the table of attempts, in words."""

    number: int
    outcome: str
    worker_id: str
    started: SafeString
    ended: SafeString
    took: str
    failure: Failure


def failed_attempt(attempt: TaskAttempt) -> FailedAttempt:
    return FailedAttempt(
        number=attempt.number,
        outcome=attempt.get_outcome_display(),
        worker_id=attempt.worker_id,
        started=moment(attempt.started_at),
        ended=moment(attempt.ended_at),
        took=duration((attempt.ended_at - attempt.started_at).total_seconds()),
        failure=failure(attempt.error),
    )


def _noted(badge: SafeString, note: SafeString) -> SafeString:
    return format_html('{} <span class="cairnq-quiet">{}</span>', badge, note)


def _local(when: datetime) -> datetime:
    try:
        return timezone.localtime(when)
    except OverflowError:
        return when  # the last hours of the year 9999


def _to_the_second(local: datetime) -> str:
    # The formats of most languages stop at the minute, which is a long time for a task.
    return f"{formats.date_format(local, 'DATE_FORMAT')}, {formats.time_format(local, 'H:i:s')}"


def _text(value: Any) -> str:
    if value is None:
        return ""
    return clean_text(value if isinstance(value, str) else lay_out(value).text, MESSAGE_LIMIT)
