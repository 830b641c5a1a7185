"""How the admin does to tasks what it offers: to one of them, or to a batch of them together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from django.utils.functional import Promise
from django.utils.translation import gettext as _

from ..bulk import cancel_all, retry_all, run_all_now
from ..client import request_cancel, request_family_cancel, request_run_now, retry
from ..errors import AlreadyExists, CairnQError
from ..models import Task
from ..statuses import TaskStatus
from ..store.engine import task_database
from ..store.together import Handled
from .outcomes import (
    ASKED_BEFORE,
    ASKED_TO_STOP,
    BROKEN,
    CANCELED,
    DUE_BEFORE,
    ENDED_BEFORE,
    GONE,
    KEY_IN_USE,
    MADE_DUE,
    NOT_MADE_DUE,
    NOT_RETRIED,
    NOTHING_LIVE,
    QUEUED_AFRESH,
    QUEUED_AGAIN,
    SUPERSEDED,
    WHY_NOT,
    Kind,
    Outcome,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Work:
    """What an action does."""

    on_one: Callable[[UUID], list[Outcome]]
    on_many: Callable[[Sequence[UUID]], list[Outcome]] | None  # None where each takes a transaction of its own
    batch: int  # tasks, which take a fraction of a second together

    def on(self, task_ids: Sequence[UUID]) -> list[Outcome]:
        """Do it to each of these tasks, the first one first, and say what became of them; never raises."""
        if self.on_many is not None:
            try:
                return self.on_many(task_ids)
            except Exception:
                # One of them may be at fault, and must not hold up the others.
                logger.warning("%d tasks could not be changed together", len(task_ids), exc_info=True)
        return [outcome for task_id in task_ids for outcome in self.safely(task_id)]

    def safely(self, task_id: UUID) -> list[Outcome]:
        try:
            return self.on_one(task_id)
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


def _cancel_many(task_ids: Sequence[UUID]) -> list[Outcome]:
    def outcome(task: Handled) -> Outcome:
        if task.status == TaskStatus.RUNNING:
            return Outcome(ASKED_TO_STOP if task.changed else ASKED_BEFORE)
        return Outcome(CANCELED if task.changed else ENDED_BEFORE)

    return _with_those_gone(task_ids, [outcome(task) for task in cancel_all(task_ids)])


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
        return [Outcome(NOT_RETRIED, KEY_IN_USE)]
    except CairnQError:
        return [Outcome(NOT_RETRIED, _why_not(task_id))]


def _retry_many(task_ids: Sequence[UUID]) -> list[Outcome]:
    return _queue_many_again(task_ids, QUEUED_AGAIN, reset_attempts=False)


def _reset_many(task_ids: Sequence[UUID]) -> list[Outcome]:
    return _queue_many_again(task_ids, QUEUED_AFRESH, reset_attempts=True)


def _queue_many_again(task_ids: Sequence[UUID], kind: Kind, *, reset_attempts: bool) -> list[Outcome]:
    def outcome(task: Handled) -> Outcome:
        if task.changed:
            return Outcome(kind)
        held_up = task.status in (TaskStatus.FAILED, TaskStatus.CANCELED)
        return Outcome(NOT_RETRIED, SUPERSEDED if held_up else WHY_NOT[task.status])

    handled = retry_all(task_ids, reset_attempts=reset_attempts)
    return _with_those_gone(task_ids, [outcome(task) for task in handled])


def _run_now(task_id: UUID) -> list[Outcome]:
    try:
        task, changed = request_run_now(task_id)
    except CairnQError:
        return [Outcome(NOT_MADE_DUE, _why_not(task_id))]
    return [Outcome(MADE_DUE, task=task) if changed else Outcome(DUE_BEFORE)]


def _run_many_now(task_ids: Sequence[UUID]) -> list[Outcome]:
    def outcome(task: Handled) -> Outcome:
        if task.status != TaskStatus.QUEUED:
            return Outcome(NOT_MADE_DUE, WHY_NOT[task.status])
        return Outcome(MADE_DUE if task.changed else DUE_BEFORE)

    return _with_those_gone(task_ids, [outcome(task) for task in run_all_now(task_ids)])


def _with_those_gone(task_ids: Sequence[UUID], outcomes: list[Outcome]) -> list[Outcome]:
    gone = len(task_ids) - len(outcomes)
    return [*outcomes, Outcome(GONE, number=gone)] if gone > 0 else outcomes


def _why_not(task_id: UUID) -> str | Promise:
    status = Task.objects.using(task_database()).values_list("status", flat=True).get(pk=task_id)
    return WHY_NOT.get(TaskStatus(status), status)


#: By the names of the actions.
WORK: Final = {
    "cancel_tasks": Work(_cancel, _cancel_many, 250),
    "cancel_families": Work(_cancel_family, None, 10),
    "retry_tasks": Work(_retry, _retry_many, 250),
    "reset_tasks": Work(_reset, _reset_many, 250),
    "run_tasks_now": Work(_run_now, _run_many_now, 250),
}
