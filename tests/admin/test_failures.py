"""The pages of failures: what fails, how often, since when and why; and what can be done about it."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import translation
from django.utils.http import urlencode

from cairnq_django.admin import failures as pages
from cairnq_django.admin import jobs
from cairnq_django.admin.actions import CONFIRMED
from cairnq_django.clock import after
from cairnq_django.models import Task, TaskAttempt
from cairnq_django.statuses import AttemptOutcome
from cairnq_django.store import failures, settle
from cairnq_django.store.engine import task_database
from tests.admin.pages import Answer, Visitor
from tests.factories import TaskAttemptFactory, TaskFactory, an_error, lease_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.test import Client
    from pytest_django.fixtures import SettingsWrapper

pytestmark = pytest.mark.django_db

HOSTILE = "<script>alert('x')</script>\"&{{ 7|add:7 }}%(count)s"
DECLINED = {"type": "shop.Declined", "code": "card_declined", "message": "The card was declined", "details": None}


def declined(task: Task | None = None, **fields: Any) -> TaskAttempt:
    """An attempt to charge a card that failed and was queued again, unless more is said."""
    task = task or TaskFactory(name="charge", queue="shop", delayed=True, attempt=1)
    attempt: TaskAttempt = TaskAttemptFactory(task=task, **{"error": DECLINED, "ended_at": after(-1), **fields})
    return attempt


def list_url(visitor: Visitor) -> str:
    return reverse("admin:cairnq_django_taskattempt_changelist", current_app=visitor.site)


def open_list(visitor: Visitor, **query: str) -> Answer:
    return Answer(visitor.client.get(list_url(visitor), query))


def group_url(visitor: Visitor, name: str = "charge", code: str = "card_declined", type: str = "shop.Declined") -> str:
    url = reverse("admin:cairnq_django_taskattempt_group", current_app=visitor.site)
    return f"{url}?{urlencode({'name': name, 'code': code, 'type': type})}"


def open_group(visitor: Visitor, **kind: str) -> Answer:
    return Answer(visitor.client.get(group_url(visitor, **kind)))


def groups(answer: Answer) -> list[tuple[str, str, int, int]]:
    """Name, code, attempts and how many of them failed for good."""
    shown = [each.group for each in answer.response.context["groups"]]
    return [(group.kind.name, group.kind.code, group.attempts, group.for_good) for group in shown]


def labels(answer: Answer) -> list[str]:
    return [button["label"] for button in answer.response.context["buttons"]]


def act(visitor: Visitor, action: str, *, confirm: bool = True) -> Answer:
    """Press a button of the group's page and, if that leads to a question, say yes."""
    return visitor._post(group_url(visitor), {"action": action}, confirm=confirm)


def statuses(*tasks: Task) -> list[str]:
    return [Task.objects.get(pk=task.pk).status for task in tasks]


def test_failures_are_grouped_by_name_code_and_type(operator: Visitor) -> None:
    for _ in range(3):
        declined()
    declined(outcome=AttemptOutcome.FAILED)
    declined(error={**DECLINED, "type": "shop.Other"})
    declined(error={**DECLINED, "code": "Card_declined"})
    declined(TaskFactory(name="mail", running=True))

    answer = open_list(operator)

    assert groups(answer) == [
        ("charge", "card_declined", 4, 1),
        ("charge", "Card_declined", 1, 0),
        ("charge", "card_declined", 1, 0),
        ("mail", "card_declined", 1, 0),
    ]
    assert "7 failed attempts in the last day" in answer.html
    assert "The card was declined" in answer.html


def test_what_is_settled_as_failed_appears(operator: Visitor) -> None:
    retried, failed = TaskFactory(running=True), TaskFactory(running=True, max_attempts=1)
    for task in (retried, failed):
        settle.fail(task_database(), lease_of(task), an_error("no route"), retry_delay=60)

    answer = open_list(operator)

    assert groups(answer) == [("work", "task_error", 2, 1)]
    assert "no route" in answer.html


def test_what_was_canceled_has_not_failed(operator: Visitor) -> None:
    declined(outcome=AttemptOutcome.CANCELED)

    answer = open_list(operator)

    assert groups(answer) == []
    assert "Nothing failed in the last day." in answer.html


