"""The pages of schedules in the admin: when each runs and how that went; make them, pause them, run them now."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from django.contrib import admin, messages
from django.contrib.admin.utils import flatten_fieldsets, quote
from django.core.exceptions import PermissionDenied
from django.db.models import BooleanField, OuterRef, QuerySet, Subquery, Value
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import path, reverse
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.utils.html import escape, format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.csrf import csrf_protect
from django.views.decorators.http import require_POST

from .. import schedules
from ..envelopes import MESSAGE_LIMIT
from ..errors import QueueFull
from ..models import Schedule, Task
from ..registry import default_registry
from ..serialization import clean_text
from ..statuses import TaskStatus, Tick
from ..store import schedules as store
from ..store.engine import task_database
from . import display
from .schedule_form import ScheduleForm
from .viewing import Addressed

SHOWN_RUNS: Final = 5  # that come next

_EDITED: Final = tuple(ScheduleForm.Meta.fields)


@admin.register(Schedule)
class ScheduleAdmin(Addressed):
    """Schedules that code declares are looked at; each thing to do to one has a permission of its own."""

    form = ScheduleForm
    list_display = ("schedule", "state", "times", "next_run", "last_run")
    list_per_page = 50
    ordering = ("name", "pk")
    sortable_by = ("schedule", "next_run", "last_run")
    search_fields = ("name", "task_name")
    actions = ("pause_schedules", "resume_schedules", "run_schedules_now")

    class Media:
        css = {"all": ["cairnq_django/admin.css", "cairnq_django/schedules.css"]}

    # What the user may do

    def has_change_permission(self, request: HttpRequest, obj: Schedule | None = None) -> bool:
        return (obj is None or not obj.declared) and super().has_change_permission(request, obj)

    def has_delete_permission(self, request: HttpRequest, obj: Schedule | None = None) -> bool:
        # A worker that starts would make it again.
        return (obj is None or not _is_declared(obj)) and super().has_delete_permission(request, obj)

    def has_pause_permission(self, request: HttpRequest) -> bool:
        return self._may(request, "pause")

    def has_resume_permission(self, request: HttpRequest) -> bool:
        return self._may(request, "resume")

    def has_run_now_permission(self, request: HttpRequest) -> bool:
        return self._may(request, "run_now")

    def get_actions(self, request: HttpRequest, action_location: Any = None) -> Any:
        of_django: Any = super()
        # Only Django 6.1 has them elsewhere than on the list.
        where = {} if action_location is None else {"action_location": action_location}
        actions = of_django.get_actions(request, **where)
        # Of several at once, Django does not ask which may be deleted.
        actions.pop("delete_selected", None)
        return actions

    # What it writes

    def save_model(self, request: HttpRequest, obj: Schedule, form: Any, change: bool) -> None:
        using = task_database()
        if change:
            store.change(using, obj.pk, {name: getattr(obj, name) for name in _EDITED}, schedules.first_time)
        else:
            store.create(using, obj, schedules.first_time)

    def delete_model(self, request: HttpRequest, obj: Schedule) -> None:
        store.delete(task_database(), [obj.pk])

    # The list

    def get_queryset(self, request: HttpRequest) -> QuerySet[Schedule]:
        task = Task.objects.filter(pk=OuterRef("last_task_id"))
        rows: QuerySet[Schedule] = super().get_queryset(request)
        may_see_tasks = Value(self._may_see_tasks(request), output_field=BooleanField())
        return rows.annotate(last_status=Subquery(task.values("status")[:1]), may_see_tasks=may_see_tasks)

    @admin.display(description=gettext_lazy("schedule"), ordering="name")
    def schedule(self, schedule: Schedule) -> SafeString:
        facts = [schedule.task_name] if schedule.task_name != schedule.name else []
        if schedule.declared and not schedule.retired:
            facts.append(_("declared in code"))
        return format_html(
            '<span class="cairnq-name">{}</span> <span class="cairnq-facts">{}</span>',
            clean_text(schedule.name),
            format_html_join(" · ", '<span class="cairnq-fact">{}</span>', ((clean_text(fact),) for fact in facts)),
        )

    @admin.display(description=gettext_lazy("state"))
    def state(self, schedule: Schedule) -> SafeString:
        if schedule.retired:
            return display.noted(display.badge("canceled", _("retired")), escape(_("no longer declared in code")))
        if schedule.paused:
            return display.badge("paused", _("paused"))
        if schedule.error:
            text = _("held back") if schedule.last_tick == Tick.HELD_BACK else _("cannot run")
            return display.noted(display.badge("failed", text), _reason(schedule))
        if schedule.next_run_at is None:
            return display.badge("canceled", _("never again"))
        if (timezone.now() - schedule.next_run_at).total_seconds() > schedules.LATE:
            return display.badge("silent", _("overdue"))
        if schedule.last_tick in (Tick.SKIPPED, Tick.MISSED):
            skipped = schedule.last_tick == Tick.SKIPPED
            text = _("skipped the latest time, still running") if skipped else _("missed the latest time")
            return display.noted(display.badge("queued", _("active")), escape(text))
        return display.badge("queued", _("active"))

    @admin.display(description=gettext_lazy("when"))
    def times(self, schedule: Schedule) -> SafeString | str:
        if schedule.every is not None:
            return _("every %(duration)s") % {"duration": display.duration(schedule.every)}
        zone = format_html('<span class="cairnq-fact">{}</span>', clean_text(schedule.timezone))
        code = format_html('<span class="cairnq-mono">{}</span>', clean_text(schedule.cron))
        return format_html('{} <span class="cairnq-facts">{}</span>', code, zone)

    @admin.display(description=gettext_lazy("next run"), ordering="next_run_at")
    def next_run(self, schedule: Schedule) -> SafeString | None:
        return None if schedule.next_run_at is None else _labelled(_("next run"), display.ago(schedule.next_run_at))

    @admin.display(description=gettext_lazy("last run"), ordering="last_run_at")
    def last_run(self, schedule: Any) -> SafeString | None:
        if schedule.last_run_at is None:
            return None
        return _labelled(
            _("last run"), format_html("{} {}", self._last_status(schedule), display.ago(schedule.last_run_at))
        )

    @admin.action(permissions=["pause"], description=gettext_lazy("Pause the selected schedules"))
    def pause_schedules(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        self._do_to_all(request, queryset, self._pause)

    @admin.action(permissions=["resume"], description=gettext_lazy("Resume the selected schedules"))
    def resume_schedules(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        self._do_to_all(request, queryset, self._resume)

    @admin.action(permissions=["run_now"], description=gettext_lazy("Run the selected schedules now"))
    def run_schedules_now(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        self._do_to_all(request, queryset, self._run_now)

    # The page of one schedule

    def get_urls(self) -> list[Any]:
        name = f"{self.opts.app_label}_{self.opts.model_name}"
        return [
            *(
                path(f"<int:schedule_id>/{what}/", self.admin_site.admin_view(view), name=f"{name}_{what}")
                for what, view in (("pause", self.pause_view), ("resume", self.resume_view), ("run", self.run_view))
            ),
            *super().get_urls(),
        ]

    @method_decorator(csrf_protect)
    @method_decorator(require_POST)
    def pause_view(self, request: HttpRequest, schedule_id: int) -> HttpResponse:
        return self._do(request, schedule_id, self._pause, may=self.has_pause_permission(request))

    @method_decorator(csrf_protect)
    @method_decorator(require_POST)
    def resume_view(self, request: HttpRequest, schedule_id: int) -> HttpResponse:
        return self._do(request, schedule_id, self._resume, may=self.has_resume_permission(request))

    @method_decorator(csrf_protect)
    @method_decorator(require_POST)
    def run_view(self, request: HttpRequest, schedule_id: int) -> HttpResponse:
        return self._do(request, schedule_id, self._run_now, may=self.has_run_now_permission(request))

    def get_fieldsets(self, request: HttpRequest, obj: Schedule | None = None) -> Any:
        rules = ("missed", "overlap")
        if obj is None or self.has_change_permission(request, obj):
            what, when = ["name", "task_name", "payload"], ["cron", "timezone", "every", *rules]
        else:
            what, when = ["task_name", *(["payload"] if obj.payload is not None else [])], ["times", *rules]
        sections: list[tuple[Any, list[Any]]] = [
            (None, what),
            (_("When"), when),
            (_("Where"), ["queue", "priority"] if obj is None or not obj.declared else []),
        ]
        if obj is not None:
            last = ["last_run"] if obj.last_run_at is not None else []
            sections.insert(0, (_("Runs"), ["state", *last, "coming"]))
        return [(title, {"fields": fields}) for title, fields in sections if fields]

    def get_readonly_fields(self, request: HttpRequest, obj: Schedule | None = None) -> Any:
        return [name for name in flatten_fieldsets(self.get_fieldsets(request, obj)) if name not in _EDITED]

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **options: Any) -> HttpResponse:
        schedule = context["original"]
        context["schedule_buttons"] = [] if schedule is None else self._buttons(request, schedule)
        return super().render_change_form(request, context, *args, **options)

    @admin.display(description=gettext_lazy("next runs"))
    def coming(self, schedule: Schedule) -> SafeString | str:
        try:
            moments = schedules.coming(schedule, SHOWN_RUNS)
        except ValueError as error:
            return clean_text(str(error))
        if not moments:
            return _("none")
        runs = ((display.moment_and_distance(moment),) for moment in moments)
        return format_html('<ul class="cairnq-runs">{}</ul>', format_html_join("", "<li>{}</li>", runs))

    # What it does

    def _buttons(self, request: HttpRequest, schedule: Schedule) -> list[tuple[str, str]]:
        """The address and the label of what the user may do to it as it is."""
        possible = [
            ("run", _("Run now"), self.has_run_now_permission(request)),
            ("pause", _("Pause"), not schedule.paused and not schedule.retired and self.has_pause_permission(request)),
            ("resume", _("Resume"), schedule.paused and self.has_resume_permission(request)),
        ]
        return [(self.url(what, quote(schedule.pk)), label) for what, label, may in possible if may]

    def _do(self, request: HttpRequest, schedule_id: int, what: Callable[..., None], *, may: bool) -> HttpResponse:
        if not may:
            raise PermissionDenied
        schedule = self.get_queryset(request).filter(pk=schedule_id).first()
        if schedule is None:
            raise Http404
        what(request, schedule)
        return HttpResponseRedirect(self.url("change", quote(schedule_id)))

    def _do_to_all(self, request: HttpRequest, queryset: QuerySet[Schedule], what: Callable[..., None]) -> None:
        for schedule in queryset.order_by("pk"):
            what(request, schedule)

    def _pause(self, request: HttpRequest, schedule: Schedule) -> None:
        if store.pause(task_database(), schedule.pk):
            self.log_change(request, schedule, _("Paused."))
            self._tell(request, schedule, messages.SUCCESS, _("“{name}” is paused."))
        else:
            self._tell(request, schedule, messages.WARNING, _("“{name}” was paused already."))

    def _resume(self, request: HttpRequest, schedule: Schedule) -> None:
        try:
            resumed = store.resume(task_database(), schedule.pk, schedules.first_time)
        except ValueError as error:
            self._tell(request, schedule, messages.ERROR, _("“{name}” cannot run: {reason}"), reason=_told(error))
            return
        if resumed:
            self.log_change(request, schedule, _("Resumed."))
            self._tell(request, schedule, messages.SUCCESS, _("“{name}” goes on."))
        else:
            self._tell(request, schedule, messages.WARNING, _("“{name}” was not paused any more."))

    def _run_now(self, request: HttpRequest, schedule: Schedule) -> None:
        try:
            task = schedules.request_run_now(schedule)
        except (QueueFull, TypeError, ValueError) as error:
            self._tell(request, schedule, messages.ERROR, _("“{name}” cannot run: {reason}"), reason=_told(error))
            return
        if task is None:
            said = _("“{name}” has not ended yet, and must not run beside that. Nothing was submitted.")
            self._tell(request, schedule, messages.WARNING, said)
            return
        self.log_change(request, schedule, _("Run now."))
        link = self._task_link(task.pk, str(task.pk)) if self._may_see_tasks(request) else task.pk
        self._tell(request, schedule, messages.SUCCESS, _("“{name}” runs now: task {task}."), task=link)

    def _tell(self, request: HttpRequest, schedule: Schedule, level: int, said: str, **facts: Any) -> None:
        self.message_user(request, format_html(said, name=clean_text(schedule.name), **facts), level)

    def _may(self, request: HttpRequest, what: str) -> bool:
        return self.has_view_permission(request) and request.user.has_perm(f"{self.opts.app_label}.{what}_schedule")

    def _last_status(self, schedule: Any) -> SafeString | str:
        if schedule.last_status is None:
            return ""  # purged
        status = TaskStatus(schedule.last_status)
        shown = display.badge(status, str(status.label))
        return self._task_link(schedule.last_task_id, shown) if schedule.may_see_tasks else shown

    def _task_link(self, task_id: UUID, shown: SafeString | str) -> SafeString:
        name = f"admin:{self.opts.app_label}_{Task._meta.model_name}_change"
        url = reverse(name, args=[quote(task_id)], current_app=self.admin_site.name)
        return format_html('<a href="{}">{}</a>', url, shown)

    def _may_see_tasks(self, request: HttpRequest) -> bool:
        site = self.admin_site
        return site.is_registered(Task) and site.get_model_admin(Task).has_view_permission(request)


def _is_declared(schedule: Schedule) -> bool:
    """Whether the code of this process declares it."""
    definition = default_registry.get(schedule.name) if schedule.declared else None
    return definition is not None and definition.is_periodic and definition.name == schedule.name


def _labelled(label: str, shown: SafeString | str) -> SafeString:
    """With a label for phones, where the table has no head."""
    return format_html('<span data-label="{}">{}</span>', label, shown)


def _reason(schedule: Schedule) -> SafeString:
    return format_html('<span class="cairnq-reason">{}</span>', clean_text(schedule.error, MESSAGE_LIMIT))


def _told(error: Exception) -> str:
    if isinstance(error, QueueFull):
        return _("its queue, “%(queue)s”, is full") % {"queue": clean_text(error.queue)}
    return clean_text(str(error))
