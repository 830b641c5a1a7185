"""What the admin does to tasks: cancel them, queue them again, say what became of each."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple
from uuid import UUID

import django
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.formats import number_format
from django.utils.functional import Promise
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext_lazy

from ..client import request_cancel, retry
from ..errors import AlreadyExists, CairnQError
from ..models import Task
from ..statuses import TaskStatus
from ..store.engine import task_database

logger = logging.getLogger(__name__)

AT_ONCE: Final = 1_000  # tasks that one request works on

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
}
_KEY_IN_USE = gettext_lazy("the key has another live task")


def _action(permission: str, *, on_list: Any, on_page: Any) -> Callable[[Any], Any]:
    """Declare an action of the list that is one of a task's own page as well."""
    if not DJANGO_ACTS_ON_PAGES:
        return admin.action(permissions=[permission], description=on_list)
    return admin.action(
        permissions=[permission],
        description=on_page,
        description_plural=on_list,
        location=[admin.ActionLocation.CHANGE_LIST, admin.ActionLocation.CHANGE_FORM],
    )


_CANCEL_TASK, _RETRY_TASK = gettext_lazy("Cancel task"), gettext_lazy("Retry task")


@_action("cancel", on_list=gettext_lazy("Cancel selected tasks"), on_page=_CANCEL_TASK)
def cancel_tasks(model_admin: Any, request: HttpRequest, queryset: QuerySet[Task]) -> None:
    _work_on(model_admin, request, queryset, _cancel)


@_action("retry", on_list=gettext_lazy("Retry selected tasks"), on_page=_RETRY_TASK)
def retry_tasks(model_admin: Any, request: HttpRequest, queryset: QuerySet[Task]) -> None:
    _work_on(model_admin, request, queryset, _retry)


def buttons(model_admin: Any, request: HttpRequest, task: Task) -> list[tuple[str, str]]:
    """Name and label of the actions to offer on a task's own page: what the user may do and its state allows."""
    if DJANGO_ACTS_ON_PAGES:
        offered = model_admin.get_action_choices(request, [], action_location=admin.ActionLocation.CHANGE_FORM)
    else:
        labels = {cancel_tasks.__name__: _CANCEL_TASK, retry_tasks.__name__: _RETRY_TASK}
        offered = [(name, labels[name]) for name in model_admin.get_actions(request) if name in labels]
    can_cancel = not task.is_terminal and not (task.is_running and task.cancel_requested)
    possible = {cancel_tasks.__name__: can_cancel, retry_tasks.__name__: task.failed or task.canceled}
    return [(name, label) for name, label in offered if possible.get(name, True)]


def _work_on(model_admin: Any, request: HttpRequest, queryset: QuerySet[Task], work: Callable[[UUID], Outcome]) -> None:
    chosen = list(queryset.values_list("pk", flat=True)[: AT_ONCE + 1])
    told: Counter[tuple[Kind, str]] = Counter()
    # Oldest first, so that tasks that are queued again keep their order.
    for task_id in sorted(chosen[:AT_ONCE]):
        outcome = _safely(work, task_id)
        told[outcome.kind, str(outcome.reason)] += 1
        if outcome.kind.logged is not None:
            model_admin.log_change(request, outcome.task, str(outcome.kind.logged))
    for (kind, reason), count in told.items():
        model_admin.message_user(request, kind.text % {"count": count, "reason": reason}, kind.level)
    if len(chosen) > AT_ONCE:
        text = _(
            "Only the first %(limit)s of the selected tasks were looked at. Filter the list for what is left to do."
        )
        model_admin.message_user(request, text % {"limit": number_format(AT_ONCE)}, messages.WARNING)


def _safely(work: Callable[[UUID], Outcome], task_id: UUID) -> Outcome:
    try:
        return work(task_id)
    except Task.DoesNotExist:
        return Outcome(GONE)
    except Exception as error:
        logger.exception("Task %s could not be changed", task_id)
        return Outcome(BROKEN, type(error).__name__)


def _cancel(task_id: UUID) -> Outcome:
    task, changed = request_cancel(task_id)
    if changed and task.is_running:
        return Outcome(ASKED_TO_STOP, task=task)
    if changed:
        return Outcome(CANCELED, task=task)
    return Outcome(ASKED_BEFORE if task.is_running else ENDED_BEFORE)


def _retry(task_id: UUID) -> Outcome:
    try:
        return Outcome(QUEUED_AGAIN, task=retry(task_id))
    except AlreadyExists:
        return Outcome(NOT_RETRIED, _KEY_IN_USE)
    except CairnQError:
        status = Task.objects.using(task_database()).values_list("status", flat=True).get(pk=task_id)
        return Outcome(NOT_RETRIED, _WHY_NOT.get(TaskStatus(status), status))
