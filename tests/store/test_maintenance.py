from __future__ import annotations

import logging
import threading
from contextlib import suppress
from datetime import datetime, timezone
from itertools import chain
from typing import Any

import pytest
from django.db import DEFAULT_DB_ALIAS as DB
from django.db import connection
from django.db.models.expressions import RawSQL

from cairnq_django.clock import after
from cairnq_django.envelopes import expired, lease_expired
from cairnq_django.errors import CairnQError
from cairnq_django.models import Task, TaskAttempt, TaskKey
from cairnq_django.statuses import AttemptOutcome, TaskStatus
from cairnq_django.store import maintenance
from cairnq_django.store.claim import Draw, claim
from cairnq_django.store.control import retry
from cairnq_django.store.maintenance import Ended, count, purge_steps, recover
from cairnq_django.store.settle import complete, fail
from cairnq_django.store.submit import Conflict, submit
from tests.factories import TaskFactory, an_error, in_turn, new_task
from tests.helpers import in_threads
from tests.store.sessions import another_transaction, in_another_session, locks_rows, only_data, row, statements

pytestmark = pytest.mark.django_db


def test_recovery_queues_a_task_again_with_an_envelope_that_says_who_left_it() -> None:
    task = TaskFactory(expired=True, run_at=after(-600))
    assert recover(DB) == ([task], [])
    task.refresh()
    error = lease_expired("worker-1", 1)
    assert (task.status, task.attempt, task.error) == ("queued", 1, error)
    assert task.run_at == task.updated_at, "it queues by when it became due again"
    attempt = task.attempts.get()
    assert (attempt.number, attempt.worker_id, attempt.outcome) == (1, "worker-1", AttemptOutcome.RETRIED)
    assert (attempt.started_at, attempt.error) == (task.started_at, error)


@pytest.mark.parametrize(("attempt", "max_attempts"), [(3, 3), (1, 1), (5, 3)])
def test_recovery_fails_a_task_whose_attempts_are_used_up(attempt: int, max_attempts: int) -> None:
    task = TaskFactory(expired=True, attempt=attempt, max_attempts=max_attempts)
    assert recover(DB) == ([], [task])
    task.refresh()
    assert (task.status, task.attempt, task.error) == ("failed", attempt, lease_expired("worker-1", attempt))
    assert task.completed_at == task.updated_at
    assert list(task.attempts.values_list("number", "outcome")) == [(attempt, AttemptOutcome.FAILED)]


def test_a_task_that_kills_every_worker_ends_failed() -> None:
    task = TaskFactory(max_attempts=3)
    deliveries = 0
    while claim(DB, in_turn(Draw(("default",), ("work",), 1)), worker_id="worker-1", lease=30):
        deliveries += 1
        Task.objects.update(lease_until=after(-1))
        recover(DB)
    task.refresh()
    assert (deliveries, task.status, task.error["code"]) == (3, "failed", "lease_expired")
    assert list(task.attempts.values_list("number", flat=True)) == [1, 2, 3]


def test_recovery_takes_up_to_its_limit_the_longest_expired_first() -> None:
    tasks = [TaskFactory(expired=True, lease_until=after(-n)) for n in (1, 3, 2)]
    assert recover(DB, limit=2).queued == [tasks[1], tasks[2]]
    assert recover(DB, limit=2).queued == [tasks[0]]
    assert recover(DB, limit=2) == ([], [])


def test_recovery_leaves_a_lease_that_holds() -> None:
    task = TaskFactory(running=True, lease_until=after(5))
    assert recover(DB) == ([], [])
    assert row(Task)["lease_until"] == task.lease_until


@locks_rows
@pytest.mark.django_db(transaction=True)
def test_recovery_leaves_what_is_locked_for_the_next_time() -> None:
    locked, free = TaskFactory(expired=True), TaskFactory(expired=True)
    with another_transaction(lambda: Task.objects.select_for_update().get(pk=locked.pk)):
        assert recover(DB).queued == [free]
    assert recover(DB).queued == [locked]


@pytest.mark.django_db(transaction=True)
def test_of_many_recoveries_at_once_each_task_is_in_one() -> None:
    Task.objects.bulk_create(
        [*TaskFactory.build_batch(40, expired=True), *TaskFactory.build_batch(20, expired=True, attempt=3)]
    )
    recovered = in_threads(4, lambda n: [recover(DB, limit=25), recover(DB, limit=25)])
    recovered.append([recover(DB)])
    all_of_them = list(chain(*recovered))
    taken_back = [task.pk for each in all_of_them for task in each.queued]
    assert len(taken_back) == len(set(taken_back)) == Task.objects.queued().count() == 40
    assert sum(len(each.ended) for each in all_of_them) == Task.objects.failed().count() == 20
    assert TaskAttempt.objects.count() == TaskAttempt.objects.values("task").distinct().count() == 60


