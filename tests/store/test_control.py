from __future__ import annotations

from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from django.db import DEFAULT_DB_ALIAS as DB
from django.db import connection, transaction

from cairnq_django.clock import after
from cairnq_django.errors import CairnQError
from cairnq_django.ids import new_task_id
from cairnq_django.models import Task
from cairnq_django.statuses import AttemptOutcome, TaskStatus
from cairnq_django.store import control
from cairnq_django.store.claim import Draw, claim
from cairnq_django.store.control import Beat, cancel, cancel_family, cancel_requested, progress, renew, retry, run_now
from cairnq_django.store.maintenance import recover
from cairnq_django.store.settle import complete
from tests.factories import WORKER, TaskFactory, an_error, in_turn, lease_of
from tests.helpers import in_threads
from tests.store.sessions import another_transaction, in_another_session, locks_rows, only_data, row, statements

if TYPE_CHECKING:
    from uuid import UUID

pytestmark = pytest.mark.django_db


def test_cancel_ends_a_queued_task_at_once() -> None:
    task = TaskFactory(attempt=1, error=an_error("of an earlier attempt"))
    canceled, changed = cancel(DB, task.pk)
    assert changed
    assert (canceled.status, canceled.error, canceled.attempt) == ("canceled", None, 1)
    assert canceled.completed_at == canceled.updated_at
    assert not canceled.attempts.exists()
    assert canceled.cancel_requested_at is None


def test_cancel_asks_a_running_task_to_stop() -> None:
    task = TaskFactory(running=True)
    canceling, changed = cancel(DB, task.pk)
    assert changed
    assert canceling.is_running
    assert canceling.cancel_requested_at == canceling.updated_at
    assert canceling.lease_until == task.lease_until


@pytest.mark.parametrize("state", ["cancel_requested", "succeeded", "failed", "canceled"])
def test_cancel_leaves_what_is_canceling_or_has_ended(state: str) -> None:
    task = TaskFactory(**{state: True})
    before = row(Task)
    assert cancel(DB, task.pk) == (task, False)
    assert row(Task) == before


def test_cancel_and_retry_of_a_task_that_is_not_there_say_so() -> None:
    for change in (cancel, retry):
        with transaction.atomic(), pytest.raises(Task.DoesNotExist):
            change(DB, uuid4())


def test_a_family_is_canceled_in_a_few_statements_however_large_it_is() -> None:
    def sent_for(size: int) -> list[str]:
        top = TaskFactory()
        parent = TaskFactory(parent_id=top.pk, root_id=top.pk)
        Task.objects.bulk_create(
            TaskFactory.build(parent_id=parent.pk, root_id=top.pk, running=n % 2) for n in range(size)
        )
        return only_data(statements(lambda: cancel_family(DB, parent.pk)))

    assert len(sent_for(200)) == len(sent_for(2))


@pytest.mark.django_db(transaction=True)
def test_families_canceled_at_once_and_workers_that_settle_get_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "FAMILY_BATCH", 40)
    top = TaskFactory()
    middle = TaskFactory(parent_id=top.pk, root_id=top.pk)
    # Ids in another order than rows.
    ids = sorted((new_task_id() for _ in range(300)), key=lambda pk: pk.bytes[::-1])
    Task.objects.bulk_create(
        TaskFactory.build(id=pk, parent_id=(top if n % 3 else middle).pk, root_id=top.pk, running=n % 2)
        for n, pk in enumerate(ids)
    )
    leases = [lease_of(task) for task in Task.objects.running()]

    def cancel_or_settle(n: int) -> list[UUID]:
        if n < 4:
            with transaction.atomic():  # in which nothing is tried again
                return cancel_family(DB, (top if n % 2 else middle).pk).ended
        for lease in leases[n % 2 :: 2]:
            complete(DB, lease, "done")
        return []

    told = list(chain(*in_threads(6, cancel_or_settle)))
    assert not Task.objects.live().exists()
    assert len(told) == len(set(told))
    assert set(told) == set(Task.objects.canceled().filter(attempt=0).values_list("pk", flat=True))
    assert len(told) == 152


