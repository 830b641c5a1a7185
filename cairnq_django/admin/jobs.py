"""Work on more tasks than one request can do: a chunk for each request, what was done kept in the visitor's session.

Each chunk begins after the last task of the one before, so none is worked on twice, whoever stops or reloads the page.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Final
from uuid import UUID, uuid4

from django.contrib.messages import DEFAULT_TAGS
from django.core import signing
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext as _

from ..clock import Now
from ..expressions import Among
from ..models import Task, TaskAttempt
from ..statuses import LIVE, TaskStatus
from ..store.engine import in_batches
from ..store.failures import FailureKind, latest, members, tasks_after
from . import display
from .changelist import in_words, matching
from .outcomes import KINDS, Tally, told
from .wording import WORDING
from .work import WORK

CHUNK: Final = 2_000  # tasks that one request works on, at most
BUDGET: Final = 0.8  # seconds after which a request begins no further batch than its first
COUNTED: Final = 1_000_000  # tasks; there may be more

_KEPT: Final = 5  # jobs of a session, the latest
_IN_SESSION: Final = "cairnq_jobs"


@dataclass(frozen=True)
class Listed:
    """The tasks that the list shows for a query string, of those that there were at the start."""

    form: ClassVar[str] = "list"

    query: str
    upto: str  # a task's id

    def after(self, job: Job, place: Place, limit: int) -> list[UUID]:
        tasks = job.untouched(self._tasks(job, place))
        if job.last is not None:
            tasks = tasks.filter(pk__gt=job.last)
        return list(tasks.order_by("pk").values_list("pk", flat=True)[:limit])

    def work_on(self, job: Job, place: Place, task_ids: Sequence[UUID]) -> Sequence[UUID]:
        return task_ids

    def count(self, job: Job, place: Place) -> int:
        return job.untouched(self._tasks(job, place)).values("pk")[: COUNTED + 1].count()

    def described(self) -> str:
        filters = in_words(self.query)
        return _("all of the list with %(filters)s") % {"filters": filters} if filters else _("all there are")

    def _tasks(self, job: Job, place: Place) -> QuerySet[Task]:
        return matching(place.model_admin, place.request, self.query, UUID(self.upto), job.began)


@dataclass(frozen=True)
class Failing:
    """The tasks that failed in one way within some time; those of them that are worth a try, when their turn comes."""

    form: ClassVar[str] = "failures"

    name: str
    code: str
    type: str
    since: str  # ISO
    upto: int  # an attempt's id

    def after(self, job: Job, place: Place, limit: int) -> list[UUID]:
        return tasks_after(self._attempts(place), job.last, limit)

    def work_on(self, job: Job, place: Place, task_ids: Sequence[UUID]) -> Sequence[UUID]:
        """Those of these tasks that have a status for it, and have not failed in another way since."""
        ids = self._latest(place).filter(Among("task_id", task_ids)).order_by().values("task_id").distinct()
        tasks = place.model_admin.get_queryset(place.request).filter(Among("pk", ids))
        return list(job.untouched(eligible(tasks, job.action)).order_by("pk").values_list("pk", flat=True))

    def count(self, job: Job, place: Place) -> int:
        return self._attempts(place).order_by().values("task_id").distinct().count()

    def described(self) -> str:
        error = f"{self.code} ({self.type})" if self.code and self.type else self.code or self.type
        if not error:
            return _("all that failed in “%(name)s” without an error code") % {"name": self.name}
        return _("all that failed in “%(name)s” with %(error)s") % {"name": self.name, "error": error}

    def _attempts(self, place: Place) -> QuerySet[TaskAttempt]:
        return members(place.using, self._kind, datetime.fromisoformat(self.since), self.upto)

    def _latest(self, place: Place) -> QuerySet[TaskAttempt]:
        return latest(self._attempts(place), place.using, self._kind, datetime.fromisoformat(self.since))

    @property
    def _kind(self) -> FailureKind:
        return FailureKind(self.name, self.code, self.type)


@dataclass(frozen=True)
class Place:
    """Who asks, and where."""

    model_admin: Any  # of tasks
    request: HttpRequest
    began: float = field(default_factory=time.monotonic)

    @property
    def using(self) -> str:
        using: str = self.model_admin.get_queryset(self.request).db
        return using


_SOURCES: Final = {source.form: source for source in (Listed, Failing)}


@dataclass
class Job:
    """An action on many tasks, and how far it is."""

    key: str
    action: str
    source: Listed | Failing
    began: datetime
    back: str  # the address that it began at
    total: int = 0  # as far as `COUNTED`
    done: int = 0
    last: UUID | None = None  # done up to this one
    finished: bool = False
    tally: Tally = field(default_factory=Tally)

    def untouched(self, tasks: QuerySet[Task]) -> QuerySet[Task]:
        """Without those that ended after this began: what is retried may have failed again since."""
        return tasks.exclude(completed_at__gt=self.began) if self.action in _RETRIES else tasks

    def work(self, place: Place, did: Tally) -> None:
        """Do a chunk. What it has done so far is always in `did` and here, also if it breaks."""
        work = WORK[self.action]
        until = place.began + BUDGET
        found = self.source.after(self, place, CHUNK)
        done = 0
        for batch in in_batches(found, work.batch):
            for outcome in work.on(self.source.work_on(self, place, batch)):
                for tally in (did, self.tally):
                    tally[outcome.kind, str(outcome.reason)] += outcome.number
            self.last = batch[-1]
            self.done += len(batch)
            done += len(batch)
            if time.monotonic() > until:
                break
        self.finished = done == len(found) < CHUNK

    @property
    def named(self) -> str:
        """What it does to which tasks."""
        return f"{WORDING[self.action].on_all}: {self.source.described()}"

    @property
    def value(self) -> str:
        """How much of it is done, from 0 to 1, as HTML writes it."""
        return "1" if self.finished else f"{min(1.0, self.done / max(self.total, 1)):.4f}"

    @property
    def shown_total(self) -> str:
        text = display.number(max(min(self.total, COUNTED), self.done))
        return _("more than %(number)s") % {"number": text} if self.total > COUNTED > self.done else text

    @property
    def shown_done(self) -> str:
        return display.number(self.done)

    @property
    def said(self) -> list[tuple[str, str]]:
        """What became of the tasks so far: how each line is to look, and its text."""
        return [(DEFAULT_TAGS[kind.level], told(kind, reason, count)) for (kind, reason), count in self.tally.items()]


_RETRIES: Final = ("retry_tasks", "reset_tasks")


def eligible(tasks: QuerySet[Task], action: str) -> QuerySet[Task]:
    """Those of the tasks of a group of failures that the action is meant for."""
    if action in _RETRIES:
        return tasks.filter(status=TaskStatus.FAILED)
    return tasks.filter(status__in=LIVE)


def on_list(place: Place, action: str, tasks: QuerySet[Task]) -> Job | None:
    """A job on all tasks that the list shows at present, `tasks`; None if there are none."""
    newest = tasks.order_by("-pk").values_list("pk", Now()).first()
    if newest is None:
        return None
    return _job(place, action, Listed(place.request.GET.urlencode(), str(newest[0])), newest[1])


def on_failures(place: Place, action: str, kind: FailureKind, since: datetime) -> Job | None:
    """A job on the tasks that have failed in this way since then; None if there are none."""
    newest = members(place.using, kind, since).order_by("-pk").values_list("pk", Now()).first()
    if newest is None:
        return None
    return _job(place, action, Failing(*kind, since=since.isoformat(), upto=newest[0]), newest[1])


def _job(place: Place, action: str, source: Listed | Failing, now: datetime) -> Job:
    return Job(uuid4().hex, action, source, now, place.request.get_full_path())


def offer(job: Job) -> str:
    """A job that has not begun, as a text that a visitor can send back, and nobody can make up."""
    facts = (job.action, job.source.form, vars(job.source), job.began.isoformat(), job.back)
    return signing.dumps(facts, salt=_IN_SESSION)


def offered(place: Place, action: str, text: str) -> Job | None:
    """The job of `offer`, unless that was of something else than this action at this address."""
    try:
        its_action, form, source, began, back = signing.loads(text, salt=_IN_SESSION)
    except signing.BadSignature:
        return None
    if (its_action, back) != (action, place.request.get_full_path()):
        return None
    return _job(place, action, _SOURCES[form](**source), datetime.fromisoformat(began))


def keep(request: HttpRequest, job: Job) -> None:
    """Remember how far the job is, now, whatever the request ends with."""
    state = {
        "action": job.action,
        "form": job.source.form,
        "source": vars(job.source),
        "began": job.began.isoformat(),
        "back": job.back,
        "total": job.total,
        "done": job.done,
        "last": str(job.last) if job.last else None,
        "finished": job.finished,
        "tally": [[kind.code, reason, count] for (kind, reason), count in job.tally.items()],
    }
    session: Any = request.session
    if session.session_key and not session.modified:
        # A session is stored whole, and others may have stored theirs since this request read it.
        session = type(session)(session.session_key)
    others = {key: each for key, each in session.get(_IN_SESSION, {}).items() if key != job.key}
    if session.session_key is None:
        return  # logged out meanwhile
    session[_IN_SESSION] = {**dict(list(others.items())[1 - _KEPT :]), job.key: state}
    session.save()
    request.session = session


def kept(request: HttpRequest, key: str) -> Job | None:
    """The job of this visitor with this key, as far as it is."""
    state = request.session.get(_IN_SESSION, {}).get(key)
    if state is None:
        return None
    return Job(
        key=key,
        action=state["action"],
        source=_SOURCES[state["form"]](**state["source"]),
        began=datetime.fromisoformat(state["began"]),
        back=state["back"],
        total=state["total"],
        done=state["done"],
        last=UUID(state["last"]) if state["last"] else None,
        finished=state["finished"],
        tally=Tally({(KINDS[code], reason): count for code, reason, count in state["tally"]}),
    )
