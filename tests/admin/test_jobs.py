"""Actions on more tasks than one request can do: chunk by chunk, stopped and gone on with, nothing done twice."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.contrib.sessions.models import Session
from django.db import OperationalError, connection, connections
from django.test import Client
from django.utils import timezone, translation
from django.utils.http import urlencode

from cairnq_django.admin import actions, changelist, jobs, outcomes
from cairnq_django.admin.actions import CONFIRMED
from cairnq_django.models import Task
from tests.admin.pages import Answer
from tests.factories import TaskFactory

if TYPE_CHECKING:
    from collections.abc import Callable

    from pytest_django.fixtures import SettingsWrapper

    from tests.admin.pages import Visitor

pytestmark = pytest.mark.django_db


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tasks a request."""
    monkeypatch.setattr(jobs, "CHUNK", 2)


def ask(visitor: Visitor, action: str, **query: str) -> Answer:
    """Choose an action for all tasks of the list."""
    some = Task.objects.order_by("pk").values_list("pk", flat=True)[0]
    url = visitor.list_url() + "?" + urlencode(query)
    data = {"action": action, "select_across": "1", "_selected_action": [str(some)]}
    return Answer(visitor.client.post(url, data, follow=True))


def say_yes(visitor: Visitor, question: Answer, **changes: str) -> Answer:
    request = question.response.request
    url = request["PATH_INFO"] + "?" + request["QUERY_STRING"]
    data = {**question.question.hidden_lists, CONFIRMED: "yes", **changes}
    return Answer(visitor.client.post(url, data, follow=True))


def begin(visitor: Visitor, action: str, **query: str) -> Answer:
    """Choose an action for all tasks of the list, and say yes if that leads to a question."""
    answer = ask(visitor, action, **query)
    return say_yes(visitor, answer) if answer.asks else answer


def go_on(visitor: Visitor, page: Answer, **changes: str) -> Answer:
    """Press the button of a job's page."""
    data = {**page.job_form.hidden, **changes}
    return Answer(visitor.client.post(page.response.request["PATH_INFO"], data, follow=True))


def to_the_end(visitor: Visitor, page: Answer) -> Answer:
    for _ in range(50):
        if page.job_is_finished:
            return page
        page = go_on(visitor, page)
    raise AssertionError("It does not end")


def statuses(*tasks: Task) -> list[str]:
    return [Task.objects.get(pk=task.pk).status for task in tasks]


def test_a_few_tasks_are_done_at_once(operator: Visitor) -> None:
    tasks = [TaskFactory(queue="mail") for _ in range(3)]
    other = TaskFactory()

    page = begin(operator, "cancel_tasks", queue="mail")

    assert page.job_is_finished
    assert page.told == {"3 tasks were canceled."}
    assert statuses(*tasks, other) == ["canceled"] * 3 + ["queued"]
    assert f'href="{operator.list_url()}?queue=mail"' in page.html


@pytest.mark.usefixtures("small_chunks")
def test_many_tasks_are_done_chunk_by_chunk(operator: Visitor) -> None:
    tasks = [TaskFactory() for _ in range(5)]

    page = begin(operator, "cancel_tasks")

    assert statuses(*tasks) == ["canceled"] * 2 + ["queued"] * 3
    assert "2 of 5 tasks looked at" in page.html
    assert 'value="0.4000"' in page.html
    assert page.told == {"2 tasks were canceled."}

    page = to_the_end(operator, page)

    assert statuses(*tasks) == ["canceled"] * 5
    assert "5 of 5 tasks looked at" in page.html
    assert page.told == {"5 tasks were canceled."}
    assert page.job_form.labels == []


@pytest.mark.usefixtures("small_chunks")
def test_opening_the_page_again_changes_nothing_and_offers_to_go_on(operator: Visitor) -> None:
    tasks = [TaskFactory() for _ in range(5)]
    page = begin(operator, "cancel_tasks")

    again = Answer(operator.client.get(page.response.request["PATH_INFO"]))

    assert statuses(*tasks).count("canceled") == 2
    assert to_the_end(operator, again).told == {"5 tasks were canceled."}