@locks_rows
@pytest.mark.django_db(transaction=True)
def test_a_member_of_a_family_that_ends_before_it_is_locked_stays_as_it_ended() -> None:
    task = TaskFactory(running=True)
    settled: list[TaskStatus] = []

    def meanwhile(execute: Any, sql: str, *rest: Any) -> Any:
        if "FOR UPDATE" in sql and not settled:
            settled.append(in_another_session(lambda: complete(DB, lease_of(task), "done")))
        return execute(sql, *rest)

    with connection.execute_wrapper(meanwhile):
        canceled, ended, _ = cancel_family(DB, task.pk)
    assert settled
    assert (canceled.status, canceled.cancel_requested_at, ended) == ("succeeded", None, [])


@pytest.mark.django_db(transaction=True)
def test_of_many_cancels_at_once_one_changes_the_task() -> None:
    for state in ({}, {"running": True}):
        task = TaskFactory(**state)
        outcomes = in_threads(6, lambda n, task=task: cancel(DB, task.pk))
        assert [changed for _, changed in outcomes].count(True) == 1


@pytest.mark.parametrize("attempt", [1, 3, 7])
def test_retry_queues_a_failed_task_again_with_at_least_one_attempt_left(attempt: int) -> None:
    task = TaskFactory(failed=True, attempt=attempt, max_attempts=3, run_at=after(-600))
    queued, changed = retry(DB, task.pk)
    assert changed
    assert (queued.status, queued.attempt, queued.max_attempts) == ("queued", attempt, max(3, attempt + 1))
    assert (queued.error, queued.result) == (None, None)
    assert (queued.started_at, queued.completed_at, queued.lease_until) == (None, None, None)
    assert queued.run_at == queued.updated_at, "it queues by when it became due again"
    assert queued.attempts.count() == attempt, "what failed stays to be seen"


def test_retry_makes_a_canceled_task_runnable_again() -> None:
    task = TaskFactory(cancel_requested=True)
    complete(DB, lease_of(task), "too late")
    queued, _ = retry(DB, task.pk)
    assert (queued.status, queued.cancel_requested_at) == ("queued", None)
    (claimed,) = claim(DB, in_turn(Draw(("default",), ("work",), 1)), worker_id="worker-2", lease=30)
    complete(DB, claimed.lease, "in time")
    assert Task.objects.get().succeeded
    assert list(task.attempts.values_list("number", "outcome")) == [(1, AttemptOutcome.CANCELED)]


@pytest.mark.parametrize("state", ["queued", "delayed", "running", "cancel_requested", "succeeded"])
def test_retry_is_refused_for_what_did_not_fail(state: str) -> None:
    task = TaskFactory(**({state: True} if state != "queued" else {}))
    before = row(Task)
    with transaction.atomic(), pytest.raises(CairnQError, match=f"{task.pk} is {task.status}; only a failed or"):
        retry(DB, task.pk)
    assert row(Task) == before


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("key", [None, "order:7"])
def test_of_many_retries_at_once_one_queues_the_task(key: str | None) -> None:
    task = TaskFactory(failed=True, key=key)

    def try_to_retry(n: int) -> str:
        try:
            return str(retry(DB, task.pk).changed)
        except CairnQError as error:
            return str(error)

    outcomes = in_threads(6, try_to_retry)
    refused = f"Task {task.pk} is queued; only a failed or a canceled task can be retried"
    assert sorted(outcomes, key=len) == ["True", *[refused] * 5]
    assert row(Task)["max_attempts"] == 4


@pytest.mark.parametrize("state", ["failed", "canceled"])
def test_retry_with_attempts_reset_leaves_all_of_them_and_keeps_what_failed(state: str) -> None:
    task = TaskFactory(**{state: True}, attempt=3, max_attempts=5)
    failed = list(task.attempts.values_list("number", "error"))
    again, changed = retry(DB, task.pk, reset_attempts=True)
    assert changed
    assert (again.status, again.attempt, again.max_attempts) == ("queued", 0, 5)
    assert list(task.attempts.values_list("number", "error")) == failed


