"""The pages of workers in the admin: who runs, what they are at, and whether they are still heard of."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from django.contrib import admin
from django.contrib.admin.utils import flatten_fieldsets, quote
from django.db.models.functions import Left
from django.http import HttpRequest
from django.template.defaultfilters import filesizeformat
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils import formats
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from ..models import Task, WorkerProcess
from ..serialization import clean_text
from ..statuses import TaskStatus
from . import display
from .changelist import StatusFilter, WorkerFilter
from .documents import whole
from .viewing import Viewing

LISTED: Final = 3  # queues, and handlers, of a worker in the list
READ: Final = 1_000  # characters of them that the list reads
READ_ON_PAGE: Final = 100_000
SHOWN_NAME: Final = 60  # characters
SHOWN_TASKS: Final = 50  # on a worker's page, those that have run longest

_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')  # of JSON

_TEMPLATES = "admin/cairnq_django/workerprocess"


@admin.register(WorkerProcess)
class WorkerAdmin(Viewing):
    """Read-only: workers say of themselves what they do."""

    list_display = ("worker", "state", "serves", "calls", "started", "seen")
    list_per_page = 50
    ordering = ("host", "started_at", "id")
    sortable_by = ("worker", "started", "seen")
    search_fields = ("id", "host")
    search_help_text = gettext_lazy("Looks in the workers' hosts and ids.")
    actions = None

    class Media:
        css = {"all": ["cairnq_django/admin.css", "cairnq_django/workers.css"]}

    def get_queryset(self, request: HttpRequest) -> Any:
        return _read_up_to(READ, super().get_queryset(request))

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        return _read_up_to(READ_ON_PAGE, super().get_queryset(request)).filter(pk=object_id).first()

    # The list

    @admin.display(description=gettext_lazy("worker"), ordering="host")
    def worker(self, worker: WorkerProcess) -> SafeString:
        facts = [
            _("process %(pid)s") % {"pid": worker.pid},
            _("version %(version)s") % {"version": _short(worker.version)},
            # The end of an id tells the workers of a process apart.
            format_html('<span class="cairnq-mono" title="{}">…{}</span>', worker.pk, worker.pk[-8:]),
        ]
        return format_html(
            '<span class="cairnq-name">{}</span> <span class="cairnq-facts">{}</span>',
            _short(worker.host),
            _facts(facts),
        )

    @admin.display(description=gettext_lazy("state"))
    def state(self, worker: Any) -> SafeString:
        if not worker.is_heard_of:
            since = _("since %(duration)s") % {"duration": _length(worker, worker.seen_at)}
            return display.noted(display.badge("silent", _("not heard of")), display.moment(worker.seen_at, since))
        if worker.draining:
            return display.badge("draining", _("draining"))
        if worker.busy:
            return display.badge("running", _("busy"))
        return display.badge("queued", _("idle"))

    @admin.display(description=gettext_lazy("queues and handlers"))
    def serves(self, worker: Any) -> SafeString:
        queues, handlers = _texts(worker.queues_head, READ), _texts(worker.names_head, READ)
        return format_html(
            '<span class="cairnq-name">{}</span> <span class="cairnq-facts">{}</span>',
            _shortened(queues),
            _shortened(handlers) if handlers.texts else _("no handlers"),
        )

    @admin.display(description=gettext_lazy("busy calls"))
    def calls(self, worker: WorkerProcess) -> SafeString:
        facts: list[SafeString | str] = []
        if worker.bytes_in_flight is not None:
            facts.append(_("%(size)s in flight") % {"size": filesizeformat(worker.bytes_in_flight)})
        if worker.abandoned > 0:
            facts.append(_abandoned(worker.abandoned))
        return format_html('{} <span class="cairnq-facts">{}</span>', _bar(worker), _facts(facts))

    @admin.display(description=gettext_lazy("started"), ordering="started_at")
    def started(self, worker: Any) -> SafeString:
        return _labelled(_("started"), display.moment(worker.started_at, _ago(worker, worker.started_at)))

    @admin.display(description=gettext_lazy("last seen"), ordering="seen_at")
    def seen(self, worker: Any) -> SafeString:
        return _labelled(_("last seen"), display.moment(worker.seen_at, _ago(worker, worker.seen_at)))

    # The page of one worker

    def get_fieldsets(self, request: HttpRequest, obj: WorkerProcess | None = None) -> Any:
        if obj is None:
            return []
        bytes_in_flight = () if obj.bytes_in_flight is None else ("payloads",)
        sections: list[tuple[Any, list[Any]]] = [
            (
                None,
                [
                    ("state", "bar", *bytes_in_flight, *(("hanging",) if obj.abandoned > 0 else ())),
                    ("host", "process", "version", "exactly_started", "exactly_seen"),
                ],
            ),
            (_("Serves"), ["all_queues", "all_handlers"]),
            (_("Running tasks"), ["tasks"] if self._may_see_tasks(request) else []),
        ]
        return [(title, {"fields": lines}) for title, lines in sections if lines]

    def get_readonly_fields(self, request: HttpRequest, obj: WorkerProcess | None = None) -> Any:
        return flatten_fieldsets(self.get_fieldsets(request, obj))

    @admin.display(description=gettext_lazy("busy calls"))
    def bar(self, worker: WorkerProcess) -> SafeString:
        return _bar(worker)

    @admin.display(description=gettext_lazy("payloads in flight"))
    def payloads(self, worker: WorkerProcess) -> str:
        return filesizeformat(worker.bytes_in_flight or 0)

    @admin.display(description=gettext_lazy("abandoned calls"))
    def hanging(self, worker: WorkerProcess) -> SafeString:
        return _abandoned(worker.abandoned)

    @admin.display(description=gettext_lazy("process"))
    def process(self, worker: WorkerProcess) -> str:
        return str(worker.pid)  # an integer would be told as an amount

    @admin.display(description=gettext_lazy("started"))
    def exactly_started(self, worker: Any) -> SafeString:
        return _moment_and_distance(worker, worker.started_at)

    @admin.display(description=gettext_lazy("last seen"))
    def exactly_seen(self, worker: Any) -> SafeString:
        return _moment_and_distance(worker, worker.seen_at)

    @admin.display(description=gettext_lazy("queues"))
    def all_queues(self, worker: Any) -> SafeString:
        return _listing(worker.queues_head, _("Queues"))

    @admin.display(description=gettext_lazy("handlers"))
    def all_handlers(self, worker: Any) -> SafeString:
        return _listing(worker.names_head, _("Handlers"))

    @admin.display(description=gettext_lazy("running tasks"))
    def tasks(self, worker: WorkerProcess) -> SafeString:
        fields = ("name", "status", "attempt", "run_at", "progress", "cancel_requested_at", "started_at")
        # That they have a lease is what the index of running tasks is by.
        running = Task.objects.using(worker._state.db).running().filter(lease_until__isnull=False, worker_id=worker.pk)
        longest = list(running.order_by("started_at", "pk").only(*fields)[: SHOWN_TASKS + 1])
        query = {StatusFilter.parameter_name: TaskStatus.RUNNING.value, WorkerFilter.parameter_name: worker.pk}
        context = {
            "tasks": [
                {
                    "status": display.status_and_progress(task),
                    "name": task.name,
                    "id": task.pk,
                    "url": self._url(Task, "change", quote(task.pk)),
                    "took": display.duration(display.running_time(task) or 0),
                }
                for task in longest[:SHOWN_TASKS]
            ],
            "are_more": len(longest) > SHOWN_TASKS,
            "list_url": f"{self._url(Task, 'changelist')}?{urlencode(query)}",
        }
        return render_to_string(f"{_TEMPLATES}/tasks.html", context)

    def _may_see_tasks(self, request: HttpRequest) -> bool:
        site = self.admin_site
        return site.is_registered(Task) and site.get_model_admin(Task).has_view_permission(request)

    def _url(self, model: Any, page: str, *args: str) -> str:
        name = f"admin:{model._meta.app_label}_{model._meta.model_name}_{page}"
        return reverse(name, args=args, current_app=self.admin_site.name)


def _read_up_to(characters: int, workers: Any) -> Any:
    """The rows without their lists, of which a worker may have thousands of names; of those, the beginnings as text."""
    heads = {f"{column}_head": Left(whole(column), characters) for column in ("queues", "names")}
    return workers.heard_of_or_not().defer("queues", "names").annotate(**heads)


@dataclass(frozen=True)
class Texts:
    """The texts of a list, as far as they were read."""

    texts: list[str]
    are_more: bool


def _texts(head: str, read: int) -> Texts:
    return Texts([clean_text(json.loads(text)) for text in _TEXT.findall(head)], are_more=len(head) >= read)


def _shortened(listed: Texts) -> str:
    """The first few, and how many there are beside them as far as that is known."""
    shown = ", ".join(_short(text) for text in listed.texts[:LISTED])
    others = len(listed.texts) - LISTED
    if listed.are_more:
        return _("%(names)s and many more") % {"names": shown}
    if others > 0:
        more = ngettext("%(names)s and %(others)d more", "%(names)s and %(others)d more", others)
        return more % {"names": shown, "others": others}
    return shown


def _listing(head: str, label: str) -> SafeString:
    return render_to_string(f"{_TEMPLATES}/listing.html", {"listing": _texts(head, READ_ON_PAGE), "label": label})


def _short(text: str) -> str:
    return Truncator(clean_text(text)).chars(SHOWN_NAME)


def _facts(facts: list[Any]) -> SafeString:
    return format_html_join(" · ", '<span class="cairnq-fact">{}</span>', ((fact,) for fact in facts))


def _bar(worker: WorkerProcess) -> SafeString:
    """How many of the calls that it may run are at work, as a bar and in figures."""
    label = _("%(busy)s of %(concurrency)s calls busy") % {
        "busy": formats.number_format(worker.busy),
        "concurrency": formats.number_format(worker.concurrency),
    }
    return format_html(
        '<span class="cairnq-progress" title="{0}"><progress value="{1}" max="{2}" aria-label="{0}"></progress>'
        ' <span class="cairnq-percent">{3}/{4}</span></span>',
        label,
        str(worker.busy),
        str(max(1, worker.concurrency)),
        formats.number_format(worker.busy),
        formats.number_format(worker.concurrency),
    )


def _abandoned(calls: int) -> SafeString:
    text = ngettext("%(calls)s abandoned call", "%(calls)s abandoned calls", calls)
    return format_html(
        '<span class="cairnq-warning" title="{}">{}{}</span>',
        _("Given up because their time was over; their handlers do not end."),
        display.icon("warning"),
        text % {"calls": formats.number_format(calls)},
    )


def _labelled(label: str, shown: SafeString) -> SafeString:
    """With a label for phones, where the table has no head."""
    return format_html('<span data-label="{}">{}</span>', label, shown)


def _ago(worker: Any, when: datetime) -> str:
    """How long ago something was, by the database's clock alone."""
    return _("%(duration)s ago") % {"duration": _length(worker, when)}


def _length(worker: Any, when: datetime) -> str:
    return display.rough_duration(max(0.0, (worker.asked_at - when).total_seconds()))


def _moment_and_distance(worker: Any, when: datetime) -> SafeString:
    distance = _ago(worker, when)
    return format_html('{} <span class="cairnq-quiet cairnq-unbroken">({})</span>', display.moment(when), distance)
