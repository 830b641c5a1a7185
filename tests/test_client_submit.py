"""`submit()`: what the row says, and when others see it."""

from __future__ import annotations

import enum
import uuid
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import pytest
from django.db import DEFAULT_DB_ALIAS, transaction
from django.utils.safestring import mark_safe

from cairnq_django import Registry, Task, TaskDef, get, submit, task
from cairnq_django.registry import default_registry
from tests.store.sessions import in_another_session

if TYPE_CHECKING:
    from cairnq_django import TaskContext

pytestmark = pytest.mark.django_db

registry = Registry()


@registry.task(queue="mail", max_attempts=5, priority=7)
def send_receipt(ctx: TaskContext, payload: dict[str, Any]) -> None: ...


class RolledBack(Exception):
    pass


def submit_and_fail(task: Any, key: str | None) -> None:
    submit(task, key=key)
    raise RolledBack


def test_a_task_is_submitted_by_its_definition_with_the_options_it_was_defined_with() -> None:
    receipt = submit(send_receipt, {"order": 7})
    assert (receipt.name, receipt.payload) == ("send_receipt", {"order": 7})
    assert (receipt.queue, receipt.max_attempts, receipt.priority) == ("mail", 5, 7)


def test_what_the_caller_says_outranks_the_definition() -> None:
    receipt = submit(send_receipt, queue="bulk", max_attempts=1, priority=0)
    assert (receipt.queue, receipt.max_attempts, receipt.priority) == ("bulk", 1, 0)


def test_a_task_is_submitted_by_the_name_of_a_registered_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_registry, "_tasks", {})
    task("ship", queue="parcels", max_attempts=9, priority=-1)(lambda ctx, payload: None)
    parcel = submit("ship")
    assert (parcel.name, parcel.queue, parcel.max_attempts, parcel.priority) == ("ship", "parcels", 9, -1)


def test_a_task_submitted_by_an_alias_keeps_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_registry, "_tasks", {})
    ship = task("ship", queue="parcels", max_attempts=9, priority=-1, aliases=["send"])(lambda ctx, payload: None)
    parcel = submit("send")
    assert (parcel.name, parcel.queue, parcel.max_attempts, parcel.priority) == ("send", "parcels", 9, -1)
    assert (submit(ship).name, submit("ship").name) == ("ship", "ship")


def test_a_name_nobody_registered_here_is_taken_for_a_task_of_another_program() -> None:
    report = submit("somewhere.else", {"page": 1})
    assert (report.name, report.queue, report.max_attempts, report.priority) == ("somewhere.else", "default", 3, 0)


def test_a_definition_without_a_handler_is_enough_to_submit() -> None:
    assert submit(TaskDef[None, None]("elsewhere", queue="far")).queue == "far"


def test_attempts_default_to_the_setting(settings: Any) -> None:
    settings.CAIRNQ = {"MAX_ATTEMPTS": 8}
    assert submit("work").max_attempts == 8
    assert submit(send_receipt).max_attempts == 5


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"delay": 0},
        {"delay": 90.5},
        {"delay": timedelta(days=2)},
        {"run_at": datetime(2031, 1, 2, 3, 4, 5, 678_901, tzinfo=timezone(timedelta(hours=9)))},
        {"key": "receipt:7"},
        {"expires": 90.5},
        {"expires": timedelta(days=2), "key": "receipt:7"},
        {"expires": datetime(2031, 1, 2, 3, 4, 5, 678_901, tzinfo=timezone(timedelta(hours=9))), "delay": 5},
        {"key": "receipt:7", "delay": 5, "metadata": {"request": [1, None]}, "correlation_id": "r-1"},
        {"queue": "größe", "key": "schlüssel 🔑", "correlation_id": "ключ"},
    ],
)
def test_the_row_that_is_returned_is_the_row_that_is_stored(options: dict[str, Any]) -> None:
    submitted = submit("work", {"order": 7}, **options)
    stored = get(submitted.id)
    for field in Task._meta.concrete_fields:
        assert getattr(submitted, field.attname) == getattr(stored, field.attname), field
    assert submitted._state.db == DEFAULT_DB_ALIAS
    assert not submitted._state.adding


def test_a_new_task_is_queued_and_due_at_once() -> None:
    new = submit("work")
    assert new.is_queued
    assert new.run_at == new.created_at == new.updated_at
    assert (new.attempt, new.payload, new.result, new.error, new.metadata) == (0, None, None, None, {})
    assert (new.started_at, new.completed_at, new.lease_until, new.expires_at) == (None,) * 4
    assert (new.key, new.parent_id) == (None, None)
    assert (new.root_id, new.id.version) == (new.id, 7)


@pytest.mark.parametrize(
    ("delay", "later"), [(0, 0), (1, 1), (2.5, 2.5), (timedelta(minutes=1, milliseconds=1), 60.001)]
)
def test_a_delay_is_seconds_or_a_timedelta(delay: Any, later: float) -> None:
    delayed = submit("work", delay=delay)
    assert delayed.run_at - delayed.created_at == timedelta(seconds=later)


