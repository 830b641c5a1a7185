"""Send the signals about what a caller did to tasks, in the caller's transaction, so that no receiver can spoil it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.db import Error, transaction
from django.dispatch import Signal

from .models import Task
from .signals import task_canceled, task_retried, task_submitted
from .store.engine import in_batches, in_open_transaction

logger = logging.getLogger(__name__)

BATCH = 500  # rows that are read at once


def tell_submitted(using: str, tasks: Iterable[Task]) -> None:
    if task_submitted.receivers:
        for task in tasks:
            _send(task_submitted, using, task=task)


def tell_canceled(using: str, task_ids: Iterable[UUID]) -> None:
    """These tasks, which were queued, are canceled."""
    if task_canceled.receivers:
        for task in rows(using, task_ids):
            _send(task_canceled, using, task=task, error=task.error, exception=None, duration=None)


def tell_retried(using: str, task_ids: Iterable[UUID]) -> None:
    """These tasks, which had ended, are queued again."""
    if task_retried.receivers:
        for task in rows(using, task_ids):
            _send(task_retried, using, task=task, error=None, exception=None, duration=None, delay=0.0)


def rows(using: str, task_ids: Iterable[UUID]) -> Iterable[Task]:
    """The tasks in this order, without those that are gone."""
    for batch in in_batches(list(task_ids), BATCH):
        found = Task.objects.using(using).in_bulk(batch)
        yield from (found[task_id] for task_id in batch if task_id in found)


def _send(signal: Signal, using: str, **facts: Any) -> None:
    if not in_open_transaction(using):
        signal.send_robust(Task, **facts)
        return
    # An error of the database that a receiver met would be the end of the caller's transaction.
    try:
        with transaction.atomic(using=using):
            if any(isinstance(response, Exception) for _, response in signal.send_robust(Task, **facts)):
                transaction.set_rollback(True, using=using)
    except Error:
        logger.warning("What receivers of a signal wrote is rolled back: they broke the transaction", exc_info=True)
