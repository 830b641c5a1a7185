from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.db import DEFAULT_DB_ALIAS as DB
from django.db import transaction

from cairnq_django.clock import after
from cairnq_django.envelopes import lease_expired
from cairnq_django.errors import LostLease
from cairnq_django.models import Task, TaskAttempt
from cairnq_django.statuses import AttemptOutcome, TaskStatus
from cairnq_django.store import control, maintenance
from cairnq_django.store.claim import Draw, claim
from cairnq_django.store.leases import Lease
from cairnq_django.store.settle import complete, complete_together, fail, release
from tests.factories import WORKER, TaskFactory, an_error, in_turn, lease_of
from tests.helpers import eventually, in_threads
from tests.store.sessions import (
    another_transaction,
    locks_rows,
    only_data,
    row,
    someone_waits_for_a_lock,
    started_in_another_session,
    statements,
)

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.django_db


def attempts(task: Task) -> list[tuple[Any, ...]]:
    return list(task.attempts.values_list("number", "worker_id", "outcome"))


def claim_again(worker_id: str) -> Lease:
    (claimed,) = claim(DB, in_turn(Draw(("default",), ("work",), 10)), worker_id=worker_id, lease=30)
    return claimed.lease


def test_success_keeps_the_result_and_ends_the_task() -> None:
    task = TaskFactory(running=True, error=an_error("an earlier attempt's"))
    assert complete(DB, lease_of(task), {"receipt": 7}) == TaskStatus.SUCCEEDED
    task.refresh()
    assert (task.status, task.result, task.error) == ("succeeded", {"receipt": 7}, None)
    assert (task.attempt, task.worker_id, task.lease_until) == (1, "worker-1", None)
    assert task.completed_at == task.updated_at
    assert task.completed_at is not None
    assert task.started_at is not None
    assert task.completed_at > task.started_at
    assert attempts(task) == [], "only what did not succeed has a row of its own"


def test_success_takes_one_statement() -> None:
    lease = lease_of(TaskFactory(running=True))
    (sent,) = statements(lambda: complete(DB, lease, None))
    assert sent.startswith("UPDATE")


def test_a_retryable_failure_with_attempts_left_queues_the_task_again() -> None:
    task = TaskFactory(running=True, attempt=2, max_attempts=3)
    assert fail(DB, lease_of(task), an_error(), retry_delay=7.5) == TaskStatus.QUEUED
    task.refresh()
    assert (task.status, task.attempt, task.error, task.result) == ("queued", 2, an_error(), None)
    assert task.run_at == task.updated_at + timedelta(seconds=7.5)
    assert attempts(task) == [(2, "worker-1", AttemptOutcome.RETRIED)]


def test_a_retry_without_delay_is_due_at_once() -> None:
    task = TaskFactory(running=True)
    fail(DB, lease_of(task), an_error(), retry_delay=0)
    assert claim_again("worker-2").attempt == 2


def test_a_retry_is_not_claimed_before_it_is_due() -> None:
    task = TaskFactory(running=True)
    fail(DB, lease_of(task), an_error(), retry_delay=60)
    assert claim(DB, in_turn(Draw(("default",), ("work",), 10)), worker_id="worker-2", lease=30) == []


def test_a_failure_of_the_last_attempt_is_final() -> None:
    task = TaskFactory(running=True, attempt=3, max_attempts=3)
    assert fail(DB, lease_of(task), an_error(), retry_delay=1) == TaskStatus.FAILED
    task.refresh()
    assert (task.status, task.error, task.attempt) == ("failed", an_error(), 3)
    assert task.completed_at == task.updated_at
    assert attempts(task) == [(3, "worker-1", AttemptOutcome.FAILED)]


def test_a_failure_that_is_not_retryable_is_final_at_once() -> None:
    task = TaskFactory(running=True, attempt=1, max_attempts=3)
    error = an_error(retryable=False)
    assert fail(DB, lease_of(task), error, retry_delay=1) == TaskStatus.FAILED
    task.refresh()
    assert (task.status, task.error) == ("failed", error)
    assert attempts(task) == [(1, "worker-1", AttemptOutcome.FAILED)]


def test_an_attempt_that_failed_keeps_its_times_and_its_error() -> None:
    task = TaskFactory(running=True, started_at=after(-5))
    started_at = task.started_at
    fail(DB, lease_of(task), an_error("no route to host"), retry_delay=1)
    attempt = task.attempts.get()
    assert attempt.error == an_error("no route to host")
    assert attempt.started_at == started_at
    assert timedelta(seconds=5) <= attempt.ended_at - attempt.started_at < timedelta(seconds=60)


