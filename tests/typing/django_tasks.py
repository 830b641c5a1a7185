"""What `@task_options` leaves of a function, and of a task of Django's framework: all of it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from django.tasks import Task, task
from typing_extensions import assert_type

from cairnq_django.tasks_backend import task_options


@task_options(max_attempts=5, retry_backoff=10, max_run=timedelta(minutes=1))
def plain(a: int) -> str:
    return str(a)


@task_options(max_attempts=5)
@task
def above(a: int) -> str:
    return str(a)


@task(priority=1)
@task_options(max_attempts=5)
def below(a: int) -> str:
    return str(a)


assert_type(plain(1), str)
takes_the_same: Callable[[int], str] = plain
assert_type(above.enqueue(1).return_value, str)
assert_type(below.enqueue(1).return_value, str)
declared: Task[[int], str] = above

task_options(retries=5)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
task_options(max_attempts="5")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
