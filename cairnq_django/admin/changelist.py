"""How the list of tasks finds its rows: bounded counting, exact search, no large columns."""

from __future__ import annotations

import re
from itertools import chain
from typing import Any, Final
from uuid import UUID

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db.models import Q, QuerySet
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Left
from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.translation import gettext_lazy as _

from ..models import Task
from ..registry import default_registry
from ..statuses import TERMINAL, TaskStatus

COUNTED: Final = 10_000  # rows; counting them all would read all of a large table
NEWEST: Final = 1_000  # rows that are looked at for the names and queues in use
SHOWN_ERROR: Final = 300  # characters

_UUID = re.compile(r"[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}", re.IGNORECASE)


class TaskChangeList(ChangeList):
    """The rows without their JSON, of which the list shows the error's main fields alone."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        if self.paginator.is_capped:
            # Else the page would give the number where counting stopped for that of all results.
            self.full_result_count = self.result_count

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Task]:
        tasks: QuerySet[Task] = super().get_queryset(request, exclude_parameters)
        return tasks.defer("payload", "result", "metadata", "error").annotate(
            error_type=Left(KeyTextTransform("type", "error"), SHOWN_ERROR),
            error_code=Left(KeyTextTransform("code", "error"), SHOWN_ERROR),
            error_message=Left(KeyTextTransform("message", "error"), SHOWN_ERROR),
        )


class CappedPaginator(Paginator):  # type: ignore[type-arg]
    """Pages through the first `COUNTED` rows, and counts no further."""

    @cached_property
    def count(self) -> int:
        return min(self._counted, COUNTED)

    @property
    def is_capped(self) -> bool:
        """Whether there are more rows than were counted."""
        return self._counted > COUNTED

    @cached_property
    def _counted(self) -> int:
        rows: Any = self.object_list
        return int(rows.order_by()[: COUNTED + 1].count())


def search(tasks: QuerySet[Task], term: str) -> QuerySet[Task]:
    """The tasks that have this id, key or correlation id; or else, this name.

    Names have no index: they are looked at only where nothing else fits.
    """
    texts = {term, term.strip()}
    found = _UUID.search(term)
    if found is not None:
        task_id = UUID(found[0])
        texts |= {str(task_id), task_id.hex}
    indexed = Q(key__in=texts) | Q(correlation_id__in=texts)
    if found is not None:
        return tasks.filter(Q(pk=task_id) | indexed)
    pointed_to = tasks.filter(indexed)
    return pointed_to if pointed_to.exists() else tasks.filter(name__in=texts)


class StatusFilter(admin.SimpleListFilter):
    title = _("status")
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return TaskStatus.choices

    def queryset(self, request: HttpRequest, queryset: QuerySet[Task]) -> QuerySet[Task]:
        status = self.value()
        if status is None:
            return queryset
        if status not in TaskStatus.values:
            return queryset.none()
        queryset = queryset.filter(status=status)
        # What the constraints say anyway, for databases to see that their partial indexes hold all of these rows.
        if status in TERMINAL:
            return queryset.filter(completed_at__isnull=False)
        return queryset.filter(lease_until__isnull=False) if status == TaskStatus.RUNNING else queryset


class _SeenFilter(admin.SimpleListFilter):
    """Offers what handlers declare and the newest tasks hold: all values there are would take a scan of the table."""

    parameter_name: str  # the column's name, too

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        column = self.parameter_name
        newest = model_admin.get_queryset(request).order_by("-pk").values_list(column, flat=True)[:NEWEST]
        declared = (getattr(definition, column) for definition in default_registry)
        chosen = [self.value()] if self.value() else []
        return [(value, value) for value in sorted({*chain(newest, declared, chosen)})]

    def has_output(self) -> bool:
        return len(self.lookup_choices) > 1 or self.value() is not None

    def queryset(self, request: HttpRequest, queryset: QuerySet[Task]) -> QuerySet[Task]:
        value = self.value()
        if value is None:
            return queryset
        # PostgreSQL refuses to look for a text that it could not hold.
        return queryset.none() if "\x00" in value else queryset.filter(**{self.parameter_name: value})


class QueueFilter(_SeenFilter):
    title = _("queue")
    parameter_name = "queue"


class NameFilter(_SeenFilter):
    title = _("name")
    parameter_name = "name"
