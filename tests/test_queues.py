"""Pausing and resuming a queue: the public functions."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from django.db import transaction

from cairnq_django import (
    PausedQueue,
    apause_queue,
    apaused_queues,
    aresume_queue,
    pause_queue,
    paused_queues,
    resume_queue,
    submit,
)
from cairnq_django.clock import Now, after
from cairnq_django.limits import QUEUE_LENGTH, USER_LENGTH
from cairnq_django.queues import declared_queues, request_pause
from tests.helpers import in_threads

pytestmark = pytest.mark.django_db


def now() -> datetime:
    PausedQueue.objects.update_or_create(queue="clock", defaults={"until": Now()})
    moment = PausedQueue.objects.get(queue="clock").until
    assert moment is not None
    PausedQueue.objects.filter(queue="clock").delete()
    return moment


def test_a_paused_queue_is_listed_with_who_paused_it_when_and_until_when() -> None:
    before = now()
    paused = pause_queue("mail", by="ada")
    pause_queue("archive", until=60)
    archive, mail = paused_queues()
    assert mail == paused
    assert (mail.queue, mail.paused_by, mail.until) == ("mail", "ada", None)
    assert before <= mail.paused_at <= now()
    assert (archive.queue, archive.paused_by) == ("archive", "")
    assert archive.until is not None
    assert timedelta(seconds=59) < archive.until - archive.paused_at < timedelta(seconds=61)


def test_resuming_says_whether_the_queue_was_paused() -> None:
    pause_queue("mail")
    assert resume_queue("mail") is True
    assert paused_queues() == []
    assert resume_queue("mail") is False


def test_pausing_again_replaces_the_pause_unless_it_is_only_asked_for() -> None:
    pause_queue("mail", by="ada", until=60)
    assert request_pause("mail", by="bob") == (paused_queues()[0], False)
    assert pause_queue("mail", by="bob").paused_by == "bob"
    assert paused_queues()[0].until is None


@pytest.mark.parametrize(
    "until",
    [60, 0.5, timedelta(minutes=1), datetime(2999, 1, 1, tzinfo=timezone(timedelta(hours=9)))],
    ids=str,
)
def test_until_is_seconds_or_a_moment(until: Any) -> None:
    paused = pause_queue("mail", until=until)
    assert paused.until is not None
    if isinstance(until, datetime):
        assert paused.until == until


@pytest.mark.parametrize("until", [0, datetime(2020, 1, 1, tzinfo=timezone.utc)], ids=str)
def test_a_pause_must_end_in_the_future(until: Any) -> None:
    pause_queue("mail", by="ada")
    with pytest.raises(ValueError, match=r"^until must be in the future, got .*by the database's clock$"):
        pause_queue("mail", until=until)
    assert paused_queues()[0].paused_by == "ada"


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"queue": ""}, ValueError, "queue must not be empty"),
        ({"queue": " "}, ValueError, "queue must not be blank"),
        ({"queue": 7}, TypeError, "queue must be a string"),
        ({"queue": "x" * (QUEUE_LENGTH + 1)}, ValueError, "queue must have at most"),
        ({"queue": "\0"}, ValueError, "queue must not hold"),
        ({"by": None}, TypeError, "by must be a string"),
        ({"by": "x" * (USER_LENGTH + 1)}, ValueError, "by must have at most"),
        ({"until": "1h"}, TypeError, "until must be a number of seconds, a timedelta or an aware datetime, got '1h'"),
        ({"until": -1}, ValueError, "until must not be negative"),
        ({"until": True}, TypeError, "until must be"),
        ({"until": datetime(2999, 1, 1)}, ValueError, "until must be aware"),  # noqa: DTZ001
    ],
    ids=str,
)
def test_an_argument_that_is_wrong_is_named(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        pause_queue(**{"queue": "mail", **arguments})
    assert not PausedQueue.objects.exists()


def test_resuming_what_cannot_be_a_queue_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^queue must not be empty$"):
        resume_queue("")


def test_a_pause_joins_the_caller_s_transaction() -> None:
    with transaction.atomic():
        pause_queue("mail")
        transaction.set_rollback(True)
    assert paused_queues() == []


def test_a_paused_queue_takes_submits() -> None:
    pause_queue("mail")
    assert submit("work", queue="mail").is_queued


@pytest.mark.django_db(transaction=True)
def test_of_many_who_pause_at_once_one_did() -> None:
    changed = [paused.changed for paused in in_threads(4, lambda n: request_pause("mail", by=f"user {n}"))]
    assert sorted(changed) == [False, False, False, True]
    assert in_threads(4, lambda n: resume_queue("mail")).count(True) == 1
    in_threads(4, lambda n: pause_queue("mail", by=f"user {n}"))
    assert len(paused_queues()) == 1


@pytest.mark.django_db(transaction=True)
def test_there_are_twins_for_async_callers() -> None:
    async def live() -> None:
        paused = await apause_queue("mail", until=60, by="ada")
        assert await apaused_queues() == [paused]
        assert await aresume_queue("mail")

    asyncio.run(live())


def test_a_pause_that_is_over_is_not_listed() -> None:
    PausedQueue.objects.create(queue="mail", until=after(-1))
    assert paused_queues() == []


def test_the_queues_of_settings_and_handlers_are_known(settings: Any) -> None:
    settings.CAIRNQ = {"QUEUES": ["default", "night"]}
    assert {"default", "night"} <= declared_queues()
