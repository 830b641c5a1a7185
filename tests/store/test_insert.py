"""What is inserted is stored as it was given, and comes back as it is stored, however the rows differ."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from importlib import import_module
from typing import TYPE_CHECKING, Any

import pytest
from django.db import DEFAULT_DB_ALIAS as DB
from django.db import DataError, IntegrityError, connection, transaction
from django.db.transaction import TransactionManagementError

from cairnq_django.clock import Now, after
from cairnq_django.ids import new_task_id
from cairnq_django.limits import MAX_PRIORITY, MIN_PRIORITY
from cairnq_django.models import Task
from cairnq_django.store.insert import BATCH_SIZE, insert
from tests.factories import new_task

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.django_db

MOMENT = datetime(2031, 2, 3, 4, 5, 6, 789_012, tzinfo=timezone(timedelta(hours=5, minutes=30)))
AWKWARD = 'it\'s 100 % "ü" \\ {} %s %(n)s \n 1e+300 😀'


@pytest.fixture(params=["client", "server"], autouse=True)
def binding(request: pytest.FixtureRequest) -> Iterator[str]:
    """Who puts the parameters into the statements."""
    if request.param == "client":
        yield request.param
        return
    if connection.vendor != "postgresql":
        pytest.skip("only PostgreSQL's driver lets the server do that")
    connection.ensure_connection()
    driver: Any = connection.connection
    before = driver.cursor_factory
    driver.cursor_factory = import_module("django.db.backends.postgresql.base").ServerBindingCursor
    yield request.param
    driver.cursor_factory = before


def stored(tasks: list[Task]) -> list[dict[str, Any]]:
    rows = {row["id"]: row for row in Task.objects.values()}
    return [rows[task.pk] for task in tasks]


def in_memory(tasks: list[Task]) -> list[dict[str, Any]]:
    return [{field.attname: getattr(task, field.attname) for field in Task._meta.concrete_fields} for task in tasks]


def check_inserted(tasks: list[Task]) -> None:
    insert(DB, tasks)
    assert in_memory(tasks) == stored(tasks)
    assert [repr(row["payload"]) for row in in_memory(tasks)] == [repr(row["payload"]) for row in stored(tasks)]
    assert all(not task._state.adding and task._state.db == DB for task in tasks)


@pytest.mark.parametrize("number", [1, 3])
def test_what_all_rows_share(number: int) -> None:
    shared: dict[str, Any] = {
        "name": AWKWARD,
        "queue": AWKWARD,
        "payload": {AWKWARD: [AWKWARD, None, 1e300, True]},
        "metadata": {"by": AWKWARD},
        "priority": -5,
        "max_attempts": 7,
        "correlation_id": AWKWARD,
        "parent_id": new_task_id(),
        "root_id": new_task_id(),
        "run_at": MOMENT,
        "expires_at": MOMENT + timedelta(microseconds=1),
    }
    check_inserted([new_task(**shared) for _ in range(number)])


def test_what_differs_from_row_to_row() -> None:
    rows: list[dict[str, Any]] = [
        {"name": AWKWARD, "queue": "a", "payload": AWKWARD, "priority": 1, "run_at": MOMENT, "expires_at": None},
        {"name": "b", "queue": AWKWARD, "payload": None, "max_attempts": 2, "run_at": MOMENT + timedelta(days=1)},
        {"payload": {"n": [1.0, {}]}, "metadata": {"n": 1}, "correlation_id": AWKWARD, "run_at": MOMENT},
        {"parent_id": new_task_id(), "root_id": new_task_id(), "expires_at": MOMENT, "run_at": MOMENT},
    ]
    check_inserted([new_task(**{"expires_at": None, **fields}) for fields in rows])


def test_payloads_that_python_takes_for_equal_stay_what_they_are() -> None:
    check_inserted([new_task(payload=payload) for payload in (1, True, 1.0, "1", None, [], {}, 0, False, 1e300)])


def test_the_database_s_clock_may_be_asked_for_some_rows_and_not_for_others() -> None:
    expires = after(60)
    check_inserted(
        [
            new_task(),
            new_task(run_at=MOMENT),
            new_task(run_at=after(30), expires_at=expires),
            new_task(run_at=Now(), expires_at=None),
        ]
    )


@pytest.mark.parametrize("number", [1, 2])
def test_what_counts_from_the_database_s_clock_is_known_afterwards(number: int) -> None:
    due, expires = after(30.5), after(90.25)
    tasks = [new_task(run_at=due, expires_at=expires) for _ in range(number)]
    check_inserted(tasks)
    for task in tasks:
        assert task.run_at - task.created_at == timedelta(seconds=30.5)
        assert task.expires_at - task.created_at == timedelta(seconds=90.25)


def test_more_than_a_batch_is_inserted_whole_or_not_at_all() -> None:
    tasks = [new_task(payload=n) for n in range(BATCH_SIZE + 1)]
    check_inserted(tasks)
    tasks = [*(new_task() for _ in range(BATCH_SIZE)), new_task(id=tasks[0].pk)]
    with pytest.raises(IntegrityError), transaction.atomic():
        insert(DB, tasks)
    assert Task.objects.count() == BATCH_SIZE + 1


@pytest.mark.parametrize("number", [1, 2])
def test_a_value_that_does_not_fit_is_refused_rather_than_cut(number: int) -> None:
    if connection.vendor == "sqlite":
        pytest.skip("SQLite takes text of any length")
    with pytest.raises(DataError), transaction.atomic():
        insert(DB, [new_task(queue="q" * 101) for _ in range(number)])


def test_after_an_error_the_transaction_can_only_be_rolled_back() -> None:
    task = new_task()
    insert(DB, [task])
    with transaction.atomic():
        with pytest.raises(IntegrityError):
            insert(DB, [new_task(id=task.pk)])
        with pytest.raises(TransactionManagementError):
            Task.objects.count()
        transaction.set_rollback(True)


@pytest.mark.parametrize("number", [1, 3])
@pytest.mark.parametrize("priority", [MIN_PRIORITY, MAX_PRIORITY])
def test_priorities_at_their_limits(priority: int, number: int) -> None:
    insert(DB, [new_task(priority=priority) for _ in range(number)])
    assert list(Task.objects.values_list("priority", flat=True)) == [priority] * number
