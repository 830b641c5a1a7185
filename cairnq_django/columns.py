"""Columns and indexes that mean the same on every database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.backends.ddl_references import Statement
from django.db.models.sql.compiler import SQLCompiler


class ExactCharField(models.CharField):  # type: ignore[type-arg]
    """Text that equals itself alone: "Mail", "mail" and "mail " are three values on MySQL and MariaDB, too."""

    def db_parameters(self, connection: BaseDatabaseWrapper) -> Any:
        parameters: Any = super().db_parameters(connection)
        if connection.vendor == "mysql":
            mariadb = getattr(connection, "mysql_is_mariadb", False)
            parameters["collation"] = "utf8mb4_nopad_bin" if mariadb else "utf8mb4_0900_bin"
        return parameters


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