def test_what_was_not_started_in_time_ends_canceled_with_an_envelope_that_says_when_it_expired() -> None:
    task = TaskFactory(too_late=True, key="order:7")
    assert maintenance.expire(DB) == [task.pk]
    moment = task.expires_at
    task.refresh()
    assert moment is not None
    assert (task.status, task.attempt, task.error) == ("canceled", 0, expired(moment))
    assert task.completed_at == task.updated_at
    assert (task.expires_at, task.cancel_requested_at) == (None, None)
    assert not task.attempts.exists()


def test_expiry_leaves_what_may_start_what_has_started_and_what_has_ended() -> None:
    TaskFactory(expires_at=after(60))
    for state in ("running", "expired", "succeeded", "failed", "canceled"):
        TaskFactory(**{state: True}, expires_at=after(-1))
    before = list(Task.objects.order_by("pk").values())
    assert maintenance.expire(DB) == []
    assert list(Task.objects.order_by("pk").values()) == before


def test_expiry_takes_up_to_its_limit_the_longest_expired_first() -> None:
    tasks = [TaskFactory(expires_at=after(-n)) for n in (1, 3, 2)]
    assert maintenance.expire(DB, limit=2) == [tasks[1].pk, tasks[2].pk]
    assert maintenance.expire(DB, limit=2) == [tasks[0].pk]
    assert maintenance.expire(DB, limit=2) == []
    for task in tasks:
        moment = task.expires_at
        assert moment is not None
        assert task.refresh().error == expired(moment)


def test_expiry_takes_two_statements_however_many_expire() -> None:
    Task.objects.bulk_create(new_task(expires_at=after(-1 - n)) for n in range(maintenance.EXPIRE_BATCH))
    sent = only_data(statements(lambda: maintenance.expire(DB)))
    assert [sql.split()[0] for sql in sent] == ["SELECT", "UPDATE"]
    assert Task.objects.canceled().count() == maintenance.EXPIRE_BATCH


@locks_rows
@pytest.mark.django_db(transaction=True)
def test_expiry_leaves_what_is_locked_for_the_next_time() -> None:
    locked, free = TaskFactory(too_late=True), TaskFactory(too_late=True)
    with another_transaction(lambda: Task.objects.select_for_update().get(pk=locked.pk)):
        assert maintenance.expire(DB) == [free.pk]
    assert maintenance.expire(DB) == [locked.pk]


@pytest.mark.django_db(transaction=True)
def test_who_expires_and_who_submits_for_the_keys_end_each_task_once() -> None:
    keys = [f"order:{n}" for n in range(60)]
    late = [new_task(key=key, expires_at=after(-1)) for key in keys]
    submit(DB, late, Conflict.REUSE)

    def end_some(n: int) -> list[Any]:
        if n % 2:
            return [pk for _ in range(6) for pk in maintenance.expire(DB, limit=10)]
        return submit(DB, [new_task(key=key) for key in (keys if n else reversed(keys))], Conflict.REUSE).ended

    told = list(chain(*in_threads(4, end_some)))
    assert len(told) == len(set(told)) == Task.objects.canceled().count() == 60
    assert set(told) == {task.pk for task in late}
    assert set(Task.objects.live().values_list("key", flat=True)) == set(keys)
    assert Task.objects.live().count() == 60


def purge(using: str, *, limit: int | None = None, **which: Any) -> int:
    return maintenance.purge(using, Ended(**which), limit=limit)


def ended(seconds_ago: float, state: str = "succeeded", **fields: Any) -> Task:
    return TaskFactory(**{state: True}, completed_at=after(-seconds_ago), **fields)


def test_purge_deletes_what_has_ended_long_enough_ago() -> None:
    old = [ended(61, state) for state in ("succeeded", "failed", "canceled")]
    young = [ended(50, state) for state in ("succeeded", "failed", "canceled")]
    live = [TaskFactory(), TaskFactory(delayed=True), TaskFactory(running=True), TaskFactory(expired=True)]
    assert purge(DB, older_than=60) == len(old)
    assert set(Task.objects.all()) == {*young, *live}


def test_purge_of_everything_that_ended_leaves_what_is_live() -> None:
    ended(0)
    task = TaskFactory()
    assert purge(DB, older_than=0) == 1
    assert Task.objects.get() == task


def test_purge_takes_keys_and_attempts_with_the_task() -> None:
    ended(61, "failed", key="order:7")
    kept = ended(50, "failed", key="order:8")
    assert purge(DB, older_than=60) == 1
    assert TaskKey.objects.get().task == kept
    assert set(TaskAttempt.objects.values_list("task", flat=True)) == {kept.pk}


