"""What the admin does to tasks: cancel them, queue them again, make them due; say what became of each."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from uuid import UUID

import django
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils import timezone
from django.utils.formats import number_format
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext_lazy

from ..client import request_cancel, request_family_cancel, request_run_now, retry
from ..errors import AlreadyExists, CairnQError
from ..models import Task
from ..statuses import TaskStatus
from ..store.engine import task_database
from . import display

logger = logging.getLogger(__name__)

AT_ONCE: Final = 1_000  # tasks that one request works on
NAMED: Final = 20  # tasks that a question names

#: The form field by which a visitor says yes to what cannot be undone.
CONFIRMED: Final = "confirmed"

#: Whether Django itself offers actions on the page of one object; before, that page is for the list's actions as well.
DJANGO_ACTS_ON_PAGES: Final = django.VERSION >= (6, 1)

#: The form field by which the page of one object says what to do, as Django names it.
PAGE_FIELD: Final = "CHANGE_FORM-action"


@dataclass(frozen=True, eq=False)
class Kind:
    """One way in which an action can end for a task: how to tell the user of it, and what to log if it is a change."""

    level: int
    text: Any  # takes the number of tasks, and the reason if there is one
    logged: Promise | None = None


class Outcome(NamedTuple):
    kind: Kind
    reason: str | Promise = ""
    task: Task | None = None  # as it is now, if it was changed
    number: int = 1  # of tasks
    logged: str = ""  # in place of what the kind says


CANCELED = Kind(
    messages.SUCCESS,
    ngettext_lazy("%(count)d task was canceled.", "%(count)d tasks were canceled.", "count"),
    gettext_lazy("Canceled."),
)
ASKED_TO_STOP = Kind(
    messages.SUCCESS,
    ngettext_lazy(
        "%(count)d running task was asked to stop and will end canceled.",
        "%(count)d running tasks were asked to stop and will end canceled.",
        "count",
    ),
    gettext_lazy("Cancel requested."),
)
ASKED_BEFORE = Kind(
    messages.INFO,
    ngettext_lazy(
        "%(count)d running task had been asked to stop before.",
        "%(count)d running tasks had been asked to stop before.",
        "count",
    ),
)
ENDED_BEFORE = Kind(
    messages.WARNING,
    ngettext_lazy("%(count)d task had ended already.", "%(count)d tasks had ended already.", "count"),
)
QUEUED_AGAIN = Kind(
    messages.SUCCESS,
    ngettext_lazy("%(count)d task was queued again.", "%(count)d tasks were queued again.", "count"),
    gettext_lazy("Queued again."),
)
QUEUED_AFRESH = Kind(
    messages.SUCCESS,
    ngettext_lazy(
        "%(count)d task was queued again with all its attempts left.",
        "%(count)d tasks were queued again with all their attempts left.",
        "count",
    ),
    gettext_lazy("Queued again with its attempts reset."),
)
MADE_DUE = Kind(
    messages.SUCCESS,
    ngettext_lazy(
        "%(count)d task is due now and runs as soon as a worker has room.",
        "%(count)d tasks are due now and run as soon as a worker has room.",
        "count",
    ),
    gettext_lazy("Made due now."),
)
DUE_BEFORE = Kind(
    messages.INFO,
    ngettext_lazy("%(count)d task was due already.", "%(count)d tasks were due already.", "count"),
)
NOT_MADE_DUE = Kind(
    messages.WARNING,
    ngettext_lazy(
        "%(count)d task was not made due: %(reason)s.", "%(count)d tasks were not made due: %(reason)s.", "count"
    ),
)
NOTHING_LIVE = Kind(
    messages.WARNING,
    ngettext_lazy(
        "Nothing of the family of %(count)d task was left to cancel.",
        "Nothing of the families of %(count)d tasks was left to cancel.",
        "count",
    ),
)
NOT_RETRIED = Kind(
    messages.WARNING,
    ngettext_lazy(
        "%(count)d task was not retried: %(reason)s.", "%(count)d tasks were not retried: %(reason)s.", "count"
    ),
)
GONE = Kind(
    messages.WARNING,
    ngettext_lazy("%(count)d task does not exist any more.", "%(count)d tasks do not exist any more.", "count"),
)
BROKEN = Kind(
    messages.ERROR,
    ngettext_lazy(
        "An error left %(count)d task as it was: %(reason)s. The log of the server says more.",
        "An error left %(count)d tasks as they were: %(reason)s. The log of the server says more.",
        "count",
    ),
)

_WHY_NOT = {
    TaskStatus.QUEUED: gettext_lazy("already queued"),
    TaskStatus.RUNNING: gettext_lazy("still running"),
    TaskStatus.SUCCEEDED: gettext_lazy("succeeded"),
    TaskStatus.FAILED: gettext_lazy("failed"),
    TaskStatus.CANCELED: gettext_lazy("canceled"),
}
_KEY_IN_USE = gettext_lazy("the key has another live task")


class Wording(NamedTuple):
    on_page: Any
    on_list: Any
    question: Any = None  # takes the number of tasks; None where nothing is asked


_WORDING: Final = {
    "cancel_tasks": Wording(
        gettext_lazy("Cancel task"),
        gettext_lazy("Cancel selected tasks"),
        ngettext_lazy(
            "A queued task is canceled at once. A running one is asked to stop and ends canceled, whatever it returns.",
            "Queued tasks are canceled at once. Running ones are asked to stop and end canceled, whatever they return.",
            "count",
        ),
    ),
    "cancel_families": Wording(
        gettext_lazy("Cancel with descendants"),
        gettext_lazy("Cancel selected tasks with their descendants"),
        ngettext_lazy(
            "The task and all its descendants are canceled, however deep, also below those that have ended. "
            "Running ones are asked to stop and end canceled, whatever they return.",
            "The tasks and all their descendants are canceled, however deep, also below those that have ended. "
            "Running ones are asked to stop and end canceled, whatever they return.",
            "count",
        ),
    ),
    "retry_tasks": Wording(gettext_lazy("Retry task"), gettext_lazy("Retry selected tasks")),
    "reset_tasks": Wording(
        gettext_lazy("Retry with attempts reset"),
        gettext_lazy("Retry selected tasks with attempts reset"),
        ngettext_lazy(
            "The task is queued again and its attempts count from the beginning. Those that failed are kept with their "
            "errors.",
            "The tasks are queued again and their attempts count from the beginning. Those that failed are kept with "
            "their errors.",
            "count",
        ),
    ),
    "run_tasks_now": Wording(
        gettext_lazy("Run now"),
        gettext_lazy("Run selected tasks now"),
        ngettext_lazy(
            "The task becomes due now; when it was to be due is forgotten.",
            "The tasks become due now; when they were to be due is forgotten.",
            "count",
        ),
    ),
}

_ENDINGS: Final = ("cancel_tasks", "cancel_families")


def _action(permission: str, name: str) -> Callable[[Any], Any]:
    """Declare an action of the list that is one of a task's own page as well."""
    on_page, on_list, _question = _WORDING[name]
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
    return _ask(model_admin, request, queryset, "cancel_tasks") or _work_on(model_admin, request, queryset, _cancel)


