"""What a worker sees of what there is to do."""

from __future__ import annotations

import pytest
from django.db import DEFAULT_DB_ALIAS as DB
from django.db import connection

from cairnq_django.store.look import Look, look
from tests.factories import TaskFactory
from tests.store.sessions import another_transaction, locks_rows, statements

pytestmark = pytest.mark.django_db

NOTHING = Look(due=False, orphaned=False, too_late=False, pauses_over=False)


def seen(queues: tuple[str, ...] = ("default", "other"), names: tuple[str, ...] = ("work", "mail")) -> Look:
    return look(DB, queues, names)


def test_there_is_nothing_to_do_in_an_empty_table() -> None:
    assert seen() == NOTHING


def test_what_is_not_for_this_worker_or_not_for_now_is_nothing_to_do() -> None:
    TaskFactory(name="another")
    TaskFactory(queue="elsewhere")
    TaskFactory(delayed=True)
    TaskFactory(running=True)
    for status in ("succeeded", "failed", "canceled"):
        TaskFactory(**{status: True})
    assert seen() == NOTHING


def test_a_due_task_of_any_of_the_queues_and_names_is_seen() -> None:
    TaskFactory(queue="other", name="mail")
    assert seen() == NOTHING._replace(due=True)
    assert not seen(names=("work",)).due
    assert not seen(queues=("default",)).due
    assert not seen(names=()).due
    assert not seen(queues=()).due


def test_a_lease_that_ran_out_is_seen_whatever_its_queue_and_name() -> None:
    TaskFactory(expired=True, queue="elsewhere", name="another")
    assert seen() == NOTHING._replace(orphaned=True)
    assert seen(queues=(), names=()).orphaned


def test_a_task_that_expired_before_it_was_started_is_seen_and_not_as_due() -> None:
    TaskFactory(too_late=True)
    assert seen() == NOTHING._replace(too_late=True)


@locks_rows
@pytest.mark.django_db(transaction=True)
def test_what_others_are_about_to_claim_is_seen_until_it_is_gone() -> None:
    task = TaskFactory()
    with another_transaction(lambda: type(task).objects.select_for_update().get(pk=task.pk)):
        assert seen().due


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor != "postgresql", reason="The others take one for each question")
def test_on_postgresql_a_look_is_one_statement_and_no_transaction() -> None:
    assert len(statements(seen)) == 1
