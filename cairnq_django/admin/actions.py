"""What the admin does to tasks: cancel them, queue them again, make them due; say what became of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import django
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.formats import number_format
from django.utils.translation import gettext as _

from ..models import Task
from . import display, jobs
from .changelist import COUNTED
from .outcomes import GONE, Tally, told
from .wording import ENDINGS, WORDING
from .work import WORK

AT_ONCE: Final = 1_000  # tasks, selected one by one, that one request works on
NAMED: Final = 20  # tasks that a question names

#: The form field by which a visitor says yes to what cannot be undone.
CONFIRMED: Final = "confirmed"

#: The form field that holds what a question was about, for the yes to be to just that.
OFFER: Final = "offer"

_NOT_AGAIN: Final = ("csrfmiddlewaretoken", CONFIRMED, OFFER)

#: Whether Django itself offers actions on the page of one object; before, that page is for the list's actions as well.
DJANGO_ACTS_ON_PAGES: Final = django.VERSION >= (6, 1)

#: The form field by which the page of one object says what to do, as Django names it.
PAGE_FIELD: Final = "CHANGE_FORM-action"


def _action(permission: str, name: str) -> Callable[[Any], Any]:
    """Declare an action of the list that is one of a task's own page as well."""
    on_page, on_list, *_ = WORDING[name]
    if not DJANGO_ACTS_ON_PAGES:
        return admin.action(permissions=[permission], description=on_list)
    return admin.action(
        permissions=[permission],
        description=on_page,
        description_plural=on_list,
        location=[admin.ActionLocation.CHANGE_LIST, admin.ActionLocation.CHANGE_FORM],
    )


@_action("cancel", "cancel_tasks")
def cancel_tasks(model_admin: Any, request: HttpRequest, queryset: QuerySet[Task]) -> HttpResponse:
    return _do(model_admin, request, queryset, "cancel_tasks")


@_action("cancel_family", "cancel_families")
def cancel_families(model_admin: Any, request: HttpRequest, queryset: QuerySet[Task]) -> HttpResponse:
    return _do(model_admin, request, queryset, "cancel_families")


@_action("retry", "retry_tasks")
def retry_tasks(model_admin: Any, request: HttpRequest, queryset: QuerySet[Task]) -> HttpResponse:
    return _do(model_admin, request, queryset, "retry_tasks")


@_action("reset", "reset_tasks")
def reset_tasks(model_admin: Any, request: HttpRequest, queryset: QuerySet[Task]) -> HttpResponse:
    return _do(model_admin, request, queryset, "reset_tasks")


@_action("run_now", "run_tasks_now")
def run_tasks_now(model_admin: Any, request: HttpRequest, queryset: QuerySet[Task]) -> HttpResponse:
    return _do(model_admin, request, queryset, "run_tasks_now")


#: As they are offered.
ACTIONS: Final = (retry_tasks, reset_tasks, run_tasks_now, cancel_tasks, cancel_families)


@dataclass(frozen=True)
class Button:
    action: str
    label: Any
    takes_back: bool  # whether it ends something


def buttons(model_admin: Any, request: HttpRequest, task: Task, *, has_children: bool) -> list[Button]:
    """The actions to offer on a task's own page: what the user may do and its state allows."""
    if DJANGO_ACTS_ON_PAGES:
        offered = model_admin.get_action_choices(request, [], action_location=admin.ActionLocation.CHANGE_FORM)
    else:
        offered = [(name, WORDING[name].on_page) for name in model_admin.get_actions(request) if name in WORDING]
    ended_badly = task.failed or task.canceled
    possible = {
        cancel_tasks.__name__: not task.is_terminal and not (task.is_running and task.cancel_requested),
        cancel_families.__name__: has_children,
        retry_tasks.__name__: ended_badly,
        reset_tasks.__name__: ended_badly and task.attempt > 0,
        run_tasks_now.__name__: task.is_queued and task.run_at > timezone.now(),
    }
    return [Button(name, label, name in ENDINGS) for name, label in offered if possible.get(name, True)]


def _do(model_admin: Any, request: HttpRequest, queryset: QuerySet[Task], action: str) -> HttpResponse:
    if _is_for_all(request):
        return _do_to_all(model_admin, request, queryset, action)
    selected = _selected(model_admin, request, queryset)
    if WORDING[action].is_final and CONFIRMED not in request.POST:
        total = selected.order_by().values("pk")[:AT_ONCE].count()
        if total:  # else to be told that they are gone
            return ask(model_admin, request, selected, action, total=total)
    return _work_on(model_admin, request, selected, action)


