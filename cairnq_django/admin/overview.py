"""What the overview says: whether work flows, what fails and since when, and the figures behind it.

What it reads does not grow with the table of tasks: counting stops somewhere, and what workers did is added up by them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.contrib.admin.utils import quote
from django.urls import reverse
from django.utils import formats, timezone
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ..models import PausedQueue, WorkerProcess
from ..statuses import TERMINAL, TaskStatus
from ..store import activity, stats
from ..store.activity import HOUR, MINUTE, Work
from ..store.stats import QueueFigures
from ..store.workers import live_workers
from . import charts, display
from .changelist import QueueFilter, StatusFilter
from .charts import Chart, Series

COUNTED: Final = 10_000  # tasks that ended in one way
SHOWN_QUEUES: Final = 100
SHOWN_WORKERS: Final = 50
SAID: Final = 5  # queues in trouble that are told one by one
LATE: Final = 60.0  # seconds that a task may wait before that is worth a word
STUCK: Final = 300  # seconds in which something should have been started of a queue whose tasks wait
MANY: Final = 0.01  # of the tasks that ended, to have failed
LOOKED_BACK: Final = 7 * 24 * HOUR  # seconds, for when failures began

SPAN_VAR: Final = "span"


@dataclass(frozen=True)
class Span:
    """How far back the charts go, and in which steps."""

    key: str
    name: Any
    step: int  # seconds
    steps: int
    read: int  # the length of the rows that it is put together from
    per: Any
    label: str  # a format for times
    labels: int  # below a chart, with both ends

    def steps_until(self, now: datetime) -> list[datetime]:
        first = activity.begin_of_span(now, self.step) - timedelta(seconds=(self.steps - 1) * self.step)
        return [first + timedelta(seconds=index * self.step) for index in range(self.steps)]


SPANS: Final = {
    span.key: span
    for span in (
        Span("hour", gettext_lazy("Last hour"), MINUTE, 60, MINUTE, gettext_lazy("per minute"), "H:i", 5),
        Span("day", gettext_lazy("Last day"), 15 * MINUTE, 96, MINUTE, gettext_lazy("per quarter-hour"), "H:i", 5),
        Span("week", gettext_lazy("Last week"), HOUR, 168, HOUR, gettext_lazy("per hour"), "D", 8),
    )
}


@dataclass(frozen=True)
class Pages:
    """Addresses of the pages that this user may see on this site; None for the others."""

    tasks: str
    failures: str | None
    queues: str | None
    workers: str | None
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
class Queue:
    """A queue as it stands, and what became of its tasks in the last hour."""

    figures: QueueFigures
    hour: Work
    is_served: bool
    has_started: bool  # any of its tasks within the last few minutes
    url: str

    @property
    def name(self) -> str:
        return self.figures.queue

    @property
    def depth(self) -> str:
        return number(self.figures.depth, capped=self.figures.is_deeper)

    @property
    def running(self) -> str:
        return number(self.figures.running, capped=self.figures.runs_more)

    @property
    def oldest_wait(self) -> str:
        return display.duration(self.waits) if self.waits else ""

    @property
    def waits(self) -> float:
        return self.figures.oldest_wait or 0.0

    @property
    def is_late(self) -> bool:
        return self.waits >= LATE and self.figures.pause is None

    @property
    def is_stuck(self) -> bool:
        """Tasks wait, and for a while none was started."""
        return self.is_late and self.waits > STUCK and not self.has_started

    @property
    def flows(self) -> bool:
        return not self.is_late or (self.is_served and not self.is_stuck)

    @property
    def succeeded(self) -> str:
        return number(self.hour.succeeded)

    @property
    def failed(self) -> str:
        return number(self.hour.failed)

    @property
    def failure_rate(self) -> str:
        return share(self.hour.failed, self.hour.ended) if self.hour.failed else ""

    @property
    def state(self) -> SafeString:
        """In a word, as a badge."""
        if self.figures.pause is not None:
            return display.badge("canceled", _("paused"))
        if self.is_late and not self.is_served:
            return display.badge("failed", _("no worker"))
        if self.is_late:
            return display.badge("failed" if self.is_stuck else "queued", _("stuck") if self.is_stuck else _("behind"))
        if self.figures.running or self.hour.started:
            return display.badge("succeeded", _("flowing"))
        return display.badge("queued", _("idle"))


def standing(using: str, also: Iterable[str]) -> list[Queue]:
    """Each queue as it stands, those in `also` among them; their addresses are left empty."""
    now = activity.read_clock(using)
    hour = activity.by_queue(using, seconds=MINUTE, since=SPANS["hour"].steps_until(now)[0])
    return _queues(using, now, hour, live_workers(using), None, also)


def overview(using: str, span: Span, pages: Pages) -> dict[str, Any]:
    """What the page shows, in some fifteen short queries; off PostgreSQL also one for each queue, and a few more."""
    now = activity.read_clock(using)
    the_hour = SPANS["hour"]
    since = the_hour.steps_until(now)[0]
    workers = live_workers(using)
    hour = activity.by_queue(using, seconds=MINUTE, since=since)
    minutes = activity.by_time(using, seconds=MINUTE, since=since)
    queues = _queues(using, now, hour, workers, pages)
    total = Work()
    for work in hour.values():
        total.add(work)
    findings = [*_about_flow(queues, workers, pages), *_about_failures(using, now, total, minutes, pages)]
    findings.sort(key=lambda finding: _LEVELS.index(finding.level))
    done = minutes if span is the_hour else _read(using, span, now)
    return {
        "headline": _headline(findings, queues, workers, total),
        "level": findings[0].level if findings else "good",
        "findings": findings or [Finding("good", "succeeded", _about_nothing(total))],
        "statuses": _statuses(using, queues, pages),
        "queues": queues[:SHOWN_QUEUES],
        "other_queues": max(0, len(queues) - SHOWN_QUEUES),
        "workers": [_worker(worker, pages) for worker in workers[:SHOWN_WORKERS]] if pages.workers else [],
        "other_workers": max(0, len(workers) - SHOWN_WORKERS),
        "charts": _charts(span, now, done),
        "spans": [
            {"name": each.name, "url": f"?{SPAN_VAR}={each.key}", "is_chosen": each is span} for each in SPANS.values()
        ],
        "span": span,
        "pages": pages,
        "ways": [(url, name) for url, name in _ways(pages) if url],
        "now": now,
    }


def _ways(pages: Pages) -> list[tuple[str | None, str]]:
    return [
        (pages.tasks, _("Tasks")),
        (pages.failures, _("Failures")),
        (pages.queues, _("Queues")),
        (pages.workers, _("Workers")),
    ]


def number(value: int, *, capped: bool = False) -> str:
    text = display.number(value)
    return _("%(number)s+") % {"number": text} if capped else text


def share(part: int, whole: int) -> str:
    """A share of a hundred, to one digit where it is small; never none where there is some."""
    hundredths = 100 * part / whole if whole else 0.0
    if 0 < hundredths < 0.1:
        return f"<{formats.number_format(0.1, 1)}\u00a0%"
    return f"{formats.number_format(hundredths, 1 if 0 < hundredths < 10 else 0)}\u00a0%"


# Queues and workers


def _queues(
    using: str,
    now: datetime,
    hour: Mapping[str, Work],
    workers: Iterable[WorkerProcess],
    pages: Pages | None,
    also: Iterable[str] = (),
) -> list[Queue]:
    served = {queue for worker in workers for queue in _texts(worker.queues)}
    recent = activity.by_queue(
        using, seconds=MINUTE, since=activity.begin_of_span(now - timedelta(seconds=STUCK), MINUTE)
    )
    return [
        Queue(
            figures,
            hour.get(figures.queue, Work()),
            is_served=figures.queue in served,
            has_started=bool(recent.get(figures.queue, Work()).started),
            url=pages.tasks_with(**{QueueFilter.parameter_name: figures.queue}) if pages else "",
        )
        for figures in stats.queue_figures(using, also={*served, *hour, *also})
    ]


def _statuses(using: str, queues: Iterable[Queue], pages: Pages) -> list[dict[str, Any]]:
    """How many tasks are in each state, as far as they are counted."""
    figures = [queue.figures for queue in queues]
    ended = stats.ended_up_to(using, COUNTED + 1)
    counts = {
        TaskStatus.QUEUED: (sum(each.depth for each in figures), any(each.is_deeper for each in figures)),
        TaskStatus.RUNNING: (sum(each.running for each in figures), any(each.runs_more for each in figures)),
        **{status: (min(ended[status], COUNTED), ended[status] > COUNTED) for status in TERMINAL},
    }
    return [
        {
            "status": status.value,
            "icon": display.icon(status),
            "label": status.label,
            "count": number(count, capped=capped),
            "url": pages.tasks_with(**{StatusFilter.parameter_name: status.value}),
        }
        for status, (count, capped) in counts.items()
    ]


def _worker(worker: WorkerProcess, pages: Pages) -> dict[str, Any]:
    return {
        "id": worker.pk,
        "url": pages.worker(worker),
        "host": worker.host,
        "pid": str(worker.pid),
        "queues": _texts(worker.queues),
        "busy": worker.busy,
        "concurrency": worker.concurrency,
        "abandoned": worker.abandoned,
        "draining": worker.draining,
        "started": display.ago(worker.started_at),
    }


def _texts(values: Any) -> list[str]:
    """The texts of a JSON list, whatever it holds."""
    return [value for value in values if isinstance(value, str)] if isinstance(values, list) else []


# What to say first


def _headline(findings: list[Finding], queues: list[Queue], workers: list[WorkerProcess], total: Work) -> str:
    levels = {finding.level for finding in findings}
    if not all(queue.flows for queue in queues) or (not workers and _waiting(queues)):
        some = any(queue.has_started for queue in queues)
        return _("Work does not flow in every queue") if some else _("Work does not flow")
    if not workers:
        return _("No worker runs")
    if total.failed:
        return _("Work flows, but tasks fail")
    if "late" in levels:
        return _("Work flows, but some of it waits")
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


def _about_flow(queues: list[Queue], workers: list[WorkerProcess], pages: Pages) -> list[Finding]:
    if not workers:
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
    late = sorted((queue for queue in queues if queue.is_late), key=lambda queue: (queue.flows, -queue.waits))
    findings = [
        Finding("late" if queue.flows else "bad", "queued", _about_late(queue), queue.url, _("See its tasks"))
        for queue in late[:SAID]
    ]
    others = len(late) - SAID
    if others > 0:
        text = ngettext("{number} other queue is behind.", "{number} other queues are behind.", others)
        findings.append(Finding("late", "queued", format_html(text, number=number(others))))
    return [*findings, *_about_pauses(queues, pages)]


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


def _about_failures(
    using: str, now: datetime, total: Work, minutes: Mapping[datetime, Work], pages: Pages
) -> list[Finding]:
    if not total.failed:
        return []
    failing = [moment for moment, work in minutes.items() if work.failed]
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


# Charts


def _read(using: str, span: Span, now: datetime) -> dict[datetime, Work]:
    return activity.by_time(using, seconds=span.read, since=span.steps_until(now)[0])


def _charts(span: Span, now: datetime, done: Mapping[datetime, Work]) -> list[Chart]:
    steps = span.steps_until(now)
    work = [Work() for _step in steps]
    for moment, more in done.items():
        index = int((moment - steps[0]).total_seconds()) // span.step
        if 0 <= index < len(work):  # one that began since is for the next look
            work[index].add(more)
    total = Work()
    for each in work:
        total.add(each)
    means = [each.waited / each.started if each.started else None for each in work]
    words: dict[str, Any] = {
        "per": span.per,
        "moments": [_moment(span, step) for step in steps],
        "times": _labels(span, steps),
    }
    return [
        charts.bars(
            "throughput",
            _("Throughput"),
            [Series(_("succeeded"), "good", [each.succeeded for each in work])],
            summary=_("%(number)s succeeded") % {"number": number(total.succeeded)},
            spoken=_count,
            **words,
        ),
        charts.bars(
            "failures",
            _("Failures"),
            [
                Series(_("failed for good"), "bad", [each.failed for each in work]),
                Series(_("queued again"), "again", [each.retried for each in work]),
            ],
            summary=_("%(failed)s failed for good, %(retried)s queued again")
            % {"failed": number(total.failed), "retried": number(total.retried)},
            spoken=_count,
            **words,
        ),
        charts.lines(
            "waiting",
            _("Waiting time"),
            [
                Series(_("on average"), "mean", means),
                Series(_("longest"), "longest", [each.longest_wait if each.started else None for each in work]),
            ],
            summary=_waited(total),
            spoken=display.duration,
            **words,
        ),
    ]


def _waited(total: Work) -> str:
    if not total.started:
        return _("nothing was started")
    return _("%(mean)s on average, %(longest)s at the longest") % {
        "mean": display.duration(total.waited / total.started),
        "longest": display.duration(total.longest_wait),
    }


def _count(value: float) -> str:
    return number(int(value))


def _moment(span: Span, step: datetime) -> str:
    local = timezone.localtime(step)
    clock = formats.time_format(local, "H:i")
    return clock if span.label != "D" else f"{formats.date_format(local, 'D')} {clock}"


def _labels(span: Span, steps: list[datetime]) -> list[str]:
    """What to write below a chart from its beginning to now."""
    length = timedelta(seconds=span.step * span.steps)
    moments = [steps[0] + length * index / (span.labels - 1) for index in range(span.labels - 1)]
    return [*(formats.date_format(timezone.localtime(moment), span.label) for moment in moments), _("now")]
