"""What whoever is on call should know first: whether work flows, what fails and since when, who is gone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.contrib.admin.utils import quote
from django.urls import reverse
from django.utils import formats, timezone
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from ..models import PausedQueue, WorkerProcess
from ..serialization import clean_text
from ..statuses import TaskStatus
from ..store import activity
from ..store.activity import HOUR, Work
from . import display
from .changelist import NameFilter, QueueFilter, StatusFilter
from .standing import STUCK, Queue, number, share

SAID: Final = 5  # queues in trouble, and names of one, that are told one by one
MANY: Final = 0.01  # of the tasks that ended, to have failed
LOOKED_BACK: Final = 7 * 24 * HOUR  # seconds, for when failures began


@dataclass(frozen=True)
class Pages:
    """Addresses of the pages that this user may see on this site; None for the others."""

    tasks: str
    failures: str | None
    queues: str | None
    workers: str | None
    schedules: str | None
    site: str  # its name

    def tasks_with(self, **filters: str) -> str:
        return f"{self.tasks}?{urlencode(filters)}"

    def worker(self, worker: WorkerProcess) -> str:
        name = f"admin:{worker._meta.app_label}_{worker._meta.model_name}_change"
        return reverse(name, args=[quote(worker.pk)], current_app=self.site)


@dataclass(frozen=True)
class Finding:
    """One thing that whoever is on call should know."""

    level: str  # one of `_LEVELS`
    kind: str  # of its icon
    text: SafeString
    url: str | None = None
    link: str = ""

    @property
    def icon(self) -> SafeString:
        return display.icon(self.kind)


_LEVELS: Final = ("bad", "late", "paused", "good")  # the worst first


@dataclass(frozen=True)
class Known:
    """What there is to judge by."""

    queues: list[Queue]
    workers: list[WorkerProcess]  # live ones
    lost: list[WorkerProcess]  # not heard of any more
    total: Work  # done in the last hour
    minutes: Mapping[datetime, Work]  # of it


@dataclass(frozen=True)
class Verdict:
    headline: str
    level: str
    findings: list[Finding]  # the worst first


def verdict(using: str, now: datetime, known: Known, pages: Pages) -> Verdict:
    findings = [
        *_about_flow(known, pages),
        *_about_lost(known.lost, pages),
        *_about_failures(using, now, known, pages),
    ]
    if not findings:
        return Verdict(_headline(known, set()), "good", [Finding("good", "succeeded", _about_nothing(known.total))])
    findings.sort(key=lambda finding: _LEVELS.index(finding.level))
    return Verdict(_headline(known, {finding.level for finding in findings}), findings[0].level, findings)


def _headline(known: Known, levels: set[str]) -> str:
    queues, workers = known.queues, known.workers
    if not all(queue.flows for queue in queues) or (not workers and _waiting(queues)):
        some = any(queue.has_started for queue in queues)
        return _("Work does not flow in every queue") if some else _("Work does not flow")
    if not workers:
        return _("No worker runs")
    if known.total.failed:
        return _("Work flows, but tasks fail")
    if any(queue.is_late for queue in queues):
        return _("Work flows, but some of it waits")
    if known.lost:
        return _("Work flows, but a worker is gone")
    if "paused" in levels:
        return _("Work flows, except where it is paused")
    return _("All is well")


def _about_nothing(total: Work) -> SafeString:
    if not total.ended:
        return _plain(_("Nothing waits, and nothing has failed in the last hour."))
    text = ngettext(
        "{number} task succeeded in the last hour, and none has failed.",
        "{number} tasks succeeded in the last hour, and none has failed.",
        total.succeeded,
    )
    return format_html(text, number=number(total.succeeded))


def _about_flow(known: Known, pages: Pages) -> list[Finding]:
    queues = known.queues
    if not known.workers:
        waiting = _waiting(queues)
        text = ngettext(
            "No worker has been seen lately; {number} task waits for one.",
            "No worker has been seen lately; {number} tasks wait for one.",
            waiting,
        )
        if not waiting:
            text = _("No worker has been seen lately. Nothing waits for one.")
        level = "bad" if waiting else "late"
        return [Finding(level, "warning", format_html(text, number=number(waiting))), *_about_pauses(queues, pages)]
    orphans = [queue for queue in queues if queue.orphans]
    late = sorted((queue for queue in queues if queue.is_late), key=lambda queue: (queue.flows, -queue.waits))
    findings = [
        Finding("late" if queue.flows else "bad", "queued", _about_late(queue), queue.url, _("See its tasks"))
        for queue in late[:SAID]
    ]
    others = len(late) - SAID
    if others > 0:
        text = ngettext("{number} other queue is behind.", "{number} other queues are behind.", others)
        findings.append(Finding("late", "queued", format_html(text, number=number(others))))
    return [*_about_orphans(orphans, pages), *findings, *_about_pauses(queues, pages)]


def _about_orphans(queues: list[Queue], pages: Pages) -> list[Finding]:
    """What no worker runs, though its queue is served: a name that was changed or is new, or a resource nobody has."""
    queues = sorted(queues, key=lambda queue: -queue.unhandled[queue.orphans[0]])
    findings = [
        Finding("bad", "warning", _about_names(queue), _tasks_of_orphans(queue, pages), _("See its tasks"))
        for queue in queues[:SAID]
    ]
    others = len(queues) - SAID
    if others > 0:
        text = ngettext("So it is in {number} other queue.", "So it is in {number} other queues.", others)
        findings.append(Finding("bad", "warning", format_html(text, number=number(others))))
    return findings


def _about_names(queue: Queue) -> SafeString:
    names = format_html_join(", ", "{}", ((_name(name),) for name in queue.orphans[:SAID]))
    others = len(queue.orphans) - SAID
    text = _("No live worker runs tasks named {names} in the queue {queue}; one has waited for {wait}.")
    if others > 0:
        text = ngettext(
            "No live worker runs tasks named {names} and {others} other in the queue {queue}; one has waited for "
            "{wait}.",
            "No live worker runs tasks named {names} and {others} others in the queue {queue}; one has waited for "
            "{wait}.",
            others,
        )
    wait = display.duration(queue.unhandled[queue.orphans[0]])
    return format_html(text, names=names, queue=_name(queue.name), wait=wait, others=number(max(others, 0)))


def _tasks_of_orphans(queue: Queue, pages: Pages) -> str:
    filters = {StatusFilter.parameter_name: TaskStatus.QUEUED.value, QueueFilter.parameter_name: queue.name}
    if len(queue.orphans) == 1:
        filters[NameFilter.parameter_name] = queue.orphans[0]
    return pages.tasks_with(**filters)


def _about_lost(lost: list[WorkerProcess], pages: Pages) -> list[Finding]:
    if not lost:
        return []
    text = ngettext(
        "{number} worker has ended without a word, or is cut off; it was last heard of at {when}. Others take over "
        "what it had.",
        "{number} workers have ended without a word, or are cut off; they were last heard of at {when}. Others take "
        "over what they had.",
        len(lost),
    )
    said = format_html(text, number=number(len(lost)), when=_time(lost[0].seen_at))
    if pages.workers:
        latest = lost[0]
        who = _("The latest is process {pid} on {host}.")
        said = format_html("{} {}", said, format_html(who, pid=str(latest.pid), host=_name(clean_text(latest.host))))
    return [Finding("late", "warning", said, pages.workers, _("See the workers"))]


def _waiting(queues: list[Queue]) -> int:
    """How many tasks a worker could start, as far as they are counted."""
    return sum(queue.figures.due for queue in queues if queue.figures.pause is None)


def _about_late(queue: Queue) -> SafeString:
    if not queue.is_served:
        text = _("No worker serves the queue {queue}; its oldest task has waited for {wait}.")
    elif queue.is_stuck:
        text = _("In the queue {queue} a task has waited for {wait}, and none was started in the last {stuck}.")
    else:
        text = _("In the queue {queue} a task has waited for {wait}; others are being started.")
    wait, stuck = display.duration(queue.waits), display.duration(STUCK)
    return format_html(text, queue=_name(queue.name), wait=wait, stuck=stuck)


def _about_pauses(queues: list[Queue], pages: Pages) -> list[Finding]:
    paused = [queue for queue in queues if queue.figures.pause is not None]
    findings = [
        Finding(
            "paused", "canceled", _about_pause(queue, queue.figures.pause, pages), pages.queues, _("See the queues")
        )
        for queue in paused[:SAID]
        if queue.figures.pause is not None
    ]
    others = len(paused) - SAID
    if others > 0:
        text = ngettext("{number} other queue is paused.", "{number} other queues are paused.", others)
        said = format_html(text, number=number(others))
        findings.append(Finding("paused", "canceled", said, pages.queues, _("See the queues")))
    return findings


def _about_pause(queue: Queue, pause: PausedQueue, pages: Pages) -> SafeString:
    text = _("The queue {queue} is paused since {since}.")
    if pause.paused_by and pages.queues is not None:
        text = _("The queue {queue} is paused since {since}, by {who}.")
    said = [format_html(text, queue=_name(queue.name), since=_time(pause.paused_at), who=_name(pause.paused_by))]
    if pause.until is not None:
        said.append(format_html(_("That ends at {until}."), until=_time(pause.until)))
    waits = ngettext("{number} task waits in it.", "{number} tasks wait in it.", queue.figures.depth)
    said.append(format_html(waits, number=queue.depth))
    return format_html_join(" ", "{}", ((sentence,) for sentence in said))


def _about_failures(using: str, now: datetime, known: Known, pages: Pages) -> list[Finding]:
    total = known.total
    if not total.failed:
        return []
    failing = [moment for moment, work in known.minutes.items() if work.failed]
    text = ngettext(
        "{number} task has failed for good in the last hour, {share} of those that ended, the latest at {latest}.",
        "{number} tasks have failed for good in the last hour, {share} of those that ended, the latest at {latest}.",
        total.failed,
    )
    said = format_html(
        text, number=number(total.failed), share=share(total.failed, total.ended), latest=_time(failing[-1])
    )
    since = _failing_since(using, now, failing[0])
    if since is None:
        said = format_html("{} {}", said, _("There have been failures in each hour of the last week."))
    else:
        said = format_html("{} {}", said, format_html(_("There have been failures since {since}."), since=_time(since)))
    url = pages.failures or pages.tasks_with(**{StatusFilter.parameter_name: TaskStatus.FAILED.value})
    level = "bad" if total.failed >= MANY * total.ended else "late"
    return [Finding(level, "failed", said, url, _("See the failures"))]


def _failing_since(using: str, now: datetime, first: datetime) -> datetime | None:
    """When the failures began that there have been in each hour up to the first minute with one in the last hour.

    None if that is longer ago than is looked back.
    """
    earliest = activity.begin_of_span(now - timedelta(seconds=LOOKED_BACK), HOUR)
    hours = activity.by_time(using, seconds=HOUR, since=earliest)
    hour, step = activity.begin_of_span(first, HOUR), timedelta(seconds=HOUR)
    began = first
    while hour > earliest and hours.get(hour - step, Work()).failed:
        began = hour = hour - step
    return began if hour > earliest else None


def _time(when: datetime) -> SafeString:
    """Today's by the clock, with the day of the week within six days, else with the date."""
    local = display.local(when)
    days = abs((local.date() - timezone.localtime().date()).days)
    clock = formats.time_format(local, "H:i")
    if not days:
        return display.moment(when, clock)
    return display.moment(when, f"{formats.date_format(local, 'D' if days <= 6 else 'DATE_FORMAT')} {clock}")


def _plain(text: str) -> SafeString:
    return format_html("{}", text)


def _name(name: str) -> SafeString:
    return format_html("<bdi>{}</bdi>", name)
