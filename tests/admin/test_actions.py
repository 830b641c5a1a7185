"""Canceling and retrying in the admin, from the list and from a task's page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.messages import get_messages
from django.db import OperationalError, connection
from django.test import Client

from cairnq_django.admin import actions
from cairnq_django.admin.actions import CONFIRMED, PAGE_FIELD
from cairnq_django.models import Task
from tests.admin.pages import Answer
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
        ({"delayed": True}, ["Run now", "Cancel task"]),
        ({"failed": True}, ["Retry task", "Retry with attempts reset"]),
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
    data = {**form.hidden, **form.button("Cancel task"), CONFIRMED: "yes"}
    response = operator.client.post(url, data, follow=True)

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
    question = Answer(operator.client.post(url, data))
    assert "and 2 other" not in question.html
    operator.client.post(url, {**question.question.hidden_lists, CONFIRMED: "yes"})

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


def test_what_cannot_be_undone_is_asked_first(operator: Visitor) -> None:
    task = TaskFactory(name="<b>send</b>")

    question = operator.press("Cancel task", task, confirm=False)

    assert question.asks
    assert question.status == 200
    assert "<h1>Cancel task</h1>" in question.html
    assert "&lt;b&gt;send&lt;/b&gt;" in question.html
    assert str(task.pk) in question.html
    assert f'href="{operator.page_url(task)}"' in question.html
    assert statuses(task) == ["queued"]
    assert history() == []


def test_the_question_names_some_of_many_tasks(operator: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "NAMED", 2)
    tasks = [TaskFactory(name=f"name_{n}") for n in range(5)]

    question = operator.run("cancel_tasks", *tasks, confirm=False)

    assert "<h1>Cancel selected tasks</h1>" in question.html
    assert "and 3 other tasks" in question.html
    assert question.html.count("name_") == 2
    assert len(question.question.hidden_lists["_selected_action"]) == 5


def test_the_family_is_canceled_with_a_task(operator: Visitor) -> None:
    top = TaskFactory(succeeded=True)
    child = TaskFactory(parent_id=top.pk, root_id=top.pk)
    running = TaskFactory(running=True, parent_id=child.pk, root_id=top.pk)
    other = TaskFactory()

    answer = operator.press("Cancel with descendants", top)

    assert answer.messages == {
        ("success", "1 task was canceled."),
        ("success", "1 running task was asked to stop and will end canceled."),
    }
    assert statuses(top, child, running, other) == ["succeeded", "canceled", "running", "queued"]
    assert Task.objects.get(pk=running.pk).cancel_requested
    assert history() == [
        (str(top.pk), "Canceled with its descendants: 1 at once, 1 running ones asked to stop."),
    ]


def test_a_family_that_has_ended_has_nothing_left_to_cancel(operator: Visitor) -> None:
    top = TaskFactory(succeeded=True)
    TaskFactory(succeeded=True, parent_id=top.pk, root_id=top.pk)

    answer = operator.press("Cancel with descendants", top)

    assert answer.messages == {("warning", "Nothing of the family of 1 task was left to cancel.")}
    assert history() == []


def test_a_task_without_children_offers_no_family(operator: Visitor) -> None:
    assert "Cancel with descendants" not in operator.open_page(TaskFactory()).form.labels


def test_the_attempts_can_be_reset(operator: Visitor) -> None:
    task = TaskFactory(failed=True)

    answer = operator.press("Retry with attempts reset", task)

    assert answer.messages == {("success", "1 task was queued again with all its attempts left.")}
    assert (Task.objects.get().attempt, Task.objects.get().max_attempts) == (0, 3)
    assert history() == [(str(task.pk), "Queued again with its attempts reset.")]
    assert "Attempt 3: failed for good" in answer.html


def test_a_delayed_task_can_be_made_due(operator: Visitor) -> None:
    task = TaskFactory(delayed=True)

    answer = operator.press("Run now", task)

    assert answer.messages == {("success", "1 task is due now and runs as soon as a worker has room.")}
    assert list(Task.objects.due()) == [task]
    assert history() == [(str(task.pk), "Made due now.")]


def test_making_selected_tasks_due_tells_what_happened_to_each_kind(operator: Visitor) -> None:
    tasks = [TaskFactory(delayed=True), TaskFactory(), TaskFactory(running=True), TaskFactory(failed=True)]

    answer = operator.run("run_tasks_now", *tasks)

    assert answer.messages == {
        ("success", "1 task is due now and runs as soon as a worker has room."),
        ("info", "1 task was due already."),
        ("warning", "1 task was not made due: still running."),
        ("warning", "1 task was not made due: failed."),
    }
    assert len(history()) == 1


@pytest.mark.parametrize(
    ("label", "state", "meanwhile", "told"),
    [
        ("Retry task", {"failed": True}, {"running": True}, "1 task was not retried: still running."),
        ("Retry with attempts reset", {"failed": True}, {}, "1 task was not retried: already queued."),
        ("Run now", {"delayed": True}, {"running": True}, "1 task was not made due: still running."),
        ("Run now", {"delayed": True}, {"canceled": True}, "1 task was not made due: canceled."),
        ("Cancel task", {}, {"failed": True}, "1 task had ended already."),
    ],
)
def test_every_button_tells_the_truth_of_a_task_that_has_moved_on(
    operator: Visitor, label: str, state: dict[str, Any], meanwhile: dict[str, Any], told: str
) -> None:
    task, now = TaskFactory(**state), TaskFactory(**meanwhile)
    form = operator.open_page(task).form
    columns = ("status", "attempt", "run_at", "lease_until", "completed_at")
    Task.objects.filter(pk=task.pk).update(**{column: getattr(now, column) for column in columns})
    before = statuses(task)

    data = {**form.hidden, **form.button(label), CONFIRMED: "yes"}
    answer = Answer(operator.client.post(operator.page_url(task), data, follow=True))

    assert {text for _, text in answer.messages} == {told}
    assert statuses(task) == before
    assert history() == []


def test_selected_tasks_that_are_all_gone_are_told_of(operator: Visitor) -> None:
    purged = TaskFactory(failed=True)
    Task.objects.filter(pk=purged.pk).delete()

    answer = operator.run("retry_tasks", purged)

    assert answer.messages == {("warning", "1 task does not exist any more.")}


@pytest.mark.parametrize(("permission", "status"), [("view_task", 302), ("add_logentry", 403)])
def test_the_page_of_a_purged_task_says_that_it_is_gone(
    log_in: Callable[..., Visitor], permission: str, status: int
) -> None:
    visitor = log_in(permission, "cancel_task")
    task = TaskFactory()
    url = visitor.page_url(task)
    data = {PAGE_FIELD: "cancel_tasks", "_selected_action": str(task.pk), CONFIRMED: "yes"}
    task.delete()

    response = visitor.client.post(url, data)

    assert response.status_code == status
    if status == 302:
        (message,) = get_messages(response.wsgi_request)
        assert "exist. Perhaps it was deleted?" in str(message)


def test_selected_tasks_that_a_filter_leaves_out_by_now_are_told_of(operator: Visitor) -> None:
    left, ended, running, purged = TaskFactory(), TaskFactory(canceled=True), TaskFactory(running=True), TaskFactory()
    selected = [str(task.pk) for task in (left, ended, running, purged)]
    purged.delete()
    url = operator.list_url() + "?status=queued"

    question = Answer(operator.client.post(url, {"action": "cancel_tasks", "_selected_action": selected}))
    data = {**question.question.hidden_lists, CONFIRMED: "yes"}
    answer = Answer(operator.client.post(url, data, follow=True))

    assert len(question.response.context["tasks"]) == 3
    assert answer.messages == {
        ("success", "1 task was canceled."),
        ("success", "1 running task was asked to stop and will end canceled."),
        ("warning", "1 task had ended already."),
        ("warning", "1 task does not exist any more."),
    }
    assert statuses(left, ended) == ["canceled", "canceled"]


@pytest.mark.parametrize(
    ("permission", "label", "action", "state"),
    [
        ("cancel_task", "Cancel task", "cancel_tasks", {}),
        ("cancel_family_task", "Cancel with descendants", "cancel_families", {}),
        ("retry_task", "Retry task", "retry_tasks", {"failed": True}),
        ("reset_task", "Retry with attempts reset", "reset_tasks", {"failed": True}),
        ("run_now_task", "Run now", "run_tasks_now", {"delayed": True}),
    ],
)
def test_each_action_has_its_own_permission(
    log_in: Callable[..., Visitor], permission: str, label: str, action: str, state: dict[str, Any]
) -> None:
    permissions = {"cancel_task", "cancel_family_task", "retry_task", "reset_task", "run_now_task"}
    visitor = log_in("view_task", *permissions - {permission})
    task = TaskFactory(**state)
    TaskFactory(parent_id=task.pk, root_id=task.pk)
    before = statuses(task)

    assert label not in visitor.open_page(task).form.labels
    data = {"CHANGE_FORM-action": action, "_selected_action": str(task.pk), CONFIRMED: "yes"}
    visitor.client.post(visitor.page_url(task), data)
    visitor.run(action, task, confirmed="yes")
    assert statuses(task) == before
    assert history() == []

    visitor.client.logout()
    allowed = log_in("view_task", permission, name="grace")
    assert allowed.open_page(task).form.labels == [label]
    allowed.press(label, task)
    assert len(history()) == 1


def test_a_post_from_elsewhere_is_refused(operator: Visitor) -> None:
    task = TaskFactory()
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = operator.client.cookies
    form = operator.open_page(task).form

    response = strict.post(operator.page_url(task), {**form.button("Cancel task"), CONFIRMED: "yes"})

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
