"""Which task a business key points to, decided under the key's lock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from django.db import connections

from ..clock import Now
from ..models import Task, TaskKey


def lock(using: str, keys: Iterable[str]) -> dict[str, Task | None]:
    """Lock these keys until the transaction ends, and return each one's current task.

    An upsert locks a key that has no row yet, too, and never trades a shared lock for an exclusive one, on which MySQL
    would deadlock. Sorted, so that two submits of the same keys queue up.
    """
    rows = [TaskKey(key=key, updated_at=Now()) for key in sorted(set(keys))]
    _upsert(using, rows, update_fields=["updated_at"])
    found = TaskKey.objects.using(using).select_related("task").in_bulk([row.key for row in rows])
    return {key: row.task for key, row in found.items()}


def point(using: str, tasks: Sequence[Task]) -> None:
    """Make each of these tasks its key's current one; the keys are locked."""
    rows = [TaskKey(key=task.key, task=task, updated_at=Now()) for task in tasks if task.key is not None]
    _upsert(using, rows, ["task", "updated_at"])


def forget(using: str, keys: Iterable[str]) -> None:
    """Delete those of these keys, which are locked, that point to no task."""
    TaskKey.objects.using(using).filter(key__in=sorted(keys), task=None)._raw_delete(using)


def _upsert(using: str, rows: Sequence[TaskKey], update_fields: Sequence[str]) -> None:
    named_target = connections[using].features.supports_update_conflicts_with_target
    TaskKey.objects.using(using).bulk_create(
        rows,
        update_conflicts=True,
        unique_fields=["key"] if named_target else None,
        update_fields=update_fields,
    )
