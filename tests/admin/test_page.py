"""The page of one task: everything there is to know about it, and nothing to edit."""

from __future__ import annotations

import html
import json
import re
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.timezone import override

from cairnq_django.admin import task as task_admin
from cairnq_django.admin import timeline
from cairnq_django.admin.actions import ACTIONS, CONFIRMED
from cairnq_django.clock import Now, after
from cairnq_django.models import Task
from cairnq_django.store.engine import task_database
from cairnq_django.store.maintenance import expire
from tests.admin.pages import Answer
from tests.factories import TaskAttemptFactory, TaskFactory, WorkerProcessFactory

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.admin.pages import Visitor

pytestmark = pytest.mark.django_db

TRACEBACK = 'Traceback (most recent call last):\n  File "tasks.py", line 1, in work\n    1 / 0\nZeroDivisionError\n'


def envelope(message: str, **fields: Any) -> dict[str, Any]:
    details = {"traceback": TRACEBACK}
    return {
        "type": "ZeroDivisionError",
        "code": "oops",
        "message": message,
        "retryable": True,
        "details": details,
        **fields,
    }


def field_html(page: str, name: str) -> str | None:
    """What the page shows in a field; None if it does not have it."""
    alone_in_its_row = rf'form-row field-{name}">\s*(?:<div[^>]*>\s*)*'
    beside_others = rf'field-{name}[ "][^>]*>\s*'
    found = re.search(
        rf'(?:{alone_in_its_row}|{beside_others})<label.*?</label>\s*<div class="readonly">(.*?)</div>', page, re.DOTALL
    )
    return found[1] if found else None


def field(page: str, name: str) -> str | None:
    shown = field_html(page, name)
    return None if shown is None else text_of(shown)


def events(page: str) -> list[str]:
    """What the page's timeline tells, event by event, without the errors."""
    timeline = page.partition('<ol class="cairnq-timeline">')[2].partition("</ol>")[0]
    told = [item.partition("<section")[0] for item in timeline.split("</li>")[:-1]]
    return [re.sub(r" \(in .*?\)| \(.*? ago\)", "", text_of(event)) for event in told]


