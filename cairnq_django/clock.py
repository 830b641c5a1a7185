"""The database's clock, the only one that task times come from."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.models import DateTimeField, DurationField, ExpressionWrapper, Value
from django.db.models.expressions import Combinable
from django.db.models.functions import Now as DjangoNow
from django.db.models.sql.compiler import SQLCompiler


class Now(DjangoNow):
    """The database's current time, in UTC on every database.

    Django's own expression gives the local time of a MySQL server whose time zone is not UTC.
    """

    def as_mysql(self, compiler: SQLCompiler, connection: BaseDatabaseWrapper, **extra_context: Any) -> tuple[str, Any]:
        return self.as_sql(compiler, connection, template="UTC_TIMESTAMP(6)", **extra_context)


def after(seconds: float) -> Combinable:
    """The moment `seconds` from the database's current time; negative is before it."""
    if not seconds:
        return Now()
    delay = Value(timedelta(seconds=seconds), output_field=DurationField())
    return ExpressionWrapper(Now() + delay, output_field=DateTimeField())
