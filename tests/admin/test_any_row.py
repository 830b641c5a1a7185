"""Whatever a row holds, and wherever it lives, the pages show it: escaped, cut to a size, with an answer of 200."""

from __future__ import annotations

import json
import re
import sys
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import translation
from django.utils.safestring import mark_safe

from cairnq_django.admin import changelist
from cairnq_django.admin.documents import SHOWN as SHOWN_JSON
from cairnq_django.clock import after
from cairnq_django.models import Task, TaskAttempt
from cairnq_django.registry import TaskDef
from cairnq_django.store.engine import json_depth
from tests.admin.pages import Visitor
from tests.factories import TaskAttemptFactory, TaskFactory

if TYPE_CHECKING:
    from django.test import Client
    from pytest_django.fixtures import SettingsWrapper

pytestmark = pytest.mark.django_db

HOSTILE = "<script>alert('x')</script>\"&{{ 7|add:7 }}%(count)s"


def test_html_in_a_row_is_text(operator: Visitor) -> None:
    envelope = {
        "type": HOSTILE,
        "code": HOSTILE,
        "message": HOSTILE,
        "details": {"traceback": HOSTILE, HOSTILE: HOSTILE},
        HOSTILE: HOSTILE,
    }
    parent = TaskFactory(name=HOSTILE)
    task = TaskFactory(
        failed=True,
        name=HOSTILE,
        queue=HOSTILE,
        key=HOSTILE,
        correlation_id=HOSTILE,
        worker_id=HOSTILE,
        message=HOSTILE,
        payload={HOSTILE: [HOSTILE]},
        result=HOSTILE,
        metadata={HOSTILE: HOSTILE},
        error=envelope,
        parent_id=parent.pk,
        root_id=parent.pk,
    )
    TaskAttemptFactory(task=task, worker_id=HOSTILE, error=envelope)

    page, page_of_parent = operator.open_page(task), operator.open_page(parent)
    rows = operator.open_list(q=HOSTILE, name=HOSTILE, queue=HOSTILE)
    retried = operator.press("Retry task", task)

    assert rows.tasks == [task]
    for answer in (page, page_of_parent, rows, retried):
        assert answer.status == 200
        assert "&lt;script&gt;alert" in answer.html
        assert "<script>alert" not in answer.html


def test_two_megabytes_of_json_are_cut_with_a_note(operator: Visitor) -> None:
    task = TaskFactory(succeeded=True, payload={f"item {i}": ["<b>", i] for i in range(90_000)})
    assert len(json.dumps(task.payload)) > 2_000_000

    began = time.monotonic()
    page = operator.open_page(task)

    assert page.status == 200
    assert time.monotonic() - began < 5
    assert len(page.html) < 3 * SHOWN_JSON
    assert re.search(r"Cut after 50,000 characters; the whole value takes 2\.\d.MB\.", page.html)


def test_a_text_of_two_megabytes_is_cut_as_well(operator: Visitor) -> None:
    page = operator.open_page(TaskFactory(payload="x" * 2_000_000))

    assert page.html.count("x") < SHOWN_JSON + 1_000
    assert "Cut after" in page.html


def test_deep_json_is_shown(operator: Visitor) -> None:
    deep: Any = "bottom"
    for _ in range(min(300, json_depth("default") - 1)):
        deep = [deep]
    task = TaskFactory(failed=True, payload=deep, error={"details": deep})

    page = operator.open_page(task)

    assert page.status == 200
    assert "bottom" in page.html or "Cut after" in page.html
    assert operator.open_list().status == 200


@pytest.mark.parametrize("column", ["payload", "error"])
def test_twenty_megabytes_are_never_read_whole(operator: Visitor, column: str) -> None:
    # What one packet to MySQL may take, by default, is 16 MB.
    size = 8_000_000 if connection.vendor == "mysql" else 20_000_000
    task = TaskFactory(failed=True, **{column: {"code": "big", "bytes": "x" * size}})
    TaskAttempt.objects.filter(task=task).update(error={"message": "y" * size})

    with CaptureQueriesContext(connection) as captured:
        page, rows = operator.open_page(task), operator.open_list()

    assert (page.status, rows.status, rows.tasks) == (200, 200, [task])
    assert f"the whole value takes {size / 2**20:.1f}" in page.html
    assert len(page.html) < 600_000
    json = "|".join(connection.ops.quote_name(each) for each in ("payload", "result", "metadata", "error"))
    read_whole = re.compile(rf"(?:SELECT|,) {connection.ops.quote_name('cairnq_django_task')}\.(?:{json})(?:,| FROM)")
    assert [query["sql"] for query in captured if read_whole.search(query["sql"])] == []


@pytest.mark.parametrize("column", ["payload", "result", "error"])
def test_json_deeper_than_python_reads_is_shown(operator: Visitor, column: str) -> None:
    depth = min(900, json_depth("default") if connection.vendor == "mysql" else 900)
    task = TaskFactory(failed=True)
    write_text(task, column, "[" * depth + '"bottom"' + "]" * depth)

    page = operator.open_page(task)

    assert (page.status, operator.open_list().status) == (200, 200)
    assert "bottom" in page.html


@pytest.mark.parametrize("column", ["payload", "metadata", "error"])
def test_text_that_claims_to_be_safe_is_escaped(operator: Visitor, column: str) -> None:
    task = TaskFactory(failed=True, name=mark_safe(HOSTILE), **{column: {"message": mark_safe(HOSTILE)}})

    for answer in (operator.open_page(task), operator.open_list()):
        assert "&lt;script&gt;alert" in answer.html
        assert "<script>alert" not in answer.html