@pytest.mark.parametrize(("within", "found"), [("1h", 1), ("1d", 2), ("7d", 3), ("", 2), ("\x00", 2)])
def test_the_time_looked_at_can_be_chosen(operator: Visitor, within: str, found: int) -> None:
    for seconds in (60, 7_200, 3 * 86_400, 20 * 86_400):
        declined(ended_at=after(-seconds))

    assert groups(open_list(operator, within=within)) == [("charge", "card_declined", found, 0)]


def test_first_and_last_and_the_course_of_failures_are_told(operator: Visitor) -> None:
    for seconds in (60, 70, 3 * 3_600 + 60):
        declined(ended_at=after(-seconds))

    answer = open_list(operator)

    (shown,) = answer.response.context["groups"]
    assert (shown.group.counts[-1], shown.group.counts[-4], sum(shown.group.counts)) == (2, 1, 3)
    assert re.search(r"<dt>first</dt><dd><time [^>]*>3 h ago", answer.html)
    assert re.search(r"<dt>latest</dt><dd><time [^>]*>1 min ago", answer.html)
    assert "<title>At most 2 within 1 h, about 1 h ago; 2 within the latest 1 h.</title>" in answer.html
    assert len(re.findall(r"M\d+ 28v-\d+", answer.html)) == 2


def test_the_list_can_be_filtered_by_queue_and_name(operator: Visitor) -> None:
    declined()
    declined(TaskFactory(name="mail", queue="post", running=True))

    assert groups(open_list(operator, queue="post")) == [("mail", "card_declined", 1, 0)]
    assert groups(open_list(operator, name="charge")) == [("charge", "card_declined", 1, 0)]
    answer = open_list(operator, queue="nowhere")
    assert groups(answer) == []
    for offered in ("shop", "post", "nowhere", "charge", "mail"):
        assert f'<option value="{offered}"' in answer.html


def test_the_newest_attempts_alone_are_looked_at_and_the_page_says_so(
    operator: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "LOOKED_AT", 2)
    for seconds in (40, 30, 20, 10):
        declined(ended_at=after(-seconds))

    answer, group = open_list(operator), open_group(operator)

    assert groups(answer) == [("charge", "card_declined", 2, 0)]
    assert group.response.context["total"] == 2
    for page in (answer, group):
        assert "The newest 2 attempts were looked at" in page.html


def test_the_most_frequent_kinds_are_shown(operator: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "SHOWN_GROUPS", 2)
    for number, code in enumerate(("rare", "often", "sometimes"), start=1):
        for _ in range({1: 1, 2: 3, 3: 2}[number]):
            declined(error={**DECLINED, "code": code})

    answer = open_list(operator)

    assert [code for _, code, *_ in groups(answer)] == ["often", "sometimes"]
    assert "The 2 most frequent of 3 kinds of failure are shown." in answer.html


def test_the_queries_are_the_same_for_any_number_of_failures(operator: Visitor) -> None:
    def queries(url: str) -> int:
        with CaptureQueriesContext(connection) as captured:
            assert operator.client.get(url).status_code == 200
        return len(captured)

    declined()
    few = queries(list_url(operator)), queries(group_url(operator))
    for number in range(12):
        declined(error={**DECLINED, "code": f"code {number}"})
        declined()

    assert (queries(list_url(operator)), queries(group_url(operator))) == few


def test_a_group_shows_its_tasks_as_they_are_now_and_the_latest_error(operator: Visitor) -> None:
    waiting = TaskFactory(name="charge", queue="shop", delayed=True, attempt=2)
    declined(waiting, number=1, ended_at=after(-30))
    declined(waiting, number=2, ended_at=after(-20))
    succeeded = TaskFactory(name="charge", queue="shop", succeeded=True, attempt=2)
    traced = {**DECLINED, "message": "The bank is closed", "details": {"traceback": "Traceback: line 7"}}
    declined(succeeded, ended_at=after(-10), error=traced)
    other = TaskFactory(name="charge", failed=True)

    answer = open_group(operator)

    assert [each["task"] for each in answer.response.context["page"].tasks] == [succeeded, waiting]
    assert [each["times"] for each in answer.response.context["page"].tasks] == [1, 2]
    assert "2 tasks failed in this way in the last day" in answer.html
    assert re.search(r"3 failed attempts, the first <time [^>]*>\d+ s ago", answer.html)
    assert "The bank is closed" in answer.html
    assert "Traceback: line 7" in answer.html
    for task in (succeeded, waiting):
        assert f'href="{operator.page_url(task)}"' in answer.html
    assert str(other.pk) not in answer.html


