"""The pages of workers: who runs, what they are at, whether they are still heard of; nothing to do but to look."""

from __future__ import annotations

import html
import re
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib.admin.utils import quote
from django.db import connection
from django.db.models import JSONField, Value
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import translation
from django.utils.timezone import localtime

from cairnq_django.clock import after
from cairnq_django.models import WorkerProcess
from tests.admin.pages import Answer, Visitor
from tests.factories import WORKER, TaskFactory, WorkerProcessFactory

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.test import Client
    from pytest_django.fixtures import SettingsWrapper

pytestmark = pytest.mark.django_db

HOSTILE = "<script>alert('x')</script>\"&{{ 7|add:7 }}%(count)s/_?#"


@pytest.fixture
def viewer(log_in: Callable[..., Visitor]) -> Visitor:
    return log_in("view_workerprocess", "view_task")


def list_url(site: str = "admin") -> str:
    return reverse("admin:cairnq_django_workerprocess_changelist", current_app=site)


def page_url(worker: WorkerProcess, site: str = "admin") -> str:
    return reverse("admin:cairnq_django_workerprocess_change", args=[quote(worker.pk)], current_app=site)


def open_list(visitor: Visitor, **query: str) -> Answer:
    return Answer(visitor.client.get(list_url(visitor.site), query))


def open_page(visitor: Visitor, worker: WorkerProcess) -> Answer:
    return Answer(visitor.client.get(page_url(worker, visitor.site)))


def text_of(markup: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", markup)).split())


def cells(answer: Answer, column: str) -> list[str]:
    """The texts of a column, from the top."""
    found = re.findall(rf'<t[dh] class="[^"]*field-{column}[ "][^>]*>(.*?)</t[dh]>', answer.html, re.DOTALL)
    return [text_of(cell) for cell in found]


def test_a_row_tells_what_a_worker_is_at(viewer: Visitor) -> None:
    worker = WorkerProcessFactory(
        id="web-1-42-deadbeef",
        host="web-1",
        pid=4_242,
        version="1.2.3",
        queues=["default", "mail"],
        names=["a", "b", "c", "d", "e"],
        concurrency=8,
        busy=3,
        bytes_in_flight=2_048,
        abandoned=2,
        started_at=after(-7_300),
        seen_at=after(-12),
    )

    answer = open_list(viewer)

    assert cells(answer, "worker") == ["web-1 process 4242 · version 1.2.3 · …deadbeef"]
    assert cells(answer, "state") == ["busy"]
    assert cells(answer, "serves") == ["default, mail a, b, c and 2 more"]
    assert cells(answer, "calls") == ["3/8 2.0\xa0KB in flight · 2 abandoned calls".replace("\xa0", " ")]
    assert '<progress value="3" max="8" aria-label="3 of 8 calls busy">' in answer.html
    assert cells(answer, "started") == ["2 h ago"]
    (seen,) = cells(answer, "seen")
    assert re.fullmatch(r"1\d s ago", seen)
    exact = localtime(worker.seen_at).isoformat()
    assert f'<time datetime="{exact}" title="{exact}">{seen}' in answer.html
    assert f'href="{page_url(worker)}' in answer.html


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({}, "idle"),
        ({"busy": 1}, "busy"),
        ({"busy": 1, "draining": True}, "draining"),
        ({"busy": 1, "silent": True, "draining": True}, "not heard of since 1 min"),
    ],
    ids=str,
)
def test_its_state_is_told_in_words(viewer: Visitor, fields: dict[str, Any], state: str) -> None:
    WorkerProcessFactory(**fields)
    assert cells(open_list(viewer), "state") == [state]


def test_what_is_not_measured_is_not_told(viewer: Visitor) -> None:
    WorkerProcessFactory(bytes_in_flight=None, abandoned=0, names=[])
    answer = open_list(viewer)
    assert cells(answer, "calls") == ["0/8"]
    assert cells(answer, "serves") == ["default no handlers"]


