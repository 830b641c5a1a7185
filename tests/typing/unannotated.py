# pyright: standard
"""Handlers without annotations: what strict rules have against them, they have against the functions alone."""

from __future__ import annotations

from typing import Any

from typing_extensions import assert_type

from cairnq_django import Worker, call, submit, task

worker = Worker()


@task
def bare(ctx, payload):  # type: ignore[no-untyped-def]
    return payload


@task(queue="mail", aliases=["old"])
def with_options(ctx, payload):  # type: ignore[no-untyped-def]
    return payload


@worker.task
async def of_a_worker(ctx, payload):  # type: ignore[no-untyped-def]
    return payload


@task(batch=16)
def batched(items):  # type: ignore[no-untyped-def]
    return {item.task_id: item.payload for item in items}


def callers() -> None:
    for each in (bare, with_options, of_a_worker, batched):
        submit(each)
        submit(each, {"anything": 1}, key="7")
        assert_type(call(each, [1, "2"], timeout=5), Any)