def _do_to_all(model_admin: Any, request: HttpRequest, tasks: QuerySet[Task], action: str) -> HttpResponse:
    place = jobs.Place(model_admin, request)
    job = agreed(place, action)
    if job is None:
        job = jobs.on_list(place, action, tasks)
        if job is not None:  # else to be told that there is nothing
            total = tasks.order_by().values("pk")[: COUNTED + 1].count()
            capped = total > COUNTED
            return ask(model_admin, request, tasks, action, total=min(total, COUNTED), is_capped=capped, job=job)
    answer: HttpResponse = model_admin.begin(place, job)
    return answer


def agreed(place: jobs.Place, action: str) -> jobs.Job | None:
    """The job that the visitor was asked about, if this is a yes to it."""
    if CONFIRMED not in place.request.POST:
        return None
    return jobs.offered(place, action, place.request.POST.get(OFFER, ""))


def _selected(model_admin: Any, request: HttpRequest, queryset: QuerySet[Task]) -> QuerySet[Task]:
    """The tasks that were selected, also those that the list's filters, which `queryset` has, leave out by now."""
    ids = request.POST.getlist(ACTION_CHECKBOX_NAME)
    if PAGE_FIELD in request.POST or not ids:
        return queryset
    tasks: QuerySet[Task] = model_admin.get_queryset(request).filter(pk__in=ids).order_by("-pk")
    return tasks


def _is_for_all(request: HttpRequest) -> bool:
    """Whether this is about all that the list shows, on whichever page of it."""
    return request.POST.get("select_across") == "1" and PAGE_FIELD not in request.POST


def ask(
    model_admin: Any,
    request: HttpRequest,
    tasks: QuerySet[Task],
    action: str,
    *,
    total: int,
    is_capped: bool = False,
    job: jobs.Job | None = None,
) -> HttpResponse:
    """A page that asks whether it is meant, with the same form again; `is_capped` if there are more than `total`.

    A yes begins `job` if there is one: with the tasks that there are now, not with those that come until then.
    """
    fields = ("name", "status", "attempt", "run_at", "progress", "cancel_requested_at")
    named = list(tasks.defer(None).only(*fields)[:NAMED])
    wording = WORDING[action]
    context = {
        **model_admin.admin_site.each_context(request),
        "title": wording.on_all if job else wording.on_page if PAGE_FIELD in request.POST else wording.on_list,
        "takes_back": action in ENDINGS,
        "question": wording.question % {"count": total},
        "is_final": wording.is_final,
        "tasks": [{"state": display.status_and_progress(task), "name": task.name, "id": task.pk} for task in named],
        "others": total - len(named),
        "is_capped": is_capped,
        "fields": [
            *((name, value) for name, values in request.POST.lists() if name not in _NOT_AGAIN for value in values),
            *([(OFFER, jobs.offer(job))] if job else []),
        ],
        "confirmed_field": CONFIRMED,
        "back": request.get_full_path(),
        "opts": model_admin.opts,
        "media": model_admin.media,
    }
    request.current_app = model_admin.admin_site.name
    return TemplateResponse(request, "admin/cairnq_django/task/confirm.html", context)


def _work_on(model_admin: Any, request: HttpRequest, queryset: QuerySet[Task], action: str) -> HttpResponse:
    chosen = list(queryset.values_list("pk", flat=True))
    tally = Tally()
    # Oldest first, so that tasks that are queued again keep their order.
    for task_id in sorted(chosen[:AT_ONCE]):
        for outcome in WORK[action].safely(task_id):
            tally[outcome.kind, str(outcome.reason)] += outcome.number
            if outcome.task is not None and outcome.kind.logged is not None:
                model_admin.log_change(request, outcome.task, outcome.logged or str(outcome.kind.logged))
    gone = max(1, len(set(request.POST.getlist(ACTION_CHECKBOX_NAME)))) - len(chosen)
    if gone > 0:
        tally[GONE, ""] += gone
    for (kind, reason), count in tally.items():
        model_admin.message_user(request, told(kind, reason, count), kind.level)
    if len(chosen) > AT_ONCE:
        text = _(
            "Only the first %(limit)s of the selected tasks were looked at. Filter the list for what is left to do."
        )
        model_admin.message_user(request, text % {"limit": number_format(AT_ONCE)}, messages.WARNING)
    return HttpResponseRedirect(request.get_full_path())