@_action("cancel_family", "cancel_families")
def cancel_families(model_admin: Any, request: HttpRequest, queryset: QuerySet[Task]) -> HttpResponse:
    asked = _ask(model_admin, request, queryset, "cancel_families")
    return asked or _work_on(model_admin, request, queryset, _cancel_family)


@_action("retry", "retry_tasks")
def retry_tasks(model_admin: Any, request: HttpRequest, queryset: QuerySet[Task]) -> HttpResponse:
    return _work_on(model_admin, request, queryset, _retry)


@_action("reset", "reset_tasks")
def reset_tasks(model_admin: Any, request: HttpRequest, queryset: QuerySet[Task]) -> HttpResponse:
    return _ask(model_admin, request, queryset, "reset_tasks") or _work_on(model_admin, request, queryset, _reset)


@_action("run_now", "run_tasks_now")
def run_tasks_now(model_admin: Any, request: HttpRequest, queryset: QuerySet[Task]) -> HttpResponse:
    return _ask(model_admin, request, queryset, "run_tasks_now") or _work_on(model_admin, request, queryset, _run_now)


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
        offered = [(name, _WORDING[name].on_page) for name in model_admin.get_actions(request) if name in _WORDING]
    ended_badly = task.failed or task.canceled
    possible = {
        cancel_tasks.__name__: not task.is_terminal and not (task.is_running and task.cancel_requested),
        cancel_families.__name__: has_children,
        retry_tasks.__name__: ended_badly,
        reset_tasks.__name__: ended_badly and task.attempt > 0,
        run_tasks_now.__name__: task.is_queued and task.run_at > timezone.now(),
    }
    return [Button(name, label, name in _ENDINGS) for name, label in offered if possible.get(name, True)]


