"""Put rows of tasks into the table, and take over what the database filled in."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, NamedTuple, Protocol

from django.db import Error, IntegrityError, connections, transaction
from django.db.models.expressions import DatabaseDefault
from django.db.models.sql import InsertQuery

from ..clock import Now
from ..models import Task
from ..serialization import dumped
from .engine import in_batches, is_postgresql, returns_inserted_rows, takes_statements_together

logger = logging.getLogger(__name__)

BATCH_SIZE = 1000

_FILLED_IN = ("run_at", "expires_at", "created_at", "updated_at")  # by the database
_MOMENT: Final = "created_at"  # nobody gives it, so it tells what else the database's clock filled in

# Where a column's value comes from, if not from a piece of SQL that is the same for all rows.
_RECORD: Final = "the row's record"
_DATABASE: Final = "the database's default"
_NULL: Final = "NULL"

_AS_JSON: Final[dict[str, Callable[[Any], Any]]] = {
    "UUIDField": attrgetter("hex"),
    "DateTimeField": datetime.isoformat,
}


class Afterwards(Protocol):
    """A statement that is to run once an insert has been committed, or none: perhaps it need not."""

    sql: str | None
    params: Sequence[Any]

    def ran(self, found: bool) -> None:
        """It has run, and returned a row or none."""

    def is_needless(self) -> bool:
        """Whether that still holds, now that the insert is committed without a statement."""


def insert(using: str, tasks: Sequence[Task], *, afterwards: Afterwards | None = None) -> bool:
    """Insert `tasks`, all or none, and set in them what the database filled in. Joins the caller's transaction.

    Returns whether it also saw to `afterwards`, what the caller wants run once this is committed: it does if that takes
    no further round trip. That it failed nobody is told.
    """
    if not is_postgresql(using):
        insert_by_orm(using, tasks)
        return False
    if afterwards is None or len(tasks) > 1 or not takes_statements_together(using):
        insert_by_records(using, tasks)
        return False
    if afterwards.sql is None:
        insert_by_records(using, tasks)
        return afterwards.is_needless()
    _insert_and(using, tasks[0], afterwards)
    return True


def insert_by_orm(using: str, tasks: Sequence[Task]) -> None:
    """`insert()` on any database."""
    if len(tasks) == 1:
        # Without a transaction around it, where there is none: half as many round trips.
        tasks[0].save(using=using, force_insert=True)
    else:
        Task.objects.using(using).bulk_create(tasks, batch_size=BATCH_SIZE)
    if not returns_inserted_rows(using):
        stored = Task.objects.using(using).only(*_FILLED_IN).in_bulk([task.pk for task in tasks])
        for task in tasks:
            for field in _FILLED_IN:
                setattr(task, field, getattr(stored[task.pk], field))


def insert_by_records(using: str, tasks: Sequence[Task]) -> None:
    """`insert()` on PostgreSQL, in a fraction of the time that the ORM takes for it.

    What all rows share is in the statement once; the rest is one parameter, a JSON document with a record for each.
    """
    if len(tasks) <= BATCH_SIZE:
        with transaction.mark_for_rollback_on_error(using=using):
            _insert_batch(using, tasks)
        return
    with transaction.atomic(using=using, savepoint=False):
        for batch in in_batches(tasks, BATCH_SIZE):
            _insert_batch(using, batch)


class _Column(NamedTuple):
    field: str
    name: str  # as SQL, as are the next two
    type: str
    default: str | None  # None: the model's default is no constant
    default_value: Any
    is_json: bool
    as_json: Callable[[Any], Any] | None  # None: its values are JSON already

    def is_shared(self, values: list[Any]) -> bool:
        # In JSON, what is equal in Python is not always the same: 1, 1.0 and True.
        if self.is_json:
            return all(value is values[0] for value in values)
        return values.count(values[0]) == len(values)


def _insert_and(using: str, task: Task, afterwards: Afterwards) -> None:
    connection = connections[using]
    try:
        _insert_batch(using, [task], afterwards)
    except BaseException as error:
        with suppress(Error):
            connection.rollback()
        if not isinstance(error, Error) or isinstance(error, IntegrityError):
            raise
        with suppress(Error):
            if not connection.is_usable():
                connection.close()
            stored = Task.objects.using(using).filter(pk=task.pk).values(*_FILLED_IN).first()
            if stored is not None:
                logger.debug("Inserted, but what was to follow failed", exc_info=True)
                _take_over(using, [task], stored)
                return
        raise


def _insert_batch(using: str, tasks: Sequence[Task], afterwards: Afterwards | None = None) -> None:
    rows = [task.__dict__ for task in tasks]
    sources: list[str] = []
    params: list[Any] = []
    records: dict[str, list[Any]] = {}
    for column in _columns(using):
        value = rows[0][column.field]
        if len(rows) > 1 and not column.is_shared(values := [row[column.field] for row in rows]):
            if any(_is_expression(value) for value in values):
                insert_by_orm(using, tasks)
                return
            sources.append(_RECORD)
            records[column.field] = _in_json(column, values)
        elif column.default is not None and (value is column.default_value or value == column.default_value):
            sources.append(column.default)
        elif isinstance(value, DatabaseDefault):
            sources.append(_DATABASE)
        elif _is_expression(value):
            sql, sql_params = _compiled(using, value)
            sources.append(sql)
            params += sql_params
        else:
            sources.append(f"(%s)::{column.type}")  # -32768::smallint is minus of what is too large
            params.append(dumped(value) if column.is_json and value is not None else value)
    if records:
        names = tuple(records)
        params.append(dumped([dict(zip(names, values, strict=True)) for values in zip(*records.values(), strict=True)]))
    sql, returned = _statement(using, tuple(sources))
    with connections[using].cursor() as cursor:
        if afterwards is None:
            cursor.execute(sql, params)
        else:
            cursor.execute(f"BEGIN; {sql}; COMMIT; {afterwards.sql}", [*params, *afterwards.params])
            cursor.nextset()
        stored = dict(zip(returned, cursor.fetchone(), strict=True))
        if afterwards is not None:
            cursor.nextset()
            cursor.nextset()
            afterwards.ran(cursor.fetchone() is not None)
    _take_over(using, tasks, stored)


def _take_over(using: str, tasks: Sequence[Task], stored: dict[str, Any]) -> None:
    filled_in = {
        field: stored[field] if field in stored else stored[_MOMENT] if _by_the_clock(field) else None
        for field in _FILLED_IN
        if _is_expression(tasks[0].__dict__[field])
    }
    for task in tasks:
        task.__dict__.update(filled_in)
        task._state.adding = False
        task._state.db = using


@lru_cache(maxsize=16)
def _by_the_clock(field: str) -> bool:
    """Whether the database's default for this field is the time, the same during one statement."""
    column: Any = Task._meta.get_field(field)
    return isinstance(column.db_default, Now)


