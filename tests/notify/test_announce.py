"""What is announced reaches other connections with the commit, and costs the caller nothing if it cannot."""

from __future__ import annotations

import threading
from contextlib import closing, contextmanager, nullcontext
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest
from django.db import IntegrityError, connection, connections, transaction
from django.test.utils import CaptureQueriesContext

from cairnq_django import Task, TaskStatus, TaskTimeout, call, cancel, notify, submission, submit, submit_many
from cairnq_django.clock import Now, after
from cairnq_django.notify import Channel, lanes, postgres
from tests.helpers import in_threads
from tests.notify.postgres import PATIENCE, announce_elsewhere, on_postgresql, subscribed, terminate
from tests.store.sessions import another_transaction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("nothing_submitted_yet")]


@pytest.fixture
def nothing_submitted_yet() -> None:
    """What this process has submitted in earlier tests says nothing about the next one."""
    postgres._lanes.clear()


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


@pytest.fixture
def just_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, what a test submits it submits at nearly the same time."""
    monkeypatch.setattr(lanes, "TELL_AGAIN", 600)


def is_announced(work: Callable[[], object], queue: str = "mail") -> bool:
    with subscribed(queue) as hearing, subscribed("fence") as fence:
        work()
        announce_elsewhere("fence")
        fence.wait()
        return hearing.woken.is_set()


@on_postgresql
@pytest.mark.usefixtures("just_before")
def test_who_was_told_of_a_task_just_before_is_not_told_of_the_next() -> None:
    assert is_announced(lambda: submit("anything", queue="mail"))
    assert not is_announced(lambda: submit("anything", queue="mail"))
    assert not is_announced(lambda: in_threads(1, lambda _: submit("anything", queue="mail")))
    assert is_announced(lambda: submit_many("anything", [1, 2], queue="mail"))


@on_postgresql
@pytest.mark.usefixtures("just_before")
@pytest.mark.parametrize(
    "befallen",
    [
        {"status": TaskStatus.RUNNING, "lease_until": after(60), "updated_at": after(1)},
        {"status": TaskStatus.CANCELED, "completed_at": Now(), "updated_at": after(1)},
        {"run_at": after(60), "attempt": 1, "updated_at": after(1)},  # to be retried
    ],
)
def test_the_next_is_announced_once_the_one_before_it_has_been_touched(befallen: dict[str, Any]) -> None:
    with subscribed("mail"):
        submit("anything", queue="mail")
    assert not is_announced(lambda: submit("anything", queue="mail"))
    task = Task.objects.latest("created_at")
    Task.objects.filter(pk=task.pk).update(**befallen)
    assert is_announced(lambda: submit("anything", queue="mail"))


@on_postgresql
@pytest.mark.usefixtures("just_before")
@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({}, {"name": "other"}),
        ({"queue": "other"}, {}),
        ({"expires": 3600}, {}),
        ({"delay": 0.001}, {}),
        ({"delay": 60}, {}),
    ],
)
def test_a_task_that_the_first_may_not_lead_to_is_announced(first: dict[str, Any], then: dict[str, Any]) -> None:
    with subscribed("mail", "other"):
        submit(**{"task": "anything", "queue": "mail", **first})
    submitted = {"task": then.get("name", "anything"), "queue": "mail"}
    assert is_announced(lambda: submit(**submitted))


@on_postgresql
@pytest.mark.usefixtures("just_before")
def test_the_earlier_one_is_found_by_its_id_also_where_the_server_saw_the_table_empty_last() -> None:
    submit_many("anything", range(1000), queue="other")
    Task.objects.all().delete()
    with connection.cursor() as cursor:
        cursor.execute(f"VACUUM (ANALYZE, TRUNCATE off) {Task._meta.db_table}")
    with subscribed("mail"), CaptureQueriesContext(connection) as queries:
        for _ in range(2):
            submit("anything", queue="mail")
    submit_many("anything", range(1000), queue="other")
    *_, asked = [query["sql"].partition("COMMIT; ")[2] for query in queries if "NOT EXISTS" in query["sql"]]
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {asked}")
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert "cairnq_django_task_pkey" in plan, plan


@on_postgresql
@pytest.mark.parametrize("is_heard", [True, False])
def test_of_many_submits_in_a_row_that_nobody_takes_most_are_a_bare_insert(
    is_heard: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_a_row(monkeypatch)
    monkeypatch.setattr(lanes, "LOOK_AGAIN", 600)
    # The first one has somebody to tell, which says nothing of what is left.
    asking = lanes.SAMPLE + is_heard
    with subscribed("mail") if is_heard else nullcontext(), CaptureQueriesContext(connection) as queries:
        tasks = [submit("anything", n, queue="mail") for n in range(asking + 10)]
    statements = [query["sql"] for query in queries]
    assert ["pg_notify" in sql for sql in statements] == asking * [True] + 10 * [False]
    assert all(sql.startswith("INSERT") for sql in statements[asking:])
    assert list(Task.objects.order_by("payload")) == tasks


@on_postgresql
def test_of_a_task_whose_end_somebody_waits_for_workers_are_told_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    in_a_row(monkeypatch)
    monkeypatch.setattr(lanes, "LOOK_AGAIN", 600)
    with subscribed("mail"):
        for _ in range(lanes.SAMPLE + 1):
            submit("anything", queue="mail")
    assert not is_announced(lambda: submit("anything", queue="mail"))
    Task.objects.all().delete()
    assert not is_announced(lambda: submit("anything", queue="mail"))
    Task.objects.all().delete()
    assert is_announced(lambda: call_in_vain("anything", queue="mail"))


def call_in_vain(*args: Any, **options: Any) -> None:
    with pytest.raises(TaskTimeout):
        call(*args, timeout=0, **options)


@on_postgresql
def test_a_submit_that_took_longer_than_workers_were_to_look_again_is_announced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    in_a_row(monkeypatch)
    with subscribed("mail"):
        for _ in range(lanes.SAMPLE + 1):
            submit("anything", queue="mail")
        with inserts_that_take(2 * lanes.LOOK_AGAIN):
            assert is_announced(lambda: submit("anything", queue="mail"))


def in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, submits are of one run, and none asks because it has been a while."""
    for name in ("IN_A_ROW", "ASK_AGAIN", "TELL_AGAIN", "BEHIND"):
        monkeypatch.setattr(lanes, name, 600)


