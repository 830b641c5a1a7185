"""Conditions and parameters that the ORM has no words for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models.expressions import Combinable, Expression, RawSQL
from django.db.models.lookups import In, Lookup
from django.db.models.sql import Query
from django.db.models.sql.compiler import SQLCompiler


class Among(Lookup):
    """The condition that a column holds one of `ids`, which may be a query of them.

    On PostgreSQL they are one array: one parameter where `__in` takes one for each, and a query that runs once and
    before everything else, whatever the planner thinks of it. With `lock` the query locks the rows that it finds and
    passes over those that are locked, where the database has locks for rows. That is said here since
    `select_for_update()` refuses to in a statement that is a transaction by itself.
    """

    prepare_rhs = False

    def __init__(
        self, column: str, ids: Iterable[UUID] | models.QuerySet[Any] | Combinable, *, lock: bool = False
    ) -> None:
        super().__init__(models.F(column), ids if isinstance(ids, (models.QuerySet, Combinable)) else list(ids))
        self.lock = lock

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Any:
        ids = self.rhs
        if self.lock and connection.features.has_select_for_update_skip_locked:
            ids = ids.clone()
            ids.select_for_update = ids.select_for_update_skip_locked = True
        return In(self.lhs, ids).as_sql(compiler, connection)

    def as_postgresql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Any:
        column, params = self.process_lhs(compiler, connection)
        if isinstance(self.rhs, list):
            return f"{column} = ANY(%s)", [*params, self.rhs]
        if isinstance(self.rhs, Query):
            query, query_params = self.rhs.get_compiler(connection=connection).as_sql()
        else:
            query, query_params = compiler.compile(self.rhs)
        if isinstance(self.rhs, (Query, RawSQL)):
            lock = connection.ops.for_update_sql(skip_locked=True) if self.lock else ""
            query = f"ARRAY({query} {lock})"
        return f"{column} = ANY({query})", [*params, *query_params]


class Slot(Expression):
    """A parameter of a statement that is compiled once and run often: its value is given for each run."""

    def __init__(self, name: str, output_field: models.Field[Any, Any] | None = None) -> None:
        super().__init__(output_field=output_field)
        self.name = name

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Any:
        return "%s", [self]