def text_of(markup: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", markup)).split())


def code_blocks(page: str) -> list[str]:
    return [html.unescape(block) for block in re.findall(r"<pre[^>]*>(.*?)</pre>", page, re.DOTALL)]


def test_payload_result_and_metadata_are_laid_out(operator: Visitor) -> None:
    task = TaskFactory(succeeded=True, payload={"lines": [1, "ü"]}, result={"sent": True}, metadata={"by": "shop"})

    blocks = code_blocks(operator.open_page(task).html)

    assert blocks == ['{\n  "lines": [\n    1,\n    "ü"\n  ]\n}', '{\n  "sent": true\n}', '{\n  "by": "shop"\n}']


def test_what_is_not_there_takes_no_room(operator: Visitor) -> None:
    page = operator.open_page(TaskFactory()).html

    for name in ("took", "key_link", "correlation_link", "parent_link", "root_link", "progress_bar", "last_error"):
        assert field(page, name) is None
    assert field(page, "children") is None
    assert code_blocks(page) == ["null"]


def test_a_queued_task_says_if_nobody_would_run_it(operator: Visitor) -> None:
    task = TaskFactory(name="renamed")

    def state() -> str | None:
        return field(operator.open_page(task).html, "state")

    assert state() == "queued No live worker serves this queue."
    WorkerProcessFactory(names=["work"])
    WorkerProcessFactory(id="draining", names=["renamed"], draining=True)
    assert state() == "queued No live worker runs this name."
    WorkerProcessFactory(id="new", names=["renamed"])
    assert state() == "queued"
    assert field(operator.open_page(TaskFactory(name="old", failed=True)).html, "state") == "failed"


def test_the_error_is_taken_apart_and_its_traceback_kept_as_it_is(operator: Visitor) -> None:
    details = {"traceback": TRACEBACK, "row": 7}
    task = TaskFactory(failed=True, error=envelope("Division by zero", details=details))

    page = operator.open_page(task).html

    assert "Division by zero" in page
    assert "<code>oops</code>" in page
    assert "<code>ZeroDivisionError</code>" in page
    assert TRACEBACK in code_blocks(page)
    assert '{\n  "row": 7\n}' in code_blocks(page)


BEGAN = datetime(2026, 3, 1, 12, 0, tzinfo=timezone.utc)


def test_the_life_of_a_task_is_told_from_its_beginning_to_its_end(operator: Visitor) -> None:
    task = TaskFactory(
        succeeded=True,
        attempt=3,
        created_at=BEGAN,
        run_at=BEGAN.replace(minute=5),
        started_at=BEGAN.replace(minute=5, second=1),
        completed_at=BEGAN.replace(minute=6),
        worker_id="host-3",
    )
    for number in (1, 2):
        TaskAttemptFactory(
            task=task,
            number=number,
            worker_id=f"host-{number}",
            started_at=BEGAN.replace(minute=number),
            ended_at=BEGAN.replace(minute=number, second=42),
            error=envelope(f"failure {number}"),
        )

    with override("UTC"):
        page = operator.open_page(task).html

    assert events(page) == [
        "Submitted March 1, 2026, 12:00:00",
        "Attempt 1: queued again March 1, 2026, 12:01:00 claimed by host-1 ended after 42 s",
        "Attempt 2: queued again March 1, 2026, 12:02:00 claimed by host-2 ended after 42 s",
        "Due March 1, 2026, 12:05:00",
        "Attempt 3: succeeded March 1, 2026, 12:05:01 claimed by host-3",
        "Succeeded March 1, 2026, 12:06:00 6 min after it was submitted",
    ]
    assert re.findall(r"failure \d", page) == ["failure 1", "failure 2"]
    assert code_blocks(page).count(TRACEBACK) == 2
    regions = re.findall('role="region" aria-label="([^"]*)"', page)
    assert len(regions) == len(set(regions)), regions


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ({}, ["Submitted", "Due"]),
        ({"delayed": True}, ["Submitted", "Due"]),
        ({"running": True}, ["Submitted", "Due", "Attempt 1: running"]),
        ({"cancel_requested": True}, ["Submitted", "Due", "Attempt 1: running", "Cancel requested"]),
        ({"running": True, "started_at": None}, ["Submitted", "Due", "Attempt 1: running"]),
        ({"succeeded": True}, ["Submitted", "Due", "Attempt 1: succeeded", "Succeeded"]),
        ({"canceled": True}, ["Submitted", "Due", "Canceled"]),
        ({"canceled": True, "started_at": BEGAN}, ["Attempt 0: began", "Submitted", "Due", "Canceled"]),
        (
            {"failed": True, "attempt": 1},
            ["Attempt 1: failed for good", "Submitted", "Due", "Failed"],
        ),
    ],
)
def test_the_timeline_tells_what_is_known(operator: Visitor, state: dict[str, Any], told: list[str]) -> None:
    if "started_at" not in state and state.keys() & {"running", "cancel_requested", "succeeded", "failed"}:
        state = {**state, "started_at": Now()}

    lines = events(operator.open_page(TaskFactory(**state)).html)

    assert [re.split(r" (?:[A-Z][a-z]+\.? \d+, \d{4}|claimed)", line)[0] for line in lines] == told


def test_attempts_that_count_again_from_the_beginning_follow_those_before(operator: Visitor) -> None:
    task = TaskFactory()
    for minute, number in enumerate((1, 2, 1), start=1):
        when = BEGAN.replace(minute=minute)
        TaskAttemptFactory(task=task, number=number, started_at=when, ended_at=when)

    lines = events(operator.open_page(task).html)

    assert [line[:9] for line in lines if line.startswith("Attempt")] == ["Attempt 1", "Attempt 2", "Attempt 1"]


def test_of_very_many_attempts_the_latest_are_shown(operator: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "SHOWN_ATTEMPTS", 2)
    task = TaskFactory(succeeded=True)
    for number in range(1, 6):
        TaskAttemptFactory(task=task, number=number, ended_at=after(number - 10))

    page = operator.open_page(task).html

    assert [line[:9] for line in events(page) if "claimed by" in line][:2] == ["Attempt 4", "Attempt 5"]
    assert "The latest 2 of 5 attempts" in page


def test_the_progress_of_a_running_task_is_shown(operator: Visitor) -> None:
    page = operator.open_page(TaskFactory(running=True, progress=0.426, message="page 21")).html

    assert '<progress value="0.426" max="1" aria-label="progress">' in page
    assert field(page, "progress_bar") == "43 %"
    assert field(page, "message_text") == "page 21"