def test_every_attempt_that_failed_has_its_row() -> None:
    task = TaskFactory(max_attempts=3)
    for number in (1, 2, 3):
        lease = claim_again(f"worker-{number}")
        fail(DB, lease, an_error(f"failure {number}"), retry_delay=0)
    assert attempts(task) == [
        (1, "worker-1", AttemptOutcome.RETRIED),
        (2, "worker-2", AttemptOutcome.RETRIED),
        (3, "worker-3", AttemptOutcome.FAILED),
    ]
    assert [attempt.error["message"] for attempt in task.attempts.all()] == ["failure 1", "failure 2", "failure 3"]


def test_cancel_wins_over_success_and_the_result_is_discarded() -> None:
    task = TaskFactory(cancel_requested=True)
    assert complete(DB, lease_of(task), "too late") == TaskStatus.CANCELED
    task.refresh()
    assert (task.status, task.result, task.error) == ("canceled", None, None)
    assert task.cancel_requested
    attempt = task.attempts.get()
    assert (attempt.number, attempt.outcome, attempt.error["code"]) == (1, AttemptOutcome.CANCELED, "canceled")


@pytest.mark.parametrize("attempt", [1, 3])
@pytest.mark.parametrize("retryable", [True, False])
def test_cancel_wins_over_failure(attempt: int, retryable: bool) -> None:
    task = TaskFactory(cancel_requested=True, attempt=attempt)
    error = an_error(retryable=retryable)
    assert fail(DB, lease_of(task), error, retry_delay=1) == TaskStatus.CANCELED
    task.refresh()
    assert (task.status, task.error) == ("canceled", None)
    assert attempts(task) == [(attempt, "worker-1", AttemptOutcome.CANCELED)]
    assert task.attempts.get().error == error


def test_cancel_wins_over_a_release() -> None:
    task = TaskFactory(cancel_requested=True)
    assert release(DB, [lease_of(task)]) == ([], [task.pk])
    task.refresh()
    assert (task.status, task.attempt) == ("canceled", 1)
    assert attempts(task) == [(1, "worker-1", AttemptOutcome.CANCELED)]


def test_cancel_wins_over_recovery() -> None:
    task = TaskFactory(expired=True, cancel_requested_at=after(-2))
    assert maintenance.recover(DB) == ([], [task])
    task.refresh()
    assert (task.status, task.error) == ("canceled", None)
    assert attempts(task) == [(1, "worker-1", AttemptOutcome.CANCELED)]
    assert task.attempts.get().error == lease_expired("worker-1", 1)


def test_a_release_gives_the_attempt_back_and_is_due_at_once() -> None:
    task = TaskFactory(running=True, attempt=2, error=an_error(), run_at=after(-60))
    assert release(DB, [lease_of(task)]) == ([task.pk], [])
    task.refresh()
    assert (task.status, task.attempt, task.error) == ("queued", 1, an_error())
    assert task.run_at == task.updated_at
    assert attempts(task) == [], "it did not fail"
    assert claim_again("worker-2").attempt == 2


def test_a_release_passes_over_what_is_lost() -> None:
    mine, lost, other = TaskFactory(running=True), TaskFactory(expired=True), TaskFactory(running=True)
    leases = [lease_of(mine), lease_of(lost), lease_of(other)._replace(attempt=7)]
    assert release(DB, leases) == ([mine.pk], [])
    assert set(Task.objects.queued()) == {mine}


WRITES: dict[str, Callable[[Lease], object]] = {
    "complete": lambda lease: complete(DB, lease, "done"),
    "fail": lambda lease: fail(DB, lease, an_error(), retry_delay=0),
    "fail for good": lambda lease: fail(DB, lease, an_error(retryable=False), retry_delay=0),
    "progress": lambda lease: control.progress(DB, lease, value=0.5, message="half"),
    "look for a cancel request": lambda lease: control.cancel_requested(DB, lease),
}


def hand_on(task: Task) -> None:
    """Another worker has it now."""
    Task.objects.filter(pk=task.pk).update(lease_until=after(-1))
    maintenance.recover(DB)
    claim_again("worker-2")


