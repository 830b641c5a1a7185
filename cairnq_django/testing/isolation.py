"""Around a handler call in a test's own thread and connections: what the test has open is as if it were not."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections, transaction

logger = logging.getLogger(__name__)


@contextmanager
def as_if_alone() -> Iterator[None]:
    """Let the handler meet the test's connections as a worker's, on which no transaction is open.

    In the transaction of a `TestCase`, or of whoever submits, it gets a savepoint that counts as the test's: what it
    leaves open, or has broken, is rolled back to there; what it wanted to be called on commit is called at the end.
    """
    spaces = [_Space(connection) for connection in connections.all(initialized_only=True)]
    try:
        yield
    finally:
        for space in reversed(spaces):
            space.close()
        for space in spaces:
            space.run_hooks()


@asynccontextmanager
async def as_if_alone_async() -> AsyncIterator[None]:
    """As `as_if_alone()`, for a handler on an event loop; its ORM calls are made in the test's thread."""
    around = as_if_alone()
    await sync_to_async(around.__enter__)()
    try:
        yield
    finally:
        await sync_to_async(around.__exit__)(None, None, None)


class _Space:
    """What one connection of the test's is to a handler."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._block: Any = None
        if connection.in_atomic_block:
            self._block = transaction.atomic(using=connection.alias)
            # As Django marks those that it opens around a test: for `durable` it does not count.
            self._block._from_testcase = True
            self._block.__enter__()
        self._depth = len(connection.atomic_blocks)
        self._hooks = len(connection.run_on_commit)

    def close(self) -> None:
        connection = self._connection
        while len(connection.atomic_blocks) > self._depth:
            logger.warning("A handler left a transaction open on database %r; it is rolled back", connection.alias)
            connection.needs_rollback = True
            connection.atomic_blocks[-1].__exit__(None, None, None)
        if self._block is not None:
            # PostgreSQL takes no more statements after one that failed.
            connection.needs_rollback |= connection.connection is not None and not connection.is_usable()
            self._block.__exit__(None, None, None)

    def run_hooks(self) -> None:
        hooks = self._connection.run_on_commit
        try:
            while len(hooks) > self._hooks:
                _, hook, robust = hooks.pop(self._hooks)
                try:
                    hook()
                except Exception:
                    if not robust:
                        raise
                    logger.exception("What a handler wanted to be called on commit raised")
        finally:
            del hooks[self._hooks :]