def test_times_are_local_with_the_exact_one_at_hand(operator: Visitor) -> None:
    task = TaskFactory(created_at=datetime(2026, 3, 1, 23, 30, 15, 123456, tzinfo=timezone.utc))

    with override("Asia/Tokyo"):
        page = operator.open_page(task).html

    assert 'title="2026-03-02T08:30:15.123456+09:00">March 2, 2026, 08:30:15</time>' in page


def test_relatives_key_and_correlation_id_are_links(operator: Visitor) -> None:
    root = TaskFactory(name="the_root")
    parent = TaskFactory(name="the_parent", root_id=root.pk, parent_id=root.pk)
    task = TaskFactory(parent_id=parent.pk, root_id=root.pk, key="a key&", correlation_id="request/7")
    page = operator.open_page(task).html

    for name, other in (("parent_link", parent), ("root_link", root)):
        assert field(page, name) == f"{other.name} {other.pk}"
        assert f'href="{operator.page_url(other)}"' in page
    for name, text in (("key_link", "a key&"), ("correlation_link", "request/7")):
        assert field(page, name) == text
        (link,) = re.findall('href="([^"]*)"', field_html(page, name) or "")
        assert Answer(operator.client.get(html.unescape(link))).tasks == [task]


def test_a_relative_that_was_purged_is_no_link(operator: Visitor) -> None:
    gone = uuid4()

    page = operator.open_page(TaskFactory(parent_id=gone, root_id=gone)).html

    assert field(page, "parent_link") == f"{gone} (no longer there)"


def test_a_root_that_was_purged_is_no_link(operator: Visitor) -> None:
    gone = uuid4()
    parent = TaskFactory(root_id=gone, parent_id=gone)

    page = operator.open_page(TaskFactory(parent_id=parent.pk, root_id=gone)).html

    assert field(page, "parent_link") == f"{parent.name} {parent.pk}"
    assert field(page, "root_link") == f"{gone} (no longer there)"


def test_children_are_links_the_oldest_first(operator: Visitor) -> None:
    task = TaskFactory(succeeded=True)
    children = [
        TaskFactory(parent_id=task.pk, root_id=task.pk, name=f"child_{state}", **{state: True})
        for state in ("failed", "cancel_requested", "canceled")
    ]
    TaskFactory(parent_id=children[0].pk, root_id=task.pk)
    TaskFactory()

    page = operator.open_page(task).html

    assert field(page, "children") == "3 children. Status Task " + " ".join(
        f"{status} {child.name} {child.pk}"
        for status, child in zip(("failed", "running cancel requested", "canceled"), children, strict=True)
    )
    for child in children:
        assert f'href="{operator.page_url(child)}"' in (field_html(page, "children") or "")


def test_a_single_child_is_no_children(operator: Visitor) -> None:
    task = TaskFactory()
    TaskFactory(parent_id=task.pk, root_id=task.pk)

    assert (field(operator.open_page(task).html, "children") or "").startswith("1 child. Status")


def test_of_very_many_children_the_oldest_are_shown(operator: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_admin, "SHOWN_CHILDREN", 2)
    task = TaskFactory()
    names = [TaskFactory(parent_id=task.pk, root_id=task.pk, name=f"child_{n}").name for n in range(4)]

    shown = field(operator.open_page(task).html, "children") or ""

    assert shown.startswith("4 children. The oldest 2 are shown.")
    assert re.findall(r"child_\d", shown) == names[:2]
    monkeypatch.setattr(task_admin, "COUNTED", 3)
    shown = field(operator.open_page(task).html, "children") or ""
    assert shown.startswith("More than 3 children. The oldest 2 are shown.")


def test_the_queries_are_the_same_for_any_number_of_children(
    operator: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_admin, "SHOWN_CHILDREN", 10)
    childless, with_some, with_many = TaskFactory(), TaskFactory(), TaskFactory()
    for task, number in ((with_some, 9), (with_many, 30)):
        for _ in range(number):
            TaskFactory(parent_id=task.pk, root_id=task.pk)

    assert queries_for(operator, with_some) == queries_for(operator, childless)
    assert queries_for(operator, with_many) == queries_for(operator, childless) + 1, "they are counted"


