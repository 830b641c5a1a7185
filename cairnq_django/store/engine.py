"""What differs between databases: where tasks live, which conflicts pass by themselves, what one statement can do."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Any, TypeVar
from uuid import UUID

from django.core.exceptions import EmptyResultSet
from django.db import DatabaseError, connections, router, transaction
from django.db.models import Case, DateTimeField, Expression, Func, JSONField, QuerySet, TextField, Value, When
from django.db.models.functions import Cast
from django.db.models.sql import UpdateQuery

from ..expressions import Among, Slot
from ..models import Task
from ..serialization import max_depth_for

logger = logging.getLogger(__name__)

T = TypeVar("T")

_CONFLICT_RETRIES = 8


def task_database() -> str:
    """The alias of the database that tasks live in, as `DATABASE_ROUTERS` say."""
    return router.db_for_write(Task)


@lru_cache
def json_depth(using: str) -> int:
    """How many levels of nesting this database takes in a JSON value."""
    connection = connections[using]
    return max_depth_for(connection.vendor, is_mariadb=getattr(connection, "mysql_is_mariadb", False))


def returns_inserted_rows(using: str) -> bool:
    return connections[using].features.can_return_rows_from_bulk_insert


def takes_statements_together(using: str) -> bool:
    """Whether one round trip can take several statements, each committed before the next one runs."""
    connection: Any = connections[using]
    return (
        is_postgresql(using)
        and connection.Database.__name__ == "psycopg"
        and not connection.features.uses_server_side_binding
        and is_between_transactions(using)
        and not connection.connection.pgconn.pipeline_status
    )


def is_between_transactions(using: str) -> bool:
    """Whether none is open on PostgreSQL, also none that Django does not know of: begun by hand, or by the driver."""
    connection: Any = connections[using]
    return (
        not connection.in_atomic_block
        and connection.get_autocommit()
        and int(connection.connection.info.transaction_status) == 0
    )


def is_postgresql(using: str) -> bool:
    return connections[using].vendor == "postgresql"


def returns_updated_rows(using: str) -> bool:
    connection = connections[using]
    if connection.vendor == "sqlite":
        # RETURNING came to all of SQLite's statements at once.
        return connection.features.can_return_columns_from_insert
    return is_postgresql(using)


class _Written:
    """What a transaction wrote; Django lets go of it when the transaction, or the savepoint, is rolled back."""

    def __init__(self, task_ids: Iterable[UUID]) -> None:
        self.task_ids = frozenset(task_ids)

    def __call__(self) -> None:
        """Committed: others see it from here on."""


def note_written(using: str, task_ids: Iterable[UUID]) -> None:
    """Remember that the open transaction wrote these tasks, which no worker can end until it commits."""
    if connections[using].in_atomic_block:
        transaction.on_commit(_Written(task_ids), using=using)


def in_open_transaction(using: str) -> bool:
    return connections[using].in_atomic_block


def awaits_commit(using: str) -> bool:
    """Whether what is written now is for a transaction to commit that is open.

    As for Django's own `durable`, the one that a `TestCase` has around its tests, never to be committed, is not meant.
    """
    blocks: list[Any] = connections[using].atomic_blocks
    return bool(blocks) and not blocks[-1]._from_testcase


def has_one_write_lock(using: str) -> bool:
    return connections[using].vendor == "sqlite"


def holds_the_only_write_lock(using: str) -> bool:
    """Whether nobody else can write until this thread's open transaction ends, since it began with that lock."""
    return has_one_write_lock(using) and connections[using].in_atomic_block


def may_hold_locks(using: str) -> bool:
    """Whether a transaction is open, or may be: with autocommit off, nobody tells where one begins."""
    connection = connections[using]
    return connection.in_atomic_block or (connection.connection is not None and not connection.autocommit)


def can_see_the_end(using: str, task_id: UUID) -> bool:
    """Whether the current transaction, if one is open, can ever read that a worker ended this task."""
    connection = connections[using]
    if not connection.in_atomic_block:
        return True
    if any(isinstance(note, _Written) and task_id in note.task_ids for _, note, *_ in connection.run_on_commit):
        return False
    # Other isolation levels, and SQLite, keep showing what was there when the transaction began.
    level = getattr(connection, "isolation_level", None)
    return str(getattr(level, "name", level)).lower().replace("_", " ") == "read committed"


def in_transaction(using: str, work: Callable[[], T]) -> T:
    """What `work()` returns, run in a transaction; run again if another transaction was in the way.

    Inside a caller's transaction it runs once, in a savepoint: what the database rolled back there is the caller's to
    repeat.
    """

    def transacted() -> T:
        with transaction.atomic(using=using):
            return work()

    return again_after_conflicts(using, transacted)


