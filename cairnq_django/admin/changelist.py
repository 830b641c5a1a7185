"""How the list of tasks finds its rows: bounded counting, bounded looking where no index helps, no large columns."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from copy import copy
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, Final
from uuid import UUID

from django.contrib import admin
from django.contrib.admin.views.main import ALL_VAR, ERROR_FLAG, ORDER_VAR, PAGE_VAR, SEARCH_VAR, ChangeList
from django.core.paginator import Paginator
from django.db.models import Q, QuerySet, TextField
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast, Left
from django.http import HttpRequest, QueryDict
from django.utils import timezone
from django.utils.functional import cached_property
from django.utils.translation import gettext_lazy as _

from ..ids import first_id_at
from ..models import Task, TaskAttempt
from ..registry import default_registry
from ..statuses import TERMINAL, TaskStatus

COUNTED: Final = 10_000  # rows; counting them all would read all of a large table
NEWEST: Final = 1_000  # rows that are looked at for the names, queues and error codes in use
LOOKED_AT: Final = 100_000  # rows, the newest, that are looked at one by one for what no index holds
LOOKED_AT_ERRORS: Final = 30_000  # rows, the newest, whose errors are looked at
LOOKED_INTO: Final = 5_000  # rows, the newest, whose payloads are searched
OFFERED: Final = 100  # values of a filter
SHOWN_ERROR: Final = 300  # characters

PAYLOAD_PREFIX: Final = "payload:"

#: What a list's address says beside which tasks it shows.
_ARRANGING: Final = (ALL_VAR, ERROR_FLAG, ORDER_VAR, PAGE_VAR)

#: How far the clocks of those who make ids may be from the database's.
_CLOCKS_APART: Final = timedelta(minutes=10)

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
        bounds = _bounds(request)
        self.looked_at = bounds.rows if bounds.cut else None
        return tasks.defer("payload", "result", "metadata", "error").annotate(
            error_type=Left(KeyTextTransform("type", "error"), SHOWN_ERROR),
            error_code=Left(KeyTextTransform("code", "error"), SHOWN_ERROR),
            error_message=Left(KeyTextTransform("message", "error"), SHOWN_ERROR),
        )


class MatchingTasks(TaskChangeList):
    """What a list finds among the tasks up to an id, for work rather than for show: nothing is counted or read."""

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Task]:
        # First of all: what the filters look at is the newest of these.
        self.root_queryset = self.root_queryset.filter(pk__lte=_upto(request))
        return super().get_queryset(request, exclude_parameters)

    def get_results(self, request: HttpRequest) -> None:
        pass


def matching(model_admin: Any, request: HttpRequest, query: str, upto: UUID, at: datetime) -> QuerySet[Task]:
    """The tasks with ids up to `upto` that the list shows for this query string, their age as it was `at` that time.

    In no particular order.
    """
    asked: Any = copy(request)
    asked.GET = QueryDict(query)
    asked.cairnq_upto = upto
    asked.cairnq_at = at
    vars(asked).pop("cairnq_bounds", None)
    tasks: QuerySet[Task] = model_admin.get_changelist_instance(asked).queryset
    return tasks.order_by()


def changelist_for(request: HttpRequest) -> type[TaskChangeList]:
    return TaskChangeList if _upto(request) is None else MatchingTasks


def _upto(request: HttpRequest) -> UUID | None:
    return getattr(request, "cairnq_upto", None)


def in_words(query: str) -> str:
    """What a list with this query string is filtered by, such as “status: failed, age: the last hour”."""
    given = QueryDict(query)
    titles: dict[Any, Any] = {each.parameter_name: each.title for each in _FILTERS} | {SEARCH_VAR: _("search")}
    labels: dict[Any, Any] = {
        StatusFilter.parameter_name: dict(TaskStatus.choices),
        AgeFilter.parameter_name: AgeFilter.LABELS,
        RetriesFilter.parameter_name: RetriesFilter.LABELS,
    }
    return ", ".join(
        f"{titles.get(name, name)}: {labels.get(name, {}).get(value, value)}"
        for name, values in given.lists()
        for value in values
        if value and name not in _ARRANGING
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
        # Without what the list shows of each error, which the database would put together for every row.
        return int(rows.order_by().values("pk")[: COUNTED + 1].count())


class _Bounds:
    """Whether a request's rows were bounded already, to how many, and whether that left any out."""

    def __init__(self) -> None:
        self.rows: int | None = None
        self.cut = False

    def newest(self, tasks: QuerySet[Task], rows: int) -> QuerySet[Task]:
        """The newest `rows` of what an index finds, by one look at the last of them."""
        if self.rows is not None and self.rows <= rows:
            return tasks
        self.rows = rows
        oldest = tasks.order_by("-pk").values_list("pk", flat=True)[rows - 1 : rows].first()
        if oldest is None:
            return tasks
        self.cut = True
        return tasks.filter(pk__gte=oldest)


