"""Handlers for the worker processes that tests start; the files that payloads name tell what they did."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async
from django.db import connection
from django.db.models import F

from cairnq_django import task
from tests.app.models import Counter

if TYPE_CHECKING:
    from cairnq_django import AsyncTaskContext, TaskContext

_held: list[bytes] = []


@task
def write_line(ctx: TaskContext, payload: dict[str, Any]) -> None:
    append_line(payload["file"], str(ctx.task_id))
    time.sleep(payload.get("seconds", 0))


@task
async def write_line_async(ctx: AsyncTaskContext, payload: dict[str, Any]) -> None:
    await sync_to_async(append_line)(payload["file"], str(ctx.task_id))


@task
def write_line_and_block(ctx: TaskContext, payload: dict[str, Any]) -> None:
    """Run until a file appears."""
    append_line(payload["file"], str(ctx.task_id))
    while not Path(payload["until"]).exists():
        time.sleep(0.01)


@task
def write_line_and_kill_the_process(ctx: TaskContext, payload: dict[str, Any]) -> None:
    append_line(payload["file"], str(ctx.task_id))
    os._exit(payload["status"])


@task
def hold_memory(ctx: TaskContext, payload: dict[str, Any]) -> None:
    """Keep so many MiB, to the end of the process."""
    _held.append(b"x" * (payload["mib"] * 1024 * 1024))


@task
def increment_counter(ctx: TaskContext, payload: dict[str, Any]) -> None:
    Counter.objects.filter(name=payload["name"]).update(value=F("value") + 1)


@task(atomic=True)
def increment_counter_once(ctx: TaskContext, payload: dict[str, Any]) -> None:
    """Increment early and end late, so that whatever ends the process in between has a commit to lose."""
    Counter.objects.filter(name=payload["name"]).update(value=F("value") + 1)
    time.sleep(payload["seconds"])


@task
def tell_session(ctx: TaskContext, payload: None) -> int:
    """Return the server's number of the connection that the handler has."""
    with connection.cursor() as cursor:
        cursor.execute({"postgresql": "SELECT pg_backend_pid()", "mysql": "SELECT connection_id()"}[connection.vendor])
        number: int = cursor.fetchone()[0]
        return number


def append_line(path: str, line: str) -> None:
    """Append in one write, so that several processes can do it at the same time."""
    with Path(path).open("ab", buffering=0) as file:
        file.write(f"{line}\n".encode())
