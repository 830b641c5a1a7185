"""The pages of failures in the admin: what fails, how often, since when and why; and what can be done about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from django.contrib import admin, messages
from django.contrib.admin.exceptions import NotRegistered
from django.contrib.admin.utils import quote
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import Count, Max, Min, QuerySet
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Left
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.decorators import method_decorator
from django.utils.functional import Promise
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext_lazy
from django.views.decorators.http import require_http_methods, require_safe

from ..envelopes import UNEXPECTED
from ..expressions import Among
from ..models import Task, TaskAttempt
from ..serialization import clean_text
from ..statuses import LIVE, TaskStatus
from ..store import failures
from ..store.engine import task_database
from ..store.failures import FailureGroup, FailureKind, Span
from . import display, jobs
from .actions import agreed, ask
from .changelist import OFFERED
from .documents import heads, parse_head
from .jobs import eligible
from .sparkline import sparkline
from .viewing import Viewing

SHOWN_GROUPS: Final = 50  # those with the most failures
SHOWN_MESSAGE: Final = 300  # characters
SHOWN_TASKS: Final = 50  # on a page

_TEMPLATES: Final = "admin/cairnq_django/taskattempt"


class Within(NamedTuple):
    seconds: int
    label: Promise


#: How far back a visitor may look.
WITHIN: Final = {
    "1h": Within(3_600, gettext_lazy("the last hour")),
    "1d": Within(86_400, gettext_lazy("the last day")),
    "7d": Within(7 * 86_400, gettext_lazy("the last week")),
}
_DAY: Final = "1d"

#: What can be done to all tasks of a group, and what the button says.
_ACTIONS: Final = {
    "retry_tasks": ngettext_lazy("Retry the %(count)s failed task", "Retry all %(count)s failed tasks", "number"),
    "cancel_tasks": ngettext_lazy("Cancel the %(count)s live task", "Cancel all %(count)s live tasks", "number"),
}
_OF_STATUS: Final = {"retry_tasks": (TaskStatus.FAILED,), "cancel_tasks": LIVE}


@dataclass(frozen=True)
class Shown:
    """A group as the list shows it."""

    group: FailureGroup
    url: str
    message: str
    chart: SafeString

    @property
    def error(self) -> str:
        return short_error(self.group.kind)

    @property
    def type(self) -> str:
        """The exception, unless `error` is just that."""
        kind = self.group.kind
        return "" if kind.type == self.error else kind.type

    @property
    def attempts(self) -> str:
        return display.number(self.group.attempts)

    @property
    def for_good(self) -> str:
        return display.number(self.group.for_good)

    @property
    def retried(self) -> str:
        return display.number(self.group.attempts - self.group.for_good)

    @property
    def first(self) -> SafeString:
        return display.ago(self.group.first)

    @property
    def last(self) -> SafeString:
        return display.ago(self.group.last)


@admin.register(TaskAttempt)
class TaskAttemptAdmin(Viewing):
    """Attempts that failed, grouped; read-only. What can be done to their tasks, the admin of tasks does."""

    class Media:
        css = {"all": ["cairnq_django/admin.css", "cairnq_django/failures.css"]}

    # Whoever may see tasks may see their failures.

    def has_view_permission(self, request: HttpRequest, obj: TaskAttempt | None = None) -> bool:
        return request.user.has_perm(f"{self.opts.app_label}.view_task")

    def get_urls(self) -> list[Any]:
        name = f"{self.opts.app_label}_{self.opts.model_name}"
        return [
            path("", self.admin_site.admin_view(self.changelist_view), name=f"{name}_changelist"),
            path("group/", self.admin_site.admin_view(self.group_view), name=f"{name}_group"),
        ]

    @method_decorator(require_safe)
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """What failed lately, by name, error code and type: the most failures first."""
        self._check(request)
        using = task_database()
        within = _within(request)
        span = failures.recent(using, WITHIN[within].seconds)
        queue, name = (request.GET.get(field) or None for field in ("queue", "name"))
        found = failures.grouped(using, span, queue=queue, name=name) if span else failures.Failures({}, set(), set())
        groups = sorted(found.groups.values(), key=lambda group: (-group.attempts, group.kind))
        context = {
            "title": _("Failures"),
            "groups": self._shown(using, groups[:SHOWN_GROUPS], span, within),
            "total": display.number(len(groups)),
            "left_out": len(groups) > SHOWN_GROUPS,
            "attempts": sum(group.attempts for group in groups),
            "shown_attempts": display.number(sum(group.attempts for group in groups)),
            "spans": [(self._list_url(request, within=key), each.label, key == within) for key, each in WITHIN.items()],
            "within": within,
            "queue": queue,
            "name": name,
            "queues": sorted({*sorted(found.queues)[:OFFERED], *filter(None, [queue])}),
            "names": sorted({*sorted(found.names)[:OFFERED], *filter(None, [name])}),
            "is_filtered": bool(queue or name),
            "cleared": self._list_url(request, queue="", name=""),
            **self._span_context(span, within),
            **(extra_context or {}),
        }
        return self._page(request, "change_list.html", context)

    @method_decorator(require_http_methods(["GET", "HEAD", "POST"]))
    def group_view(self, request: HttpRequest) -> HttpResponse:
        """The tasks that failed in one way, the latest first; a POST begins to do something to them."""
        self._check(request)
        using = task_database()
        within = _within(request)
        kind = FailureKind(*(request.GET.get(field, "") for field in FailureKind._fields))
        span = failures.recent(using, WITHIN[within].seconds)
        attempts = _members(using, kind, span)
        if request.method == "POST":
            return self._act(request, attempts, kind, span)
        newest = attempts.defer("error").annotate(**heads("error")).order_by("-ended_at", "-pk").first()
        now = failures.statuses(using, attempts) if newest else {}
        # What has failed in another way since is left alone.
        left = failures.statuses(using, _latest(attempts, kind, span)) if newest else {}
        statuses = [status for status in TaskStatus if status in now]
        summed = attempts.aggregate(number=Count("pk"), first=Min("ended_at"))
        context = {
            "title": _("%(error)s in %(name)s") % {"error": short_error(kind), "name": kind.name},
            "kind": kind,
            "failure": display.failure(parse_head(newest, "error")) if newest else None,
            "newest": newest and display.moment_and_distance(newest.ended_at),
            "attempts": summed["number"],
            "shown_attempts": display.number(summed["number"]),
            "first": display.ago(summed["first"]) if newest else None,
            "total": sum(now.values()),
            "shown_total": display.number(sum(now.values())),
            "now": [(display.badge(status, str(status.label)), display.number(now[status])) for status in statuses],
            "buttons": self._buttons(request, left),
            "failed_otherwise": sum(now.values()) - sum(left.values()),
            "shown_failed_otherwise": display.number(sum(now.values()) - sum(left.values())),
            "page": self._tasks(using, attempts, sum(now.values()), request.GET.get("p", "1")),
            "query": _query(kind, within),
            "spans": [(f"?{_query(kind, key)}", each.label, key == within) for key, each in WITHIN.items()],
            "back": self.url("changelist") + "?" + urlencode({"within": within}),
            **self._span_context(span, within),
        }
        return self._page(request, "group.html", context)

    def _check(self, request: HttpRequest) -> None:
        if not self.has_view_permission(request):
            raise PermissionDenied

    def _page(self, request: HttpRequest, template: str, context: dict[str, Any]) -> HttpResponse:
        context = {**self.admin_site.each_context(request), "opts": self.opts, "media": self.media, **context}
        request.current_app = self.admin_site.name
        return TemplateResponse(request, f"{_TEMPLATES}/{template}", context)

    def _span_context(self, span: Span | None, within: str) -> dict[str, Any]:
        return {
            "label": WITHIN[within].label,
            "looked_at": display.number(failures.LOOKED_AT) if span and span.is_cut else None,
            "since": display.moment_and_distance(span.since) if span else None,
        }

    def _list_url(self, request: HttpRequest, **changes: str) -> str:
        given = {field: request.GET.get(field, "") for field in ("within", "queue", "name")}
        chosen = {field: value for field, value in {**given, **changes}.items() if value}
        return self.url("changelist") + "?" + urlencode(chosen)

    def _shown(self, using: str, groups: list[FailureGroup], span: Span | None, within: str) -> list[Shown]:
        newest = TaskAttempt.objects.using(using).filter(pk__in=[group.newest for group in groups])
        message = Left(KeyTextTransform("message", "error"), SHOWN_MESSAGE)
        messages_by_id = dict(newest.order_by().values_list("pk", message))
        return [
            Shown(
                group,
                self.url("group") + "?" + _query(group.kind, within),
                clean_text(str(messages_by_id.get(group.newest) or "")),
                sparkline(group.counts, span) if span else SafeString(""),
            )
            for group in groups
        ]

    def _tasks(self, using: str, attempts: QuerySet[TaskAttempt], total: int, number: str) -> Any:
        """A page of tasks, with when and how often each failed so."""
        rows = attempts.order_by().values("task_id").annotate(times=Count("pk"), last=Max("ended_at"))
        page: Any = _CountedPaginator(rows.order_by("-last", "task_id"), SHOWN_TASKS, total).get_page(number)
        fields = ("name", "queue", "status", "attempt", "max_attempts", "run_at", "progress", "cancel_requested_at")
        found = Task.objects.using(using).only(*fields).in_bulk([row["task_id"] for row in page.object_list])
        page.tasks = [
            {
                "task": task,
                "end_of_id": str(task.pk)[-8:],
                "url": self._task_url(task),
                "state": display.status_and_progress(task),
                "last": display.ago(row["last"]),
                "times": row["times"],
            }
            for row in page.object_list
            if (task := found.get(row["task_id"])) is not None
        ]
        return page

    def _task_admin(self) -> Any:
        """What acts on tasks on this site; None if the site does not show any."""
        try:
            return self.admin_site.get_model_admin(Task)
        except NotRegistered:
            return None

    def _task_url(self, task: Task) -> str:
        if self._task_admin() is None:
            return ""
        name = f"admin:{self.opts.app_label}_task_change"
        return reverse(name, args=[quote(task.pk)], current_app=self.admin_site.name)

    def _allowed(self, request: HttpRequest) -> list[str]:
        task_admin = self._task_admin()
        # A project may show tasks in a way of its own.
        if task_admin is None or not hasattr(task_admin, "begin"):
            return []
        return [action for action in _ACTIONS if action in task_admin.get_actions(request)]

    def _buttons(self, request: HttpRequest, now: dict[str, int]) -> list[dict[str, Any]]:
        numbers = {
            action: sum(now.get(status, 0) for status in _OF_STATUS[action]) for action in self._allowed(request)
        }
        return [
            {
                "action": action,
                "label": _ACTIONS[action] % {"number": number, "count": display.number(number)},
                "takes_back": action == "cancel_tasks",
            }
            for action, number in numbers.items()
            if number
        ]

    def _act(
        self, request: HttpRequest, attempts: QuerySet[TaskAttempt], kind: FailureKind, span: Span | None
    ) -> HttpResponse:
        action = request.POST.get("action", "")
        if action not in self._allowed(request):
            raise PermissionDenied
        task_admin = self._task_admin()
        place = jobs.Place(task_admin, request)
        job = agreed(place, action)
        if job is not None:
            answer: HttpResponse = task_admin.begin(place, job)
            return answer
        left = _latest(attempts, kind, span)
        ids = left.order_by().values("task_id").distinct()
        tasks = eligible(task_admin.get_queryset(request).filter(Among("pk", ids)), action)
        job = jobs.on_failures(place, action, kind, span.since) if span is not None and tasks.exists() else None
        if job is None:
            text = _("None of the tasks is in a state for this any more.")
            self.message_user(request, text, messages.WARNING)
            return HttpResponseRedirect(request.get_full_path())
        if action == "cancel_tasks":
            now = failures.statuses(task_database(), left)
            total = sum(now.get(status, 0) for status in _OF_STATUS[action])
            return ask(task_admin, request, tasks, action, total=total, job=job)
        answer = task_admin.begin(place, job)
        return answer


class _CountedPaginator(Paginator):  # type: ignore[type-arg]
    """Pages through rows that have been counted already."""

    count = 0

    def __init__(self, rows: Any, per_page: int, count: int) -> None:
        super().__init__(rows, per_page)
        self.count = count


def short_error(kind: FailureKind) -> str:
    """Which error it is, in a few words: "unexpected_exception" says less than the exception's own name."""
    text = kind.type.rpartition(".")[2] if kind.type and kind.code == UNEXPECTED else kind.code
    return Truncator(clean_text(text)).chars(90) or _("(no error code)")


def _members(using: str, kind: FailureKind, span: Span | None) -> QuerySet[TaskAttempt]:
    # PostgreSQL refuses to look for a text that it could not hold.
    if span is None or any("\x00" in text for text in kind):
        return TaskAttempt.objects.using(using).none()
    return failures.members(using, kind, span.since)


def _latest(attempts: QuerySet[TaskAttempt], kind: FailureKind, span: Span | None) -> QuerySet[TaskAttempt]:
    return failures.latest(attempts, attempts.db, kind, span.since) if span else attempts


def _within(request: HttpRequest) -> str:
    within = request.GET.get("within", _DAY)
    return within if within in WITHIN else _DAY


def _query(kind: FailureKind, within: str) -> str:
    return urlencode({**kind._asdict(), "within": within})