def test_they_come_by_host_and_can_be_looked_for(viewer: Visitor) -> None:
    for host in ("web-2", "web-1", "db-1"):
        WorkerProcessFactory(id=f"{host}-1", host=host)
    hosts = [cell.split()[0] for cell in cells(open_list(viewer), "worker")]
    assert hosts == ["db-1", "web-1", "web-2"]
    found = open_list(viewer, q="web-2")
    assert len(cells(found, "worker")) == 1
    assert "Looks in the workers&#x27; hosts and ids." in found.html


def test_where_none_runs_the_page_says_how_to_start_one(viewer: Visitor) -> None:
    assert "manage.py runworker" in open_list(viewer).html
    WorkerProcessFactory()
    assert "manage.py runworker" not in open_list(viewer).html


def test_the_list_takes_as_many_statements_for_many_workers(viewer: Visitor) -> None:
    numbers = []
    for _ in range(2):
        for _ in range(5):
            WorkerProcessFactory(id=f"w{WorkerProcess.objects.count()}")
        with CaptureQueriesContext(connection) as captured:
            open_list(viewer)
        numbers.append(len(captured))
    assert numbers[0] == numbers[1]


def test_a_page_tells_everything_and_links_the_running_tasks(viewer: Visitor) -> None:
    worker = WorkerProcessFactory(id=WORKER, queues=["default", "mail"], names=["send", "work"], abandoned=1)
    running, old = TaskFactory(running=True, name="mine"), TaskFactory(succeeded=True, name="ended")
    TaskFactory(running=True, worker_id="another", name="not mine")

    page = open_page(viewer, worker)

    told = text_of(page.html)
    for text in (WORKER, "1 abandoned call", "Queues: default mail", "Handlers: send work", f"mine {running.pk}"):
        assert text in told
    assert f'href="{viewer.page_url(running)}"' in page.html
    assert re.findall('<ul class="cairnq-listing" tabindex="0" aria-label="([^"]*)"', page.html) == [
        "Queues",
        "Handlers",
    ]
    assert str(old.pk) not in page.html
    assert "not mine" not in page.html
    link = re.search(r'href="([^"]*)">All running tasks', page.html)
    assert link is not None
    assert Answer(viewer.client.get(html.unescape(link[1]))).tasks == [running]


def test_a_task_s_page_links_its_worker_as_long_as_there_is_one(viewer: Visitor) -> None:
    worker = WorkerProcessFactory(id=WORKER)
    task = TaskFactory(running=True)
    assert f'<a href="{page_url(worker)}">{WORKER}</a>' in viewer.open_page(task).html
    worker.delete()
    page = viewer.open_page(task)
    assert WORKER in page.html
    assert page_url(worker) not in page.html


def test_who_may_not_see_workers_gets_no_link_and_no_page(log_in: Callable[..., Visitor]) -> None:
    worker, task = WorkerProcessFactory(id=WORKER), TaskFactory(running=True)
    visitor = log_in("view_task")
    page = visitor.open_page(task)
    assert WORKER in page.html
    assert page_url(worker) not in page.html
    assert (open_list(visitor).status, open_page(visitor, worker).status) == (403, 403)


def test_who_may_not_see_tasks_sees_none_on_a_worker_s_page(log_in: Callable[..., Visitor]) -> None:
    worker = WorkerProcessFactory(id=WORKER)
    TaskFactory(running=True, name="secret")
    page = open_page(log_in("view_workerprocess"), worker)
    assert page.status == 200
    assert "secret" not in page.html


def test_there_is_nothing_to_do(admin_client: Client) -> None:
    worker = WorkerProcessFactory()
    visitor = Visitor(admin_client)
    for answer in (open_list(visitor), open_page(visitor, worker)):
        assert not re.findall(r'name="(_save|action|_selected_action)"', answer.html)
    assert admin_client.post(page_url(worker), {"host": "another"}).status_code == 403
    assert admin_client.post(page_url(worker).replace("/change/", "/delete/"), {"post": "yes"}).status_code == 403
    assert admin_client.get(reverse("admin:cairnq_django_workerprocess_add")).status_code == 403
    assert WorkerProcess.objects.get().host == "host"