def test_run_now_makes_a_delayed_task_due() -> None:
    delayed, other = TaskFactory(delayed=True), TaskFactory(delayed=True)
    task, changed = run_now(DB, delayed.pk)
    assert changed
    assert list(Task.objects.due()) == [task]
    assert row(Task, pk=other.pk)["run_at"] == other.run_at


def test_run_now_spares_a_retry_its_delay() -> None:
    waiting = TaskFactory(delayed=True, attempt=2, error=an_error())
    task, changed = run_now(DB, waiting.pk)
    assert changed
    assert (task.attempt, task.error) == (2, waiting.error)
    assert task.run_at < waiting.run_at


def test_run_now_leaves_what_is_due_where_it_stands() -> None:
    task = TaskFactory(run_at=after(-60))
    assert not run_now(DB, task.pk).changed
    assert row(Task)["run_at"] == task.run_at


@pytest.mark.parametrize("state", ["running", "cancel_requested", "succeeded", "failed", "canceled"])
def test_run_now_is_refused_for_what_is_not_queued(state: str) -> None:
    task = TaskFactory(**{state: True})
    before = row(Task)
    with transaction.atomic(), pytest.raises(CairnQError, match=f"{task.pk} is {task.status}; only a queued"):
        run_now(DB, task.pk)
    assert row(Task) == before


def test_progress_changes_what_it_is_given_and_leaves_the_rest() -> None:
    task = TaskFactory(running=True)
    for value, message, shown in [
        (0.25, None, (0.25, "")),
        (None, "reading", (0.25, "reading")),
        (0.5, "writing", (0.5, "writing")),
        (None, None, (0.5, "writing")),
        (0.0, "", (0.0, "")),
    ]:
        progress(DB, lease_of(task), value=value, message=message)
        task.refresh()
        assert (task.progress, task.message) == shown
    assert task.updated_at > task.created_at


def test_progress_takes_one_statement() -> None:
    lease = lease_of(TaskFactory(running=True))
    assert len(statements(lambda: progress(DB, lease, value=0.5, message="half"))) == 1


def test_a_worker_can_ask_whether_its_task_is_to_stop() -> None:
    assert not cancel_requested(DB, lease_of(TaskFactory(running=True)))
    assert cancel_requested(DB, lease_of(TaskFactory(cancel_requested=True)))


def test_renew_extends_leases_by_the_database_s_clock() -> None:
    tasks = [TaskFactory(running=True, lease_until=after(5)) for _ in range(3)]
    other = TaskFactory(running=True)
    leases = [lease_of(task) for task in tasks]
    assert renew(DB, leases, lease=600) == Beat(renewed=set(leases), lost=set(), cancel_requested=set())
    extended = set(Task.objects.exclude(pk=other.pk).values_list("lease_until", flat=True))
    (lease_until,) = extended
    assert timedelta(seconds=590) < lease_until - tasks[0].lease_until < timedelta(seconds=660)
    assert row(Task, pk=other.pk)["lease_until"] == other.lease_until
    assert row(Task, pk=tasks[0].pk)["updated_at"] == tasks[0].updated_at, "nothing changed that people look for"


def test_renew_of_nothing_asks_nothing() -> None:
    assert statements(lambda: renew(DB, [], lease=30)) == []
    assert renew(DB, [], lease=30) == Beat(set(), set(), set())


def test_renew_tells_what_is_lost() -> None:
    kept = TaskFactory(running=True)
    deleted = TaskFactory(running=True)
    lost = [
        lease_of(TaskFactory(expired=True)),
        lease_of(TaskFactory(running=True, attempt=2))._replace(attempt=1),
        lease_of(TaskFactory(running=True, worker_id="worker-2"))._replace(worker_id=WORKER),
        *(lease_of(TaskFactory(**{state: True})) for state in ("succeeded", "failed")),
        lease_of(TaskFactory(attempt=1, worker_id=WORKER)),
        lease_of(deleted),
    ]
    Task.objects.filter(pk=deleted.pk).delete()
    before = list(Task.objects.exclude(pk=kept.pk).exclude(attempt=2).values())
    beat = renew(DB, [*lost, lease_of(kept)], lease=30)
    assert beat == Beat(renewed={lease_of(kept)}, lost=set(lost), cancel_requested=set())
    assert list(Task.objects.exclude(pk=kept.pk).exclude(attempt=2).values()) == before