def _is_expression(value: Any) -> bool:
    return hasattr(value, "resolve_expression")


def _in_json(column: _Column, values: list[Any]) -> list[Any]:
    as_json = column.as_json
    return values if as_json is None else [as_json(value) if value is not None else None for value in values]


def _compiled(using: str, expression: Any) -> tuple[str, Sequence[Any]]:
    query: Any = InsertQuery(Task)
    compiled: tuple[str, Sequence[Any]] = query.get_compiler(using).compile(
        expression.resolve_expression(query, allow_joins=False, for_save=True)
    )
    return compiled


@lru_cache(maxsize=256)
def _statement(using: str, sources: tuple[str, ...]) -> tuple[str, list[str]]:
    """The insert that takes each column's value from its source, and the fields of the one row that it returns."""
    columns = list(zip(_columns(using), sources, strict=True))
    # What is not named is NULL, or the database's default. Each name takes the server time to read.
    given = [(column, source) for column, source in columns if source not in (_DATABASE, _NULL)]
    names = ", ".join(column.name for column, _ in given)
    values = ", ".join(f"record.{column.name}" if source == _RECORD else source for column, source in given)
    quoted = connections[using].ops.quote_name
    insert = f"INSERT INTO {quoted(Task._meta.db_table)} ({names})"
    filled_in = [column.field for column, source in columns if column.field in _FILLED_IN and source != _DATABASE]
    returned = [_MOMENT, *filled_in]
    returning = f"RETURNING {', '.join(map(quoted, returned))}"
    record = ", ".join(f"{column.name} {column.type}" for column, source in given if source == _RECORD)
    if not record:
        return f"{insert} VALUES ({values}) {returning}", returned
    # What the database fills in is the same in all rows.
    inserted = f"{insert} SELECT {values} FROM json_to_recordset(%s::json) AS record ({record}) {returning}"
    return f"WITH inserted AS ({inserted}) SELECT * FROM inserted LIMIT 1", returned


@lru_cache(maxsize=16)
def _columns(using: str) -> list[_Column]:
    return [_column(using, field) for field in Task._meta.concrete_fields]


def _column(using: str, field: Any) -> _Column:
    connection = connections[using]
    kind = field.get_internal_type()
    default = None if field.primary_key else field.get_default()
    return _Column(
        field=field.attname,
        name=connection.ops.quote_name(field.column),
        # A cast to a type that has a length would cut what is too long, rather than refuse it.
        type=field.db_type(connection).partition("(")[0],
        default=_literal(default),
        default_value=default,
        is_json=kind == "JSONField",
        as_json=_AS_JSON.get(kind),
    )


def _literal(value: Any) -> str | None:
    """A constant as it stands in a statement that also takes parameters; None if it is none."""
    if value is None:
        return _NULL
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, str):
        text = str.__str__(value).replace("'", "''").replace("%", "%%")
        return f"'{text}'"
    return "'{}'" if value == {} else None
