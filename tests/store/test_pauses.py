"""A paused queue gives out nothing, whichever way tasks are claimed, and goes on when its time has come."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest
from django.db import DEFAULT_DB_ALIAS as DB
from django.db import connection

from cairnq_django.clock import after
from cairnq_django.models import PausedQueue, Task
from cairnq_django.store import claim as claim_module
from cairnq_django.store import lanes as lanes_module
from cairnq_django.store import maintenance, pauses
from cairnq_django.store.claim import Claim, Draw, can_claim_at_once, claim, claim_at_once
from cairnq_django.store.lanes import ahead, lanes_of
from cairnq_django.store.look import look
from cairnq_django.store.stats import runnable
from tests.factories import TaskFactory, in_turn
from tests.store.sessions import another_transaction, in_another_session, locks_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    ClaimAll = Callable[..., list[Claim]]

pytestmark = pytest.mark.django_db

ONE = Draw(("mail",), ("work",), 10)
SEVERAL = Draw(("mail", "default"), ("work", "other"), 10)
WEIGHED = Draw(("mail", "default"), ("work",), 10, max_bytes=10_000)


def in_a_transaction(*draws: Draw) -> list[Claim]:
    return claim(DB, in_turn(*draws), worker_id="worker-1", lease=30)


def at_once(draw: Draw) -> list[Claim]:
    if not can_claim_at_once(DB, draw):
        return in_a_transaction(draw)
    return claim_at_once(DB, draw, worker_id="worker-1", lease=30)


@pytest.fixture(params=["as it is", "stepping"] if connection.vendor == "postgresql" else ["as it is"])
def looks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way to look that this database is able to go."""
    if request.param == "stepping":
        monkeypatch.setattr(lanes_module, "SKIPS_SINCE", sys.maxsize)


def pause(queue: str = "mail", until: float | None = None) -> None:
    PausedQueue.objects.create(queue=queue, until=None if until is None else after(until))


def ids(claims: list[Claim]) -> set[object]:
    return {each.lease.task_id for each in claims}


@pytest.mark.usefixtures("looks")
@pytest.mark.parametrize("draw", [ONE, SEVERAL, WEIGHED], ids=["a lane", "lanes", "weighed"])
@pytest.mark.parametrize("claim_all", [in_a_transaction, at_once])
def test_no_claim_gets_a_task_of_a_paused_queue(claim_all: ClaimAll, draw: Draw) -> None:
    pause()
    paused = {TaskFactory(queue="mail", priority=5).pk for _ in range(3)}
    assert claim_all(draw) == []
    other = TaskFactory()
    assert ids(claim_all(draw)) == ({other.pk} if "default" in draw.queues else set())
    PausedQueue.objects.all().delete()
    assert ids(claim_all(draw)) == paused


@pytest.mark.usefixtures("looks")
@pytest.mark.parametrize("claim_all", [in_a_transaction, at_once])
def test_what_is_paused_takes_no_room_from_what_is_not(claim_all: ClaimAll) -> None:
    pause()
    for _ in range(9):
        TaskFactory(queue="mail", priority=5, run_at=after(-60))
    others = {TaskFactory().pk for _ in range(2)}
    assert {place.task_id for place in ahead(DB, lanes_of(["mail", "default"], ["work"]), 2)} == others
    assert ids(claim_all(Draw(("mail", "default"), ("work",), 2))) == others


def test_of_several_draws_those_of_paused_queues_get_nothing() -> None:
    pause()
    TaskFactory(queue="mail")
    other = TaskFactory(name="other")
    assert ids(in_a_transaction(ONE, Draw(("default",), ("other",), 10))) == {other.pk}


@pytest.mark.parametrize("claim_all", [in_a_transaction, at_once])
def test_a_pause_whose_time_has_come_holds_nothing_back(claim_all: ClaimAll) -> None:
    pause(until=-0.001)
    task = TaskFactory(queue="mail")
    assert look(DB, ["mail"], ["work"]).due
    assert ids(claim_all(ONE)) == {task.pk}


@pytest.mark.parametrize("claim_all", [in_a_transaction, at_once])
def test_a_pause_with_an_end_holds_until_then(claim_all: ClaimAll) -> None:
    pause(until=60)
    TaskFactory(queue="mail")
    assert claim_all(ONE) == []


def test_another_queue_s_name_is_another_name() -> None:
    pause("Mail")
    pause("mail ")
    task = TaskFactory(queue="mail")
    assert ids(at_once(ONE)) == {task.pk}


