"""How each queue stands: whether its tasks flow, wait for a worker, or for a handler that nobody has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from django.utils import formats
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from ..models import WorkerProcess
from ..store import activity, stats
from ..store.activity import MINUTE, Work
from ..store.stats import QueueFigures
from ..store.workers import live_workers, unhandled
from . import display

LATE: Final = 60.0  # seconds that a task may wait before that is worth a word
STUCK: Final = 300  # seconds in which something should have been started of a queue whose tasks wait


@dataclass(frozen=True)
class Queue:
    """A queue as it stands, and what became of its tasks in the last hour."""

    figures: QueueFigures
    unhandled: Mapping[str, float]  # names that no live worker runs, though one serves the queue, and their waits
    hour: Work
    is_served: bool
    has_workers: bool  # any live worker, of whichever queue
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
        return display.duration(self.figures.oldest_wait) if self.figures.oldest_wait else ""

    @property
    def waits(self) -> float:
        """For how many seconds the oldest task has that some worker may start."""
        return max((wait for name, wait in self.figures.waits.items() if name not in self.unhandled), default=0.0)

    @property
    def is_late(self) -> bool:
        return self.waits >= LATE and self.figures.pause is None

    @property
    def orphans(self) -> list[str]:
        """Names that nobody runs, in which that is worth a word; the one that waits longest first."""
        late = [name for name, wait in self.unhandled.items() if wait >= LATE]
        return sorted(late, key=lambda name: (-self.unhandled[name], name))

    @property
    def is_stuck(self) -> bool:
        """Tasks wait, and for a while none was started."""
        return self.is_late and self.waits > STUCK and not self.has_started

    @property
    def lacks_worker(self) -> bool:
        """Tasks wait that nobody takes; where no worker lives at all, that is known at once."""
        if self.is_served or self.figures.pause is not None:
            return False
        return self.is_late or (not self.has_workers and self.figures.due > 0)

    @property
    def flows(self) -> bool:
        return not self.orphans and not self.lacks_worker and not self.is_stuck

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
        if self.lacks_worker:
            return display.badge("failed", _("no worker"))
        if self.is_late:
            return display.badge("failed" if self.is_stuck else "queued", _("stuck") if self.is_stuck else _("behind"))
        if self.orphans:
            return display.badge("failed", _("no handler"))
        if self.figures.running or self.hour.started:
            return display.badge("succeeded", _("flowing"))
        return display.badge("queued", _("idle"))


def standing(using: str, also: Iterable[str]) -> list[Queue]:
    """Each queue as it stands, those in `also` among them; their addresses are left empty."""
    now = activity.read_clock(using)
    hour = activity.by_queue(using, seconds=MINUTE, since=an_hour_before(now))
    return queues_at(using, now, hour, live_workers(using), also=also)


def queues_at(
    using: str,
    now: datetime,
    hour: Mapping[str, Work],
    workers: Iterable[WorkerProcess],
    *,
    also: Iterable[str] = (),
    url: Callable[[str], str] = lambda queue: "",
) -> list[Queue]:
    """As `standing()`, where what was done in the `hour` and the live `workers` are known; `url` is of its tasks."""
    workers = list(workers)
    served = {queue for worker in workers for queue in texts(worker.queues)}
    recent = activity.by_queue(
        using, seconds=MINUTE, since=activity.begin_of_span(now - timedelta(seconds=STUCK), MINUTE)
    )
    queues = stats.queue_figures(using, also={*served, *hour, *also})
    orphans = unhandled(using, queues)
    return [
        Queue(
            figures,
            orphans.get(figures.queue, {}),
            hour.get(figures.queue, Work()),
            is_served=figures.queue in served,
            has_workers=bool(workers),
            has_started=bool(recent.get(figures.queue, Work()).started),
            url=url(figures.queue),
        )
        for figures in queues
    ]


def an_hour_before(now: datetime) -> datetime:
    """The beginning of the first of sixty minutes, of which the present one is the last."""
    return activity.begin_of_span(now, MINUTE) - timedelta(minutes=59)


def number(value: int, *, capped: bool = False) -> str:
    text = display.number(value)
    return _("%(number)s+") % {"number": text} if capped else text


def share(part: int, whole: int) -> str:
    """A share of a hundred, to one digit where it is small; never none where there is some."""
    hundredths = 100 * part / whole if whole else 0.0
    if 0 < hundredths < 0.1:
        return f"<{formats.number_format(0.1, 1)}\u00a0%"
    return f"{formats.number_format(hundredths, 1 if 0 < hundredths < 10 else 0)}\u00a0%"


def texts(values: Any) -> list[str]:
    """The texts of a JSON list, whatever it holds."""
    return [value for value in values if isinstance(value, str)] if isinstance(values, list) else []