def test_a_group_of_many_tasks_has_pages(operator: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "SHOWN_TASKS", 2)
    tasks = [declined(ended_at=after(seconds - 60)).task for seconds in range(5)]

    seen = []
    for number in ("1", "2", "3"):
        answer = Answer(operator.client.get(group_url(operator) + f"&p={number}"))
        seen += [each["task"] for each in answer.response.context["page"].tasks]

    assert seen == tasks[::-1]
    assert "3 / 3" in answer.html
    assert Answer(operator.client.get(group_url(operator) + "&p=x")).status == 200


def test_all_failed_tasks_of_a_group_can_be_retried(operator: Visitor) -> None:
    failed = [TaskFactory(name="charge", failed=True, error=DECLINED) for _ in range(3)]
    for task in failed:
        TaskAttempt.objects.filter(task=task).update(error_code="card_declined", error_type="shop.Declined")
    waiting = declined().task
    elsewhere = TaskFactory(name="charge", failed=True)
    assert labels(open_group(operator)) == ["Retry all 3 failed tasks", "Cancel the 1 live task"]

    page = act(operator, "retry_tasks")

    assert page.job_is_finished
    assert page.told == {"3 tasks were queued again."}
    assert statuses(*failed, waiting, elsewhere) == ["queued"] * 4 + ["failed"]
    (entry,) = LogEntry.objects.all()
    assert entry.get_change_message() == (
        "3 tasks were queued again. Retry tasks: all that failed in “charge” with card_declined (shop.Declined)"
    )
    assert group_url(operator).replace("&", "&amp;") in page.html


def test_what_failed_in_another_way_since_is_left_alone(operator: Visitor) -> None:
    now_otherwise = declined(number=1).task
    declined(now_otherwise, number=2, error={**DECLINED, "code": "bad_input"}, outcome=AttemptOutcome.FAILED)
    failed = TaskFactory(name="charge", failed=True)
    columns = ("status", "error", "started_at", "completed_at", "lease_until")
    Task.objects.filter(pk=now_otherwise.pk).update(**{column: getattr(failed, column) for column in columns})
    failed.delete()
    # In this way again, after another.
    so_again = declined(number=1).task
    declined(so_again, number=2, error={**DECLINED, "code": "bad_input"})
    declined(so_again, number=3)

    answer = open_group(operator)

    assert labels(answer) == ["Cancel the 1 live task"]
    assert "1 of them has failed in another way since and is left alone." in answer.html
    assert act(operator, "retry_tasks").messages == {
        ("warning", "None of the tasks is in a state for this any more."),
    }
    assert act(operator, "cancel_tasks").told == {"1 task was canceled."}
    assert statuses(now_otherwise, so_again) == ["failed", "canceled"]


def test_a_job_leaves_alone_what_failed_in_another_way_since(operator: Visitor) -> None:
    waiting, otherwise = declined().task, declined().task
    form = act(operator, "cancel_tasks", confirm=False).question
    declined(otherwise, number=2, error={**DECLINED, "type": "shop.Other"})

    data = {**form.hidden_lists, **form.button(form.labels[0])}
    page = Answer(operator.client.post(group_url(operator), data, follow=True))

    assert page.told == {"1 task was canceled."}
    assert statuses(waiting, otherwise) == ["canceled", "queued"]