def test_renew_learns_of_cancel_requests() -> None:
    task, canceling = TaskFactory(running=True), TaskFactory(cancel_requested=True)
    lost = TaskFactory(expired=True, cancel_requested_at=after(-2))
    leases = {lease_of(task), lease_of(canceling)}
    beat = renew(DB, [*leases, lease_of(lost)], lease=30)
    assert beat == Beat(renewed=leases, lost={lease_of(lost)}, cancel_requested={lease_of(canceling)})


@pytest.mark.parametrize("earlier_first", [True, False])
def test_renew_tells_a_worker_s_own_attempts_at_one_task_apart(earlier_first: bool) -> None:
    task = TaskFactory(running=True, attempt=2)
    now, before = lease_of(task), lease_of(task)._replace(attempt=1)
    leases = [before, now] if earlier_first else [now, before]
    assert renew(DB, leases, lease=30) == Beat(renewed={now}, lost={before}, cancel_requested=set())


@locks_rows
@pytest.mark.django_db(transaction=True)
def test_renew_passes_over_what_is_locked_and_it_is_not_lost() -> None:
    free, locked, canceling = (TaskFactory(running=True, lease_until=after(5)) for _ in range(3))
    cancel(DB, canceling.pk)
    mine = [lease_of(task) for task in (free, locked, canceling)]

    def lock() -> None:
        list(Task.objects.select_for_update().filter(pk__in=[locked.pk, canceling.pk]))

    with another_transaction(lock):
        beat = renew(DB, mine, lease=600)
        assert beat == Beat(renewed={mine[0]}, lost=set(), cancel_requested={mine[2]})
        assert row(Task, pk=locked.pk)["lease_until"] == locked.lease_until
    assert renew(DB, mine, lease=600).renewed == set(mine)


@locks_rows
@pytest.mark.django_db(transaction=True)
def test_renew_waits_for_no_settlement_that_is_about_to_commit() -> None:
    task = TaskFactory(running=True)
    with another_transaction(lambda: complete(DB, lease_of(task), "done")):
        assert renew(DB, [lease_of(task)], lease=30) == Beat(set(), set(), set())
    assert renew(DB, [lease_of(task)], lease=30).lost == {lease_of(task)}


@pytest.mark.django_db(transaction=True)
def test_renew_takes_one_statement_for_all_leases_where_the_database_can() -> None:
    Task.objects.bulk_create(TaskFactory.build_batch(256, running=True))
    leases = [lease_of(task) for task in Task.objects.all()]
    beats: list[Beat] = []
    sent = statements(lambda: beats.append(renew(DB, leases, lease=30)))
    assert beats[0].renewed == set(leases)
    expected = ["SELECT", "UPDATE"] if connection.vendor == "mysql" else ["UPDATE"]
    assert [sql.split()[0] for sql in only_data(sent)] == expected


@pytest.mark.django_db(transaction=True)
def test_a_lease_that_runs_out_is_taken_back_or_lost_but_never_renewed() -> None:
    leases = [lease_of(TaskFactory(running=True, lease_until=after(0.02 * n))) for n in range(20)]

    def beat_or_recover(n: int) -> Beat | list[Task]:
        return recover(DB).queued if n else renew(DB, leases, lease=30)

    beat, *recovered = in_threads(3, beat_or_recover)
    assert isinstance(beat, Beat)
    taken_back = [task.pk for tasks in recovered for task in tasks]
    assert len(taken_back) == len(set(taken_back))
    assert not {lease.task_id for lease in beat.renewed} & set(taken_back)
    recover(DB)
    assert {lease_of(task) for task in Task.objects.running()} == beat.renewed
    assert not renew(DB, leases, lease=30).renewed - beat.renewed
