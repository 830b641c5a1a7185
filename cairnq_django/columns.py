"""Columns and indexes that mean the same on every database."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.backends.ddl_references import Statement
from django.db.models.expressions import Combinable
from django.db.models.lookups import In, Lookup
from django.db.models.sql import Query
from django.db.models.sql.compiler import SQLCompiler


class ExactCharField(models.CharField):  # type: ignore[type-arg]
    """Text that equals itself alone: "Mail", "mail" and "mail " are three values on MySQL and MariaDB, too."""

    def db_parameters(self, connection: BaseDatabaseWrapper) -> Any:
        parameters: Any = super().db_parameters(connection)
        if connection.vendor == "mysql":
            mariadb = getattr(connection, "mysql_is_mariadb", False)
            parameters["collation"] = "utf8mb4_nopad_bin" if mariadb else "utf8mb4_0900_bin"
        return parameters


class Among(Lookup):
    """The condition that a column holds one of `ids`, which may be a query of them.

    On PostgreSQL they are one array: one parameter where `__in` takes one for each, and a query that runs once and
    before everything else, whatever the planner thinks of it. With `lock` it locks the rows that it finds and passes
    over those that are locked: `select_for_update()` refuses to in a statement that is a transaction by itself.
    """

    prepare_rhs = False

    def __init__(
        self, column: str, ids: Iterable[UUID] | models.QuerySet[Any] | Combinable, *, lock: bool = False
    ) -> None:
        super().__init__(models.F(column), ids if isinstance(ids, (models.QuerySet, Combinable)) else list(ids))
        self.lock = lock

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Any:
        return In(self.lhs, self.rhs).as_sql(compiler, connection)

    def as_postgresql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper) -> Any:
        column, params = self.process_lhs(compiler, connection)
        if isinstance(self.rhs, list):
            return f"{column} = ANY(%s)", [*params, self.rhs]
        if isinstance(self.rhs, Query):
            query, query_params = self.rhs.get_compiler(connection=connection).as_sql()
        else:
            query, query_params = self.rhs.as_sql(compiler, connection)
        lock = connection.ops.for_update_sql(skip_locked=True) if self.lock else ""
        return f"{column} = ANY(ARRAY({query} {lock}))", [*params, *query_params]


class JSONSize(models.Func):
    """How many bytes a JSON column's value takes as text, which the database does not send for it; 0 for NULL."""

    output_field = models.IntegerField()

    def as_sql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **context: Any) -> Any:  # type: ignore[override]
        template = {
            "postgresql": "COALESCE(OCTET_LENGTH(CAST(%(expressions)s AS TEXT)), 0)",
            "sqlite": "COALESCE(LENGTH(CAST(%(expressions)s AS BLOB)), 0)",
        }.get(connection.vendor, "COALESCE(LENGTH(CAST(%(expressions)s AS CHAR)), 0)")
        return super().as_sql(compiler, connection, template=template, **context)


class PartialIndex(models.Index):
    """An index over the rows that meet `where`, or over `otherwise` where the database has no partial indexes.

    A plain conditional index is warned about and left without its condition on MySQL and MariaDB.
    """

    def __init__(self, *, fields: Sequence[str], name: str, where: models.Q, otherwise: Sequence[str]) -> None:
        super().__init__(fields=fields, name=name)
        self.where = where
        self.otherwise = list(otherwise)

    def create_sql(
        self, model: type[models.Model], schema_editor: BaseDatabaseSchemaEditor, using: str = "", **kwargs: Any
    ) -> Statement:
        if schema_editor.connection.features.supports_partial_indexes:
            index = models.Index(fields=self.fields, name=self.name, condition=self.where)
        else:
            index = models.Index(fields=self.otherwise, name=self.name)
        return index.create_sql(model, schema_editor, using=using, **kwargs)

    def deconstruct(self) -> Any:
        path, args, kwargs = super().deconstruct()
        return path, args, {**kwargs, "where": self.where, "otherwise": self.otherwise}
