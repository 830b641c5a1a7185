"""The pages of tasks in the admin: a list to find them, a page to read one, nothing to edit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final
from uuid import UUID

from django.contrib import admin
from django.contrib.admin.utils import flatten_fieldsets, quote, unquote
from django.contrib.admin.views.main import SEARCH_VAR
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.decorators import method_decorator
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy
from django.views.decorators.csrf import csrf_protect

from ..envelopes import MESSAGE_LIMIT, UNEXPECTED
from ..models import Task, WorkerProcess
from ..serialization import clean_text
from ..store.workers import handled_names
from . import display, documents
from .actions import ACTIONS, DJANGO_ACTS_ON_PAGES, PAGE_FIELD, buttons
from .answering import version
from .changelist import (
    COUNTED,
    AgeFilter,
    CappedPaginator,
    ErrorCodeFilter,
    NameFilter,
    QueueFilter,
    RetriesFilter,
    StatusFilter,
    TaskChangeList,
    WorkerFilter,
    changelist_for,
    search,
)
from .timeline import timeline
from .working import Working

SHOWN_CHILDREN: Final = 50  # on a task's page, the oldest
SHOWN_ERROR: Final = 90  # characters in the list

_TEMPLATES = "admin/cairnq_django/task"


def _json(column: str, label: Any) -> Callable[[Any, Task], SafeString]:
    @admin.display(description=label)
    def show(admin: TaskAdmin, task: Task) -> SafeString:
        context = {
            "label": label,
            "value": documents.lay_out_head(task, column),
            "download": admin.url("download", quote(task.pk), column),
        }
        return render_to_string(f"{_TEMPLATES}/document.html", context)

    return show


def _present(task: Task, **columns: str) -> tuple[str, ...]:
    """What to show for those of the columns that hold something."""
    return tuple(shown for column, shown in columns.items() if _holds(task, column))


def _holds(task: Task, column: str) -> bool:
    if column in documents.COLUMNS:
        return not documents.is_empty(task, column)
    return getattr(task, column) not in (None, "")


def _oldest_children(task: Any) -> list[Task]:
    """Those that are shown and, if there are more, one more; read once for a page."""
    if not hasattr(task, "oldest_children"):
        # Not by the primary key alone, in whose order PostgreSQL might go through the whole table.
        oldest = Task.objects.using(task._state.db).children_of(task).order_by("created_at", "pk")
        shown = oldest.only("name", "status", "attempt", "run_at", "progress", "cancel_requested_at")
        task.oldest_children = list(shown[: SHOWN_CHILDREN + 1])
    children: list[Task] = task.oldest_children
    return children


def _why_it_waits(task: Task) -> tuple[SafeString, str] | None:
    """What keeps a queued task from being run at all, as far as live workers say."""
    if not task.is_queued:
        return None
    handled = handled_names(str(task._state.db))
    if task.name in handled.get(task.queue, ()):
        return None
    text = _("No live worker runs this name.") if task.queue in handled else _("No live worker serves this queue.")
    return display.icon("warning"), text


@admin.register(Task)
class TaskAdmin(Working):
    """Read-only; each thing that can be done to a task has a permission of its own."""

    list_display = ("state_and_progress", "task", "short_error", "age", "took", "tries")
    list_display_links = ("task",)
    # Those that have an index come first: what the others look at is what they leave.
    list_filter = (StatusFilter, AgeFilter, QueueFilter, NameFilter, ErrorCodeFilter, RetriesFilter, WorkerFilter)
    list_per_page = 50
    ordering = ("-id",)  # newest first: ids begin with their time
    sortable_by = ("age",)
    search_fields = ("id", "key", "correlation_id", "name")
    search_help_text = gettext_lazy(
        "Exact id, key, correlation id or name; “payload:text” looks for a text inside payloads"
    )
    show_facets = admin.ShowFacets.NEVER
    show_full_result_count = False
    paginator = CappedPaginator
    actions = ACTIONS

    class Media:
        css = {"all": ["cairnq_django/admin.css"]}
        js = ["cairnq_django/json.js", "cairnq_django/live.js", "cairnq_django/job.js"]

    # What the user may do

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(f"{self.opts.app_label}.cancel_task")

    def has_cancel_family_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(f"{self.opts.app_label}.cancel_family_task")

    def has_retry_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(f"{self.opts.app_label}.retry_task")

    def has_reset_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(f"{self.opts.app_label}.reset_task")

    def has_run_now_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(f"{self.opts.app_label}.run_now_task")

    # The list

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[TaskChangeList]:
        return changelist_for(request)

    def lookup_allowed(self, lookup: str, value: str, request: HttpRequest) -> bool:
        """Those of the list's filters alone: any other would have the database read all of a large table."""
        for each in self.get_list_filter(request):
            named = getattr(each, "parameter_name", None)
            field = each if isinstance(each, str) else each[0] if isinstance(each, (list, tuple)) else None
            if lookup in (named, field) or (field and lookup.startswith(f"{field}__")):
                return super().lookup_allowed(lookup, value, request)
        return False

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Task], search_term: str
    ) -> tuple[QuerySet[Task], bool]:
        return (search(request, queryset, search_term) if search_term else queryset), False

    @admin.display(description=gettext_lazy("status"))
    def state(self, task: Task) -> SafeString:
        shown = display.status(task)
        why = _why_it_waits(task)
        return display.noted(shown, format_html('<span class="cairnq-warning">{}{}</span>', *why)) if why else shown

    @admin.display(description=gettext_lazy("status"))
    def state_and_progress(self, task: Task) -> SafeString:
        return display.status_and_progress(task)

    @admin.display(description=gettext_lazy("task"))
    def task(self, task: Task) -> SafeString:
        # The end of an id tells tasks apart; the beginning is the time.
        facts = [format_html('<span class="cairnq-mono" title="{}">…{}</span>', task.pk, str(task.pk)[-8:]), task.queue]
        if task.priority:
            facts.append(_("priority %(priority)d") % {"priority": task.priority})
        return format_html(
            '<span class="cairnq-name">{}</span> <span class="cairnq-facts">{}</span>',
            task.name,
            format_html_join(" · ", '<span class="cairnq-fact">{}</span>', ((fact,) for fact in facts)),
        )

    @admin.display(description=gettext_lazy("attempt"))
    def tries(self, task: Task) -> SafeString:
        return format_html('<span data-label="{}">{}/{}</span>', _("attempt"), task.attempt, task.max_attempts)

    @admin.display(description=gettext_lazy("submitted"), ordering="id")
    def age(self, task: Task) -> SafeString:
        return display.moment(task.created_at, display.distance(task.created_at, display.rough_duration))

    @admin.display(description=gettext_lazy("duration"))
    def took(self, task: Task) -> SafeString | None:
        seconds = display.running_time(task)
        if seconds is None:
            return None
        text = display.duration(seconds)
        return format_html('<span class="cairnq-took" data-label="{}">{}</span>', _("took"), text)

    @admin.display(description=gettext_lazy("error"))
    def short_error(self, task: Any) -> SafeString | None:
        # "unexpected_exception" says less than which one it was.
        unexpected = task.error_type and task.error_code == UNEXPECTED
        kind = task.error_type.rpartition(".")[2] if unexpected else task.error_code
        text = clean_text(": ".join(filter(None, [kind, task.error_message])))
        if not text:
            return None
        return format_html('<span class="cairnq-error" title="{}">{}</span>', text, Truncator(text).chars(SHOWN_ERROR))

    # The page of one task

    def get_fieldsets(self, request: HttpRequest, obj: Task | None = None) -> Any:
        if obj is None:
            return []
        links = _present(obj, key="key_link", correlation_id="correlation_link", parent_id="parent_link")
        if obj.root_id not in (obj.pk, obj.parent_id):
            links += ("root_link",)
        took = () if display.running_time(obj) is None else ("took",)
        sections = [
            (
                None,
                [
                    ("state", "tries", *took, *_present(obj, progress="progress_bar", message="message_text")),
                    ("name", "queue", "priority", "submitted"),
                    ("task_id", *_present(obj, worker_id=self._worker_field(request)), *links),
                ],
            ),
            (_("Error"), _present(obj, error="last_error")),
            (_("What happened"), ["life"]),
            (_("Data"), ["payload_json", *_present(obj, result="result_json", metadata="metadata_json")]),
            (_("Children"), ["children"] if _oldest_children(obj) else []),
        ]
        return [(title, {"fields": lines}) for title, lines in sections if lines]

    def get_readonly_fields(self, request: HttpRequest, obj: Task | None = None) -> Any:
        return flatten_fieldsets(self.get_fieldsets(request, obj))

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        """The row without its JSON, of which the beginnings are read as text."""
        try:
            task_id = UUID(object_id)
        except ValueError:
            return None
        tasks = self.get_queryset(request).defer(*documents.COLUMNS)
        return tasks.annotate(**documents.heads(*documents.COLUMNS)).filter(pk=task_id).first()

    @method_decorator(csrf_protect)
    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        if not DJANGO_ACTS_ON_PAGES and request.method == "POST":
            answer = self._run_action(request, object_id)
            if answer is not None:
                return answer
        return super().change_view(request, object_id, form_url, extra_context)

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **options: Any) -> HttpResponse:
        task = context["original"]
        context["task_buttons"] = buttons(self, request, task, has_children=bool(_oldest_children(task)))
        if not task.is_terminal:
            context["live"] = {"url": self.url("live", quote(task.pk)), "version": version(task)}
        context["task_button_field"] = PAGE_FIELD
        return super().render_change_form(request, context, *args, **options)

    @admin.display(description=gettext_lazy("id"))
    def task_id(self, task: Task) -> SafeString:
        return format_html('<span class="cairnq-mono">{}</span>', task.pk)

    @admin.display(description=gettext_lazy("key"))
    def key_link(self, task: Task) -> SafeString:
        return self._found_by(task.key or "")

    @admin.display(description=gettext_lazy("correlation id"))
    def correlation_link(self, task: Task) -> SafeString:
        return self._found_by(task.correlation_id or "")

    @admin.display(description=gettext_lazy("parent"))
    def parent_link(self, task: Task) -> SafeString | str | None:
        return self._other_task(task, task.parent_id) if task.parent_id else None

    @admin.display(description=gettext_lazy("root"))
    def root_link(self, task: Task) -> SafeString | str:
        return self._other_task(task, task.root_id)

    @admin.display(description=gettext_lazy("worker"))
    def worker_link(self, task: Task) -> SafeString | str:
        """A link to the worker, as long as it runs or is not forgotten."""
        if not WorkerProcess.objects.using(task._state.db).filter(pk=task.worker_id).exists():
            return str(task.worker_id)
        opts = WorkerProcess._meta
        name = f"admin:{opts.app_label}_{opts.model_name}_change"
        url = reverse(name, args=[quote(task.worker_id)], current_app=self.admin_site.name)
        return format_html('<a href="{}">{}</a>', url, task.worker_id)

    @admin.display(description=gettext_lazy("progress"))
    def progress_bar(self, task: Task) -> SafeString:
        return display.progress(task)

    @admin.display(description=gettext_lazy("message"))
    def message_text(self, task: Task) -> SafeString:
        return format_html('<span class="cairnq-progress-message">{}</span>', clean_text(task.message, MESSAGE_LIMIT))

    @admin.display(description=gettext_lazy("submitted"))
    def submitted(self, task: Task) -> SafeString:
        return display.moment_and_distance(task.created_at)

    payload_json = _json("payload", gettext_lazy("payload"))
    result_json = _json("result", gettext_lazy("result"))
    metadata_json = _json("metadata", gettext_lazy("metadata"))

    @admin.display(description=gettext_lazy("error"))
    def last_error(self, task: Task) -> SafeString:
        return render_to_string(
            f"{_TEMPLATES}/failure.html",
            {
                "failure": display.failure(documents.parse_head(task, "error")),
                "open": True,
                "download": self.url("download", quote(task.pk), "error"),
            },
        )

    @admin.display(description=gettext_lazy("what happened"))
    def life(self, task: Task) -> SafeString:
        return render_to_string(f"{_TEMPLATES}/timeline.html", {"timeline": timeline(task)})

    @admin.display(description=gettext_lazy("children"))
    def children(self, task: Task) -> SafeString:
        oldest = _oldest_children(task)
        total = len(oldest)
        if total > SHOWN_CHILDREN:
            total = Task.objects.using(task._state.db).children_of(task)[: COUNTED + 1].count()
        context = {
            "children": [
                {"status": display.status_and_progress(child), "link": self._task_link(child.pk, child.name)}
                for child in oldest[:SHOWN_CHILDREN]
            ],
            "total": min(total, COUNTED),
            "is_capped": total > COUNTED,
        }
        return render_to_string(f"{_TEMPLATES}/children.html", context)

    def _run_action(self, request: HttpRequest, object_id: str) -> HttpResponse | None:
        """Do what Django 6.1 does by itself when an action is chosen on the page of one object."""
        action: Any = self.get_actions(request).get(request.POST.get(PAGE_FIELD, ""))
        task = self.get_object(request, unquote(object_id))
        if action is None or not self.has_view_permission(request, task):
            return None
        if task is None:
            of_django: Any = self
            gone: HttpResponse = of_django._get_obj_does_not_exist_redirect(request, self.opts, object_id)
            return gone
        run = action[0]
        answer: HttpResponse | None = run(self, request, self.get_queryset(request).filter(pk=task.pk))
        return answer or HttpResponseRedirect(request.get_full_path())

    def _worker_field(self, request: HttpRequest) -> str:
        """What to show of the worker: a link for those who may follow it."""
        site = self.admin_site
        may_follow = site.is_registered(WorkerProcess) and site.get_model_admin(WorkerProcess).has_view_permission(
            request
        )
        return "worker_link" if may_follow else "worker_id"

    def _found_by(self, term: str) -> SafeString:
        """A link to the list of what has this text in common."""
        url = self.url("changelist") + "?" + urlencode({SEARCH_VAR: term})
        return format_html('<a href="{}">{}</a>', url, term)

    def _other_task(self, task: Task, other_id: UUID) -> SafeString | str:
        """A link to another task, as long as it has not been purged."""
        name = Task.objects.using(task._state.db).values_list("name", flat=True).filter(pk=other_id).first()
        if name is None:
            return _("%(id)s (no longer there)") % {"id": other_id}
        return self._task_link(other_id, name)

    def _task_link(self, task_id: UUID, name: str) -> SafeString:
        url = self.url("change", quote(task_id))
        return format_html('<a href="{}">{} <span class="cairnq-mono">{}</span></a>', url, name, task_id)
