"""`wait()`: until a task has ended, for so long, and where it would be in vain."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from contextlib import contextmanager
from datetime import timedelta
from itertools import repeat
from typing import TYPE_CHECKING, Any

import pytest
from django.db import DEFAULT_DB_ALIAS, connection, transaction
from django.db.transaction import TransactionManagementError

from cairnq_django import (
    Registry,
    Task,
    TaskContext,
    TaskTimeout,
    Worker,
    acancel,
    aget,
    await_,
    cancel,
    get,
    notify,
    pause_queue,
    purge,
    retry,
    submit,
    wait,
    wait_by_key,
    waiting,
)
from cairnq_django.models import TaskAttempt
from cairnq_django.notify import Channel
from tests.factories import TaskFactory
from tests.store.sessions import in_another_session, statements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.django_db(transaction=True)

NOWHERE = uuid.UUID(int=7)

sees_what_others_commit = pytest.mark.skipif(
    connection.vendor == "sqlite", reason="in a transaction, SQLite shows what was there when it began"
)


@contextmanager
def at_statement(number: int, work: Callable[[], object]) -> Iterator[list[str]]:
    """While the context lasts, collect this session's SQL; after its `number`-th, let another session `work()`."""
    sent: list[str] = []

    def watch(execute: Any, sql: str, *arguments: Any) -> Any:
        sent.append(sql)
        answer = execute(sql, *arguments)
        if len(sent) == number:
            in_another_session(work)
        return answer

    with connection.execute_wrapper(watch):
        yield sent


@contextmanager
def isolation(level: str) -> Iterator[None]:
    """Reconnect with another isolation level."""
    numbers = {"repeatable read": 3, "serializable": 4}  # psycopg's
    chosen = numbers[level] if connection.vendor == "postgresql" else level
    options = connection.settings_dict["OPTIONS"]
    connection.close()
    connection.settings_dict["OPTIONS"] = {**options, "isolation_level": chosen}
    try:
        yield
    finally:
        connection.close()
        connection.settings_dict["OPTIONS"] = options


@contextmanager
def hearing_listener() -> Iterator[None]:
    """While the context lasts, this process hears what is announced, and nothing but that wakes who waits."""
    hears = threading.Event()
    with notify.subscribed(DEFAULT_DB_ALIAS, Channel.ENDED, [str(NOWHERE)], hears.set):
        assert hears.wait(20)
        yield


@pytest.mark.parametrize("state", ["succeeded", "failed", "canceled"])
def test_a_task_that_has_ended_is_returned_at_once(state: str) -> None:
    ended = TaskFactory(payload={"order": 7}, **{state: True})
    for timeout in (None, 0, 5):
        with at_statement(0, lambda: None) as sent:
            found = wait(ended.id, timeout)
        assert len(sent) == 2  # its status, then all of it
        assert (found, found.status, found.payload) == (ended, state, {"order": 7})


def test_a_task_is_waited_for_until_a_worker_ends_it() -> None:
    registry = Registry()

    @registry.task
    def double(ctx: TaskContext, payload: int) -> int:
        return payload * 2

    with Worker(registry=registry, poll_interval=0.05).background():
        ended = wait(submit(double, 21).id, timeout=20)
    assert (ended.succeeded, ended.result) == (True, 42)


def test_what_is_waited_for_is_given_in_any_form() -> None:
    ended = TaskFactory(succeeded=True)
    assert wait(ended) == wait(ended.id) == wait(str(ended.id)) == ended


def test_until_its_end_no_more_than_the_status_of_a_task_is_read() -> None:
    task = submit("work", {"large": "x" * 1_000})
    with at_statement(3, lambda: cancel(task.id)) as sent:
        assert wait(task.id, timeout=20).canceled
    *looks, last = [sql.lower() for sql in sent]
    assert len(looks) >= 3
    assert not [sql for sql in looks if "payload" in sql or "result" in sql]
    assert "payload" in last


@pytest.mark.skipif(connection.vendor != "postgresql", reason="others poll")
def test_the_end_of_a_task_cuts_the_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "poll_intervals", lambda: repeat(60))
    task = submit("work")
    with hearing_listener(), at_statement(1, lambda: cancel(task.id)):
        started = time.monotonic()
        assert wait(task.id).canceled
    assert time.monotonic() - started < 30


