"""The words of the actions on tasks: on a task's page, on the list, and in the question before."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from django.utils.translation import gettext_lazy, ngettext_lazy


class Wording(NamedTuple):
    on_page: Any
    on_list: Any
    on_all: Any  # where nothing is selected
    question: Any  # takes the number of tasks
    is_final: bool = True  # cannot be taken back, so that it is asked about a single task, too


WORDING: Final = {
    "cancel_tasks": Wording(
        gettext_lazy("Cancel task"),
        gettext_lazy("Cancel selected tasks"),
        gettext_lazy("Cancel tasks"),
        ngettext_lazy(
            "A queued task is canceled at once. A running one is asked to stop and ends canceled, whatever it returns.",
            "Queued tasks are canceled at once. Running ones are asked to stop and end canceled, whatever they return.",
            "count",
        ),
    ),
    "cancel_families": Wording(
        gettext_lazy("Cancel with descendants"),
        gettext_lazy("Cancel selected tasks with their descendants"),
        gettext_lazy("Cancel tasks with their descendants"),
        ngettext_lazy(
            "The task and all its descendants are canceled, however deep, also below those that have ended. "
            "Running ones are asked to stop and end canceled, whatever they return.",
            "The tasks and all their descendants are canceled, however deep, also below those that have ended. "
            "Running ones are asked to stop and end canceled, whatever they return.",
            "count",
        ),
    ),
    "retry_tasks": Wording(
        gettext_lazy("Retry task"),
        gettext_lazy("Retry selected tasks"),
        gettext_lazy("Retry tasks"),
        ngettext_lazy(
            "The task is queued again, with at least one more attempt allowed.",
            "The tasks are queued again, each with at least one more attempt allowed.",
            "count",
        ),
        is_final=False,
    ),
    "reset_tasks": Wording(
        gettext_lazy("Retry with attempts reset"),
        gettext_lazy("Retry selected tasks with attempts reset"),
        gettext_lazy("Retry tasks with attempts reset"),
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
        gettext_lazy("Run tasks now"),
        ngettext_lazy(
            "The task becomes due now; when it was to be due is forgotten.",
            "The tasks become due now; when they were to be due is forgotten.",
            "count",
        ),
    ),
}

#: The actions that end something.
ENDINGS: Final = ("cancel_tasks", "cancel_families")