def test_purge_of_a_task_leaves_the_key_to_the_task_that_has_it_now() -> None:
    ended(61, key="order:7")
    task = TaskFactory(key="order:7")
    assert purge(DB, older_than=60) == 1
    assert TaskKey.objects.get().task == task


@pytest.mark.parametrize(
    "filters",
    [
        {"statuses": (TaskStatus.FAILED,)},
        {"statuses": (TaskStatus.FAILED, TaskStatus.CANCELED)},
        {"queue": "mail"},
        {"name": "receipt"},
        {"statuses": (TaskStatus.FAILED,), "queue": "mail", "name": "receipt"},
    ],
)
def test_purge_deletes_only_what_it_is_asked_to(filters: dict[str, Any]) -> None:
    tasks = [
        ended(61, state, queue=queue, name=name)
        for state in ("succeeded", "failed", "canceled")
        for queue in ("mail", "Mail")
        for name in ("receipt", "receipt ")
    ]
    wanted = Ended(older_than=60, **filters)
    chosen = {
        task
        for task in tasks
        if task.status in wanted.statuses and wanted.queue in (None, task.queue) and wanted.name in (None, task.name)
    }
    assert sum(count(DB, wanted)) == len(chosen)
    assert purge(DB, older_than=60, **filters) == len(chosen)
    assert set(Task.objects.all()) == set(tasks) - chosen


def test_purge_takes_up_to_its_limit_the_longest_ended_first() -> None:
    ends = [(62, "failed"), (64, "canceled"), (63, "canceled"), (61, "succeeded")]
    tasks = [ended(seconds_ago, state) for seconds_ago, state in ends]
    assert purge(DB, older_than=60, limit=3) == 3
    assert Task.objects.get() == tasks[3]
    assert purge(DB, older_than=60, limit=0) == 0
    assert purge(DB, older_than=60, limit=3) == 1


def test_purge_works_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "PURGE_BATCH", 3)
    for _ in range(8):
        ended(61)
    assert purge(DB, older_than=60, limit=7) == 7
    assert purge(DB, older_than=60) == 1


@pytest.mark.django_db(transaction=True)
def test_purge_of_nothing_takes_no_lock() -> None:
    ended(50)
    sent = statements(lambda: purge(DB, older_than=60))
    assert [sql.split()[0] for sql in sent] == ["SELECT"] * 3


def test_purge_of_more_than_a_batch() -> None:
    Task.objects.bulk_create(
        new_task(status=TaskStatus.CANCELED, completed_at=after(-61)) for _ in range(maintenance.PURGE_BATCH + 10)
    )
    assert purge(DB, older_than=60) == maintenance.PURGE_BATCH + 10


@locks_rows
@pytest.mark.django_db(transaction=True)
def test_purge_leaves_what_is_locked() -> None:
    locked, free = ended(62), ended(61)
    with another_transaction(lambda: Task.objects.select_for_update().get(pk=locked.pk)):
        assert purge(DB, older_than=60) == 1
        assert not Task.objects.filter(pk=free.pk).exists()
    assert purge(DB, older_than=60) == 1


@locks_rows
@pytest.mark.django_db(transaction=True)
def test_purge_leaves_a_task_whose_key_is_being_decided_for() -> None:
    replaced, other = ended(62, key="order:7"), ended(61, key="order:8")
    with another_transaction(lambda: submit(DB, [new_task(key="order:7")], Conflict.REUSE).tasks):
        assert purge(DB, older_than=60) == 1
        assert Task.objects.get() == replaced != other
    assert TaskKey.objects.get().task.is_queued
    assert purge(DB, older_than=60) == 1


@locks_rows
@pytest.mark.django_db(transaction=True)
def test_purge_leaves_a_task_that_is_being_retried() -> None:
    failed = ended(62, "failed", key="order:7")
    other = ended(61, "failed", key="order:8")
    with another_transaction(lambda: retry(DB, failed.pk)):
        assert purge(DB, older_than=60) == 1
        assert not Task.objects.filter(pk=other.pk).exists()
    failed.refresh()
    assert failed.is_queued
    assert TaskKey.objects.get().task == failed


@locks_rows
@pytest.mark.django_db(transaction=True)
def test_purge_leaves_a_task_that_was_retried_after_it_was_found() -> None:
    task = ended(61, "failed")
    retried = []

    def meanwhile(execute: Any, sql: str, *rest: Any) -> Any:
        if "FOR UPDATE" in sql and not retried:
            retried.append(in_another_session(lambda: retry(DB, task.pk)))
        return execute(sql, *rest)

    with connection.execute_wrapper(meanwhile):
        assert purge(DB, older_than=60) == 0
    assert retried
    assert task.refresh().is_queued


@pytest.fixture
def _small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "WINDOW", 4)


