"""Queues and workers in a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.urls import reverse
from playwright.sync_api import expect

from cairnq_django import pause_queue, paused_queues
from tests.browser.pages import serious_violations, tab_stops, tab_to, told, too_wide
from tests.factories import TaskFactory, WorkerProcessFactory

if TYPE_CHECKING:
    from tests.browser.conftest import Visit

pytestmark = pytest.mark.xdist_group("browser")

PHONE = {"width": 360, "height": 740}


def queues_url() -> str:
    return reverse("admin:cairnq_django_pausedqueue_changelist")


def workers_url() -> str:
    return reverse("admin:cairnq_django_workerprocess_changelist")


URLS = {"queues": queues_url, "workers": workers_url}


def some_of_everything() -> None:
    """Rows for each part of these pages, with texts that have no place to break."""
    TaskFactory(queue="mail")
    TaskFactory(running=True, queue="default", worker_id="host-1")
    TaskFactory(failed=True, queue="q" * 90, name="n" * 90)
    WorkerProcessFactory(id="host-1", host="h" * 90, queues=("default", "q" * 90), names=("work", "n" * 90))
    WorkerProcessFactory(id="host-2", silent=True)
    pause_queue("mail")


def test_a_queue_is_paused_and_resumed(visit: Visit) -> None:
    TaskFactory(queue="mail")
    page = visit()
    page.goto(queues_url())

    page.locator("tr", has_text="mail").get_by_role("link", name="Pause").click()
    page.get_by_role("button", name="Pause queue").click()
    expect(page.locator("tr", has_text="mail").locator(".cairnq-status")).to_have_text("paused")
    assert [each.queue for each in paused_queues()] == ["mail"]

    page.locator("tr", has_text="mail").get_by_role("button", name="Resume").click()
    told(page, "gives out tasks again")
    assert list(paused_queues()) == []


def test_a_keyboard_alone_pauses_a_queue_until_a_time(visit: Visit) -> None:
    TaskFactory(queue="mail")
    page = visit()
    page.goto(queues_url())

    tab_to(page, "Pause… mail")
    page.keyboard.press("Enter")
    page.wait_for_url("**/pause/**")
    tab_to(page, "until")
    page.keyboard.type("01012099")
    page.keyboard.press("Tab")
    page.keyboard.type("1200AM")
    tab_to(page, "Pause queue")
    page.keyboard.press("Enter")

    expect(page.locator("tr", has_text="mail").locator(".cairnq-status")).to_have_text("paused")
    assert [each.until.year for each in paused_queues()] == [2099]


def test_who_may_only_view_can_neither_pause_nor_resume(visit: Visit) -> None:
    some_of_everything()
    page = visit("view_task", "view_pausedqueue", "view_workerprocess")

    page.goto(queues_url())

    expect(page.locator("tr", has_text="mail").locator(".cairnq-status")).to_have_text("paused")
    expect(page.locator("#content-main .button")).to_have_count(0)


@pytest.mark.parametrize("name", list(URLS))
@pytest.mark.parametrize("language", ["en", "ar"])
def test_a_phone_does_not_scroll_sideways(visit: Visit, settings: Any, language: str, name: str) -> None:
    settings.LANGUAGE_CODE = language
    some_of_everything()
    page = visit(viewport=PHONE)

    page.goto(URLS[name]())

    assert too_wide(page) == []


def test_the_page_of_a_worker_fits_a_phone(visit: Visit) -> None:
    some_of_everything()
    page = visit(viewport=PHONE)
    page.goto(workers_url())

    page.locator("#result_list tbody a").first.click()
    expect(page.locator("#workerprocess_form, #content-main form").first).to_be_visible()

    assert too_wide(page) == []


@pytest.mark.parametrize("name", list(URLS))
def test_a_keyboard_reaches_every_control_and_shows_where_it_is(visit: Visit, name: str) -> None:
    some_of_everything()
    page = visit()
    page.goto(URLS[name]())
    controls = page.locator("#content").locator("a[href]:visible, button:visible, summary:visible")
    count = controls.count()

    stops = tab_stops(page)

    assert count > 0
    assert len(stops) >= count
    assert [stop for stop in stops if not stop["visible"]] == []


@pytest.mark.parametrize("name", list(URLS))
def test_no_page_has_a_serious_flaw_for_assistive_technology(visit: Visit, name: str) -> None:
    some_of_everything()
    page = visit(bypass_csp=True)
    page.goto(URLS[name]())
    assert serious_violations(page) == []


def test_the_question_until_when_to_pause_has_no_serious_flaw_for_assistive_technology(visit: Visit) -> None:
    TaskFactory(queue="mail")
    page = visit(bypass_csp=True)
    page.goto(queues_url())
    page.get_by_role("link", name="Pause").first.click()
    expect(page.locator("#cairnq-pause")).to_be_visible()
    assert serious_violations(page) == []
