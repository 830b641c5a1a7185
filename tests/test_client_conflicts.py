"""Keys: which task a submit gets where its key has one already."""

from __future__ import annotations

from typing import Any

import pytest

from cairnq_django import AlreadyExists, Registry, Task, TaskContext, Worker, get_by_key, submit, wait
from cairnq_django.clock import after
from cairnq_django.models import TaskKey
from tests.factories import TaskFactory
from tests.helpers import in_threads

pytestmark = pytest.mark.django_db

STRATEGIES = ("reuse", "reuse-succeeded", "reject", "replace")
LIVE = ("queued", "delayed", "running")
ENDED = ("succeeded", "failed", "canceled")


def a_task_that_is(state: str) -> Any:
    return TaskFactory(key="receipt:7", **{} if state == "queued" else {state: True})


@pytest.mark.parametrize("conflict", STRATEGIES)
def test_a_free_key_is_taken(conflict: Any) -> None:
    receipt = submit("work", key="receipt:7", conflict=conflict)
    assert get_by_key("receipt:7") == receipt
    assert receipt.key == "receipt:7"


@pytest.mark.parametrize("conflict", ["reuse", "reuse-succeeded"])
@pytest.mark.parametrize("state", LIVE)
def test_a_live_task_is_reused(conflict: Any, state: str) -> None:
    live = a_task_that_is(state)
    assert submit("other", {"new": True}, key="receipt:7", conflict=conflict) == live
    assert list(Task.objects.values_list("name", flat=True)) == ["work"]


@pytest.mark.parametrize("state", LIVE)
def test_a_live_task_makes_reject_raise(state: str) -> None:
    live = a_task_that_is(state)
    with pytest.raises(AlreadyExists, match=f"'receipt:7' already has a live task: {live.id}") as raised:
        submit("work", key="receipt:7", conflict="reject")
    assert (raised.value.key, raised.value.task) == ("receipt:7", live)
    assert Task.objects.count() == 1


@pytest.mark.parametrize("state", LIVE)
def test_a_live_task_is_replaced(state: str) -> None:
    live = a_task_that_is(state)
    new = submit("work", key="receipt:7", conflict="replace")
    live.refresh()
    assert get_by_key("receipt:7") == new != live
    assert live.cancel_requested if state == "running" else live.canceled


@pytest.mark.parametrize("conflict", STRATEGIES)
@pytest.mark.parametrize("state", ENDED)
def test_a_task_that_ended_frees_its_key(conflict: Any, state: str) -> None:
    ended = a_task_that_is(state)
    new = submit("work", key="receipt:7", conflict=conflict)
    assert get_by_key("receipt:7") == new
    assert (new == ended) is (conflict == "reuse-succeeded" and state == "succeeded")
    assert ended.refresh().status == state


@pytest.mark.parametrize("conflict", STRATEGIES)
def test_a_task_that_has_expired_frees_its_key_before_maintenance_finds_it(conflict: Any) -> None:
    late = a_task_that_is("too_late")
    new = submit("work", key="receipt:7", conflict=conflict)
    late.refresh()
    assert get_by_key("receipt:7") == new != late
    assert (late.status, late.error["code"], late.expires_at) == ("canceled", "expired", None)


@pytest.mark.parametrize("state", ["queued", "running"])
def test_a_task_that_may_still_start_or_has_is_reused(state: str) -> None:
    held = submit("work", key="receipt:7", expires=60)
    if state == "running":
        held = TaskFactory(key="receipt:7", running=True, expires_at=after(-1))
    assert submit("work", key="receipt:7") == held
    assert not held.refresh().is_terminal


@pytest.mark.parametrize("keys", [("receipt", "Receipt"), ("receipt", "receipt "), ("é", "e"), ("ß", "ss")])
def test_keys_that_look_alike_are_different_keys(keys: tuple[str, str]) -> None:
    one, other = (submit("work", key=key) for key in keys)
    assert one != other
    assert [get_by_key(key) for key in keys] == [one, other]


def test_a_key_is_shared_by_all_names_and_queues() -> None:
    assert submit("other", key="k", queue="far") == submit("work", key="k")


@pytest.mark.parametrize("conflict", STRATEGIES)
def test_tasks_without_a_key_never_meet(conflict: Any) -> None:
    assert submit("work", conflict=conflict) != submit("work", conflict=conflict)
    assert not TaskKey.objects.exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("conflict", STRATEGIES)
def test_twenty_threads_with_one_key_leave_one_live_task(conflict: Any) -> None:
    def submit_one(caller: int) -> Task | None:
        try:
            return submit("work", {"caller": caller}, key="receipt:7", conflict=conflict)
        except AlreadyExists:
            return None

    answers = in_threads(20, submit_one)
    live = Task.objects.live().get()
    assert get_by_key("receipt:7") == live
    if conflict == "replace":
        assert len(set(answers)) == 20
        assert Task.objects.canceled().count() == 19
    elif conflict == "reject":
        assert [answer for answer in answers if answer is not None] == [live]
        assert Task.objects.count() == 1
    else:
        assert set(answers) == {live}
        assert Task.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_succeeded_task_is_reused_with_its_result() -> None:
    registry = Registry()

    @registry.task
    def double(ctx: TaskContext, payload: int) -> int:
        return 2 * payload

    with Worker(registry=registry).background():
        first = wait(submit(double, 21, key="k").id, timeout=20)
    again = submit(double, 21, key="k", conflict="reuse-succeeded")
    assert (again.id, again.result) == (first.id, 42)
    assert submit(double, 21, key="k").id != first.id
