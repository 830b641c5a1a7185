"""`submit_on_commit()`: for a queue in a database that the caller's transaction does not reach."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.db import DatabaseError, connections, transaction

from cairnq_django import (
    QueueFull,
    Registry,
    SerializationError,
    Task,
    TaskContext,
    asubmit_on_commit,
    get,
    get_by_key,
    submit,
    submit_on_commit,
    wait,
)
from cairnq_django.store.activity import read_clock
from tests.app.models import Counter
from tests.app.tasks import write_line
from tests.workers import PATIENCE, quick

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pytest_django.fixtures import SettingsWrapper

pytestmark = pytest.mark.django_db(
    transaction=True, databases=["default", "dedicated"], available_apps=["cairnq_django", "tests.app"]
)


@pytest.fixture(autouse=True)
def _routed(settings: SettingsWrapper) -> None:
    settings.CAIRNQ = {"DATABASE": "dedicated"}
    settings.DATABASE_ROUTERS = ["cairnq_django.routers.CairnQRouter"]


def test_a_task_is_there_once_the_transaction_has_committed() -> None:
    with transaction.atomic():
        task_id = submit_on_commit("work", {"order": 7}, priority=5)
        assert not Task.objects.exists()
    task = get(task_id)
    assert (task.payload, task.priority, task._state.db) == ({"order": 7}, 5, "dedicated")


def test_what_is_rolled_back_submits_nothing() -> None:
    with transaction.atomic():
        submit_on_commit("work")
        transaction.set_rollback(True)
    assert not Task.objects.exists()


def test_what_is_rolled_back_to_a_savepoint_submits_nothing() -> None:
    with transaction.atomic():
        with transaction.atomic():
            submit_on_commit("inner")
            transaction.set_rollback(True)
        submit_on_commit("outer")
    assert [task.name for task in Task.objects.all()] == ["outer"]


def test_without_a_transaction_it_is_submitted_at_once() -> None:
    assert get(submit_on_commit(write_line, {"file": "x"})).name == "write_line"


def test_it_waits_for_the_transaction_of_the_database_that_is_named() -> None:
    with transaction.atomic(using="dedicated"):
        in_default = submit_on_commit("work")
        later = submit_on_commit("work", using="dedicated")
        assert Task.objects.filter(pk=in_default).exists()
        assert not Task.objects.filter(pk=later).exists()
    assert Task.objects.filter(pk=later).exists()


@pytest.mark.parametrize(
    ("payload", "options", "error"),
    [
        ({"at": {1, 2}}, {}, SerializationError),
        (None, {"queue": " "}, ValueError),
        (None, {"delay": -1}, ValueError),
        (None, {"speed": 9}, TypeError),
        (None, {"max_queue_wait": "long"}, TypeError),
    ],
    ids=repr,
)
def test_what_is_wrong_with_it_is_raised_in_time_to_roll_back(payload: Any, options: Any, error: type) -> None:
    def place_order() -> None:
        with transaction.atomic():
            Counter.objects.create(name="orders")
            submit_on_commit("work", payload, **options)

    with pytest.raises(error):
        place_order()
    assert not Counter.objects.exists()
    assert not Task.objects.exists()


def test_the_payload_is_what_it_was_when_it_was_handed_over() -> None:
    payload = {"items": [1]}
    with transaction.atomic():
        task_id = submit_on_commit("work", payload)
        payload["items"].append(2)
    assert get(task_id).payload == {"items": [1]}


def test_a_delay_counts_from_the_commit() -> None:
    with transaction.atomic():
        task_id = submit_on_commit("work", delay=600)
        before_commit = read_clock("dedicated")
    assert get(task_id).run_at >= before_commit + timedelta(seconds=600)


def test_a_key_s_live_task_answers_instead() -> None:
    first = submit("work", key="order:7")
    with transaction.atomic():
        task_id = submit_on_commit("work", key="order:7")
    assert get_by_key("order:7") == first
    assert not Task.objects.filter(pk=task_id).exists()


def test_a_full_queue_is_waited_for_and_then_told_after_the_commit(caplog: pytest.LogCaptureFixture) -> None:
    submit("work")

    def place_order() -> None:
        with transaction.atomic():
            Counter.objects.create(name="orders")
            submit_on_commit("work", max_queue_depth=1, max_queue_wait=0.01)

    with pytest.raises(QueueFull) as raised:
        place_order()
    assert not raised.value.in_transaction
    assert raised.value.waited >= 0.01
    assert Counter.objects.exists()


@pytest.fixture
def no_tables() -> Iterator[None]:
    def execute(statement: str) -> None:
        with connections["dedicated"].cursor() as cursor:
            cursor.execute(statement)

    table = Task._meta.db_table
    execute(f"ALTER TABLE {table} RENAME TO {table}_away")
    yield
    execute(f"ALTER TABLE {table}_away RENAME TO {table}")


def test_an_insert_that_fails_after_the_commit_is_logged_and_raised(
    no_tables: None, caplog: pytest.LogCaptureFixture
) -> None:
    task_ids = []

    def place_order() -> None:
        with transaction.atomic():
            Counter.objects.create(name="orders")
            task_ids.append(submit_on_commit("send_receipt", {"card": "4242"}))

    with pytest.raises(DatabaseError):
        place_order()
    assert Counter.objects.exists(), "that was committed"
    (said,) = [record.getMessage() for record in caplog.records if record.name == "cairnq_django.on_commit"]
    assert said == f"Task send_receipt {task_ids[0]} was not submitted, though its transaction has committed"


def test_a_worker_runs_what_was_submitted_so_and_writes_where_the_project_s_models_are() -> None:
    registry = Registry()

    @registry.task
    def count(ctx: TaskContext, payload: Any) -> str:
        Counter.objects.filter(name=payload).update(value=1)
        return connection_of(Counter)

    with quick(registry).background():
        with transaction.atomic():
            order = Counter.objects.create(name="order 7")
            task_id = submit_on_commit(count, order.name)
        task = wait(task_id, timeout=PATIENCE)
    assert (task.result, task._state.db) == ("default", "dedicated")
    order.refresh_from_db()
    assert order.value == 1


def connection_of(model: Any) -> str:
    return str(model.objects.get()._state.db)


def test_it_has_an_async_twin() -> None:
    async def place_order() -> Any:
        return await asubmit_on_commit("work", {"order": 7})

    assert get(asyncio.run(place_order())).payload == {"order": 7}
