"""What type checkers make of the helpers for tests."""

from __future__ import annotations

from typing_extensions import assert_type

from cairnq_django import Registry, Task, TaskContext, TaskStatus, Worker, task
from cairnq_django.testing import (
    arun_pending,
    assert_submitted,
    immediate,
    live_worker,
    run_pending,
    submitted,
)


@task
def charge(ctx: TaskContext, payload: dict[str, int]) -> str:
    return "charged"


@immediate(delayed=True, fail_silently=True)
def decorated(number: int) -> str:
    return str(number)


@immediate()
async def decorated_async(number: int) -> str:
    return str(number)


def inferred() -> None:
    assert_type(run_pending(charge, "other", queues=["mail"], limit=1, registry=Registry()), list[Task])
    assert_type(submitted(charge, {"amount": 1}, status=TaskStatus.QUEUED), list[Task])
    assert_type(assert_submitted("charge", times=2, delay=60, parent=None), list[Task])
    assert_type(decorated(7), str)
    with immediate() as nothing, live_worker(concurrency=1) as worker:
        assert_type(nothing, None)
        assert_type(worker, Worker)


async def inferred_async() -> None:
    assert_type(await arun_pending(charge), list[Task])
    assert_type(await decorated_async(7), str)


def mistakes() -> None:
    run_pending(queue="mail")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    assert_submitted(charge, quue="mail")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    assert_submitted(charge, times="2")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    decorated("7")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