@pytest.mark.usefixtures("small_chunks")
def test_a_page_that_was_gone_on_from_does_nothing_more(operator: Visitor) -> None:
    tasks = [TaskFactory(failed=True) for _ in range(7)]
    first = begin(operator, "retry_tasks")
    go_on(operator, first)
    # The first ones run, and fail again.
    Task.objects.filter(pk__in=[task.pk for task in tasks[:4]]).update(
        status="failed", completed_at=tasks[0].completed_at
    )

    stale = go_on(operator, first)

    assert statuses(*tasks) == ["failed"] * 7
    assert stale.told == {"4 tasks were queued again."}
    assert to_the_end(operator, stale).told == {"7 tasks were queued again."}
    assert statuses(*tasks) == ["failed"] * 4 + ["queued"] * 3


@pytest.mark.usefixtures("small_chunks")
def test_what_ended_after_the_beginning_is_not_retried(operator: Visitor) -> None:
    tasks = [TaskFactory(failed=True) for _ in range(4)]
    page = begin(operator, "retry_tasks")
    late = TaskFactory(failed=True)  # with the time of now
    Task.objects.filter(pk=tasks[3].pk).update(completed_at=late.completed_at)

    page = to_the_end(operator, page)

    assert statuses(*tasks, late) == ["queued"] * 3 + ["failed"] * 2
    assert page.told == {"3 tasks were queued again."}


@pytest.mark.usefixtures("small_chunks")
def test_tasks_that_came_after_the_beginning_are_left_alone(operator: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changelist, "LOOKED_AT", 4)
    tasks = [TaskFactory(queue="mail") for _ in range(4)]
    page = begin(operator, "cancel_tasks", queue="mail")
    late = [TaskFactory(queue="mail") for _ in range(3)]

    page = to_the_end(operator, page)

    assert statuses(*tasks, *late) == ["canceled"] * 4 + ["queued"] * 3
    assert page.told == {"4 tasks were canceled."}


@pytest.mark.parametrize("query", [{}, {"queue": "mail"}])
def test_a_yes_is_to_the_tasks_there_were_when_it_was_asked(operator: Visitor, query: dict[str, str]) -> None:
    tasks = [TaskFactory(queue="mail") for _ in range(2)]
    question = ask(operator, "cancel_tasks", **query)
    late = TaskFactory(queue="mail")

    page = say_yes(operator, question)

    assert page.told == {"2 tasks were canceled."}
    assert statuses(*tasks, late) == ["canceled", "canceled", "queued"]


def test_what_ended_after_the_question_is_not_retried(operator: Visitor) -> None:
    task, later = TaskFactory(failed=True), TaskFactory()
    question = ask(operator, "retry_tasks", status="failed")
    failed = TaskFactory(failed=True)  # with the time of now
    columns = ("status", "attempt", "error", "started_at", "completed_at")
    Task.objects.filter(pk=later.pk).update(**{column: getattr(failed, column) for column in columns})

    page = say_yes(operator, question)

    assert page.told == {"1 task was queued again."}
    assert statuses(task, later, failed) == ["queued", "failed", "failed"]


@pytest.mark.parametrize("offer", ["", "made up", "WyJjYW5jZWxfdGFza3MiXQ:1tWmMh:AAAA"])
def test_a_yes_to_nothing_that_was_asked_is_asked_again(operator: Visitor, offer: str) -> None:
    task = TaskFactory()

    again = say_yes(operator, ask(operator, "cancel_tasks"), offer=offer)

    assert again.asks
    assert statuses(task) == ["queued"]
    assert len(again.question.hidden_lists["offer"]) == 1
    assert say_yes(operator, again).told == {"1 task was canceled."}


def test_a_yes_counts_for_the_list_and_the_action_that_were_asked_about(operator: Visitor) -> None:
    mail, other = TaskFactory(queue="mail"), TaskFactory()
    narrow, wide = ask(operator, "cancel_tasks", queue="mail"), ask(operator, "cancel_tasks")

    for question, changes in ((narrow, {"offer": wide.question.hidden["offer"]}), (wide, {"action": "run_tasks_now"})):
        assert say_yes(operator, question, **changes).asks
    assert statuses(mail, other) == ["queued", "queued"]