def _ask(model_admin: Any, request: HttpRequest, queryset: QuerySet[Task], action: str) -> HttpResponse | None:
    """A page that asks whether it is meant, with the same form again; None once the visitor has said yes."""
    if CONFIRMED in request.POST:
        return None
    fields = ("name", "status", "attempt", "run_at", "progress", "cancel_requested_at")
    named = list(queryset.defer(None).only(*fields)[:NAMED])
    if not named:
        return None  # to be told that they are gone
    total = queryset.order_by()[: AT_ONCE + 1].count()
    wording = _WORDING[action]
    context = {
        **model_admin.admin_site.each_context(request),
        "title": wording.on_page if PAGE_FIELD in request.POST else wording.on_list,
        "takes_back": action in _ENDINGS,
        "question": wording.question % {"count": total},
        "tasks": [{"state": display.status_and_progress(task), "name": task.name, "id": task.pk} for task in named],
        "others": min(total, AT_ONCE) - len(named),
        "fields": [
            (name, value) for name, values in request.POST.lists() if name != "csrfmiddlewaretoken" for value in values
        ],
        "confirmed_field": CONFIRMED,
        "back": request.get_full_path(),
        "opts": model_admin.opts,
        "media": model_admin.media,
    }
    request.current_app = model_admin.admin_site.name
    return TemplateResponse(request, "admin/cairnq_django/task/confirm.html", context)


def _work_on(
    model_admin: Any, request: HttpRequest, queryset: QuerySet[Task], work: Callable[[UUID], list[Outcome]]
) -> HttpResponse:
    chosen = list(queryset.values_list("pk", flat=True)[: AT_ONCE + 1])
    told: Counter[tuple[Kind, str]] = Counter()
    # Oldest first, so that tasks that are queued again keep their order.
    for task_id in sorted(chosen[:AT_ONCE]):
        for outcome in _safely(work, task_id):
            told[outcome.kind, str(outcome.reason)] += outcome.number
            if outcome.task is not None and outcome.kind.logged is not None:
                model_admin.log_change(request, outcome.task, outcome.logged or str(outcome.kind.logged))
    if not chosen:
        told[GONE, ""] += max(1, len(request.POST.getlist(ACTION_CHECKBOX_NAME)))
    for (kind, reason), count in told.items():
        model_admin.message_user(request, kind.text % {"count": count, "reason": reason}, kind.level)
    if len(chosen) > AT_ONCE:
        text = _(
            "Only the first %(limit)s of the selected tasks were looked at. Filter the list for what is left to do."
        )
        model_admin.message_user(request, text % {"limit": number_format(AT_ONCE)}, messages.WARNING)
    return HttpResponseRedirect(request.get_full_path())


def _safely(work: Callable[[UUID], list[Outcome]], task_id: UUID) -> list[Outcome]:
    try:
        return work(task_id)
    except Task.DoesNotExist:
        return [Outcome(GONE)]
    except Exception as error:
        logger.exception("Task %s could not be changed", task_id)
        return [Outcome(BROKEN, type(error).__name__)]


def _cancel(task_id: UUID) -> list[Outcome]:
    task, changed = request_cancel(task_id)
    if changed and task.is_running:
        return [Outcome(ASKED_TO_STOP, task=task)]
    if changed:
        return [Outcome(CANCELED, task=task)]
    return [Outcome(ASKED_BEFORE if task.is_running else ENDED_BEFORE)]


def _cancel_family(task_id: UUID) -> list[Outcome]:
    task, ended, asked = request_family_cancel(task_id)
    logged = _("Canceled with its descendants: %(ended)d at once, %(asked)d running ones asked to stop.") % {
        "ended": len(ended),
        "asked": len(asked),
    }
    outcomes = [
        Outcome(kind, number=len(changed)) for kind, changed in ((CANCELED, ended), (ASKED_TO_STOP, asked)) if changed
    ]
    if not outcomes:
        return [Outcome(NOTHING_LIVE)]
    return [outcomes[0]._replace(task=task, logged=logged), *outcomes[1:]]


def _retry(task_id: UUID) -> list[Outcome]:
    return _queue_again(task_id, QUEUED_AGAIN, reset_attempts=False)


def _reset(task_id: UUID) -> list[Outcome]:
    return _queue_again(task_id, QUEUED_AFRESH, reset_attempts=True)


def _queue_again(task_id: UUID, kind: Kind, *, reset_attempts: bool) -> list[Outcome]:
    try:
        return [Outcome(kind, task=retry(task_id, reset_attempts=reset_attempts))]
    except AlreadyExists:
        return [Outcome(NOT_RETRIED, _KEY_IN_USE)]
    except CairnQError:
        return [Outcome(NOT_RETRIED, _why_not(task_id))]


def _run_now(task_id: UUID) -> list[Outcome]:
    try:
        task, changed = request_run_now(task_id)
    except CairnQError:
        return [Outcome(NOT_MADE_DUE, _why_not(task_id))]
    return [Outcome(MADE_DUE, task=task) if changed else Outcome(DUE_BEFORE)]


def _why_not(task_id: UUID) -> str | Promise:
    status = Task.objects.using(task_database()).values_list("status", flat=True).get(pk=task_id)
    return _WHY_NOT.get(TaskStatus(status), status)