@contextmanager
def inserts_that_take(seconds: float) -> Iterator[None]:
    table = Task._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION pg_temp.dawdle() RETURNS trigger LANGUAGE plpgsql AS "
            f"'BEGIN PERFORM pg_sleep({seconds}); RETURN NEW; END'"
        )
        cursor.execute(f"CREATE TRIGGER dawdle BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION pg_temp.dawdle()")
        try:
            yield
        finally:
            cursor.execute(f"DROP TRIGGER dawdle ON {table}")


@on_postgresql
def test_after_a_while_workers_are_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "TELL_AGAIN", 0)
    for _ in range(2):
        assert is_announced(lambda: submit("anything", queue="mail"))


@on_postgresql
@pytest.mark.usefixtures("just_before")
def test_what_nobody_heard_of_keeps_no_other_from_being_announced() -> None:
    submit("anything", queue="mail")
    assert is_announced(lambda: submit("anything", queue="mail"))


@on_postgresql
@pytest.mark.usefixtures("just_before")
def test_a_task_is_announced_while_someone_has_locked_the_earlier_one() -> None:
    with subscribed("mail"):
        submit("anything", queue="mail")
    assert not is_announced(lambda: submit("anything", queue="mail"))
    task = Task.objects.latest("created_at")
    with another_transaction(lambda: cancel(task.pk)):
        assert is_announced(lambda: submit("anything", queue="mail"))


@on_postgresql
def test_a_submit_and_its_announcement_take_one_round_trip() -> None:
    with subscribed("mail") as mail:
        with CaptureQueriesContext(connection) as queries:
            task = submit("anything", queue="mail")
        mail.wait()
    assert len(queries) == 1
    assert Task.objects.get() == task