def test_all_live_tasks_of_a_group_can_be_canceled_after_a_question(operator: Visitor) -> None:
    waiting = declined().task
    running = declined(TaskFactory(name="charge", running=True, attempt=2)).task
    ended = declined(TaskFactory(name="charge", succeeded=True)).task
    other = TaskFactory(name="charge")

    question = act(operator, "cancel_tasks", confirm=False)

    assert question.asks
    assert "<h1>Cancel tasks</h1>" in question.html
    assert str(waiting.pk) in question.html
    assert statuses(waiting) == ["queued"]

    form = question.question
    data = {**form.hidden_lists, **form.button(form.labels[0])}
    page = Answer(operator.client.post(group_url(operator), data, follow=True))

    assert page.told == {
        "1 task was canceled.",
        "1 running task was asked to stop and will end canceled.",
    }
    assert statuses(waiting, running, ended, other) == ["canceled", "running", "succeeded", "queued"]


def test_a_yes_is_to_the_tasks_that_had_failed_when_it_was_asked(operator: Visitor) -> None:
    waiting = declined().task
    form = act(operator, "cancel_tasks", confirm=False).question
    late = declined().task

    data = {**form.hidden_lists, **form.button(form.labels[0])}
    page = Answer(operator.client.post(group_url(operator), data, follow=True))

    assert page.told == {"1 task was canceled."}
    assert statuses(waiting, late) == ["canceled", "queued"]


def test_a_group_is_worked_on_in_chunks_each_task_once(operator: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "CHUNK", 2)
    tasks = [TaskFactory(name="charge", delayed=True, attempt=2) for _ in range(5)]
    for number in (1, 2):
        for task in tasks:
            declined(task, number=number)

    page = act(operator, "cancel_tasks")
    assert page.told == {"2 tasks were canceled."}
    assert "2 of 5 tasks looked at" in page.html
    late = declined().task
    for _ in range(2):
        page = Answer(operator.client.post(page.response.request["PATH_INFO"], page.job_form.hidden, follow=True))

    assert page.job_is_finished
    assert page.told == {"5 tasks were canceled."}
    assert statuses(*tasks, late) == ["canceled"] * 5 + ["queued"]


def test_a_group_with_nothing_left_to_do_says_so(operator: Visitor) -> None:
    task = declined().task
    Task.objects.filter(pk=task.pk).update(status="succeeded", completed_at=task.created_at)

    for action in ("retry_tasks", "cancel_tasks"):
        answer = act(operator, action)
        assert answer.messages == {("warning", "None of the tasks is in a state for this any more.")}
    assert not LogEntry.objects.exists()


def test_view_only_users_see_everything_and_can_do_nothing(log_in: Callable[..., Visitor]) -> None:
    visitor = log_in("view_task")
    task = declined().task

    answer = open_group(visitor)

    assert answer.status == open_list(visitor).status == 200
    assert labels(answer) == []
    for action in ("cancel_tasks", "retry_tasks", "delete_selected", ""):
        data = {"action": action, CONFIRMED: "yes"}
        assert visitor.client.post(group_url(visitor), data).status_code == 403
    assert statuses(task) == ["queued"]


@pytest.mark.parametrize(("permission", "label"), [("cancel_task", "Cancel the 1"), ("retry_task", "Retry the 1")])
def test_each_button_has_its_own_permission(log_in: Callable[..., Visitor], permission: str, label: str) -> None:
    visitor = log_in("view_task", permission)
    declined()
    declined(TaskFactory(name="charge", failed=True), number=3, outcome=AttemptOutcome.FAILED)

    (shown,) = labels(open_group(visitor))

    assert shown.startswith(label)


def test_nobody_without_permission_sees_failures(log_in: Callable[..., Visitor]) -> None:
    visitor = log_in("cancel_task", "retry_task")

    assert (open_list(visitor).status, open_group(visitor).status) == (403, 403)
    assert "taskattempt" not in visitor.client.get("/admin/").content.decode()


def test_the_admin_s_menu_leads_to_failures(operator: Visitor) -> None:
    menu = operator.client.get("/admin/").content.decode()

    assert f'href="{list_url(operator)}"' in menu
    assert "Failures" in menu