@pytest.mark.usefixtures("_small_windows")
@pytest.mark.parametrize("statuses", [("failed",), ("failed", "canceled")], ids=len)
@pytest.mark.parametrize("at_once", [False, True], ids=["one by one", "all in the same moment"])
def test_a_purge_by_queue_finds_all_among_many_others(statuses: tuple[str, ...], at_once: bool) -> None:
    for n in range(30):
        ended(90 if at_once else 100 - n, statuses[n % len(statuses)], queue="rpc" if n % 7 == 0 else "default")
    young = ended(50, queue="rpc")
    rpc = Ended(older_than=60, queue="rpc")
    assert sum(count(DB, rpc)) == 5
    assert purge(DB, older_than=60, queue="rpc", limit=2) == 2
    assert purge(DB, older_than=60, queue="rpc") == 3
    assert sum(count(DB, rpc)) == 0
    assert Task.objects.get(queue="rpc") == young
    assert Task.objects.filter(queue="default").count() == 25


@pytest.mark.usefixtures("_small_windows")
def test_a_purge_in_windows_ends_where_a_second_has_no_fraction() -> None:
    moment = datetime(2026, 1, 1, 10, tzinfo=timezone.utc)
    for _ in range(10):
        ended(0, "succeeded", queue="default")
    Task.objects.update(completed_at=moment)
    if connection.vendor == "sqlite":
        # As its own clock writes it.
        Task.objects.update(completed_at=RawSQL("'2026-01-01 10:00:00.000'", []))
    wanted = ended(61, queue="rpc")
    assert purge(DB, older_than=60, queue="rpc") == 1
    assert not Task.objects.filter(pk=wanted.pk).exists()


@pytest.mark.usefixtures("_small_windows")
def test_a_purge_that_was_broken_off_goes_on_from_there() -> None:
    for n in range(10):
        ended(100 - n)
    last = ended(70, queue="rpc")
    rpc = Ended(older_than=60, queue="rpc")
    steps = purge_steps(DB, rpc, size=10)
    first, second = next(steps), next(steps)
    assert [(step.deleted, step.passed) for step in (first, second)] == [(0, 4), (0, 4)]
    rest = list(purge_steps(DB, rpc, size=10, since=second.since))
    assert [step.deleted for step in rest] == [1]
    assert not Task.objects.filter(pk=last.pk).exists()


@pytest.mark.usefixtures("_small_windows")
def test_a_purge_that_matches_all_that_ended_reads_over_nothing() -> None:
    for n in range(10):
        ended(100 - n)
    steps = list(purge_steps(DB, Ended(older_than=60), size=5))
    assert [(step.deleted, step.passed, step.since) for step in steps] == [(5, 0, None), (5, 0, None)]


@pytest.mark.django_db(transaction=True)
def test_purgers_and_busy_workers_never_deadlock_and_delete_each_task_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "cairnq_django.store.engine")
    rounds, purgers, workers = 12, 3, 2
    working = threading.Semaphore(0)
    submitted: list[set[Any]] = [set() for _ in range(workers)]

    def work(worker: int) -> None:
        for n in range(rounds):
            tasks = [new_task(key=f"order:{n}:{i % 4}" if i % 2 else None) for i in range(8)]
            current = submit(DB, tasks, Conflict.REUSE).tasks
            submitted[worker] |= {task.pk for task in current if task in tasks}
            for i, task in enumerate(
                claim(DB, in_turn(Draw(("default",), ("work",), 8)), worker_id=f"w{worker}", lease=30)
            ):
                if i % 2:
                    complete(DB, task.lease, "done")
                else:
                    fail(DB, task.lease, an_error(retryable=False), retry_delay=0)
                    try_to_retry(task.lease.task_id)

    def try_to_retry(task_id: Any) -> None:
        with suppress(Task.DoesNotExist, CairnQError):
            retry(DB, task_id)

    def run(n: int) -> int:
        if n < workers:
            try:
                work(n)
            finally:
                working.release(purgers)
            return 0
        purged = ended = 0
        while ended < workers:
            purged += purge(DB, older_than=0)
            ended += working.acquire(blocking=False)
        return purged

    purged = sum(in_threads(workers + purgers, run))
    assert purged > 0
    purged += purge(DB, older_than=0)
    assert not Task.objects.terminal().exists()
    assert purged + Task.objects.count() == len(set().union(*submitted))
    assert not TaskKey.objects.exclude(task__status__in=(TaskStatus.QUEUED, TaskStatus.RUNNING)).exists()
    assert set(TaskAttempt.objects.values_list("task", flat=True)) <= set(Task.objects.values_list("pk", flat=True))
    assert connection.vendor == "sqlite" or [record.exc_info for record in caplog.records] == []
