"""The page of queues in the admin: how each stands, pause it, resume it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.utils import quote
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.decorators import method_decorator
from django.utils.formats import number_format
from django.utils.html import format_html
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext
from django.views.decorators.csrf import csrf_protect
from django.views.decorators.http import require_POST, require_safe

from ..arguments import text
from ..limits import QUEUE_LENGTH, USER_LENGTH
from ..models import PausedQueue, Task
from ..queues import declared_queues, request_pause, request_resume
from ..serialization import clean_text
from ..statuses import TaskStatus
from ..store.engine import task_database
from ..store.stats import QueueFigures
from ..submission import in_utc
from . import display
from .changelist import QueueFilter, StatusFilter
from .standing import Queue, standing
from .viewing import Viewing

_TEMPLATES = "admin/cairnq_django/pausedqueue"


@dataclass(frozen=True)
class Row:
    """A queue as its page shows it; an address is empty where the user may not go."""

    name: str
    figures: QueueFigures
    state: SafeString
    waiting: str
    due: str
    running: str
    oldest: str
    pause: list[SafeString | str]  # what is known of it
    tasks_url: str
    waiting_url: str
    running_url: str
    pause_url: str
    resume_url: str
    history_url: str


class PauseForm(forms.Form):
    until = forms.DateTimeField(
        label=gettext_lazy("Until"),
        required=False,
        widget=forms.DateTimeInput(
            attrs={"type": "datetime-local", "aria-describedby": "cairnq-pause-errors cairnq-pause-help"},
            format="%Y-%m-%dT%H:%M",
        ),
    )

    def clean_until(self) -> datetime | None:
        until: datetime | None = self.cleaned_data["until"]
        try:
            return None if until is None else in_utc(until, "until")
        except ValueError:
            raise forms.ValidationError(_("That time is too far from now.")) from None


@admin.register(PausedQueue)
class QueueAdmin(Viewing):
    """Lists all queues, whereas the rows are those that are paused. Pausing and resuming need a permission each."""

    class Media:
        css = {"all": ["cairnq_django/admin.css", "cairnq_django/queues.css"]}

    # What the user may do

    def has_pause_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request) and request.user.has_perm(f"{self.opts.app_label}.pause_queue")

    def has_resume_permission(self, request: HttpRequest) -> bool:
        return self.has_view_permission(request) and request.user.has_perm(f"{self.opts.app_label}.resume_queue")

    # The pages

    def get_urls(self) -> list[Any]:
        name = f"{self.opts.app_label}_{self.opts.model_name}"
        return [
            path("pause/", self.admin_site.admin_view(self.pause_view), name=f"{name}_pause"),
            path("resume/", self.admin_site.admin_view(self.resume_view), name=f"{name}_resume"),
            *super().get_urls(),
        ]

    @method_decorator(require_safe)
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        if not self.has_view_permission(request):
            raise PermissionDenied
        queues = standing(task_database(), declared_queues())
        paused = sum(each.figures.pause is not None for each in queues)
        said = ngettext("%(count)s queue is paused.", "%(count)s queues are paused.", paused)
        context = {
            "title": capfirst(str(self.opts.verbose_name_plural)),
            "rows": [self._row(request, each) for each in queues],
            "paused": paused,
            "summary": said % {"count": number_format(paused)} if paused else _("No queue is paused."),
            **(extra_context or {}),
        }
        return self._page(request, "change_list.html", context)

    @method_decorator(csrf_protect)
    def pause_view(self, request: HttpRequest) -> HttpResponse:
        """Ask until when; then pause."""
        if not self.has_pause_permission(request):
            raise PermissionDenied
        queue = _queue(request)
        form = PauseForm(request.POST if request.method == "POST" else None)
        if request.method == "POST" and form.is_valid() and self._pause(request, queue, form):
            return HttpResponseRedirect(self.url("changelist"))
        context = {
            "title": _("Pause queue"),
            "queue": queue,
            "form": form,
            "zone": timezone.get_current_timezone_name(),
            "back": self.url("changelist"),
        }
        return self._page(request, "pause.html", context)

    @method_decorator(csrf_protect)
    @method_decorator(require_POST)
    def resume_view(self, request: HttpRequest) -> HttpResponse:
        if not self.has_resume_permission(request):
            raise PermissionDenied
        queue = _queue(request)
        resumed = request_resume(queue, since=_since(request))
        if resumed is None:
            self._tell(request, messages.WARNING, _("Queue “%(queue)s” was not paused any more."), queue=queue)
        elif resumed.changed:
            self.log_change(request, PausedQueue(queue=queue), _("Resumed."))
            self._tell(request, messages.SUCCESS, _("Queue “%(queue)s” gives out tasks again."), queue=queue)
        else:
            said = _("Queue “%(queue)s” was paused anew by %(user)s, %(when)s, %(until)s. Nothing was changed.")
            self._tell(request, messages.WARNING, said, queue=queue, **_told(resumed.pause))
        return HttpResponseRedirect(self.url("changelist"))

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        # Where the admin's own history leads to; there is nothing about one queue that the list does not say.
        return HttpResponseRedirect(self.url("changelist"))

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> PausedQueue | None:
        """Of any queue, since its history goes on while it is not paused."""
        try:
            return PausedQueue(queue=text(object_id, "queue", maximum=QUEUE_LENGTH))
        except ValueError:
            return None

    def _pause(self, request: HttpRequest, queue: str, form: PauseForm) -> bool:
        by = clean_text(request.user.get_username(), USER_LENGTH)
        try:
            pause, changed = request_pause(queue, until=form.cleaned_data["until"], by=by)
        except ValueError:
            form.add_error("until", _("That time has passed, by the clock of the database."))
            return False
        told = _told(pause)
        if changed:
            self.log_change(request, PausedQueue(queue=queue), _("Paused %(until)s.") % told)
            self._tell(request, messages.SUCCESS, _("Queue “%(queue)s” is paused %(until)s."), queue=queue, **told)
        else:
            said = _("Queue “%(queue)s” was paused already by %(user)s, %(when)s, %(until)s. Nothing was changed.")
            self._tell(request, messages.WARNING, said, queue=queue, **told)
        return True

    def _tell(self, request: HttpRequest, level: int, said: str, **facts: str) -> None:
        self.message_user(request, said % {name: clean_text(fact) for name, fact in facts.items()}, level)

    def _page(self, request: HttpRequest, template: str, context: dict[str, Any]) -> HttpResponse:
        request.current_app = self.admin_site.name
        common = {**self.admin_site.each_context(request), "opts": self.opts, "media": self.media}
        return TemplateResponse(request, f"{_TEMPLATES}/{template}", {**common, **context})

    def _row(self, request: HttpRequest, queue: Queue) -> Row:
        figures = queue.figures
        name = figures.queue
        pause = figures.pause
        over = _("over %(count)s") if figures.is_deeper else "%(count)s"
        at_least = _("at least %(count)s") if figures.is_deeper and figures.due < figures.depth else over
        running = _("at least %(count)s") if figures.runs_more else "%(count)s"
        asked = {"queue": name}
        seen = {} if pause is None else {"since": pause.paused_at.isoformat()}
        may_pause = pause is None and self.has_pause_permission(request)
        may_resume = pause is not None and self.has_resume_permission(request)
        return Row(
            name=clean_text(name),
            figures=figures,
            state=queue.state,
            waiting=over % {"count": number_format(figures.depth)},
            due=at_least % {"count": number_format(figures.due)},
            running=running % {"count": number_format(figures.running)},
            oldest="" if figures.oldest_wait is None else display.duration(figures.oldest_wait),
            pause=[] if pause is None else _facts(pause),
            tasks_url=self._tasks(request, name),
            waiting_url=self._tasks(request, name, TaskStatus.QUEUED) if figures.depth else "",
            running_url=self._tasks(request, name, TaskStatus.RUNNING) if figures.running else "",
            pause_url=f"{self.url('pause')}?{urlencode(asked)}" if may_pause else "",
            resume_url=f"{self.url('resume')}?{urlencode({**asked, **seen})}" if may_resume else "",
            history_url=self.url("history", quote(name)),
        )

    def _tasks(self, request: HttpRequest, queue: str, status: str = "") -> str:
        """Where the tasks of a queue are listed, if this site does and the user may see it."""
        if not self.admin_site.is_registered(Task):
            return ""
        if not self.admin_site.get_model_admin(Task).has_view_permission(request):
            return ""
        asked = {QueueFilter.parameter_name: queue, **({StatusFilter.parameter_name: status} if status else {})}
        url = reverse(f"admin:{self.opts.app_label}_task_changelist", current_app=self.admin_site.name)
        return f"{url}?{urlencode(asked)}"


def _queue(request: HttpRequest) -> str:
    """In the address, since browsers change the line ends of what a form holds."""
    try:
        return text(request.GET.get("queue", ""), "queue", maximum=QUEUE_LENGTH)
    except ValueError:
        raise Http404 from None


def _since(request: HttpRequest) -> datetime | None:
    """Since when the queue was paused that the visitor saw."""
    try:
        return parse_datetime(request.GET.get("since", ""))
    except ValueError:
        return None


def _told(pause: PausedQueue) -> dict[str, str]:
    """What is known of a pause, for a sentence."""
    return {
        "user": pause.paused_by or _("someone"),
        "when": display.distance(pause.paused_at),
        "until": _("until %(time)s") % {"time": _time(pause.until)} if pause.until else _("until it is resumed"),
    }


def _facts(pause: PausedQueue) -> list[SafeString | str]:
    facts: list[SafeString | str] = []
    if pause.paused_by:
        who = format_html('<span class="cairnq-fact">{}</span>', clean_text(pause.paused_by))
        facts.append(format_html(_("by {user}"), user=who))
    facts.append(display.moment(pause.paused_at, display.distance(pause.paused_at)))
    if pause.until is None:
        return [*facts, _("until it is resumed")]
    return [*facts, format_html(_("until {time}"), time=display.moment_and_distance(pause.until))]


def _time(when: datetime) -> str:
    return str(display.local(when).strftime("%Y-%m-%d %H:%M:%S %Z"))