def _bounds(request: Any) -> _Bounds:
    if not hasattr(request, "cairnq_bounds"):
        request.cairnq_bounds = _Bounds()
    bounds: _Bounds = request.cairnq_bounds
    return bounds


def search(request: HttpRequest, tasks: QuerySet[Task], term: str) -> QuerySet[Task]:
    """The tasks that have this id, key or correlation id; or else, this name. `payload:` searches payloads.

    Names and payloads have no index: of what the filters leave, the newest tasks alone are looked at.
    """
    if term.startswith(PAYLOAD_PREFIX):
        return _with_payload(request, tasks, term.removeprefix(PAYLOAD_PREFIX).strip())
    texts = {term, term.strip()}
    found = _UUID.search(term)
    if found is not None:
        task_id = UUID(found[0])
        texts |= {str(task_id), task_id.hex}
    indexed = Q(key__in=texts) | Q(correlation_id__in=texts)
    if found is not None:
        return tasks.filter(Q(pk=task_id) | indexed)
    pointed_to = tasks.filter(indexed)
    return pointed_to if pointed_to.exists() else _bounds(request).newest(tasks, LOOKED_AT).filter(name__in=texts)


def _with_payload(request: HttpRequest, tasks: QuerySet[Task], text: str) -> QuerySet[Task]:
    if not text:
        return tasks
    # Texts inside JSON are escaped, and on some databases stored as ASCII.
    written = {json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], text}
    matches = Q(*(("payload_text__contains", each) for each in sorted(written)), _connector=Q.OR)
    newest = _bounds(request).newest(tasks, LOOKED_INTO)
    # Looked into once: the page asks for its rows and for their number.
    found = list(newest.alias(payload_text=Cast("payload", TextField())).filter(matches).values_list("pk", flat=True))
    return tasks.filter(pk__in=found)


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


class AgeFilter(admin.SimpleListFilter):
    """By when tasks were submitted, as exactly as the column says; ids, which begin with it, bound the search."""

    title = _("age")
    parameter_name = "age"

    LABELS: Final = {
        "1h": _("the last hour"),
        "1d": _("the last day"),
        "7d": _("the last week"),
        "older": _("over a week"),
    }
    _SPANS: Final = {
        "1h": timedelta(hours=1),
        "1d": timedelta(days=1),
        "7d": timedelta(days=7),
    }

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return list(self.LABELS.items())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Task]) -> QuerySet[Task]:
        chosen = self.value()
        if chosen is None:
            return queryset
        now: datetime = getattr(request, "cairnq_at", None) or timezone.now()
        since = now - self._SPANS.get(chosen, self._SPANS["7d"])
        if chosen in self._SPANS:
            return queryset.filter(pk__gte=first_id_at(since - _CLOCKS_APART), created_at__gte=since)
        if chosen == "older":
            return queryset.filter(pk__lt=first_id_at(since + _CLOCKS_APART), created_at__lt=since)
        return queryset.none()