def test_when_a_task_expires_is_shown_until_it_starts(operator: Visitor) -> None:
    task = TaskFactory(expires_at=datetime(2126, 3, 1, 12, 0, tzinfo=timezone.utc))

    with override("UTC"):
        page = operator.open_page(task).html

    assert events(page)[-1] == "Expires unless it has started March 1, 2126, 12:00:00"


def test_the_error_of_a_task_that_expired_is_shown(operator: Visitor) -> None:
    task = TaskFactory(too_late=True)
    expire(task_database())

    page = operator.open_page(task).html

    assert field(page, "state") == "canceled"
    assert not [line for line in events(page) if line.startswith("Expires")]
    assert (field(page, "last_error") or "").startswith("The task expired at ")
    assert "<code>expired</code>" in page


def test_the_queries_are_the_same_for_any_number_of_attempts(operator: Visitor) -> None:
    few, many = TaskFactory(failed=True, attempt=1), TaskFactory(failed=True, attempt=20)

    assert queries_for(operator, many) == queries_for(operator, few)


def test_a_task_that_is_gone_leads_back_with_a_word(operator: Visitor) -> None:
    task = TaskFactory()
    Task.objects.filter(pk=task.pk).delete()

    assert operator.open_page(task).status == 302


def test_nothing_can_be_edited_added_or_deleted(operator: Visitor) -> None:
    task = TaskFactory()
    url = operator.page_url(task)

    assert operator.client.post(url, {"name": "other", "_save": "Save"}).status_code == 403
    assert operator.client.post(url).status_code == 403
    assert operator.client.post(url.replace("change", "delete"), {"post": "yes"}).status_code == 403
    assert operator.client.get(operator.list_url() + "add/").status_code == 403
    assert '<input type="text"' not in operator.open_page(task).html
    assert row_of(Task.objects.get()) == row_of(task)


def test_looking_changes_nothing(operator: Visitor) -> None:
    task = TaskFactory(failed=True)
    before = row_of(Task.objects.get())

    for action in ACTIONS:
        data = {"_selected_action": str(task.pk), CONFIRMED: "yes"}
        operator.open_list(action=action.__name__, **data)
        operator.client.get(operator.page_url(task), {"CHANGE_FORM-action": action.__name__, **data})
    for url in (operator.page_url(task), live_url(operator, task), download_url(operator, task, "payload")):
        assert operator.client.get(url).status_code == 200

    assert row_of(Task.objects.get()) == before
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize("state", [{}, {"running": True}, {"failed": True}, {"succeeded": True}, {"canceled": True}])
def test_who_may_only_view_sees_everything_and_can_do_nothing(
    log_in: Callable[..., Visitor], state: dict[str, object]
) -> None:
    visitor = log_in("view_task")
    task = TaskFactory(**state, payload={"shown": "to all"})
    before = row_of(Task.objects.get())

    page = visitor.open_page(task)

    assert code_blocks(page.html)[-1] == '{\n  "shown": "to all"\n}'
    assert page.form.labels == []
    assert "action-select" not in visitor.open_list().html
    for action in ACTIONS:
        name = action.__name__
        data = {"_selected_action": str(task.pk), CONFIRMED: "yes"}
        page_data = {"CHANGE_FORM-action": name, **data}
        assert visitor.client.post(visitor.page_url(task), page_data).status_code == 403
        visitor.client.post(visitor.list_url(), {"action": name, **data})
    assert row_of(Task.objects.get()) == before


def test_nobody_without_permission_sees_the_page(log_in: Callable[..., Visitor]) -> None:
    visitor = log_in("cancel_task", "retry_task")
    task = TaskFactory()
    data = {"CHANGE_FORM-action": "cancel_tasks", "_selected_action": str(task.pk)}

    assert visitor.open_page(task).status == 403
    assert visitor.client.post(visitor.page_url(task), data).status_code == 403
    assert Task.objects.get().is_queued


def row_of(task: Task) -> dict[str, Any]:
    return {column.attname: getattr(task, column.attname) for column in Task._meta.concrete_fields}


def queries_for(visitor: Visitor, task: Task) -> int:
    # The first page of a process asks for content types, which are remembered.
    visitor.open_page(task)
    with CaptureQueriesContext(connection) as captured:
        visitor.open_page(task)
    return len(captured)