def test_html_in_a_row_is_text(viewer: Visitor) -> None:
    worker = WorkerProcessFactory(
        id=HOSTILE, host=HOSTILE, version=HOSTILE[:50], queues=[HOSTILE], names=[HOSTILE] * 3, abandoned=1
    )
    task = TaskFactory(running=True, worker_id=HOSTILE, name=HOSTILE)

    answers = [open_list(viewer, q="alert"), open_page(viewer, worker), viewer.open_page(task)]
    answers.append(viewer.open_list(worker_id=HOSTILE))

    assert answers[-1].tasks == [task]
    assert str(task.pk) in answers[1].html
    for answer in answers:
        assert answer.status == 200
        assert "&lt;script&gt;alert" in answer.html
        assert "<script>alert" not in answer.html


def test_of_thousands_of_names_the_list_reads_a_few_and_the_page_as_many_as_it_can_show(viewer: Visitor) -> None:
    names = [f"project.app.handlers.number_{number:05}" for number in range(20_000)]
    worker = WorkerProcessFactory(names=names, queues=[f"queue-{number}" for number in range(2_000)])

    with CaptureQueriesContext(connection) as captured:
        rows, page = open_list(viewer), open_page(viewer, worker)

    assert cells(rows, "serves") == [f"queue-0, queue-1, queue-2 and many more {', '.join(names[:3])} and many more"]
    assert len(rows.html) < 50_000
    assert names[1_000] in page.html
    assert names[-1] not in page.html
    assert "and many more" in page.html
    assert len(page.html) < 400_000
    column = ".".join(map(connection.ops.quote_name, ("cairnq_django_workerprocess", "names")))
    assert [
        query["sql"] for query in captured if re.search(rf"(SELECT|,) {re.escape(column)}(,| FROM)", query["sql"])
    ] == []


@pytest.mark.parametrize(
    "fields",
    [
        {"queues": Value(None, JSONField()), "names": 7},
        {"queues": {"a": 1}, "names": "text"},
        {"queues": [], "names": [1, None, ["x"], "😀", 'quote " \\ and\n\x1b[31m']},
        {"host": "", "version": ""},
        {"concurrency": 0, "busy": 9_000},
        {"busy": -1, "abandoned": -1, "bytes_in_flight": -1},
        {"bytes_in_flight": 2**60, "pid": 2**40},
        {"started_at": after(86_400), "seen_at": after(3_600)},
    ],
    ids=str,
)
def test_odd_rows_are_shown(viewer: Visitor, settings: SettingsWrapper, fields: dict[str, Any]) -> None:
    settings.USE_THOUSAND_SEPARATOR = True
    worker = WorkerProcessFactory(id="_odd/", **fields)
    for language in ("en", "de", "ar"):
        with translation.override(language):
            page, rows = open_page(viewer, worker), open_list(viewer)
        assert (page.status, rows.status) == (200, 200)
        assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]", page.html + rows.html)


@pytest.mark.urls("tests.admin.urls")
def test_links_stay_on_the_admin_site_they_are_on(viewer: Visitor, client: Client) -> None:
    visitor = Visitor(client, site="back_office")
    worker, task = WorkerProcessFactory(id=WORKER), TaskFactory(running=True)
    for answer in (open_list(visitor), open_page(visitor, worker), visitor.open_page(task)):
        assert answer.status == 200
        assert '"/back-office/cairnq_django/workerprocess/' in answer.html
        assert '"/admin/' not in answer.html


@pytest.mark.urls("tests.admin.urls")
def test_a_site_without_workers_or_without_tasks_does_without_the_links(viewer: Visitor, client: Client) -> None:
    worker, task = WorkerProcessFactory(id=WORKER), TaskFactory(running=True)
    page = Visitor(client, site="tasks_only").open_page(task)
    assert (page.status, "workerprocess" in page.html) == (200, False)
    page = open_page(Visitor(client, site="workers_only"), worker)
    assert (page.status, str(task.pk) in page.html) == (200, False)