class _LookingFilter(admin.SimpleListFilter):
    """A filter by what no index holds: it comes after those that have one, and looks at the newest rows they leave."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Task]) -> QuerySet[Task]:
        value = self.value()
        if value is None:
            return queryset
        # PostgreSQL refuses to look for a text that it could not hold.
        if "\x00" in value:
            return queryset.none()
        return self.matching(_bounds(request).newest(queryset, self.rows()), value)

    def rows(self) -> int:
        return LOOKED_AT

    def matching(self, tasks: QuerySet[Task], value: str) -> QuerySet[Task]:
        raise NotImplementedError


class _SeenFilter(_LookingFilter):
    """Offers what is declared and what the newest rows hold: all values there are would take a scan of the table."""

    def offered(self, model_admin: Any, request: HttpRequest) -> Iterable[Any]:
        raise NotImplementedError

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        chosen = [value for value in [self.value()] if value]
        # Plain text, whatever a handler's declaration claims to be safe.
        seen = {"".join(value) for value in self.offered(model_admin, request) if isinstance(value, str)}
        return [(value, value) for value in sorted({*sorted(seen)[:OFFERED], *chosen})]

    def has_output(self) -> bool:
        return len(self.lookup_choices) > 1 or self.value() is not None


class _ColumnFilter(_SeenFilter):
    parameter_name: str  # the column's name, too

    def offered(self, model_admin: Any, request: HttpRequest) -> Iterable[Any]:
        column = self.parameter_name
        newest = model_admin.get_queryset(request).order_by("-pk").values_list(column, flat=True)[:NEWEST]
        return chain(newest, (getattr(definition, column) for definition in default_registry))

    def matching(self, tasks: QuerySet[Task], value: str) -> QuerySet[Task]:
        return tasks.filter(**{self.parameter_name: value})


class QueueFilter(_ColumnFilter):
    title = _("queue")
    parameter_name = "queue"


class NameFilter(_ColumnFilter):
    title = _("name")
    parameter_name = "name"


class WorkerFilter(_ColumnFilter):
    """By the worker of the latest attempt. Offers none: a worker's page leads here."""

    title = _("worker")
    parameter_name = "worker_id"

    def offered(self, model_admin: Any, request: HttpRequest) -> Iterable[Any]:
        return ()


class RetriesFilter(_LookingFilter):
    title = _("retries")
    parameter_name = "retries"

    LABELS: Final = {"yes": _("with retries"), "no": _("without retries")}
    _RETRIED: Final = Q(attempt__gt=1) | Q(attempt=1, status=TaskStatus.QUEUED)

    def lookups(self, request: HttpRequest, model_admin: Any) -> Any:
        return list(self.LABELS.items())

    def matching(self, tasks: QuerySet[Task], value: str) -> QuerySet[Task]:
        if value not in ("yes", "no"):
            return tasks.none()
        return tasks.filter(self._RETRIED if value == "yes" else ~self._RETRIED)


class ErrorCodeFilter(_SeenFilter):
    """By the code of a task's latest error; offers those of the newest attempts that failed."""

    title = _("error code")
    parameter_name = "error"

    _CODE: Final = Left(KeyTextTransform("code", "error"), SHOWN_ERROR)

    def offered(self, model_admin: Any, request: HttpRequest) -> Iterable[Any]:
        newest = TaskAttempt.objects.using(model_admin.get_queryset(request).db).order_by("-pk")
        return filter(None, newest.values_list("error_code", flat=True)[:NEWEST])

    def rows(self) -> int:
        return LOOKED_AT_ERRORS

    def has_output(self) -> bool:
        return bool(self.lookup_choices)

    def matching(self, tasks: QuerySet[Task], value: str) -> QuerySet[Task]:
        return tasks.alias(code=self._CODE).filter(error__isnull=False, code=value)


_FILTERS: Final[Sequence[type[admin.SimpleListFilter]]] = (
    StatusFilter,
    AgeFilter,
    QueueFilter,
    NameFilter,
    ErrorCodeFilter,
    RetriesFilter,
    WorkerFilter,
)