LOSSES: dict[str, Callable[[Task], object]] = {
    "expired": lambda task: Task.objects.filter(pk=task.pk).update(lease_until=after(-0.001)),
    "taken back": lambda task: (LOSSES["expired"](task), maintenance.recover(DB)),
    "handed on": hand_on,
    "succeeded": lambda task: complete(DB, lease_of(task), "done before"),
    "failed": lambda task: fail(DB, lease_of(task), an_error("before", retryable=False), retry_delay=0),
    "queued again": lambda task: fail(DB, lease_of(task), an_error("before"), retry_delay=60),
    "canceled": lambda task: (control.cancel(DB, task.pk), complete(DB, lease_of(task), "done before")),
    "released": lambda task: release(DB, [lease_of(task)]),
    "deleted": lambda task: Task.objects.filter(pk=task.pk).delete(),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("loss", LOSSES)
def test_who_lost_the_lease_is_told_and_writes_nothing(loss: str, write: str) -> None:
    task = TaskFactory(running=True)
    LOSSES[loss](task)
    before = list(Task.objects.values()), list(TaskAttempt.objects.values())
    with pytest.raises(LostLease) as raised:
        WRITES[write](lease_of(task))
    assert (raised.value.task_id, raised.value.attempt) == (task.pk, 1)
    assert (list(Task.objects.values()), list(TaskAttempt.objects.values())) == before


@pytest.mark.parametrize("write", WRITES)
def test_the_same_worker_s_earlier_attempt_has_lost_the_lease(write: str) -> None:
    task = TaskFactory(running=True, attempt=2)
    before = row(Task)
    with pytest.raises(LostLease):
        WRITES[write](lease_of(task)._replace(attempt=1))
    with pytest.raises(LostLease):
        WRITES[write](lease_of(task)._replace(worker_id="Worker-1"))
    assert row(Task) == before


@pytest.mark.parametrize("settle", ["complete", "fail", "fail for good"])
def test_a_settlement_joins_its_caller_s_transaction(settle: str) -> None:
    task = TaskFactory(running=True)
    before = row(Task)
    with transaction.atomic():
        WRITES[settle](lease_of(task))
        transaction.set_rollback(True)
    assert row(Task) == before
    assert not TaskAttempt.objects.exists()


def test_a_failure_takes_three_statements() -> None:
    lease = lease_of(TaskFactory(running=True))
    sent = only_data(statements(lambda: fail(DB, lease, an_error(), retry_delay=0)))
    assert [sql.split()[0] for sql in sent] == ["SELECT", "UPDATE", "INSERT"]


@locks_rows
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("settle", ["complete", "fail"])
def test_a_cancel_request_that_is_about_to_commit_wins(settle: str) -> None:
    task = TaskFactory(running=True)
    with another_transaction(lambda: control.cancel(DB, task.pk)):
        settled = started_in_another_session(lambda: WRITES[settle](lease_of(task)))
        eventually(someone_waits_for_a_lock)
    assert settled.result() == TaskStatus.CANCELED
    task.refresh()
    assert (task.status, task.result) == ("canceled", None)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("settle", ["complete", "fail", "fail for good"])
def test_of_many_settlements_at_once_one_is_recorded(settle: str) -> None:
    task = TaskFactory(running=True)

    def try_to_settle(n: int) -> object:
        try:
            return WRITES[settle](lease_of(task))
        except LostLease:
            return None

    outcomes = in_threads(6, try_to_settle)
    assert len([outcome for outcome in outcomes if outcome is not None]) == 1
    assert task.attempts.count() == (0 if settle == "complete" else 1)


RESULTS: list[Any] = [None, 0, False, "", "text", 1.5, [], {}, [None], {"a": [1, {"b": None}]}, "null", "ä\\\"'"]


def test_successes_are_recorded_together_each_with_its_own_result() -> None:
    tasks = [TaskFactory(running=True, attempt=1 + n % 2) for n in range(len(RESULTS))]
    leases = [lease_of(task) for task in tasks]

    assert complete_together(DB, dict(zip(leases, RESULTS, strict=True))) == set(leases)

    for task, result in zip(tasks, RESULTS, strict=True):
        task.refresh()
        assert (task.status, task.result, task.error) == ("succeeded", result, None)
        assert type(task.result) is type(result)
        assert task.lease_until is None
        assert task.completed_at is not None


def test_a_null_result_is_the_same_however_it_is_recorded() -> None:
    alone, first, second = (TaskFactory(running=True) for _ in range(3))
    complete(DB, lease_of(alone), None)
    complete_together(DB, {lease_of(first): None, lease_of(second): {"a": None}})
    assert Task.objects.filter(result__isnull=True).count() == 2


def test_what_cannot_be_recorded_together_is_left_as_it_is() -> None:
    well = TaskFactory(running=True)
    left = {
        "canceled": TaskFactory(cancel_requested=True),
        "expired": TaskFactory(expired=True),
        "ended": TaskFactory(succeeded=True),
        "queued": TaskFactory(attempt=1, worker_id=WORKER),
    }
    moved_on = TaskFactory(running=True, attempt=2)
    leases = [lease_of(task) for task in (well, *left.values())] + [Lease(moved_on.pk, WORKER, 1)]
    before = [row(Task, pk=task.pk) for task in (*left.values(), moved_on)]

    assert complete_together(DB, dict.fromkeys(leases, "done")) == {lease_of(well)}
    assert [row(Task, pk=task.pk) for task in (*left.values(), moved_on)] == before


@locks_rows
@pytest.mark.django_db(transaction=True)
def test_a_row_that_someone_holds_keeps_no_other_from_being_recorded() -> None:
    held, free = TaskFactory(running=True), TaskFactory(running=True)
    with another_transaction(lambda: Task.objects.select_for_update().get(pk=held.pk)):
        assert complete_together(DB, {lease_of(held): 1, lease_of(free): 2}) == {lease_of(free)}
    assert held.refresh().is_running
    assert free.refresh().result == 2