@pytest.mark.skipif(connection.vendor != "postgresql", reason="others poll")
def test_the_end_of_a_task_wakes_an_async_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "poll_intervals", lambda: repeat(60))
    task = submit("work")

    async def wait_and_cancel() -> Task:
        ended = asyncio.ensure_future(await_(task.id))
        for _ in range(3):
            # In line behind it, on the one thread that the database is asked in: by now it has looked.
            await aget(task.id)
        assert not ended.done()
        await acancel(task.id)
        return await ended

    with hearing_listener():
        started = time.monotonic()
        assert asyncio.run(wait_and_cancel()).canceled
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    ("state", "stuck_in"),
    [
        ({}, r"is still queued after 0.15 s: no worker claimed it \(queue 'default', attempt 0 of 3\); is a worker"),
        ({"delayed": True}, r"is still queued after 0.15 s: delayed, due at .*\(queue 'default', attempt 0 of 3\)"),
        (
            {"delayed": True, "attempt": 1},
            r"is still queued after 0.15 s: waiting for its retry, due at .*attempt 1 of 3",
        ),
        ({"attempt": 2}, r"is still queued after 0.15 s: no worker claimed its retry"),
        ({"running": True}, r"is still running after 0.15 s \(attempt 1 of 3, worker worker-1\)"),
        (
            {"cancel_requested": True},
            r"is still running after 0.15 s \(attempt 1 of 3, worker worker-1, cancel requested",
        ),
    ],
    ids=str,
)
def test_when_time_is_up_the_error_says_what_the_task_was_stuck_in(state: dict[str, Any], stuck_in: str) -> None:
    task = TaskFactory(payload={"order": 7}, **state)
    with pytest.raises(TaskTimeout, match=rf"^Task {task.id} \(work\) {stuck_in}") as raised:
        wait(task.id, timeout=timedelta(seconds=0.15))
    error = raised.value
    assert (error.task_id, error.timeout, error.task.status) == (task.id, 0.15, task.status)
    assert (error.task.payload, isinstance(error, TimeoutError)) == ({"order": 7}, True)
    assert get(task.id).updated_at == task.updated_at


def test_when_time_is_up_the_error_says_that_the_queue_is_paused() -> None:
    pause_queue("default")
    task = TaskFactory()
    with pytest.raises(TaskTimeout, match=r"is still queued after 0.15 s: its queue is paused \(queue 'default', "):
        wait(task.pk, timeout=0.15)


def test_without_time_a_live_task_is_looked_at_once() -> None:
    task = submit("work")
    with at_statement(0, lambda: None) as sent, pytest.raises(TaskTimeout, match="after 0 s"):
        wait(task.id, timeout=0)
    assert len(sent) == 2  # its status, then the snapshot for the error


def test_a_task_that_ends_while_time_runs_out_is_returned() -> None:
    task = submit("work")
    with at_statement(1, lambda: cancel(task.id)):
        assert wait(task.id, timeout=0).canceled


def test_a_task_that_is_not_there_is_missed_at_once() -> None:
    with pytest.raises(Task.DoesNotExist, match=str(NOWHERE)):
        wait(NOWHERE)
    with pytest.raises(Task.DoesNotExist):
        wait_by_key("receipt:7")


def test_a_task_that_is_purged_while_it_is_waited_for_is_missed() -> None:
    task = submit("work")

    def cancel_and_purge() -> None:
        cancel(task.id)
        assert purge(0) == 1

    with at_statement(2, cancel_and_purge), pytest.raises(Task.DoesNotExist, match=str(task.id)):
        wait(task.id, timeout=20)


def test_a_key_s_task_is_waited_for_even_if_the_key_moves_on() -> None:
    first = submit("work", key="receipt:7")
    with at_statement(3, lambda: submit("work", key="receipt:7", conflict="replace")):
        ended = wait_by_key("receipt:7", timeout=20)
    assert (ended.id, ended.canceled) == (first.id, True)


def test_a_key_is_looked_up_without_its_task_s_payload() -> None:
    TaskFactory(key="receipt:7", succeeded=True)
    looked_up, *_ = statements(lambda: wait_by_key("receipt:7"))
    assert "payload" not in looked_up


# Inside a transaction.