@pytest.mark.usefixtures("small_chunks")
def test_tasks_do_not_grow_too_old_for_the_list_while_they_are_worked_on(
    operator: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = [TaskFactory() for _ in range(5)]
    page = begin(operator, "cancel_tasks", age="1h")

    # Only as the list sees it: the session must not expire.
    now = timezone.now
    monkeypatch.setattr(changelist, "timezone", SimpleNamespace(now=lambda: now() + timedelta(hours=2)))
    page = to_the_end(operator, page)

    assert page.told == {"5 tasks were canceled."}
    assert statuses(*tasks) == ["canceled"] * 5


@pytest.mark.usefixtures("small_chunks")
def test_rows_that_moved_on_meanwhile_are_told_of(operator: Visitor) -> None:
    tasks = [TaskFactory() for _ in range(6)]
    page = begin(operator, "cancel_tasks")
    running = TaskFactory(running=True)
    columns = ("status", "attempt", "worker_id", "started_at", "lease_until")
    Task.objects.filter(pk=tasks[2].pk).update(**{column: getattr(running, column) for column in columns})
    Task.objects.filter(pk=tasks[3].pk).update(status="succeeded", completed_at=tasks[3].created_at)
    tasks[4].delete()

    page = to_the_end(operator, page)

    assert page.told == {
        "3 tasks were canceled.",
        "1 running task was asked to stop and will end canceled.",
        "1 task had ended already.",
    }


@pytest.mark.parametrize(
    ("action", "told"),
    [
        (
            "cancel_tasks",
            {
                "2 tasks were canceled.",
                "1 running task was asked to stop and will end canceled.",
                "1 running task had been asked to stop before.",
                "4 tasks had ended already.",
            },
        ),
        (
            "retry_tasks",
            {
                "2 tasks were queued again.",
                "2 tasks were not retried: already queued.",
                "2 tasks were not retried: still running.",
                "1 task was not retried: succeeded.",
                "1 task was not retried: the key has a newer task.",
            },
        ),
        (
            "reset_tasks",
            {
                "2 tasks were queued again with all their attempts left.",
                "2 tasks were not retried: already queued.",
                "2 tasks were not retried: still running.",
                "1 task was not retried: succeeded.",
                "1 task was not retried: the key has a newer task.",
            },
        ),
        (
            "run_tasks_now",
            {
                "1 task is due now and runs as soon as a worker has room.",
                "1 task was due already.",
                "2 tasks were not made due: still running.",
                "2 tasks were not made due: failed.",
                "1 task was not made due: succeeded.",
                "1 task was not made due: canceled.",
            },
        ),
        (
            "cancel_families",
            {
                "2 tasks were canceled.",
                "1 running task was asked to stop and will end canceled.",
                "Nothing of the families of 5 tasks was left to cancel.",
            },
        ),
    ],
)
def test_the_summary_tells_what_became_of_each_kind(operator: Visitor, action: str, told: set[str]) -> None:
    TaskFactory(delayed=True)
    TaskFactory(key="k")
    TaskFactory(running=True)
    TaskFactory(cancel_requested=True)
    TaskFactory(succeeded=True)
    TaskFactory(canceled=True)
    TaskFactory(failed=True)
    failed = TaskFactory(failed=True)
    Task.objects.filter(pk=failed.pk).update(key="k")

    page = begin(operator, action)

    assert page.job_is_finished
    assert page.told == told


def test_one_task_that_breaks_does_not_hold_up_the_others(operator: Visitor, caplog: pytest.LogCaptureFixture) -> None:
    before, broken, after = TaskFactory(), TaskFactory(), TaskFactory()

    def fail(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith("UPDATE") and broken.pk.hex in str(params).replace("-", ""):
            raise OperationalError("the disk is on fire")
        return execute(sql, params, many, context)

    with connection.execute_wrapper(fail):
        page = begin(operator, "cancel_tasks")

    assert page.told == {
        "2 tasks were canceled.",
        "An error left 1 task as it was: OperationalError. The log of the server says more.",
    }
    assert statuses(before, broken, after) == ["canceled", "queued", "canceled"]
    assert str(broken.pk) in caplog.text


@pytest.mark.parametrize("atomic_requests", [False, True])
def test_a_chunk_that_breaks_midway_keeps_what_it_did(
    operator: Visitor, monkeypatch: pytest.MonkeyPatch, atomic_requests: bool
) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", atomic_requests)
    work = jobs.WORK["cancel_tasks"]
    monkeypatch.setitem(jobs.WORK, "cancel_tasks", replace(work, batch=2))
    monkeypatch.setattr(jobs, "CHUNK", 4)
    tasks = [TaskFactory() for _ in range(9)]
    page = begin(operator, "cancel_tasks")
    batches = jobs.in_batches

    def break_midway(*args: Any) -> Any:
        yield next(iter(batches(*args)))
        raise OperationalError("the database went away")

    with monkeypatch.context() as patched:
        patched.setattr(jobs, "in_batches", break_midway)
        operator.client.raise_request_exception = False
        assert go_on(operator, page).status == 500

    assert statuses(*tasks).count("canceled") == 6
    page = Answer(operator.client.get(page.response.request["PATH_INFO"]))
    assert "6 of 9 tasks looked at" in page.html
    assert page.told == {"6 tasks were canceled."}
    assert to_the_end(operator, page).told == {"9 tasks were canceled."}
    assert [entry.object_repr for entry in LogEntry.objects.order_by("id")] == [
        f"4 tasks, up to {tasks[3].pk}",
        f"2 tasks, up to {tasks[5].pk}",
        f"3 tasks, up to {tasks[8].pk}",
    ]


@pytest.mark.usefixtures("small_chunks")
def test_the_history_says_of_each_chunk_what_was_done_to_what(operator: Visitor) -> None:
    tasks = [TaskFactory(queue="mail") for _ in range(3)]

    to_the_end(operator, begin(operator, "cancel_tasks", queue="mail"))

    entries = LogEntry.objects.order_by("id")
    assert [entry.get_change_message() for entry in entries] == [
        "2 tasks were canceled. Cancel tasks: all of the list with queue: mail",
        "1 task was canceled. Cancel tasks: all of the list with queue: mail",
    ]
    assert [entry.object_repr for entry in entries] == [
        f"2 tasks, up to {tasks[1].pk}",
        f"1 task, up to {tasks[2].pk}",
    ]
    assert operator.client.get("/admin/").status_code == 200


@pytest.mark.usefixtures("small_chunks")
def test_each_chunk_takes_the_permission(operator: Visitor) -> None:
    tasks = [TaskFactory() for _ in range(5)]
    page = begin(operator, "cancel_tasks")
    User.objects.get().user_permissions.remove(Permission.objects.get(codename="cancel_task"))

    refused = go_on(operator, page)

    assert refused.status == 403
    assert statuses(*tasks).count("canceled") == 2
    shown = Answer(operator.client.get(page.response.request["PATH_INFO"]))
    assert "You may not go on with this." in shown.html
    assert shown.job_form.labels == []


def test_who_may_only_see_begins_nothing(log_in: Callable[..., Visitor]) -> None:
    task = TaskFactory()

    begin(log_in("view_task"), "cancel_tasks")

    assert statuses(task) == ["queued"]


@pytest.mark.usefixtures("small_chunks")
def test_a_job_is_its_visitor_s_own(operator: Visitor, log_in: Callable[..., Visitor]) -> None:
    [TaskFactory() for _ in range(3)]
    path = begin(operator, "cancel_tasks").response.request["PATH_INFO"]
    operator.client.logout()
    other = log_in("view_task", "cancel_task", name="grace")

    answer = Answer(other.client.post(path, {"done": "2"}, follow=True))

    assert answer.messages == {("warning", "Nothing is known of this work any more.")}
    assert Task.objects.canceled().count() == 2


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """Have something happen while the next chunk is worked on."""
    work = jobs.Job.work

    def meanwhile(happens: Callable[[], Any]) -> None:
        def work_meanwhile(*args: Any) -> Any:
            monkeypatch.setattr(jobs.Job, "work", work)
            happens()
            return work(*args)

        monkeypatch.setattr(jobs.Job, "work", work_meanwhile)

    return meanwhile


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("saved_always", [False, True])
def test_two_jobs_of_a_visitor_do_not_disturb_each_other(
    operator: Visitor, meanwhile: Callable[..., None], settings: SettingsWrapper, saved_always: bool
) -> None:
    settings.SESSION_SAVE_EVERY_REQUEST = saved_always
    [TaskFactory(queue="mail") for _ in range(5)]
    [TaskFactory(delayed=True) for _ in range(3)]
    first = begin(operator, "cancel_tasks", queue="mail")
    begun: list[Answer] = []
    meanwhile(lambda: begun.append(begin(operator, "run_tasks_now", queue="default")))

    first = go_on(operator, first)
    (second,) = begun

    assert to_the_end(operator, first).told == {"5 tasks were canceled."}
    assert to_the_end(operator, second).told == {"3 tasks are due now and run as soon as a worker has room."}


@pytest.mark.usefixtures("small_chunks")
def test_what_else_comes_into_the_session_during_a_chunk_stays(
    operator: Visitor, meanwhile: Callable[..., None]
) -> None:
    [TaskFactory() for _ in range(5)]
    page = begin(operator, "cancel_tasks")

    def shop() -> None:
        session = operator.client.session
        session["cart"] = ["a book"]
        session.save()

    meanwhile(shop)
    go_on(operator, page)

    assert operator.client.session["cart"] == ["a book"]


@pytest.mark.usefixtures("small_chunks")
def test_who_logs_out_during_a_chunk_stays_logged_out(operator: Visitor, meanwhile: Callable[..., None]) -> None:
    [TaskFactory() for _ in range(5)]
    page = begin(operator, "cancel_tasks")
    data, path = page.job_form.hidden, page.response.request["PATH_INFO"]

    meanwhile(operator.client.session.flush)
    answer = operator.client.post(path, data)

    assert answer.status_code == 302
    assert not Session.objects.exists()
    assert Task.objects.canceled().count() == 4


@pytest.mark.usefixtures("small_chunks")
def test_a_post_from_elsewhere_is_refused(operator: Visitor) -> None:
    [TaskFactory() for _ in range(3)]
    page = begin(operator, "cancel_tasks")
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = operator.client.cookies

    assert strict.post(page.response.request["PATH_INFO"], {"done": "2"}).status_code == 403
    assert Task.objects.canceled().count() == 2


def test_a_list_that_has_emptied_says_so(operator: Visitor) -> None:
    TaskFactory()

    page = begin(operator, "cancel_tasks", queue="nowhere")

    assert page.messages == {("warning", "None of the tasks is there any more.")}


def test_the_question_counts_all_there_are(operator: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "COUNTED", 30)
    tasks = [TaskFactory() for _ in range(32)]
    data = {"action": "cancel_tasks", "select_across": "1", "_selected_action": [str(tasks[0].pk)]}

    page = Answer(operator.client.post(operator.list_url(), data))

    assert page.asks
    assert "and more than 10 other tasks" in page.html


def test_hostile_filters_are_text(operator: Visitor) -> None:
    TaskFactory(queue="<script>alert(1)</script>")

    page = begin(operator, "cancel_tasks", queue="<script>alert(1)</script>")

    assert page.told == {"1 task was canceled."}
    assert not re.search("<script>alert", page.html)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("", "all there are"),
        ("o=-3&p=2&all=", "all there are"),
        ("status=failed&age=1h&o=1", "all of the list with status: failed, age: the last hour"),
        ("q=payload%3A+x&retries=no", "all of the list with search: payload: x, retries: without retries"),
        ("worker_id=w&priority__exact=3", "all of the list with worker: w, priority__exact: 3"),
        ("error=50%25&name=charge", "all of the list with error code: 50%, name: charge"),
    ],
)
def test_which_tasks_a_job_is_about_is_told_in_words(query: str, words: str) -> None:
    assert jobs.Listed(query, str(uuid4())).described() == words