def test_nothing_is_due_in_a_paused_queue() -> None:
    pause()
    TaskFactory(queue="mail")
    assert not look(DB, ["mail"], ["work"]).due
    assert not look(DB, ["mail", "default"], ["work", "other"]).due
    TaskFactory()
    assert look(DB, ["mail", "default"], ["work", "other"]).due


def test_what_waits_in_a_paused_queue_keeps_no_burst_going() -> None:
    pause()
    TaskFactory(queue="mail")
    TaskFactory(queue="mail", delayed=True, attempt=1)
    assert not runnable(DB, ["mail"], ["work"])
    assert not runnable(DB, ["mail", "default"], ["work"])
    TaskFactory()
    assert runnable(DB, ["mail", "default"], ["work"])


def test_leases_and_expiries_are_seen_to_in_a_paused_queue() -> None:
    pause()
    orphan = TaskFactory(queue="mail", expired=True)
    late = TaskFactory(queue="mail", too_late=True)
    assert maintenance.recover(DB).queued == [orphan]
    assert maintenance.expire(DB) == [late.pk]


def test_a_look_sees_pauses_that_are_over_and_they_are_ended() -> None:
    pause("default")
    pause("other", until=60)
    assert not look(DB, ["mail"], ["work"]).pauses_over
    pause("mail", until=-1)
    assert look(DB, ["default"], ["work"]).pauses_over
    assert pauses.end_those_over(DB) == ["mail"]
    assert set(PausedQueue.objects.values_list("pk", flat=True)) == {"default", "other"}
    assert pauses.end_those_over(DB) == []


@pytest.mark.django_db(transaction=True)
def test_a_pause_counts_from_its_commit_on() -> None:
    tasks = [TaskFactory(queue="mail") for _ in range(2)]
    one = Draw(("mail",), ("work",), 1)
    if connection.vendor == "sqlite":
        # Whoever pauses has the write lock: no claim is possible meanwhile.
        pause()
    else:
        with another_transaction(pause):
            assert len(in_another_session(lambda: at_once(one))) == 1
    assert at_once(one) == []
    assert Task.objects.queued().count() == len(tasks) - (connection.vendor != "sqlite")


@locks_rows
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("draw", [ONE, SEVERAL], ids=["a lane", "lanes"])
def test_what_a_claim_has_found_is_not_taken_once_the_queue_is_paused(
    draw: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = claim_module._lock

    def find_and_be_paused(*args: Any) -> Any:
        found = find(*args)
        assert len(found) == 2
        in_another_session(pause)
        return found

    tasks = [TaskFactory(queue="mail") for _ in range(2)]
    monkeypatch.setattr(claim_module, "_lock", find_and_be_paused)
    assert in_a_transaction(draw) == []
    assert Task.objects.queued().count() == len(tasks)


def test_pausing_anew_replaces_what_a_second_pause_leaves_as_it_is() -> None:
    first = pauses.pause(DB, "mail", until=None, by="ada", anew=False)
    assert first is not None
    assert first.changed
    assert (first.pause.queue, first.pause.paused_by, first.pause.until) == ("mail", "ada", None)
    second = pauses.pause(DB, "mail", until=after(60), by="bob", anew=False)
    assert second == (first.pause, False)
    assert second.pause.paused_by == "ada"
    third = pauses.pause(DB, "mail", until=after(60), by="bob", anew=True)
    assert third is not None
    assert third.changed
    assert third.pause.paused_by == "bob"
    assert third.pause.until is not None
    assert third.pause.paused_at >= first.pause.paused_at


def test_a_pause_that_is_over_is_as_none() -> None:
    pause(until=-1)
    paused = pauses.pause(DB, "mail", until=None, by="bob", anew=False)
    assert paused is not None
    assert paused.changed
    PausedQueue.objects.update(until=after(-1))
    assert pauses.resume(DB, "mail") is None
    assert not PausedQueue.objects.exists()


def test_a_pause_that_would_be_over_at_once_changes_nothing() -> None:
    pauses.pause(DB, "mail", until=None, by="ada", anew=True)
    for queue in ("mail", "other"):
        assert pauses.pause(DB, queue, until=after(-1), by="bob", anew=True) is None
    assert list(PausedQueue.objects.values_list("queue", "paused_by", "until")) == [("mail", "ada", None)]
