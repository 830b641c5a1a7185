"""The life of a task as a list of events, oldest first."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ..models import Task, TaskAttempt
from ..statuses import AttemptOutcome, TaskStatus
from . import display
from .documents import heads, parse_head

SHOWN_ATTEMPTS: Final = 50  # the latest


@dataclass(frozen=True)
class Event:
    status: str  # whose colour and shape it has
    title: str
    when: datetime | None
    notes: tuple[str, ...] = ()
    failure: display.Failure | None = None

    @property
    def icon(self) -> SafeString:
        return display.icon(self.status)

    @property
    def moment(self) -> SafeString | None:
        return None if self.when is None else display.moment_and_distance(self.when)


@dataclass(frozen=True)
class Timeline:
    events: list[Event]
    attempts: int  # that did not succeed
    shown_attempts: int


def timeline(task: Task) -> Timeline:
    """What happened to `task`, and what is known to be ahead. Two queries at most."""
    attempts = TaskAttempt.objects.using(task._state.db).filter(task_id=task.pk)
    # Not by number: attempts that are reset count from the beginning again.
    rows = attempts.defer("error").annotate(**heads("error")).order_by("-ended_at", "-id")
    newest = list(rows[: SHOWN_ATTEMPTS + 1])
    shown = newest[:SHOWN_ATTEMPTS]
    events = [*_beginning(task), *(_failed(attempt) for attempt in reversed(shown))]
    if task.is_running or task.succeeded or not _is_recorded(task, shown):
        events += _claimed(task)
    events += _end(task)
    total = attempts.count() if len(newest) > SHOWN_ATTEMPTS else len(newest)
    return Timeline(_in_order(events), total, len(shown))


def _is_recorded(task: Task, shown: list[TaskAttempt]) -> bool:
    """Whether the attempt that the row tells of is among these, the newest first."""
    return bool(shown) and (shown[0].number == task.attempt or shown[0].started_at == task.started_at)


def _in_order(events: list[Event]) -> list[Event]:
    """By their times; what has none stays behind what it came after."""
    latest = min((event.when for event in events if event.when is not None), default=None)
    keyed: list[tuple[Any, int, Event]] = []
    for index, event in enumerate(events):
        latest = event.when or latest
        keyed.append((latest, index, event))
    return [event for _when, _index, event in sorted(keyed, key=lambda each: each[:2])]


def _beginning(task: Task) -> list[Event]:
    events = [
        Event(TaskStatus.QUEUED, _("Submitted"), task.created_at),
        Event(TaskStatus.QUEUED, _("Due"), task.run_at),
    ]
    if task.expires_at is not None:
        events.append(Event(TaskStatus.CANCELED, _("Expires unless it has started"), task.expires_at))
    return events


def _failed(attempt: TaskAttempt) -> Event:
    took = display.duration((attempt.ended_at - attempt.started_at).total_seconds())
    return Event(
        TaskStatus.CANCELED if attempt.outcome == AttemptOutcome.CANCELED else TaskStatus.FAILED,
        _("Attempt %(number)d: %(outcome)s") % {"number": attempt.number, "outcome": attempt.get_outcome_display()},
        attempt.started_at,
        (
            _("claimed by %(worker)s") % {"worker": attempt.worker_id},
            _("ended after %(duration)s") % {"duration": took},
        ),
        display.failure(parse_head(attempt, "error")),
    )


def _claimed(task: Task) -> list[Event]:
    if task.started_at is None and not task.is_running:
        return []
    notes = [_("claimed by %(worker)s") % {"worker": task.worker_id}]
    if task.lease_until is not None:
        notes.append(_("lease ends %(distance)s") % {"distance": display.distance(task.lease_until)})
    title = _("Attempt %(number)d: %(outcome)s") % {
        "number": task.attempt,
        "outcome": task.get_status_display() if task.is_running or task.succeeded else _("began"),
    }
    status = task.status if task.is_running or task.succeeded else TaskStatus.RUNNING
    return [Event(status, title, task.started_at, tuple(notes))]


def _end(task: Task) -> list[Event]:
    events = []
    if task.cancel_requested_at is not None:
        events.append(Event(TaskStatus.CANCELED, _("Cancel requested"), task.cancel_requested_at))
    if task.is_terminal:
        notes: tuple[str, ...] = ()
        if task.completed_at is not None:
            life = max(0.0, (task.completed_at - task.created_at).total_seconds())
            notes = (_("%(duration)s after it was submitted") % {"duration": display.duration(life)},)
        titles = {
            TaskStatus.SUCCEEDED: _("Succeeded"),
            TaskStatus.FAILED: _("Failed"),
            TaskStatus.CANCELED: _("Canceled"),
        }
        events.append(Event(task.status, titles[TaskStatus(task.status)], task.completed_at, notes))
    return events
