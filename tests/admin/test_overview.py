"""The overview: whether work flows, what fails and since when, at a price that does not grow with the table."""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from html import unescape
from typing import TYPE_CHECKING, Any

import pytest
from django.contrib import admin
from django.db import DEFAULT_DB_ALIAS as DB
from django.db import connection
from django.db.models import F
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import translation
from django.utils.formats import date_format
from django.utils.timezone import localtime, override

from cairnq_django.admin import overview
from cairnq_django.clock import after
from cairnq_django.models import Activity, PausedQueue
from cairnq_django.store.activity import HOUR, MINUTE, begin_of_span, read_clock
from tests.admin.pages import Answer, Visitor
from tests.factories import TaskFactory, WorkerProcessFactory, a_great_many

if TYPE_CHECKING:
    from collections.abc import Callable

    from django.test import Client

pytestmark = pytest.mark.django_db

HOSTILE = "<script>alert('x')</script>\"&{{ 7|add:7 }}%(count)s{queue}"


def open_overview(visitor: Visitor, **query: str) -> Answer:
    url = reverse("admin:app_list", args=["cairnq_django"], current_app=visitor.site)
    return Answer(visitor.client.get(url, query))


def text(html: str) -> str:
    return re.sub(r" (?=[.,;])", "", " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split()))


def part(answer: Answer, css: str) -> str:
    """The text of the first list, table, section or figure that has this class."""
    found = re.search(rf'<(\w+)[^>]* class="(?:[^"]* )?{css}[ "].*?</\1>', answer.html, re.DOTALL)
    return text(found[0]) if found else ""


def verdict(answer: Answer) -> str:
    return part(answer, "cairnq-verdict")


def work_was_done(queue: str = "default", *, ago: timedelta = timedelta(), **work: float) -> None:
    """As workers write it that did this a while ago."""
    for seconds in (MINUTE, HOUR):
        begins_at = begin_of_span(read_clock(DB) - ago, seconds)
        row, _made = Activity.objects.get_or_create(queue=queue, seconds=seconds, begins_at=begins_at)
        Activity.objects.filter(pk=row.pk).update(**{name: F(name) + value for name, value in work.items()})


def failures_in_the_hour(ago: int) -> datetime:
    """One failure, so many hours before the current one; only the row of that hour is left."""
    begins_at = begin_of_span(read_clock(DB), HOUR) - timedelta(hours=ago)
    Activity.objects.create(queue="mail", seconds=HOUR, begins_at=begins_at, failed=1)
    return begins_at


@pytest.fixture
def operator(log_in: Callable[..., Visitor]) -> Visitor:
    """Someone who may view all that there is."""
    return log_in("view_task", "view_pausedqueue", "view_workerprocess")


@pytest.fixture
def worker() -> Any:
    return WorkerProcessFactory(queues=["default", "mail"], concurrency=8, busy=3)


def test_an_empty_database_has_a_page(operator: Visitor) -> None:
    answer = open_overview(operator)

    assert answer.status == 200
    assert "No worker runs" in verdict(answer)
    assert "Nothing waits for one." in verdict(answer)
    assert "Tasks" in answer.html, "the usual list of models is there"


def test_all_is_well_when_work_is_done(operator: Visitor, worker: Any) -> None:
    work_was_done(started=1_204, succeeded=1_204)

    answer = open_overview(operator)

    assert "All is well 1,204 tasks succeeded in the last hour, and none has failed." in verdict(answer)


def test_an_idle_queue_is_well(operator: Visitor, worker: Any) -> None:
    assert "All is well Nothing waits, and nothing has failed" in verdict(open_overview(operator))


def test_tasks_that_wait_without_a_worker_are_the_first_thing_said(operator: Visitor) -> None:
    TaskFactory(run_at=after(-10))
    TaskFactory(run_at=after(-5))

    answer = open_overview(operator)

    assert verdict(answer).startswith("Work does not flow No worker has been seen lately; 2 tasks wait for one.")


def test_no_queue_flows_whose_tasks_wait_while_no_worker_lives(operator: Visitor) -> None:
    TaskFactory(queue="mail", run_at=after(-10))
    work_was_done("mail", started=1, succeeded=1)
    work_was_done("reports", started=1, succeeded=1)

    table = part(open_overview(operator), "cairnq-table")

    assert "mail no worker 1 10 s" in table
    assert "reports flowing 0" in table


def test_a_queue_that_no_worker_serves(operator: Visitor, worker: Any) -> None:
    TaskFactory(queue="reports", run_at=after(-725))

    answer = open_overview(operator)

    said = "Work does not flow No worker serves the queue reports; its oldest task has waited for 12 min"
    assert verdict(answer).startswith(said)


def test_a_queue_of_which_nothing_is_started(operator: Visitor, worker: Any) -> None:
    TaskFactory(queue="mail", run_at=after(-725))

    assert "Work does not flow In the queue mail a task has waited for 12 min" in verdict(open_overview(operator))


def test_a_queue_that_is_behind(operator: Visitor, worker: Any) -> None:
    TaskFactory(queue="mail", run_at=after(-725))
    work_was_done("mail", started=3, succeeded=3)

    said = verdict(open_overview(operator))

    assert said.startswith("Work flows, but some of it waits")
    assert "others are being started" in said


def test_of_many_queues_in_trouble_the_worst_are_told(operator: Visitor, worker: Any) -> None:
    for number in range(7):
        TaskFactory(queue=f"queue {number}", run_at=after(-100 * (number + 1)))

    said = verdict(open_overview(operator))

    assert [each for each in range(7) if f"queue {each}" in said] == [2, 3, 4, 5, 6]
    assert "2 other queues are behind." in said


def test_names_that_no_worker_runs_are_told_and_their_queue_is_not_behind(operator: Visitor, worker: Any) -> None:
    TaskFactory(queue="mail", name="renamed", run_at=after(-725))
    TaskFactory(queue="mail", name="fresh", run_at=after(-5))
    TaskFactory(queue="mail", name="planned", delayed=True)
    work_was_done("mail", started=3, succeeded=3)

    answer = open_overview(operator)

    assert verdict(answer).startswith("Work does not flow in every queue")
    assert "No live worker runs tasks named renamed in the queue mail; one has waited for 12 min" in verdict(answer)
    assert "fresh" not in verdict(answer)
    assert "planned" not in verdict(answer)
    assert "others are being started" not in verdict(answer)
    assert "mail no handler 3 12 min" in part(answer, "cairnq-table")
    assert "?status=queued&amp;queue=mail&amp;name=renamed" in answer.html

    WorkerProcessFactory(id="new", queues=["mail"], names=["renamed"])
    assert "No live worker runs" not in verdict(open_overview(operator))


def test_a_worker_that_drains_runs_no_name_any_more(operator: Visitor, worker: Any) -> None:
    TaskFactory(queue="mail", name="renamed", run_at=after(-725))
    WorkerProcessFactory(id="old", queues=["mail"], names=["renamed"], draining=True)

    assert "No live worker runs tasks named renamed" in verdict(open_overview(operator))


def test_of_many_names_that_nobody_runs_the_longest_waiting_are_told(operator: Visitor, worker: Any) -> None:
    for number in range(7):
        TaskFactory(queue="mail", name=f"name {number}", run_at=after(-100 * (number + 1)))

    said = "No live worker runs tasks named name 6, name 5, name 4, name 3, name 2 and 2 others in the queue mail"
    answer = open_overview(operator)
    assert said in verdict(answer)
    assert "name=name+6" not in answer.html, "its tasks are those of all these names"


def test_a_worker_that_is_not_heard_of_any_more_is_told(operator: Visitor, worker: Any) -> None:
    WorkerProcessFactory(id="gone", host="gone", pid=77, silent=True)
    WorkerProcessFactory(id="long gone", silent=True, seen_at=after(-200))

    said = verdict(open_overview(operator))

    assert said.startswith("Work flows, but a worker is gone 2 workers have ended without a word, or are cut off;")
    assert re.search(r"last heard of at [\w ]*\d\d:\d\d\. .* The latest is process 77 on gone\.", said)


def test_a_paused_queue_says_who_paused_it_and_is_not_behind(operator: Visitor, worker: Any) -> None:
    TaskFactory(queue="mail", run_at=after(-725))
    PausedQueue.objects.create(queue="mail", paused_by="ada", until=after(3_600))

    said = verdict(open_overview(operator))

    assert said.startswith("Work flows, except where it is paused The queue mail is paused since")
    assert re.search(r"by ada\. That ends at [\w ]*\d\d:\d\d\. 1 task waits in it\.", said)


@pytest.mark.parametrize("days", [0, 1, 6, 7, 30])
def test_times_are_told_so_that_no_two_are_the_same(operator: Visitor, worker: Any, days: int) -> None:
    PausedQueue.objects.create(queue="mail", until=localtime() + timedelta(days=days, seconds=60 if days == 0 else 0))
    until = localtime(PausedQueue.objects.get().until)
    day = "" if days == 0 else date_format(until, "D" if days <= 6 else "DATE_FORMAT") + " "

    assert f"That ends at {day}{until:%H:%M}." in verdict(open_overview(operator))


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_a_pause_until_the_end_of_time_is_told(operator: Visitor, zone: str) -> None:
    PausedQueue.objects.create(queue="mail", until=datetime(9999, 12, 31, 23, tzinfo=timezone.utc))

    with override(zone):
        assert "That ends at" in verdict(open_overview(operator))


def test_failures_are_told_with_their_share_and_since_when(operator: Visitor, worker: Any) -> None:
    work_was_done(started=40, succeeded=38, failed=2)

    answer = open_overview(operator)

    assert verdict(answer).startswith("Work flows, but tasks fail 2 tasks have failed for good in the last hour, 5.0 %")
    assert "There have been failures since" in verdict(answer)
    assert re.search(r'href="[^"]*/taskattempt/">See the failures', answer.html)


def test_few_failures_are_told_in_another_tone(operator: Visitor, worker: Any) -> None:
    work_was_done(started=300, succeeded=299, failed=1)
    assert "cairnq-verdict-late" in open_overview(operator).html

    work_was_done(started=9, failed=9)
    assert "cairnq-verdict-bad" in open_overview(operator).html


def test_failures_that_go_on_for_hours_are_told_from_their_beginning(operator: Visitor, worker: Any) -> None:
    for ago in (1, 2, 3, 4):
        failures_in_the_hour(ago)
    since = failures_in_the_hour(5)
    failures_in_the_hour(7)
    work_was_done(started=1, failed=1)

    answer = open_overview(operator)

    assert re.search(
        rf'There have been failures since <time datetime="{re.escape(localtime(since).isoformat())}"', answer.html
    )


def test_what_failed_over_an_hour_ago_is_no_longer_news(operator: Visitor, worker: Any) -> None:
    work_was_done(ago=timedelta(minutes=61), started=1, failed=1)

    assert verdict(open_overview(operator)).startswith("All is well")


def test_tasks_are_counted_by_status_up_to_a_limit(
    operator: Visitor, worker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "COUNTED", 3)
    for state, count in {"delayed": 2, "running": 1, "succeeded": 5, "failed": 3}.items():
        for _ in range(count):
            TaskFactory(**{state: True})

    answer = open_overview(operator)

    assert part(answer, "cairnq-tiles") == "2 queued 1 running 3+ succeeded 3 failed 0 canceled"
    assert f'href="{operator.list_url()}?status=failed"' in answer.html


def test_a_queue_is_shown_with_its_last_hour(operator: Visitor, worker: Any) -> None:
    TaskFactory(queue="mail", run_at=after(-725))
    TaskFactory(queue="mail", running=True)
    work_was_done("mail", started=1_000, succeeded=993, failed=7)
    work_was_done("mail", ago=timedelta(hours=3), started=55, succeeded=55)

    answer = open_overview(operator)

    table = part(answer, "cairnq-table")
    assert re.search(r"mail behind 1 12 min \d+ s 1 993 7 0.7 %", table)
    assert "default idle 0 \N{EN DASH} 0 0 0" in table


def test_workers_are_shown_with_their_running_calls(operator: Visitor, worker: Any) -> None:
    WorkerProcessFactory(id="gone", host="gone", silent=True)

    shown = part(open_overview(operator), "cairnq-workers")

    assert f"{worker.host} {worker.pid} 3/8 default mail" in shown
    assert "gone" not in shown


@pytest.mark.parametrize("span", ["hour", "day", "week", "", "century", "<b>"])
def test_charts_go_back_as_far_as_is_asked(operator: Visitor, span: str) -> None:
    for ago, count in ((0, 1), (2, 20), (30, 300)):
        work_was_done(ago=timedelta(hours=ago), started=count, succeeded=count)

    answer = open_overview(operator, span=span)

    throughput = part(answer, "cairnq-chart")
    # Minutes are told after an hour only as far as they are kept: of a week, the hours are.
    assert f"{ {'day': '21', 'week': '321'}.get(span, '1') } succeeded" in throughput
    assert answer.html.count('aria-current="true"') == 1


def test_a_chart_has_a_table_behind_it(operator: Visitor) -> None:
    work_was_done(started=4, succeeded=1, failed=2, retried=1, waited=8, longest_wait=5)

    answer = open_overview(operator)

    tables = [text(each) for each in re.findall(r"<details.*?</details>", answer.html, re.DOTALL)]
    assert re.fullmatch(r"As a table Time succeeded \d\d:\d\d 1", tables[0])
    assert re.fullmatch(r"As a table Time failed for good queued again \d\d:\d\d 2 1", tables[1])
    assert re.fullmatch(r"As a table Time on average longest \d\d:\d\d [12]\.\d s [45]\.\d s", tables[2])


def test_who_may_not_view_tasks_sees_no_figures(log_in: Callable[..., Visitor]) -> None:
    work_was_done(started=1, succeeded=1)
    TaskFactory()

    answer = open_overview(log_in("view_workerprocess"))

    assert answer.status == 200
    assert "Workers" in answer.html
    assert 'id="cairnq-overview"' not in answer.html


@pytest.mark.urls("tests.admin.urls")
def test_a_site_that_does_not_show_tasks_shows_no_figures(log_in: Callable[..., Visitor], client: Client) -> None:
    log_in("view_task", "view_workerprocess")

    answer = open_overview(Visitor(client, "workers_only"))

    assert answer.status == 200
    assert 'id="cairnq-overview"' not in answer.html


@pytest.mark.urls("tests.admin.urls")
def test_a_site_that_shows_tasks_alone_links_nothing_else(log_in: Callable[..., Visitor], client: Client) -> None:
    log_in("view_task", "view_workerprocess", "view_pausedqueue")

    answer = open_overview(Visitor(client, "tasks_only"))

    assert 'id="cairnq-overview"' in answer.html
    assert "workerprocess/" not in answer.html


def ways(answer: Answer) -> list[str]:
    (nav,) = re.findall('<nav class="cairnq-ways".*?</nav>', answer.html, re.DOTALL)
    return re.findall(r'href="[^"]*/(\w+)/"', nav)


def test_who_may_only_view_sees_everything(operator: Visitor, worker: Any) -> None:
    work_was_done(started=1, succeeded=1)

    answer = open_overview(operator)

    assert "All is well" in verdict(answer)
    assert len(re.findall("<figure", answer.html)) == 3
    assert ways(answer) == ["task", "taskattempt", "pausedqueue", "workerprocess"]


def test_schedules_are_linked_for_those_who_may_view_them(log_in: Callable[..., Visitor]) -> None:
    answer = open_overview(log_in("view_task", "view_schedule"))

    assert ways(answer)[-1] == "schedule"
    assert re.search(r'/schedule/">Schedules</a>', answer.html)


def test_workers_and_who_paused_are_told_to_those_who_may_view_them(log_in: Callable[..., Visitor]) -> None:
    WorkerProcessFactory(host="a-secret-host")
    WorkerProcessFactory(id="gone", host="a-secret-host", silent=True)
    PausedQueue.objects.create(queue="mail", paused_by="ada-lovelace")

    answer = open_overview(log_in("view_task"))

    assert "The queue mail is paused since" in verdict(answer)
    assert "ada-lovelace" not in answer.html
    assert "a-secret-host" not in answer.html
    assert ways(answer) == ["task", "taskattempt"]


@pytest.mark.urls("tests.admin.urls")
def test_another_admin_site_has_its_own_addresses(log_in: Callable[..., Visitor], client: Client, worker: Any) -> None:
    log_in("view_task", "view_workerprocess")
    visitor = Visitor(client, "back_office")
    TaskFactory(queue="mail")

    answer = open_overview(visitor)

    assert 'id="cairnq-overview"' in answer.html
    assert "/back-office/cairnq_django/task/?queue=mail" in answer.html
    assert "/back-office/cairnq_django/workerprocess/host-1/change/" in answer.html.replace("_2D", "-")
    assert "/admin/" not in answer.html.replace("/static/admin/", "").replace("static/admin/", "")


def test_a_site_may_list_what_is_no_model(operator: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = admin.site.get_app_list

    def with_more(*args: Any) -> Any:
        apps = listed(*args)
        more = [{"name": "Manual", "object_name": "manual", "admin_url": "/manual/"}, {"name": "Nothing", "perms": {}}]
        return [*({**app, "models": [*app["models"], *more]} for app in apps), {"name": "Empty"}]

    monkeypatch.setattr(admin.site, "get_app_list", with_more)

    assert 'id="cairnq-overview"' in open_overview(operator).html


def test_the_page_has_no_inline_scripts_or_styles(operator: Visitor, worker: Any) -> None:
    TaskFactory(queue="mail", run_at=after(-725))
    work_was_done(started=4, succeeded=1, failed=2, retried=1, waited=8, longest_wait=5)

    html = open_overview(operator).html

    assert not re.search(r"<script(?![^>]* src=)", html)
    assert not re.search(r"<style| style=| on\w+=", html)


def test_hostile_names_are_text(operator: Visitor) -> None:
    WorkerProcessFactory(host=HOSTILE, queues=[HOSTILE, 7, None, {"a": 1}], names=[HOSTILE, 7, {}])
    WorkerProcessFactory(id="gone", host=HOSTILE, silent=True)
    TaskFactory(queue=HOSTILE, run_at=after(-725))
    TaskFactory(queue=HOSTILE, name=f"{HOSTILE}?", run_at=after(-725))
    TaskFactory(queue="x" * 100)
    PausedQueue.objects.create(queue=f"{HOSTILE}!", paused_by=HOSTILE, until=None)
    work_was_done(HOSTILE, started=1, failed=1)

    for language in ("en", "ar", "ja"):
        with translation.override(language):
            answer = open_overview(operator)
        assert answer.status == 200
        assert "<script>alert" not in answer.html
        assert "&lt;script&gt;alert" in answer.html


def test_a_worker_row_that_holds_something_else_is_shown(operator: Visitor) -> None:
    WorkerProcessFactory(queues={"not": "a list"}, concurrency=0, busy=-1)

    assert open_overview(operator).status == 200


def test_the_price_does_not_grow_with_the_rows(operator: Visitor) -> None:
    def statements() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert open_overview(operator, span="week").status == 200
        return len(captured)

    WorkerProcessFactory(queues=["default"])
    TaskFactory(succeeded=True)
    TaskFactory()
    work_was_done(started=1, failed=1)
    few = statements()
    a_great_many(500)
    for number in range(20):
        WorkerProcessFactory(id=f"other-{number}", queues=["default"])
        work_was_done(ago=timedelta(minutes=number), started=1, failed=1)

    assert statements() == few <= 30