def test_a_declaration_that_claims_to_be_safe_is_escaped(operator: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    declared = TaskDef(mark_safe("<b>name</b>"), queue=mark_safe("<i>queue</i>"))
    monkeypatch.setattr(changelist, "default_registry", [declared])
    TaskFactory()

    rows = operator.open_list()

    assert "&lt;b&gt;name&lt;/b&gt;" in rows.html
    assert "&lt;i&gt;queue&lt;/i&gt;" in rows.html
    assert "<b>name" not in rows.html
    assert "<i>queue" not in rows.html


def test_no_handler_is_asked_for(operator: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changelist, "default_registry", [])
    task = TaskFactory(name="gone.module.handler", running=True)
    modules = set(sys.modules)

    assert operator.open_page(task).status == 200
    assert operator.open_list(name="gone.module.handler").tasks == [task]
    assert not [name for name in set(sys.modules) - modules if "handler" in name]


@pytest.mark.parametrize(
    "envelope",
    [
        {},
        [],
        "just text",
        7,
        False,
        {"message": None, "code": None, "type": None, "details": None, "retryable": None},
        {"message": {"en": "no"}, "code": 404, "type": ["x"], "retryable": "perhaps", "details": "text"},
        {"details": {"traceback": ["not", "text"]}},
        {"details": [1, 2], "since": "version 9"},
        {"traceback": "elsewhere", "cause": {"message": "inner"}},
        {"message": "m" * 50_000, "details": {"traceback": "t" * 200_000}},
        {"message": "control \x1b[31m characters \x07", "details": {"traceback": "\x85"}},
    ],
)
def test_an_error_written_by_another_version_is_shown(operator: Visitor, envelope: Any) -> None:
    task = TaskFactory(failed=True, error=envelope)
    TaskAttemptFactory(task=task, error=envelope)

    page, rows = operator.open_page(task), operator.open_list()

    assert (page.status, rows.status) == (200, 200)
    assert rows.tasks == [task]
    for text in ("just text", "version 9", "elsewhere", "inner"):
        assert (text in page.html) == (text in json.dumps(envelope))
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", page.html + rows.html)
    assert len(page.html) < 200_000


@pytest.mark.parametrize(
    "fields",
    [
        {"run_at": datetime.max.replace(tzinfo=timezone.utc, microsecond=0)},
        {"created_at": after(3_600)},
        {"running": True, "started_at": after(60)},
        {"running": True, "progress": 0.0},
        {"running": True, "started_at": None},
        {"failed": True, "attempt": 0},
        {"failed": True, "started_at": None, "error": None},
        {"succeeded": True, "attempt": 70_000, "max_attempts": 1},
        {"name": "", "queue": ""},
        {"name": "no.such.handler"},
    ],
)
def test_odd_rows_are_shown(operator: Visitor, settings: SettingsWrapper, fields: dict[str, Any]) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    task = TaskFactory(**fields)

    assert operator.open_page(task).status == 200
    assert operator.open_list().tasks == [task]


@pytest.mark.parametrize("language", ["de", "ar", "zh-hans"])
def test_the_pages_work_in_other_languages(operator: Visitor, settings: SettingsWrapper, language: str) -> None:
    settings.USE_THOUSAND_SEPARATOR = True
    task = TaskFactory(failed=True, attempt=12, progress=0.5, priority=1_000)

    with translation.override(language):
        page, rows = operator.open_page(task), operator.open_list()

    assert (page.status, rows.status) == (200, 200)
    assert '<progress value="0.5"' in page.html


@pytest.mark.urls("tests.admin.urls")
def test_links_stay_on_the_admin_site_they_are_on(operator: Visitor, client: Client) -> None:
    visitor = Visitor(client, site="back_office")
    parent = TaskFactory()
    task = TaskFactory(failed=True, key="k", correlation_id="c", parent_id=parent.pk, root_id=parent.pk)

    page = visitor.open_page(task)

    assert page.response.request["PATH_INFO"].startswith("/back-office/")
    assert 'href="/admin/' not in page.html
    assert visitor.press("Retry task", task).messages == {("success", "1 task was queued again.")}
    assert visitor.open_list().tasks == [task, parent]
    question = visitor.press("Cancel task", task, confirm=False)
    for answer in (visitor.open_page(task), question):
        assert answer.status == 200
        assert '"/back-office/' in answer.html
        assert '"/admin/' not in answer.html
    assert visitor.press("Cancel task", task).messages == {("success", "1 task was canceled.")}


class DedicatedRouter:
    """Keeps the queue on a database of its own."""

    def db_for_read(self, model: Any, **hints: Any) -> str | None:
        return "dedicated" if model._meta.app_label == "cairnq_django" else None

    db_for_write = db_for_read


@pytest.mark.django_db(databases=["default", "dedicated"])
def test_tasks_may_live_on_another_database(operator: Visitor, settings: SettingsWrapper) -> None:
    settings.DATABASE_ROUTERS = [f"{__name__}.DedicatedRouter"]
    parent = TaskFactory()
    task = TaskFactory(failed=True, parent_id=parent.pk, root_id=parent.pk)
    assert Task.objects.using("dedicated").count() == 2
    assert Task.objects.using("default").count() == 0

    assert operator.open_list(q=str(task.pk)).tasks == [task]
    assert str(parent.pk) in operator.open_page(task).html
    assert operator.press("Retry task", task).messages == {("success", "1 task was queued again.")}
    assert operator.run("cancel_tasks", task, parent).messages == {("success", "2 tasks were canceled.")}

    assert LogEntry.objects.using("default").count() == 3


def write_text(task: Task, column: str, text: str) -> None:
    """Write JSON that this package would not have written."""
    quote = connection.ops.quote_name
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE {quote('cairnq_django_task')} SET {quote(column)} = %s WHERE {quote('id')} = %s",
            [text, Task._meta.pk.get_db_prep_value(task.pk, connection)],
        )