@pytest.mark.parametrize("column", ["payload", "result", "metadata", "error"])
def test_json_can_be_downloaded_whole(log_in: Callable[..., Visitor], column: str) -> None:
    visitor = log_in("view_task")
    value = {"<b>": ["ü", 1.5, None], "long": "x" * 300_000}
    task = TaskFactory(failed=True, **{column: value})
    assert f'href="{download_url(visitor, task, column)}"' in visitor.open_page(task).html

    response = visitor.client.get(download_url(visitor, task, column))

    assert response.status_code == 200
    assert response["Content-Type"] == "application/json"
    assert response["Content-Disposition"] == f'attachment; filename="{task.pk}-{column}.json"'
    assert response["X-Content-Type-Options"] == "nosniff"
    assert json.loads(response.content) == value


def test_no_value_downloads_as_null(operator: Visitor) -> None:
    response = operator.client.get(download_url(operator, TaskFactory(), "result"))

    assert json.loads(response.content) is None


def test_only_who_may_view_tasks_downloads_their_json(log_in: Callable[..., Visitor]) -> None:
    task = TaskFactory(payload="secret")
    visitor = log_in("cancel_task")

    urls = (download_url(visitor, task, "payload"), live_url(visitor, task))

    assert [visitor.client.get(url).status_code for url in urls] == [403, 403]
    visitor.client.logout()
    assert [visitor.client.get(url).status_code for url in urls] == [302, 302]


def test_there_is_nothing_else_to_download_and_nothing_to_post(operator: Visitor) -> None:
    task = TaskFactory()

    assert operator.client.get(download_url(operator, task, "worker_id")).status_code == 404
    for url in (download_url(operator, task, "payload"), live_url(operator, task)):
        assert operator.client.post(url).status_code == 405
    task.delete()
    for url in (download_url(operator, Task(pk=uuid4()), "payload"), live_url(operator, Task(pk=uuid4()))):
        assert operator.client.get(url).status_code == 404


def test_the_page_of_a_live_task_can_be_followed(operator: Visitor) -> None:
    task = TaskFactory(running=True, progress=0.25, message="<page 1>")
    followed = followed_version(operator.open_page(task).html)

    state = operator.client.get(live_url(operator, task)).json()

    assert state.pop("took")
    assert state == {
        "version": followed,
        "ended": False,
        "progress": 0.25,
        "percent": "25\u00a0%",
        "message": "<page 1>",
    }
    Task.objects.filter(pk=task.pk).update(progress=0.5)
    state = operator.client.get(live_url(operator, task)).json()
    assert (state["version"], state["progress"]) == (followed, 0.5)
    Task.objects.filter(pk=task.pk).update(cancel_requested_at=Now())
    assert operator.client.get(live_url(operator, task)).json()["version"] != followed


@pytest.mark.parametrize("state", ["succeeded", "failed", "canceled"])
def test_a_task_that_has_ended_is_not_followed(operator: Visitor, state: str) -> None:
    task = TaskFactory(**{state: True})

    assert "cairnq-live" not in operator.open_page(task).html.replace("cairnq_django/live.js", "")
    assert operator.client.get(live_url(operator, task)).json()["ended"]


def test_the_pages_work_under_a_strict_content_security_policy(operator: Visitor) -> None:
    task = TaskFactory(running=True, progress=0.5, payload={"a": [1]})
    failed = TaskFactory(failed=True, error=envelope("boom"))
    pages = [
        operator.open_page(task),
        operator.open_page(failed),
        operator.open_list(),
        operator.press("Cancel task", task, confirm=False),
    ]

    for page in pages:
        assert re.findall(r"<style|\sstyle=|\son\w+=|javascript:", page.html) == []
        assert [tag for tag in re.findall(r"<script[^>]*>", page.html) if "src=" not in tag] == []


def followed_version(page: str) -> str:
    (version,) = re.findall('data-version="([^"]*)"', page)
    return html.unescape(version)


def live_url(visitor: Visitor, task: Task) -> str:
    return reverse("admin:cairnq_django_task_live", args=[task.pk], current_app=visitor.site)


def download_url(visitor: Visitor, task: Task, column: str) -> str:
    return reverse("admin:cairnq_django_task_download", args=[task.pk, column], current_app=visitor.site)
