"""Looking at tasks, cancelling, retrying and purging them."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.db.transaction import TransactionManagementError

from cairnq_django import (
    AlreadyExists,
    CairnQError,
    Task,
    TaskStatus,
    cancel,
    cancel_by_key,
    get,
    get_by_key,
    purge,
    queue_depth,
    retry,
    retry_by_key,
    run_now,
    run_now_by_key,
    stats,
    submit,
    wait,
)
from cairnq_django.clock import after
from cairnq_django.models import TaskAttempt, TaskKey
from tests.factories import TaskFactory
from tests.store.sessions import in_another_session, statements

pytestmark = pytest.mark.django_db

NOWHERE = uuid.UUID(int=7)


@pytest.mark.parametrize("form", [lambda task: task.id, lambda task: str(task.id), lambda task: task.id.urn])
def test_a_task_is_found_by_its_id_in_any_form(form: Any) -> None:
    task = submit("work", {"order": 7})
    assert (get(form(task)), get(form(task)).payload) == (task, {"order": 7})


@pytest.mark.parametrize("function", [get, cancel, lambda task_id: cancel(task_id, family=True), retry])
def test_a_task_that_is_not_there_is_missed(function: Any) -> None:
    with pytest.raises(Task.DoesNotExist, match=f"There is no task {NOWHERE} in database 'default'"):
        function(NOWHERE)


@pytest.mark.parametrize("function", [get_by_key, cancel_by_key, retry_by_key])
def test_a_key_that_was_never_used_is_missed(function: Any) -> None:
    with pytest.raises(Task.DoesNotExist, match="There is no task with the key 'receipt:7' in database 'default'"):
        function("receipt:7")


def test_a_key_stands_for_its_live_task_or_the_last_that_was() -> None:
    first = submit("work", key="receipt:7")
    cancel(first.id)
    assert get_by_key("receipt:7") == first
    second = submit("work", key="receipt:7")
    assert get_by_key("receipt:7") == second


@pytest.mark.parametrize("state", [{}, {"delayed": True}])
def test_a_queued_task_is_canceled_at_once(state: dict[str, Any]) -> None:
    task = cancel(TaskFactory(**state).id)
    assert task.canceled
    assert task.completed_at is not None
    assert get(task.id).canceled


def test_a_running_task_is_asked_to_stop() -> None:
    task = cancel(TaskFactory(running=True).id)
    assert task.is_running
    assert task.cancel_requested
    assert cancel(task.id).cancel_requested_at == task.cancel_requested_at


@pytest.mark.parametrize("state", ["succeeded", "failed", "canceled"])
def test_a_task_that_ended_stays_as_it_is_when_it_is_canceled(state: str) -> None:
    ended = TaskFactory(**{state: True})
    after_cancel = cancel(ended.id)
    assert (after_cancel.status, after_cancel.updated_at) == (state, ended.updated_at)


@pytest.fixture
def family() -> dict[str, Task]:
    """Tasks in every state, under parents in every state."""
    top = TaskFactory(succeeded=True)
    aunt = TaskFactory(failed=True, parent_id=top.pk, root_id=top.pk)
    mother = TaskFactory(running=True, parent_id=top.pk, root_id=top.pk, key="mother")
    members = {"top": top, "aunt": aunt, "mother": mother}
    for name, parent in (("niece", aunt), ("daughter", mother)):
        for state in ("queued", "delayed", "running", "cancel_requested", "succeeded", "failed", "canceled"):
            traits = {} if state == "queued" else {state: True}
            members[f"{name}, {state}"] = TaskFactory(parent_id=parent.pk, root_id=top.pk, **traits)
    granddaughter = TaskFactory(parent_id=members["daughter, canceled"].pk, root_id=top.pk)
    return {**members, "granddaughter": granddaughter, "stranger": TaskFactory(), "runner": TaskFactory(running=True)}


ENDED_OF_MOTHER = {"daughter, queued", "daughter, delayed", "granddaughter"}
ASKED_OF_MOTHER = {"mother", "daughter, running"}


@pytest.mark.parametrize(
    ("whom", "ended", "asked"),
    [
        ("top", {*ENDED_OF_MOTHER, "niece, queued", "niece, delayed"}, {*ASKED_OF_MOTHER, "niece, running"}),
        ("aunt", {"niece, queued", "niece, delayed"}, {"niece, running"}),
        ("mother", ENDED_OF_MOTHER, ASKED_OF_MOTHER),
        ("daughter, canceled", {"granddaughter"}, set()),
        ("niece, queued", {"niece, queued"}, set()),
        ("niece, succeeded", set(), set()),
        ("stranger", {"stranger"}, set()),
        ("runner", set(), {"runner"}),
    ],
)
def test_a_family_is_canceled_from_a_member_downwards(
    family: dict[str, Task], whom: str, ended: set[str], asked: set[str]
) -> None:
    before = {task.pk: task for task in Task.objects.all()}
    answer = cancel(family[whom], family=True)
    now = {name: get(task) for name, task in family.items()}
    assert (answer, answer.status, answer.updated_at) == (family[whom], now[whom].status, now[whom].updated_at)
    changed = {name for name, task in now.items() if task.updated_at != before[task.pk].updated_at}
    assert changed == ended | asked
    assert {name for name in changed if now[name].canceled} == ended
    assert {name for name in changed if now[name].is_running and now[name].cancel_requested} == asked


def test_the_family_of_a_key_s_current_task_is_canceled(family: dict[str, Task]) -> None:
    assert cancel_by_key("mother", family=True) == family["mother"]
    assert get(family["granddaughter"]).canceled
    assert get(family["niece, queued"]).is_queued


def test_a_family_is_left_alone_unless_it_is_asked_for(family: dict[str, Task]) -> None:
    cancel(family["mother"])
    cancel_by_key("mother", family=False)
    assert not Task.objects.canceled().exclude(pk__in=[task.pk for task in family.values() if task.canceled]).exists()


def test_those_below_a_task_that_was_purged_belong_to_the_root_s_family(family: dict[str, Task]) -> None:
    family["daughter, canceled"].delete()
    cancel(family["top"], family=True)
    assert get(family["granddaughter"]).canceled


@pytest.mark.django_db(transaction=True)
def test_canceling_a_family_joins_the_caller_s_transaction(family: dict[str, Task]) -> None:
    with transaction.atomic():
        cancel(family["top"], family=True)
        assert in_another_session(lambda: get(family["granddaughter"].pk).is_queued)
        with pytest.raises(TransactionManagementError, match="would never end"):
            wait(family["mother"].pk, timeout=0)
        transaction.set_rollback(True)
    assert get(family["granddaughter"]).is_queued


def test_cancel_takes_the_key_s_current_task() -> None:
    TaskFactory(key="receipt:7", succeeded=True)
    task = submit("work", key="receipt:7")
    assert cancel_by_key("receipt:7") == task
    assert task.refresh().canceled


@pytest.mark.parametrize("state", ["failed", "canceled"])
def test_a_task_that_did_not_succeed_is_queued_again(state: str) -> None:
    ended = TaskFactory(**{state: True})
    again = retry(ended.id)
    assert again.is_queued
    assert (again.error, again.completed_at, again.attempt) == (None, None, ended.attempt)
    assert again.max_attempts > again.attempt
    assert again.run_at >= ended.run_at


@pytest.mark.parametrize("state", ["queued", "running", "succeeded"])
def test_a_task_in_another_state_cannot_be_retried(state: str) -> None:
    task = TaskFactory(**{} if state == "queued" else {state: True})
    with pytest.raises(CairnQError, match=f"^Task {task.id} is {state}; only a failed or a canceled task"):
        retry(task.id)
    assert task.refresh().status == state


def test_retry_takes_the_key_s_current_task() -> None:
    task = TaskFactory(key="receipt:7", failed=True)
    assert retry_by_key("receipt:7") == task
    assert task.refresh().is_queued


def test_a_retry_can_count_attempts_from_the_beginning() -> None:
    task = TaskFactory(key="receipt:7", failed=True)
    assert retry_by_key("receipt:7", reset_attempts=True).attempt == 0
    assert task.refresh().is_queued


def test_a_delayed_task_can_be_made_due() -> None:
    task = submit("work", key="receipt:7", delay=3600)
    assert run_now(task.id).run_at < task.run_at
    assert list(Task.objects.due()) == [task]
    later = submit("work", key="receipt:8", delay=3600)
    assert run_now_by_key("receipt:8").run_at < later.run_at
    assert later.run_now().run_at < later.created_at + timedelta(hours=1)


def test_a_retry_does_not_push_another_live_task_from_its_key() -> None:
    old = TaskFactory(key="receipt:7", failed=True)
    new = submit("work", key="receipt:7")
    with pytest.raises(AlreadyExists) as raised:
        retry(old.id)
    assert raised.value.task == new
    assert old.refresh().failed


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("function", "state"), [(cancel, "queued"), (retry, "failed")])
def test_cancel_and_retry_join_the_caller_s_transaction(function: Any, state: str) -> None:
    task = TaskFactory(**{} if state == "queued" else {state: True})
    with transaction.atomic():
        function(task.id)
        assert in_another_session(lambda: get(task.id).status) == state
        transaction.set_rollback(True)
    assert get(task.id).status == state
    with transaction.atomic():
        changed = function(task.id)
    assert get(task.id).status == changed.status != state


@pytest.mark.parametrize("function", [cancel_by_key, retry_by_key])
def test_a_key_is_looked_up_without_its_task_s_payload(function: Any) -> None:
    TaskFactory(key="receipt:7", failed=True)
    looked_up, *_ = statements(lambda: function("receipt:7"))
    assert looked_up.startswith("SELECT")
    assert "payload" not in looked_up


def test_stats_count_what_each_queue_holds() -> None:
    assert stats() == {}
    TaskFactory.create_batch(2, queue="mail", run_at=after(-90))
    TaskFactory(queue="mail", delayed=True)
    for state in ("running", "succeeded", "failed", "canceled"):
        TaskFactory(queue="bulk", **{state: True})
    counted = stats()
    assert list(counted) == ["bulk", "mail"]
    mail, bulk = counted["mail"], counted["bulk"]
    assert (mail.queued, mail.due, mail.running) == (3, 2, 0)
    assert mail.oldest_wait is not None
    assert 90 <= mail.oldest_wait < 150
    assert (bulk.queued, bulk.due, bulk.running, bulk.succeeded, bulk.failed, bulk.canceled) == (0, 0, 1, 1, 1, 1)
    assert bulk.oldest_wait is None


def test_queue_depth_is_how_many_more_tasks_a_queue_takes() -> None:
    assert queue_depth("mail", 3) == 3
    TaskFactory.create_batch(2, queue="mail")
    TaskFactory(queue="mail", delayed=True)
    TaskFactory(queue="mail", running=True)
    TaskFactory(queue="other")
    assert [queue_depth("mail", limit) for limit in (0, 2, 3, 10)] == [0, 0, 0, 7]


def test_purge_deletes_what_ended_with_its_key_and_attempts() -> None:
    live = [TaskFactory(key="live"), TaskFactory(running=True), TaskFactory(delayed=True)]
    TaskFactory(key="receipt:7", failed=True)
    TaskFactory(succeeded=True)
    TaskFactory(canceled=True)
    assert purge(0) == 3
    assert set(Task.objects.all()) == set(live)
    assert list(TaskKey.objects.values_list("key", flat=True)) == ["live"]
    assert not TaskAttempt.objects.exists()
    assert purge(0) == 0


@pytest.mark.parametrize("older_than", [3600, 3600.0, timedelta(hours=1)])
def test_purge_spares_what_ended_lately(older_than: Any) -> None:
    TaskFactory(succeeded=True, completed_at=after(-3700))
    recent = TaskFactory(succeeded=True, completed_at=after(-3500))
    assert purge(older_than) == 1
    assert list(Task.objects.all()) == [recent]


@pytest.mark.parametrize(
    ("narrowed", "gone"),
    [
        ({"status": "failed"}, {"failed"}),
        ({"status": TaskStatus.SUCCEEDED}, {"succeeded", "mail", "report"}),
        ({"status": ["failed", TaskStatus.SUCCEEDED, "failed"]}, {"failed", "succeeded", "mail", "report"}),
        ({"status": []}, set()),
        ({"queue": "mail"}, {"mail"}),
        ({"name": "report"}, {"report"}),
        ({"name": "report", "queue": "mail"}, set()),
        ({"name": "REPORT"}, set()),
        ({"limit": 1}, {"report"}),
        ({"limit": 0}, set()),
        ({"limit": 9}, {"failed", "succeeded", "mail", "report"}),
    ],
)
def test_purge_is_narrowed_down(narrowed: dict[str, Any], gone: set[str]) -> None:
    tasks = {
        "failed": TaskFactory(failed=True),
        "succeeded": TaskFactory(succeeded=True),
        "mail": TaskFactory(succeeded=True, queue="mail"),
        "report": TaskFactory(succeeded=True, name="report", completed_at=after(-60)),
    }
    assert purge(0, **narrowed) == len(gone)
    kept = set(Task.objects.all())
    assert {name for name, task in tasks.items() if task not in kept} == gone
