"""The ways in which an action of the admin can end for a task, and the words for them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from django.contrib import messages
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy, ngettext_lazy, pgettext_lazy

from ..models import Task
from ..statuses import TaskStatus
from . import display


@dataclass(frozen=True, eq=False)
class Kind:
    """One way in which an action can end for a task: how to tell the user of it, and what to log if it is a change."""

    code: str
    level: int
    text: Any  # takes the number of tasks, also as `count` to be shown, and the reason if there is one
    logged: Promise | None = None


class Outcome(NamedTuple):
    kind: Kind
    reason: str | Promise = ""
    task: Task | None = None  # as it is now, if it was changed
    number: int = 1  # of tasks
    logged: str = ""  # in place of what the kind says


#: How many tasks ended in which way, and for which reason.
Tally = Counter[tuple[Kind, str]]

CANCELED = Kind(
    "canceled",
    messages.SUCCESS,
    ngettext_lazy("%(count)s task was canceled.", "%(count)s tasks were canceled.", "number"),
    gettext_lazy("Canceled."),
)
ASKED_TO_STOP = Kind(
    "asked_to_stop",
    messages.SUCCESS,
    ngettext_lazy(
        "%(count)s running task was asked to stop and will end canceled.",
        "%(count)s running tasks were asked to stop and will end canceled.",
        "number",
    ),
    gettext_lazy("Cancel requested."),
)
ASKED_BEFORE = Kind(
    "asked_before",
    messages.INFO,
    ngettext_lazy(
        "%(count)s running task had been asked to stop before.",
        "%(count)s running tasks had been asked to stop before.",
        "number",
    ),
)
ENDED_BEFORE = Kind(
    "ended_before",
    messages.WARNING,
    ngettext_lazy("%(count)s task had ended already.", "%(count)s tasks had ended already.", "number"),
)
QUEUED_AGAIN = Kind(
    "queued_again",
    messages.SUCCESS,
    ngettext_lazy("%(count)s task was queued again.", "%(count)s tasks were queued again.", "number"),
    gettext_lazy("Queued again."),
)
QUEUED_AFRESH = Kind(
    "queued_afresh",
    messages.SUCCESS,
    ngettext_lazy(
        "%(count)s task was queued again with all its attempts left.",
        "%(count)s tasks were queued again with all their attempts left.",
        "number",
    ),
    gettext_lazy("Queued again with its attempts reset."),
)
MADE_DUE = Kind(
    "made_due",
    messages.SUCCESS,
    ngettext_lazy(
        "%(count)s task is due now and runs as soon as a worker has room.",
        "%(count)s tasks are due now and run as soon as a worker has room.",
        "number",
    ),
    gettext_lazy("Made due now."),
)
DUE_BEFORE = Kind(
    "due_before",
    messages.INFO,
    ngettext_lazy("%(count)s task was due already.", "%(count)s tasks were due already.", "number"),
)
NOT_MADE_DUE = Kind(
    "not_made_due",
    messages.WARNING,
    ngettext_lazy(
        "%(count)s task was not made due: %(reason)s.", "%(count)s tasks were not made due: %(reason)s.", "number"
    ),
)
NOTHING_LIVE = Kind(
    "nothing_live",
    messages.WARNING,
    ngettext_lazy(
        "Nothing of the family of %(count)s task was left to cancel.",
        "Nothing of the families of %(count)s tasks was left to cancel.",
        "number",
    ),
)
NOT_RETRIED = Kind(
    "not_retried",
    messages.WARNING,
    ngettext_lazy(
        "%(count)s task was not retried: %(reason)s.", "%(count)s tasks were not retried: %(reason)s.", "number"
    ),
)
GONE = Kind(
    "gone",
    messages.WARNING,
    ngettext_lazy("%(count)s task does not exist any more.", "%(count)s tasks do not exist any more.", "number"),
)
BROKEN = Kind(
    "broken",
    messages.ERROR,
    ngettext_lazy(
        "An error left %(count)s task as it was: %(reason)s. The log of the server says more.",
        "An error left %(count)s tasks as they were: %(reason)s. The log of the server says more.",
        "number",
    ),
)

_ALL: Final = (
    CANCELED,
    ASKED_TO_STOP,
    ASKED_BEFORE,
    ENDED_BEFORE,
    QUEUED_AGAIN,
    QUEUED_AFRESH,
    MADE_DUE,
    DUE_BEFORE,
    NOT_MADE_DUE,
    NOTHING_LIVE,
    NOT_RETRIED,
    GONE,
    BROKEN,
)

#: By their codes, for what is kept between requests.
KINDS: Final = {kind.code: kind for kind in _ALL}

WHY_NOT: Final = {
    TaskStatus.QUEUED: gettext_lazy("already queued"),
    TaskStatus.RUNNING: gettext_lazy("still running"),
    TaskStatus.SUCCEEDED: pgettext_lazy("reason", "succeeded"),
    TaskStatus.FAILED: pgettext_lazy("reason", "failed"),
    TaskStatus.CANCELED: pgettext_lazy("reason", "canceled"),
}
KEY_IN_USE: Final = gettext_lazy("the key has another live task")
SUPERSEDED: Final = gettext_lazy("the key has a newer task")


def told(kind: Kind, reason: str, count: int) -> str:
    shown = display.number(count)
    text: str = kind.text % {"number": count, "count": shown, "reason": reason}
    return text