@pytest.mark.parametrize(
    ("code", "type", "words"),
    [
        ("declined", "shop.Declined", "all that failed in “charge” with declined (shop.Declined)"),
        ("declined", "", "all that failed in “charge” with declined"),
        ("", "shop.Declined", "all that failed in “charge” with shop.Declined"),
        ("", "", "all that failed in “charge” without an error code"),
    ],
)
def test_which_failures_a_job_is_about_is_told_in_words(code: str, type: str, words: str) -> None:
    assert jobs.Failing("charge", code, type, "2026-01-01T00:00:00+00:00", 1).described() == words


def test_large_numbers_are_grouped_as_the_language_does() -> None:
    with translation.override("de"):
        assert outcomes.told(outcomes.QUEUED_AGAIN, "", 123_456).startswith("123.456 ")
    assert outcomes.told(outcomes.QUEUED_AGAIN, "", 1) == "1 task was queued again."


def test_to_retry_all_is_asked_first(operator: Visitor) -> None:
    task = TaskFactory(failed=True)
    data = {"action": "retry_tasks", "select_across": "1", "_selected_action": [str(task.pk)]}

    page = Answer(operator.client.post(operator.list_url(), data))

    assert page.asks
    assert "<h1>Retry tasks</h1>" in page.html
    assert "cannot be undone" not in page.html
    assert statuses(task) == ["failed"]
