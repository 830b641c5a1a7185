"""What is announced reaches other connections with the commit, and costs the caller nothing if it cannot."""

from __future__ import annotations

import threading

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from cairnq_django import Task, cancel, notify, submit, submit_many
from cairnq_django.notify import Channel
from tests.helpers import in_threads
from tests.notify.postgres import announce_elsewhere, on_postgresql, subscribed, terminate

pytestmark = [pytest.mark.django_db(transaction=True)]


@on_postgresql
def test_a_submit_is_announced_to_its_queue() -> None:
    with subscribed("mail") as mail, subscribed("other") as other:
        submit("anything", queue="mail")
        mail.wait()
        announce_elsewhere("other")
        other.wait()
        mail.woken.clear()
        submit("anything", queue="other")
        announce_elsewhere("other")
    assert not mail.woken.is_set()


@on_postgresql
def test_nothing_is_announced_before_the_commit() -> None:
    with subscribed("mail") as mail, subscribed("fence") as fence:
        with transaction.atomic():
            submit("anything", queue="mail")
            # Notifications arrive in the order of their commits.
            announce_elsewhere("fence")
            fence.wait()
            assert not mail.woken.is_set()
        mail.wait()


@on_postgresql
def test_nothing_is_announced_of_what_rolled_back() -> None:
    with subscribed("mail") as mail, subscribed("fence") as fence:
        with transaction.atomic():
            submit("anything", queue="mail")
            transaction.set_rollback(True)
        announce_elsewhere("fence")
        fence.wait()
        assert not mail.woken.is_set()


@on_postgresql
def test_of_a_savepoint_that_rolled_back_nothing_is_announced_either() -> None:
    with subscribed("kept") as kept, subscribed("dropped") as dropped, subscribed("fence") as fence:
        with transaction.atomic():
            submit("anything", queue="kept")
            with transaction.atomic():
                submit("anything", queue="dropped")
                transaction.set_rollback(True)
        kept.wait()
        announce_elsewhere("fence")
        fence.wait()
        assert not dropped.woken.is_set()


@on_postgresql
def test_announcements_of_one_transaction_are_one_statement() -> None:
    with subscribed("mail") as mail, subscribed("reports") as reports:
        with CaptureQueriesContext(connection) as queries, transaction.atomic():
            for queue in ("mail", "reports", "mail"):
                submit("anything", queue=queue)
            submit_many("anything", [1, 2, 3], queue="mail")
        mail.wait()
        reports.wait()
    assert len([query for query in queries if "pg_notify" in query["sql"]]) == 1


@on_postgresql
def test_a_submit_that_gives_way_to_a_live_task_wakes_nobody() -> None:
    submit("anything", key="order:7")
    with CaptureQueriesContext(connection) as queries:
        submit("anything", key="order:7")
    assert not [query for query in queries if "pg_notify" in query["sql"]]


@on_postgresql
def test_a_task_that_ends_is_announced_by_its_id() -> None:
    task, other = submit("anything"), submit("anything")
    with subscribed(str(task.pk), channel=Channel.ENDED) as ended, subscribed(str(other.pk), channel=Channel.ENDED):
        cancel(task.pk)
        ended.wait()


@on_postgresql
def test_payloads_go_through_as_they_are() -> None:
    queue = '\'; NOTIFY x; -- "ü" \\ %s'
    with subscribed(queue) as hearing:
        submit("anything", queue=queue)
        hearing.wait()


@on_postgresql
def test_a_connection_lost_at_the_commit_loses_the_news_and_nothing_else() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (mine,) = cursor.fetchone()
    with transaction.atomic():
        transaction.on_commit(lambda: in_threads(1, lambda _: terminate([mine])))
        task = submit("anything")
    connection.close()
    assert Task.objects.get() == task


@on_postgresql
def test_announcing_on_a_lost_connection_raises_nothing() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (mine,) = cursor.fetchone()
    in_threads(1, lambda _: terminate([mine]))
    notify.announce("default", Channel.QUEUED, ["default"])
    # By now the connection is known to be closed, which is another kind of error.
    notify.announce("default", Channel.QUEUED, ["default"])
    connection.close()


def test_a_transaction_managed_by_hand_can_submit() -> None:
    transaction.set_autocommit(False)
    try:
        task = submit("anything")
        transaction.commit()
    finally:
        transaction.set_autocommit(True)
    assert Task.objects.get() == task


@pytest.mark.skipif(connection.vendor == "postgresql", reason="PostgreSQL has notifications")
def test_elsewhere_nothing_is_announced_and_nothing_is_started() -> None:
    before = threading.active_count()
    with (
        notify.subscribed("default", Channel.QUEUED, ["default"], pytest.fail),
        CaptureQueriesContext(connection) as queries,
    ):
        notify.announce("default", Channel.QUEUED, ["default"])
        assert threading.active_count() == before
    assert len(queries) == 0