def again_after_conflicts(using: str, work: Callable[[], T]) -> T:
    """What `work()`, a transaction or a single statement, returns; run again if another transaction was in the way."""
    retries = 0 if connections[using].in_atomic_block else _CONFLICT_RETRIES
    for retry in range(retries):
        try:
            return work()
        except DatabaseError as error:
            if not is_conflict(error):
                raise
            logger.debug("Rolled back by a conflict, trying again", exc_info=True)
            time.sleep(random.uniform(0.5, 1) * min(0.005 * 2**retry, 0.25))
    return work()


def is_conflict(error: Exception) -> bool:
    """Whether another transaction was in the way (a deadlock, a write in between, SQLite's lock): a retry may pass."""
    cause = error.__cause__
    if getattr(cause, "sqlstate", None) in ("40P01", "40001"):
        return True
    if getattr(cause, "sqlite_errorname", "").startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return True
    code = error.args[0] if error.args else None
    return code in (1213, 1205, 1020) or "database is locked" in str(error) or "database table is locked" in str(error)


def in_batches(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The items in parts of up to `size`, since a statement takes so many values."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def update_returning(rows: QuerySet[Task], changes: dict[str, Any], fields: Sequence[str]) -> list[tuple[Any, ...]]:
    """Update `rows` and return `fields` of those that were updated, in one statement where the database can.

    Elsewhere the rows are locked first: call it in a transaction.
    """
    if not returns_updated_rows(rows.db):
        locked = list(rows.select_for_update(skip_locked=True).values_list("pk", *fields))
        found = rows.model._base_manager.using(rows.db).filter(Among("pk", [pk for pk, *_ in locked]))
        found.update(**changes)
        if changes.keys().isdisjoint(fields):
            return [tuple(values) for _, *values in locked]
        return list(found.values_list(*fields))
    return UpdateReturning(rows, changes, fields).run()


# Django's own way to read a moment takes longer than all the rest of a claimed row.
_MICROSECONDS = "CAST(EXTRACT(EPOCH FROM {}) * 1000000 AS bigint)"
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def _moment(microseconds: int | None, expression: Any, connection: Any) -> datetime | None:
    return _EPOCH + timedelta(microseconds=microseconds) if microseconds is not None else None


class UpdateReturning:
    """An update that hands back `fields` of what it updated, compiled once; its slots are filled for each run.

    For databases of which `returns_updated_rows()` is true.
    """

    def __init__(self, rows: QuerySet[Task], changes: dict[str, Any], fields: Sequence[str]) -> None:
        connection = connections[rows.db]
        query: Any = rows.query.chain(UpdateQuery)
        query.add_update_values(changes)
        compiler = query.get_compiler(rows.db)
        columns: list[Any] = [rows.model._meta.get_field(field) for field in fields]
        names = [connection.ops.quote_name(column.column) for column in columns]
        converters: dict[int, Any] = compiler.get_converters([column.cached_col for column in columns])
        if is_postgresql(rows.db):
            for index, column in enumerate(columns):
                if isinstance(column, DateTimeField):
                    names[index] = _MICROSECONDS.format(names[index])
                    converters[index] = [_moment], column.cached_col
        try:
            sql, params = compiler.as_sql()
        except EmptyResultSet:
            self._sql = ""
        else:
            self._sql = f"{sql} RETURNING {', '.join(names)}"
            self._params = params
        self._using = rows.db
        self._query = query
        self._converters = converters

    def run(self, **slots: Any) -> list[tuple[Any, ...]]:
        if not self._sql:
            return []
        with connections[self._using].cursor() as cursor:
            cursor.execute(self._sql, filled(self._params, slots))
            returned = cursor.fetchall()
        # Not the one that made the statement: it holds the connection of its thread.
        compiler = self._query.get_compiler(self._using)
        return [tuple(row) for row in compiler.apply_converters(returned, self._converters)]


def filled(params: Iterable[Any], slots: Mapping[str, Any]) -> list[Any]:
    """The parameters of a compiled statement, its slots filled."""
    return [slots[param.name] if isinstance(param, Slot) else param for param in params]


def each_its_own(using: str, field: str, values: Mapping[UUID, Any]) -> Any:
    """What sets a JSON column of each of these rows to its own value, None to NULL, in one update."""
    column: Any = Task._meta.get_field(field)
    given = {pk: value for pk, value in values.items() if value is not None}
    if not given:
        return None
    if is_postgresql(using):
        return value_by_id(Value({str(pk): value for pk, value in given.items()}, output_field=column), column)
    cases = [When(pk=pk, then=Value(value, output_field=column)) for pk, value in given.items()]
    return Case(*cases, default=None, output_field=column)


def value_by_id(values: Expression, column: Any) -> Func:
    """On PostgreSQL, what an object of JSON, one parameter however large, has for a row's id; else NULL."""
    by_id = (Cast(values, JSONField()), Cast("id", TextField()))
    return Func(*by_id, template="%(expressions)s", arg_joiner=" -> ", output_field=column)
