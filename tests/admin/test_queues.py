"""The page of queues: how each stands, pausing and resuming it."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from html import escape
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.safestring import mark_safe
from django.utils.timezone import override

from cairnq_django import PausedQueue, pause_queue, paused_queues, resume_queue
from cairnq_django.clock import after
from cairnq_django.limits import QUEUE_LENGTH
from cairnq_django.registry import default_registry
from tests.admin.pages import Answer, Visitor
from tests.factories import TaskFactory, WorkerProcessFactory

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.django_db

HOSTILE = "<script>alert('x')</script>\"&{{ 7|add:7 }}%(count)s"
NAMES = [
    HOSTILE,
    "x" * QUEUE_LENGTH,
    "über/naïve 漢字\u202e?queue=other#a",
    "a/b",
    "a\nb",
    " a ",
    "..",
    "_5F",
    "add",
    "pause",
]


def address(page: str = "changelist", queue: str | None = None, site: str = "admin", *args: str) -> str:
    url = reverse(f"admin:cairnq_django_pausedqueue_{page}", args=args, current_app=site)
    return url if queue is None else f"{url}?queue={quote(queue)}"


@pytest.fixture
def keeper(log_in: Callable[..., Visitor]) -> Visitor:
    """Someone who may do all that there is to do with queues."""
    return log_in("view_pausedqueue", "pause_queue", "resume_queue", "view_task")


def open_page(visitor: Visitor, **options: Any) -> Answer:
    return Answer(visitor.client.get(address(site=visitor.site), **options))


def pause(visitor: Visitor, queue: str, until: str = "") -> Answer:
    return Answer(visitor.client.post(address("pause", queue, visitor.site), {"until": until}, follow=True))


def resume(visitor: Visitor, queue: str) -> Answer:
    return Answer(visitor.client.post(address("resume", queue, visitor.site), follow=True))


def rows(answer: Answer) -> dict[str, Any]:
    assert answer.status == 200
    return {row.figures.queue: row for row in answer.response.context["rows"]}


def history() -> list[tuple[str, str]]:
    return [(entry.object_id, entry.get_change_message()) for entry in LogEntry.objects.order_by("id")]


def test_every_queue_that_is_known_is_shown_with_its_figures(keeper: Visitor, settings: Any) -> None:
    settings.CAIRNQ = {"QUEUES": ["default", "night"]}
    for _ in range(3):
        TaskFactory(queue="mail", run_at=after(-300))
    TaskFactory(queue="mail", delayed=True)
    TaskFactory(queue="mail", running=True)
    pause_queue("archive", by="bob", until=3600)
    answer = open_page(keeper)
    shown = rows(answer)
    assert list(shown) == sorted(shown)
    assert {"archive", "default", "mail", "night"} <= set(shown)
    assert {definition.queue for definition in default_registry} <= set(shown)
    mail = shown["mail"]
    assert (mail.waiting, mail.due, mail.running, mail.oldest) == ("4", "3", "1", mail.oldest)
    assert mail.oldest.startswith("5 min")
    assert "1 queue is paused." in answer.html
    assert "bob" in answer.html
    by, since, until = shown["archive"].pause
    assert "bob" in by
    assert "ago" in since
    assert "(in 59 min" in until


def test_a_queue_s_state_is_told_in_the_words_of_the_overview(keeper: Visitor) -> None:
    WorkerProcessFactory(queues=["default", "mail"])
    TaskFactory(queue="mail", running=True)
    TaskFactory(queue="reports", run_at=after(-600))
    shown = rows(open_page(keeper))
    states = {name: re.sub("<.*?>", "", shown[name].state) for name in ("default", "mail", "reports")}
    assert states == {"default": "idle", "mail": "flowing", "reports": "no worker"}


def test_a_queue_leads_to_its_tasks(keeper: Visitor) -> None:
    TaskFactory(queue="a&b")
    TaskFactory(queue="mail")
    row = rows(open_page(keeper))["a&b"]
    for url in (row.tasks_url, row.waiting_url):
        assert {task.queue for task in Answer(keeper.client.get(url)).tasks} == {"a&b"}


def test_pausing_and_resuming_are_done_told_and_logged(keeper: Visitor) -> None:
    assert "Pause queue" in Answer(keeper.client.get(address("pause", "mail"))).html
    assert paused_queues() == [], "looking changes nothing"
    answer = pause(keeper, "mail")
    assert answer.messages == {("success", "Queue “mail” is paused until it is resumed.")}
    (paused,) = paused_queues()
    assert (paused.queue, paused.paused_by, paused.until) == ("mail", "ada", None)
    assert resume(keeper, "mail").messages == {("success", "Queue “mail” gives out tasks again.")}
    assert paused_queues() == []
    assert history() == [("mail", "Paused until it is resumed."), ("mail", "Resumed.")]
    assert Answer(keeper.client.get(address("history", None, "admin", "mail"))).html.count("Resumed.") == 1


def test_a_pause_may_have_an_end(keeper: Visitor) -> None:
    answer = pause(keeper, "mail", "2999-01-01T12:30")
    ((_, said),) = answer.messages
    assert said.startswith("Queue “mail” is paused until 2999-01-01 12:30:00")
    (paused,) = paused_queues()
    assert paused.until is not None
    assert paused.until.year == 2999


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_a_pause_may_last_to_the_end_of_time(keeper: Visitor, zone: str) -> None:
    PausedQueue.objects.create(queue="mail", until=datetime(9999, 12, 31, 23, tzinfo=timezone.utc))
    with override(zone):
        assert open_page(keeper).status == 200
        ((level, said),) = pause(keeper, "mail").messages
        assert (level, "until 9999-12-31" in said) == ("warning", True)
        assert pause(keeper, "other", "9999-12-31T23:59").status == 200
        assert open_page(keeper).status == 200


@pytest.mark.parametrize(
    ("zone", "until"), [("America/New_York", "9999-12-31T23:59"), ("Asia/Tokyo", "0001-01-01T00:00")]
)
def test_an_end_that_utc_does_not_have_is_too_far(keeper: Visitor, zone: str, until: str) -> None:
    with override(zone):
        answer = pause(keeper, "mail", until)

    assert "That time is too far from now." in answer.html
    assert paused_queues() == []


@pytest.mark.parametrize(
    ("until", "told"), [("2020-01-01T12:30", "That time has passed"), ("soon", "Enter a valid date/time.")]
)
def test_an_end_that_cannot_be_is_refused_and_what_was_typed_is_kept(keeper: Visitor, until: str, told: str) -> None:
    answer = pause(keeper, "mail", until)
    assert answer.status == 200
    assert told in answer.html
    assert until in answer.html
    (described,) = re.findall('id="id_until"[^>]*aria-describedby="([^"]*)"', answer.html) or re.findall(
        'aria-describedby="([^"]*)"[^>]*id="id_until"', answer.html
    )
    (errors,) = re.findall(rf'<div id="{described.split()[0]}">(.*?)</div>', answer.html, re.DOTALL)
    assert told in errors
    assert paused_queues() == []
    assert history() == []


def test_what_someone_else_did_meanwhile_is_told_and_left(keeper: Visitor) -> None:
    pause_queue("mail", by="bob")
    ((level, said),) = pause(keeper, "mail", "2999-01-01T12:30").messages
    assert level == "warning"
    assert said.startswith("Queue “mail” was paused already by bob, ")
    assert said.endswith("until it is resumed. Nothing was changed.")
    assert [(each.paused_by, each.until) for each in paused_queues()] == [("bob", None)]
    resume_queue("mail")
    assert resume(keeper, "mail").messages == {("warning", "Queue “mail” was not paused any more.")}
    assert history() == []


def test_a_pause_that_the_visitor_has_not_seen_is_left(keeper: Visitor) -> None:
    pause_queue("mail", by="bob")
    seen = rows(open_page(keeper))["mail"].resume_url
    PausedQueue.objects.update(paused_at=after(-1), paused_by="carol")
    ((level, said),) = Answer(keeper.client.post(seen, follow=True)).messages
    assert level == "warning"
    assert said.startswith("Queue “mail” was paused anew by carol, ")
    assert [each.paused_by for each in paused_queues()] == ["carol"]
    assert history() == []
    assert "success" in {level for level, _ in resume(keeper, "mail").messages}


def test_who_may_only_look_sees_everything_and_can_do_nothing(log_in: Callable[..., Visitor]) -> None:
    viewer = log_in("view_pausedqueue")
    pause_queue("mail", by="bob")
    answer = open_page(viewer)
    assert "bob" in answer.html
    assert 'class="button' not in answer.html
    assert rows(answer)["mail"].tasks_url == ""
    assert viewer.client.get(address("pause", "other")).status_code == 403
    assert pause(viewer, "other").status == 403
    assert resume(viewer, "mail").status == 403
    assert [each.queue for each in paused_queues()] == ["mail"]


@pytest.mark.parametrize(("permission", "may_pause"), [("pause_queue", True), ("resume_queue", False)])
def test_pausing_and_resuming_are_two_permissions(
    log_in: Callable[..., Visitor], permission: str, may_pause: bool
) -> None:
    visitor = log_in("view_pausedqueue", permission)
    pause_queue("mail")
    shown = rows(open_page(visitor))
    assert (bool(shown["default"].pause_url), bool(shown["mail"].resume_url)) == (may_pause, not may_pause)
    assert (pause(visitor, "other").status, resume(visitor, "mail").status) == ((200, 403) if may_pause else (403, 200))


def test_without_the_permission_to_look_there_is_nothing(log_in: Callable[..., Visitor]) -> None:
    visitor = log_in("pause_queue", "resume_queue", "view_task")
    assert open_page(visitor).status == 403
    assert pause(visitor, "mail").status == 403
    assert resume(visitor, "mail").status == 403


def test_a_get_changes_nothing_and_a_post_needs_a_token(keeper: Visitor) -> None:
    pause_queue("mail")
    assert keeper.client.get(address("resume", "mail")).status_code == 405
    assert keeper.client.post(address()).status_code == 405
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = keeper.client.cookies
    assert strict.post(address("resume", "mail")).status_code == 403
    assert strict.post(address("pause", "other")).status_code == 403
    assert [each.queue for each in paused_queues()] == ["mail"]


@pytest.mark.parametrize("name", NAMES)
def test_whatever_a_queue_is_called_it_can_be_seen_paused_and_resumed(keeper: Visitor, name: str) -> None:
    TaskFactory(queue=name)
    PausedQueue.objects.create(queue="other", paused_by=HOSTILE)
    answer = open_page(keeper)
    row = rows(answer)[name]
    assert HOSTILE not in answer.html
    assert escape(HOSTILE) in answer.html
    assert keeper.client.get(row.pause_url).status_code == 200
    told = Answer(keeper.client.post(row.pause_url, {"until": ""}, follow=True))
    assert {level for level, _ in told.messages} == {"success"}
    assert HOSTILE not in told.html
    assert name in {each.queue for each in paused_queues()}
    assert keeper.client.get(row.history_url).status_code == 200
    keeper.client.post(rows(told)[name].resume_url)
    assert name not in {each.queue for each in paused_queues()}
    assert {each[0] for each in history()} == {name}


@pytest.mark.parametrize("name", ["", "x" * (QUEUE_LENGTH + 1), "\0"])
def test_what_cannot_be_a_queue_is_not_found(keeper: Visitor, name: str) -> None:
    assert keeper.client.get(address("pause", name)).status_code == 404
    assert keeper.client.post(address("pause", name)).status_code == 404
    assert keeper.client.post(address("resume", name)).status_code == 404


def test_the_name_of_whoever_pauses_is_text_and_fits(log_in: Callable[..., Visitor]) -> None:
    visitor = log_in("view_pausedqueue", "pause_queue", name=mark_safe("<b>" + "x" * 140))
    answer = pause(visitor, "mail")
    assert "<b>x" not in answer.html
    assert paused_queues()[0].paused_by.startswith("<b>x")


def test_there_is_nothing_to_add_change_or_delete(keeper: Visitor) -> None:
    pause_queue("mail")
    assert keeper.client.get(address("add")).status_code == 403
    assert keeper.client.post(address("delete", None, "admin", "mail")).status_code == 403
    for method in (keeper.client.get, keeper.client.post):
        assert method(address("change", None, "admin", "mail")).headers["Location"] == address()
    assert [each.queue for each in paused_queues()] == ["mail"]


@pytest.mark.urls("tests.admin.urls")
def test_it_works_on_a_site_of_the_project_s_own(log_in: Callable[..., Visitor]) -> None:
    visitor = Visitor(log_in("view_pausedqueue", "pause_queue", "resume_queue", "view_task").client, "back_office")
    answer = pause(visitor, "mail")
    assert answer.response.request["PATH_INFO"] == address(site="back_office")
    row = rows(answer)["mail"]
    assert all(url.startswith("/back-office/") for url in (row.tasks_url, row.resume_url, row.history_url))
    assert 'href="/admin/' not in answer.html


@pytest.mark.skipif(connection.vendor != "postgresql", reason="The others are asked for each queue")
def test_many_queues_take_no_more_statements(keeper: Visitor) -> None:
    def count() -> int:
        with CaptureQueriesContext(connection) as queries:
            open_page(keeper)
        return len(queries)

    TaskFactory(queue="mail")
    pause_queue("mail")
    usual = count()
    for n in range(5):
        pause_queue(f"queue-{n}")
        TaskFactory(queue=f"more-{n}", running=True)
    assert count() == usual


def test_the_index_of_the_admin_leads_there(keeper: Visitor) -> None:
    html = keeper.client.get(reverse("admin:app_list", args=["cairnq_django"])).content.decode()
    assert f'href="{address()}"' in html
    assert "Queues" in html
