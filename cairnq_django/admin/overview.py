"""What the overview says: whether work flows, what fails and since when, and the figures behind it.

What it reads does not grow with the table of tasks: counting stops somewhere, and what workers did is added up by them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.utils import formats, timezone
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from ..models import Schedule, WorkerProcess
from ..statuses import TERMINAL, TaskStatus
from ..store import activity, stats
from ..store.activity import HOUR, MINUTE, Work
from ..store.workers import live_workers, lost_workers
from . import charts, display
from .changelist import QueueFilter, StatusFilter
from .charts import Chart, Series
from .standing import Queue, an_hour_before, number, queues_at, texts
from .verdict import Known, Pages, verdict

COUNTED: Final = 10_000  # tasks that ended in one way
SHOWN_QUEUES: Final = 100
SHOWN_WORKERS: Final = 50

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


def overview(using: str, span: Span, pages: Pages) -> dict[str, Any]:
    """What the page shows, in some fifteen short queries; off PostgreSQL also one for each queue, and a few more."""
    now = activity.read_clock(using)
    since = an_hour_before(now)
    workers = live_workers(using)
    hour = activity.by_queue(using, seconds=MINUTE, since=since)
    minutes = activity.by_time(using, seconds=MINUTE, since=since)
    queues = queues_at(
        using,
        now,
        hour,
        workers,
        url=lambda queue: pages.tasks_with(**{QueueFilter.parameter_name: queue}),
    )
    total = Work()
    for work in hour.values():
        total.add(work)
    said = verdict(using, now, Known(queues, workers, lost_workers(using), total, minutes), pages)
    done = minutes if span.key == "hour" else _read(using, span, now)
    return {
        "headline": said.headline,
        "level": said.level,
        "findings": said.findings,
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
    schedules = str(Schedule._meta.verbose_name_plural)
    return [
        (pages.tasks, _("Tasks")),
        (pages.failures, _("Failures")),
        (pages.queues, _("Queues")),
        (pages.workers, _("Workers")),
        (pages.schedules, capfirst(schedules)),
    ]


# Queues and workers


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
        "queues": texts(worker.queues),
        "busy": worker.busy,
        "concurrency": worker.concurrency,
        "abandoned": worker.abandoned,
        "draining": worker.draining,
        "started": display.ago(worker.started_at),
    }


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