def test_html_in_a_row_is_text(operator: Visitor) -> None:
    envelope = {"type": HOSTILE, "code": HOSTILE, "message": HOSTILE, "details": {"traceback": HOSTILE}}
    task = TaskFactory(name=HOSTILE, queue=HOSTILE, delayed=True, attempt=1)
    declined(task, error=envelope, worker_id=HOSTILE)
    declined()

    rows = open_list(operator, queue=HOSTILE)
    group = open_group(operator, name=HOSTILE, code=HOSTILE, type=HOSTILE)
    url = group_url(operator, name=HOSTILE, code=HOSTILE, type=HOSTILE)
    job = operator._post(url, {"action": "cancel_tasks"}, confirm=True)

    assert groups(rows) == [(HOSTILE, HOSTILE, 1, 0)]
    assert group.response.context["total"] == 1
    assert job.told == {"1 task was canceled."}
    for answer in (rows, group, job):
        assert "&lt;script&gt;alert" in answer.html
        assert "<script>alert" not in answer.html


@pytest.mark.parametrize(
    "envelope",
    [{}, [], "just text", 7, {"message": {"en": "no"}, "code": 404, "type": None}, {"message": "\x1b[3"}],
)
def test_an_error_written_by_another_version_is_shown(operator: Visitor, envelope: Any) -> None:
    declined(error=envelope)

    assert groups(open_list(operator)) == [("charge", "", 1, 0)]
    assert open_group(operator, code="", type="").response.context["total"] == 1


@pytest.mark.parametrize("kind", [{"name": "\x00"}, {"code": "x" * 3_000}, {"type": "\ud800"}, {"name": ""}])
def test_a_kind_that_nothing_has_is_an_empty_page(operator: Visitor, kind: dict[str, str]) -> None:
    declined()
    kind = {field: value.encode("utf-8", "replace").decode() for field, value in kind.items()}

    answer = open_group(operator, **kind)

    assert answer.status == 200
    assert "Nothing failed in this way" in answer.html


def test_large_errors_are_not_read_whole(operator: Visitor) -> None:
    declined(error={**DECLINED, "message": "m" * 3_000_000})

    rows, group = open_list(operator), open_group(operator)

    assert (rows.status, group.status) == (200, 200)
    assert len(rows.html) < 50_000
    assert len(group.html) < 300_000


def test_no_handler_is_asked_for(operator: Visitor) -> None:
    modules = set(sys.modules)
    declined(TaskFactory(name="gone.module.handler", running=True))

    assert groups(open_list(operator)) == [("gone.module.handler", "card_declined", 1, 0)]
    assert open_group(operator, name="gone.module.handler").response.context["total"] == 1
    assert not [name for name in set(sys.modules) - modules if "handler" in name]


@pytest.mark.parametrize("language", ["de", "ar"])
def test_the_pages_work_in_other_languages(operator: Visitor, language: str) -> None:
    declined()

    with translation.override(language):
        assert (open_list(operator).status, open_group(operator).status) == (200, 200)


@pytest.mark.urls("tests.admin.urls")
def test_links_stay_on_the_admin_site_they_are_on(operator: Visitor, client: Client) -> None:
    visitor = Visitor(client, site="back_office")
    declined()

    for answer in (open_list(visitor), open_group(visitor), act(visitor, "cancel_tasks")):
        assert answer.response.request["PATH_INFO"].startswith("/back-office/")
        assert '="/admin/' not in answer.html


def test_getting_a_page_changes_nothing(operator: Visitor) -> None:
    task = declined().task

    operator.client.get(group_url(operator) + "&action=cancel_tasks&confirmed=yes")

    assert statuses(task) == ["queued"]
    assert operator.client.post(list_url(operator), {}).status_code == 405


@pytest.mark.django_db(databases=["default", "dedicated"])
def test_tasks_may_live_on_another_database(operator: Visitor, settings: SettingsWrapper) -> None:
    settings.DATABASE_ROUTERS = ["tests.admin.test_any_row.DedicatedRouter"]
    task = declined().task
    assert Task.objects.using("default").count() == 0

    assert groups(open_list(operator)) == [("charge", "card_declined", 1, 0)]
    assert open_group(operator).response.context["total"] == 1
    assert act(operator, "cancel_tasks").told == {"1 task was canceled."}
    assert Task.objects.using("dedicated").get(pk=task.pk).canceled
    assert LogEntry.objects.using("default").count() == 1