@pytest.mark.parametrize("nested", [False, True])
def test_waiting_for_a_task_in_the_transaction_that_submits_it_is_refused(nested: bool) -> None:
    with transaction.atomic():
        if nested:
            with transaction.atomic():
                task = submit("work")
        else:
            task = submit("work")
        with pytest.raises(TransactionManagementError, match=rf"^wait\(\) for task {task.id} would never end"):
            wait(task.id, timeout=5)
    assert get(task.id).is_queued


def test_a_reused_task_of_the_same_transaction_is_refused_too() -> None:
    with transaction.atomic():
        submit("work", key="receipt:7")
        with pytest.raises(TransactionManagementError):
            wait(submit("work", key="receipt:7").id, timeout=5)


@pytest.mark.skipif(connection.vendor != "sqlite", reason="others show what is committed meanwhile")
def test_on_sqlite_waiting_in_any_transaction_is_refused() -> None:
    earlier = submit("work")
    with transaction.atomic(), pytest.raises(TransactionManagementError, match="Wait after the atomic block"):
        wait(earlier.id, timeout=0)


@sees_what_others_commit
def test_in_a_transaction_the_end_of_an_earlier_task_is_seen() -> None:
    earlier = submit("work")
    with transaction.atomic():
        submit("other")
        with at_statement(2, lambda: cancel(earlier.id)):
            assert wait(earlier.id, timeout=20).canceled


@sees_what_others_commit
def test_a_task_submitted_in_a_transaction_is_an_earlier_one_in_the_next() -> None:
    with transaction.atomic():
        earlier = submit("work")
    with transaction.atomic(), at_statement(1, lambda: cancel(earlier.id)):
        assert wait(earlier.id, timeout=20).canceled


@sees_what_others_commit
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_waiting_in_a_transaction_that_repeats_its_reads_is_refused(level: str) -> None:
    earlier = submit("work")
    with isolation(level):
        with transaction.atomic(), pytest.raises(TransactionManagementError, match="cannot see what a worker commits"):
            wait(earlier.id, timeout=5)
        with at_statement(2, lambda: cancel(earlier.id)):
            assert wait(earlier.id, timeout=20).canceled


@pytest.mark.parametrize(("change", "state"), [(cancel, "running"), (cancel, "cancel_requested"), (retry, "failed")])
def test_waiting_for_a_task_whose_row_the_transaction_holds_is_refused(change: Any, state: str) -> None:
    task = TaskFactory(**{state: True})
    with transaction.atomic():
        change(task.id)
        with pytest.raises(TransactionManagementError, match="would never end"):
            wait(task.id, timeout=5)


def test_a_task_that_the_transaction_itself_ended_is_returned() -> None:
    earlier = submit("work")
    with transaction.atomic():
        for task in (earlier, submit("work")):
            cancel(task.id)
            assert wait(task.id, timeout=5).canceled


def test_after_the_transaction_the_task_can_be_waited_for() -> None:
    ended: list[Task] = []
    with transaction.atomic():
        task = submit("work")
        transaction.on_commit(lambda: in_another_session(lambda: cancel(task.id)))
        transaction.on_commit(lambda: ended.append(wait(task.id, timeout=20)))
    assert ended == [task]
    assert ended[0].canceled


def test_waiting_leaves_no_trace_on_the_task() -> None:
    task = TaskFactory(running=True)
    with pytest.raises(TaskTimeout):
        wait(task.id, timeout=0.01)
    assert get(task.id).lease_until == task.lease_until
    assert not TaskAttempt.objects.exists()


class RolledBack(Exception):
    pass


@sees_what_others_commit
@pytest.mark.parametrize("in_the_same", [True, False])
def test_a_row_that_a_rolled_back_block_let_go_of_can_be_waited_for(in_the_same: bool) -> None:
    task = TaskFactory(running=True)

    def cancel_and_fail() -> None:
        with transaction.atomic():
            cancel(task.id)
            raise RolledBack

    if not in_the_same:
        with pytest.raises(RolledBack):
            cancel_and_fail()
    with transaction.atomic():
        if in_the_same:
            with pytest.raises(RolledBack):
                cancel_and_fail()
        with pytest.raises(TaskTimeout):
            wait(task.id, timeout=0.01)