@on_postgresql
def test_what_is_delayed_is_not_announced() -> None:
    with CaptureQueriesContext(connection) as queries:
        submit("anything", delay=60)
        submit("anything", run_at=datetime(2100, 1, 1, tzinfo=timezone.utc))
        submit_many("anything", [1, 2], delay=60)
    assert not [query for query in queries if "pg_notify" in query["sql"]]
    assert is_announced(lambda: submit("anything", queue="mail", run_at=datetime(2000, 1, 1, tzinfo=timezone.utc)))


@on_postgresql
def test_a_task_is_submitted_even_if_its_announcement_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(postgres, "_ANNOUNCE_SUBMIT", "SELECT %s::int")
        task = submit("anything", [1])
    assert Task.objects.get() == task
    stored = Task.objects.values().get()
    assert stored == {field: getattr(task, field) for field in stored}
    assert is_announced(lambda: submit("anything", queue="mail"))


@on_postgresql
def test_a_transaction_that_django_does_not_know_of_is_joined_and_not_ended() -> None:
    connection.ensure_connection()
    driver: Any = connection.connection
    with driver.transaction(force_rollback=True), connection.cursor() as cursor:
        cursor.execute("SET LOCAL synchronous_commit = on")
        submit("work")
        submit_many("work", [1, 2])
        cursor.execute("SHOW synchronous_commit")
        assert cursor.fetchone() == ("on",), "whoever opened it wants it on the disk"
        cursor.execute("SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()")
        assert cursor.fetchone() is None, "it would keep listeners waiting"
    assert not Task.objects.exists()


@on_postgresql
def test_a_submit_whose_connection_is_lost_after_the_commit_returns_its_task(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = "SELECT pg_terminate_backend(pg_backend_pid()) WHERE %s IS NOT NULL"
    monkeypatch.setattr(postgres, "_ANNOUNCE_SUBMIT", lost)
    task = submit("work", {"order": 7})
    assert Task.objects.get() == task
    assert task.run_at == Task.objects.get().run_at


@on_postgresql
def test_a_submit_that_the_database_refuses_leaves_no_transaction_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    task = submit("anything")
    with monkeypatch.context() as patch:
        patch.setattr(submission, "new_task_id", lambda: task.pk)
        with pytest.raises(IntegrityError):
            submit("anything")
    assert submit("something") in in_threads(1, lambda _: list(Task.objects.filter(name="something")))[0]


@on_postgresql
def test_where_nobody_listens_nothing_is_announced() -> None:
    """A connection that listens without saying so hears what is announced, but is no reason to."""
    with closing(connections.create_connection("default")) as wrapper:
        listening = wrapper.Database.connect(**{**wrapper.get_connection_params(), "autocommit": True})
        listening.execute("LISTEN cairnq_queued; LISTEN cairnq_ended")
        cancel(submit("silence").pk)
        submit_many("silence", [1, 2])
        with subscribed("mail"), subscribed("other", channel=Channel.ENDED):
            task = submit("anything", queue="mail")
            cancel(task.pk)
        heard = [notice.payload for notice in until(str(task.pk), listening.notifies(timeout=PATIENCE))]
        listening.close()
    assert [payload for payload in heard if payload in ("default", "mail", str(task.pk))] == ["mail", str(task.pk)]


def until(payload: str, notices: Iterator[Any]) -> Iterator[Any]:
    """The notices up to this one, the last that is sent: they may arrive one by one."""
    for notice in notices:
        yield notice
        if notice.payload == payload:
            return


@on_postgresql
def test_a_submit_that_gives_way_to_a_live_task_wakes_nobody() -> None:
    submit("anything", key="order:7")
    with CaptureQueriesContext(connection) as queries:
        submit("anything", key="order:7")
    assert not [query for query in queries if "pg_notify" in query["sql"]]


@on_postgresql
def test_a_task_that_ends_is_announced_by_its_id() -> None:
    task, other = submit("anything"), submit("anything")
    with (
        subscribed(str(task.pk), channel=Channel.ENDED) as ended,
        subscribed(str(other.pk), channel=Channel.ENDED) as unheard,
        subscribed("fence") as fence,
    ):
        cancel(task.pk)
        ended.wait()
        announce_elsewhere("fence")
        fence.wait()
        assert not unheard.woken.is_set()


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
