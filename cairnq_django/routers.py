"""The database router for a queue in a database of its own."""

from __future__ import annotations

from typing import Any

from django.db.models import Model

from . import conf

_APP_LABEL = "cairnq_django"


class CairnQRouter:
    """Has this app's models read, written and migrated in `CAIRNQ["DATABASE"]`, and nowhere else.

    To be the first of those in `DATABASE_ROUTERS` that decide for this app. It leaves other apps alone, and this one
    while the setting is not there.
    """

    def db_for_read(self, model: type[Model], **hints: Any) -> str | None:
        return _database_of(model._meta.app_label)

    def db_for_write(self, model: type[Model], **hints: Any) -> str | None:
        return _database_of(model._meta.app_label)

    def allow_relation(self, obj1: Model, obj2: Model, **hints: Any) -> bool | None:
        """Whether the two may be related: rows of this app may, also those that are not saved yet."""
        both_live_there = _database_of(obj1._meta.app_label) and _database_of(obj2._meta.app_label)
        return True if both_live_there else None

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        database = _database_of(app_label)
        return None if database is None else db == database


def _database_of(app_label: str) -> str | None:
    """None: that is for other routers to say."""
    return conf.database() if app_label == _APP_LABEL else None
