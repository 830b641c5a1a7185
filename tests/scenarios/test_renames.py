"""Two versions of the code at work on one database: each runs what it knows, and lets the rest be."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from cairnq_django import Registry, Task, TaskContext, get, submit, submit_many
from cairnq_django.models import WorkerProcess
from tests.helpers import eventually
from tests.workers import PATIENCE, ended, quick, run, running, runs_workers, wait_for

if TYPE_CHECKING:
    from uuid import UUID

pytestmark = runs_workers


def version(called: str, names: dict[str, list[str]]) -> Registry:
    """Code whose handlers, by their names with their aliases, return what this version is called."""
    registry = Registry()
    for name, aliases in names.items():
        registry.task(name, aliases=aliases)(lambda ctx, payload: called)
    return registry


OLD = {"kept": [], "charge": [], "removed": []}
NEW = {"kept": [], "charge_card": ["charge"], "added": []}


def test_nothing_is_lost_or_fails_while_two_versions_run() -> None:
    old, new = version("old", OLD), version("new", NEW)
    by_name = {name: [submit(name) for _ in range(3)] for name in ("kept", "charge", "removed", "charge_card", "added")}

    with quick(old).background(), quick(new).background():
        by_name["charge"] += submit_many("charge", range(5))
        results = {name: {ended(task).result for task in tasks} for name, tasks in by_name.items()}

    assert (results["removed"], results["charge_card"], results["added"]) == ({"old"}, {"new"}, {"new"})
    assert results["kept"] | results["charge"] <= {"old", "new"}
    assert {(task.status, task.attempt) for task in Task.objects.all()} == {("succeeded", 1)}


def test_what_the_old_version_left_is_run_under_the_name_it_has() -> None:
    charged = submit("charge")
    run(version("new", NEW))
    assert (get(charged).result, get(charged).name) == ("new", "charge")


def test_what_no_version_at_work_knows_waits_untouched_until_one_does() -> None:
    unknown = [submit("removed"), submit("removed", queue="default", priority=9), submit("charge_card")]
    with quick(version("new", {"kept": []})).background():
        assert [ended(submit("kept")).result for _ in range(3)] == ["new"] * 3
    for task in unknown:
        row = get(task)
        assert (row.status, row.attempt, row.error, row.updated_at) == ("queued", 0, None, task.refresh().created_at)

    run(version("old", OLD))
    run(version("new", NEW))
    assert [get(task).result for task in unknown] == ["old", "old", "new"]


def test_the_names_of_a_handler_share_its_ceiling() -> None:
    registry = Registry()
    go = threading.Event()

    @registry.task("charge_card", aliases=["charge"], concurrency=1)
    def charge_card(ctx: TaskContext, payload: Any) -> None:
        wait_for(go)

    @registry.task
    def other(ctx: TaskContext, payload: Any) -> None: ...

    with ExitStack() as stack:
        first = submit("charge")
        stack.enter_context(quick(registry, concurrency=4).background())
        stack.callback(go.set)
        running(first)
        second = submit("charge_card")
        ended(submit("other"))
        ended(submit("other"))
        assert get(second).is_queued
        go.set()
        assert ended(second).succeeded


def test_a_batch_may_hold_tasks_of_several_names_of_its_handler() -> None:
    registry = Registry()
    calls: list[dict[UUID, str]] = []

    @registry.task("embed", aliases=["embed_text"], batch=4, concurrency=1)
    def embed(items: list[TaskContext]) -> dict[UUID, str]:
        calls.append({item.task_id: item.name for item in items})
        return calls[-1]

    tasks = [submit(name) for name in ("embed_text", "embed", "embed_text", "embed")]
    run(registry)

    assert calls == [{task.pk: task.name for task in tasks}]
    assert [get(task).result for task in tasks] == [task.name for task in tasks]


def test_a_worker_s_row_says_all_names_it_runs() -> None:
    with quick(version("new", NEW)).background():
        row = eventually(WorkerProcess.objects.first, PATIENCE, "the row of the worker")
    assert row.names == ["added", "charge", "charge_card", "kept"]
