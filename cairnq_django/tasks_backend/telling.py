"""Send the framework's signals where tasks are enqueued and run, so that no receiver can spoil an open transaction."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Any

from django.db import Error, connections, transaction
from django.dispatch import Signal

from .framework import BaseTaskBackend, TaskResult

logger = logging.getLogger(__name__)


def tell(signal: Signal, sender: type[BaseTaskBackend], result: TaskResult[Any, Any]) -> None:
    """What receivers raise is logged; what they wrote in transactions that are open is rolled back then."""
    if len(signal.receivers) < 2:
        # The framework's own, which only logs.
        signal.send_robust(sender=sender, task_result=result)
        return
    open_on = [connection.alias for connection in connections.all(initialized_only=True) if connection.in_atomic_block]
    try:
        with ExitStack() as savepoints:
            for alias in open_on:
                savepoints.enter_context(transaction.atomic(using=alias))
            responses = signal.send_robust(sender=sender, task_result=result)
            if any(isinstance(response, Exception) for _, response in responses):
                for alias in open_on:
                    transaction.set_rollback(True, using=alias)
    except Error:
        logger.warning("What receivers of a signal wrote is rolled back: they broke the transaction", exc_info=True)