@pytest.mark.parametrize("expires", [90.5, timedelta(seconds=90.5)])
def test_a_task_expires_so_long_after_now(expires: Any) -> None:
    expiring = submit("work", expires=expires, delay=90)
    assert expiring.expires_at is not None
    assert expiring.expires_at - expiring.created_at == timedelta(seconds=90.5)


def test_a_task_expires_at_a_moment_whatever_else_is_said_in_another_form() -> None:
    moment = datetime(2031, 1, 2, 3, 4, 5, 678_901, tzinfo=timezone(timedelta(hours=-7)))
    for options in ({}, {"delay": 5}, {"run_at": moment - timedelta(microseconds=1)}):
        expiring = submit("work", expires=moment, **options)
        assert expiring.expires_at == moment == get(expiring.id).expires_at
        assert expiring.expires_at.utcoffset() == timedelta(0)
    assert submit("work", run_at=moment, expires=5).expires_at is not None, "which of them is first is not known here"


@pytest.mark.parametrize(
    "moment",
    [
        datetime(2031, 1, 2, 3, 4, 5, 678_901, tzinfo=timezone(timedelta(hours=-7))),
        datetime(1970, 1, 1, tzinfo=timezone.utc),
        datetime.min.replace(tzinfo=timezone.utc),
        datetime.max.replace(tzinfo=timezone.utc),
    ],
)
def test_a_moment_to_run_at_may_be_anywhere_in_the_calendar(moment: datetime) -> None:
    due = submit("work", run_at=moment)
    assert due.run_at == moment == get(due.id).run_at
    assert due.run_at.utcoffset() == timedelta(0)


def test_metadata_is_kept_beside_the_payload() -> None:
    assert get(submit("work", metadata={"user": 3, "tags": ("a", "b")}).id).metadata == {"user": 3, "tags": ["a", "b"]}


def test_the_caller_s_payload_and_metadata_are_copied() -> None:
    payload: dict[str, Any] = {"items": [1]}
    submitted = submit("work", payload, metadata=payload)
    payload["items"].append(2)
    assert submitted.payload == submitted.metadata == {"items": [1]}


@pytest.mark.parametrize("form", [lambda row: row, lambda row: row.id, lambda row: str(row.id), lambda row: row.id.hex])
def test_a_parent_is_given_as_a_row_or_an_id_in_any_form(form: Any) -> None:
    root = submit("work", correlation_id="request-1")
    parent = submit("work", parent=root)
    child = submit("work", parent=form(parent))
    assert (child.parent_id, child.root_id, child.correlation_id) == (parent.id, root.id, "request-1")


def test_a_child_may_have_a_correlation_id_of_its_own() -> None:
    parent = submit("work", correlation_id="request-1")
    assert submit("work", parent=parent, correlation_id="request-2").correlation_id == "request-2"


def test_texts_of_a_subclass_are_stored_as_plain_ones() -> None:
    class Names(str, enum.Enum):
        MAIL = "mail"

    submitted = submit(
        Names.MAIL, queue=Names.MAIL, key=mark_safe("key"), correlation_id=mark_safe("id"), conflict="reuse"
    )
    texts = (submitted.name, submitted.queue, submitted.key, submitted.correlation_id)
    assert texts == ("mail", "mail", "key", "id")
    assert {type(text) for text in texts} == {str}
    defined = submit(TaskDef[Any, Any](Names.MAIL, queue=Names.MAIL))
    assert {type(text) for text in (defined.name, defined.queue)} == {str}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("key", [None, "receipt:7"])
def test_a_task_is_visible_to_others_once_the_caller_s_transaction_commits(key: str | None) -> None:
    with transaction.atomic():
        receipt = submit(send_receipt, key=key)
        assert not in_another_session(Task.objects.filter(pk=receipt.pk).exists)
    assert in_another_session(Task.objects.filter(pk=receipt.pk).exists)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("key", [None, "receipt:7"])
def test_a_task_whose_transaction_is_rolled_back_never_existed(key: str | None) -> None:
    with pytest.raises(RolledBack), transaction.atomic():
        submit_and_fail(send_receipt, key)
    assert not Task.objects.exists()
    assert submit(send_receipt, key=key).is_queued


@pytest.mark.django_db(transaction=True)
def test_a_savepoint_takes_back_its_own_task_alone() -> None:
    with transaction.atomic():
        kept = submit("kept", key="a")
        with pytest.raises(RolledBack), transaction.atomic():
            submit_and_fail("undone", "b")
    assert list(Task.objects.all()) == [kept]


@pytest.mark.django_db(transaction=True)
def test_a_failed_submit_leaves_the_caller_s_transaction_usable() -> None:
    with transaction.atomic():
        kept = submit("kept")
        with pytest.raises(ValueError, match="delay"):
            submit("bad", delay=-1)
        with pytest.raises(Task.DoesNotExist):
            submit("bad", parent=uuid.uuid4())
    assert list(Task.objects.all()) == [kept]
