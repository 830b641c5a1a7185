"""Canceling and retrying in the admin, from the list and from a task's page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import OperationalError, connection
from django.test import Client

from cairnq_django.admin import actions
from cairnq_django.models import Task
from tests.factories import TaskFactory

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.admin.pages import Visitor

pytestmark = pytest.mark.django_db


def statuses(*tasks: Task) -> list[str]:
    return [Task.objects.get(pk=task.pk).status for task in tasks]


def history() -> list[tuple[str, str]]:
    return [(entry.object_id, entry.get_change_message()) for entry in LogEntry.objects.order_by("id")]


@pytest.mark.parametrize(
    ("state", "labels"),
    [
        ({}, ["Cancel task"]),
        ({"running": True}, ["Cancel task"]),
        ({"cancel_requested": True}, []),
        ({"succeeded": True}, []),
        ({"failed": True}, ["Retry task"]),
        ({"canceled": True}, ["Retry task"]),
    ],
)
def test_the_page_offers_what_the_state_allows(operator: Visitor, state: dict[str, Any], labels: list[str]) -> None:
    assert operator.open_page(TaskFactory(**state)).form.labels == labels


def test_the_button_cancels_a_queued_task(operator: Visitor) -> None:
    task = TaskFactory()

    answer = operator.press("Cancel task", task)

    assert answer.messages == {("success", "1 task was canceled.")}
    assert answer.response.request["PATH_INFO"] == operator.page_url(task)
    assert statuses(task) == ["canceled"]
    assert history() == [(str(task.pk), "Canceled.")]


def test_the_button_asks_a_running_task_to_stop(operator: Visitor) -> None:
    task = TaskFactory(running=True)

    answer = operator.press("Cancel task", task)

    assert answer.messages == {("success", "1 running task was asked to stop and will end canceled.")}
    assert "cancel requested" in answer.html
    assert Task.objects.get().cancel_requested
    assert statuses(task) == ["running"]
    assert history() == [(str(task.pk), "Cancel requested.")]


def test_the_button_queues_a_failed_task_again(operator: Visitor) -> None:
    task = TaskFactory(failed=True)

    answer = operator.press("Retry task", task)

    assert answer.messages == {("success", "1 task was queued again.")}
    assert statuses(task) == ["queued"]
    assert history() == [(str(task.pk), "Queued again.")]


def test_the_button_tells_the_truth_of_a_task_that_has_moved_on(operator: Visitor) -> None:
    task = TaskFactory()
    form = operator.open_page(task).form
    Task.objects.filter(pk=task.pk).update(status="succeeded", completed_at=task.created_at)

    url = operator.page_url(task)
    response = operator.client.post(url, {**form.hidden, **form.button("Cancel task")}, follow=True)

    assert [str(message) for message in response.context["messages"]] == ["1 task had ended already."]
    assert statuses(task) == ["succeeded"]
    assert history() == []


def test_canceling_the_selected_tasks_tells_what_happened_to_each_kind(operator: Visitor) -> None:
    queued = [TaskFactory(), TaskFactory()]
    running = TaskFactory(running=True)
    asked = TaskFactory(cancel_requested=True)
    ended = [TaskFactory(succeeded=True), TaskFactory(failed=True), TaskFactory(canceled=True)]
    untouched = TaskFactory()

    answer = operator.run("cancel_tasks", *queued, running, asked, *ended)

    assert answer.messages == {
        ("success", "2 tasks were canceled."),
        ("success", "1 running task was asked to stop and will end canceled."),
        ("info", "1 running task had been asked to stop before."),
        ("warning", "3 tasks had ended already."),
    }
    assert statuses(*queued, running, untouched) == ["canceled", "canceled", "running", "queued"]
    assert len(history()) == 3


def test_retrying_the_selected_tasks_tells_what_happened_to_each_kind(operator: Visitor) -> None:
    retried = [TaskFactory(failed=True), TaskFactory(canceled=True)]
    replaced = TaskFactory(failed=True, key="receipt:7")
    TaskFactory(key="receipt:7")
    refused = [TaskFactory(), TaskFactory(running=True), TaskFactory(running=True), TaskFactory(succeeded=True)]

    answer = operator.run("retry_tasks", *retried, replaced, *refused)

    assert answer.messages == {
        ("success", "2 tasks were queued again."),
        ("warning", "1 task was not retried: the key has another live task."),
        ("warning", "1 task was not retried: already queued."),
        ("warning", "2 tasks were not retried: still running."),
        ("warning", "1 task was not retried: succeeded."),
    }
    assert statuses(*retried, replaced) == ["queued", "queued", "failed"]
    assert [pk for pk, _ in history()] == [str(task.pk) for task in retried]


def test_one_task_that_breaks_does_not_hold_up_the_others(operator: Visitor, caplog: pytest.LogCaptureFixture) -> None:
    before, broken, after = TaskFactory(), TaskFactory(), TaskFactory()

    with connection.execute_wrapper(failing_updates_of(broken)):
        answer = operator.run("cancel_tasks", before, broken, after)

    assert answer.messages == {
        ("success", "2 tasks were canceled."),
        ("error", "An error left 1 task as it was: OperationalError. The log of the server says more."),
    }
    assert statuses(before, broken, after) == ["canceled", "queued", "canceled"]
    assert str(broken.pk) in caplog.text
    assert len(history()) == 2


def test_a_task_that_is_purged_in_the_meantime_is_told_of(operator: Visitor) -> None:
    first, purged = TaskFactory(), TaskFactory(failed=True)

    with connection.execute_wrapper(purging_at_the_first_update(purged)):
        answer = operator.run("cancel_tasks", first, purged)

    assert answer.messages == {("success", "1 task was canceled."), ("warning", "1 task does not exist any more.")}


def test_all_tasks_of_a_filter_can_be_selected(operator: Visitor) -> None:
    tasks = [TaskFactory(queue="mail") for _ in range(3)]
    other = TaskFactory()
    url = operator.list_url() + "?queue=mail"

    data = {"action": "cancel_tasks", "select_across": "1", "_selected_action": [str(tasks[0].pk)]}
    operator.client.post(url, data)

    assert statuses(*tasks, other) == ["canceled"] * 3 + ["queued"]


def test_one_request_works_on_so_many_tasks_and_says_so(operator: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "AT_ONCE", 2)
    tasks = [TaskFactory() for _ in range(3)]

    answer = operator.run("cancel_tasks", *tasks)

    assert statuses(*tasks).count("canceled") == 2
    assert {level for level, text in answer.messages if text.startswith("Only the first 2 ")} == {"warning"}


def test_tasks_are_queued_again_in_the_order_they_were_submitted(operator: Visitor) -> None:
    tasks = [TaskFactory(failed=True) for _ in range(3)]

    operator.run("retry_tasks", *tasks)

    assert list(Task.objects.in_claim_order()) == tasks


@pytest.mark.parametrize(
    ("permission", "label", "state", "other", "other_state"),
    [
        ("cancel_task", "Cancel task", {}, "retry_tasks", {"failed": True}),
        ("retry_task", "Retry task", {"failed": True}, "cancel_tasks", {}),
    ],
)
def test_each_action_has_its_own_permission(
    log_in: Callable[..., Visitor],
    permission: str,
    label: str,
    state: dict[str, Any],
    other: str,
    other_state: dict[str, Any],
) -> None:
    visitor = log_in("view_task", permission)
    allowed, forbidden = TaskFactory(**state), TaskFactory(**other_state)
    before = statuses(forbidden)

    assert visitor.open_page(allowed).form.labels == [label]
    assert visitor.open_page(forbidden).form.labels == []
    visitor.run(other, forbidden)
    data = {"CHANGE_FORM-action": other, "_selected_action": str(forbidden.pk)}
    visitor.client.post(visitor.page_url(forbidden), data)

    assert statuses(forbidden) == before
    assert history() == []
    visitor.press(label, allowed)
    assert len(history()) == 1


def test_a_post_from_elsewhere_is_refused(operator: Visitor) -> None:
    task = TaskFactory()
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = operator.client.cookies
    form = operator.open_page(task).form

    response = strict.post(operator.page_url(task), form.button("Cancel task"))

    assert response.status_code == 403
    assert statuses(task) == ["queued"]


def failing_updates_of(task: Task) -> Callable[..., Any]:
    def wrapper(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith("UPDATE") and any(str(param).replace("-", "") == task.pk.hex for param in params or ()):
            raise OperationalError("the disk is on fire")
        return execute(sql, params, many, context)

    return wrapper


def purging_at_the_first_update(task: Task) -> Callable[..., Any]:
    purged = False

    def wrapper(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        nonlocal purged
        result = execute(sql, params, many, context)
        if sql.startswith("UPDATE") and "cairnq_django_task" in sql and not purged:
            purged = True
            task.delete()
        return result

    return wrapper
