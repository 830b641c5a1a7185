"""The list of tasks in a browser."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from tests.browser.pages import YES, list_url, page_url, serious_violations, tab_stops, tab_to, told, too_wide
from tests.factories import TaskFactory, a_great_many

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.browser.conftest import Visit

pytestmark = pytest.mark.xdist_group("browser")

#: Texts without a place to break, and markup that must stay text.
HOSTILE = {"name": "<b>" + "x" * 90, "queue": "q" * 60, "key": "k" * 200, "worker_id": "w" * 90}


def names(page: Page) -> list[str]:
    """The names of the tasks in the list, from the top."""
    return page.locator("#result_list .cairnq-name").all_inner_texts()


def tasks_in_every_state() -> None:
    TaskFactory(name="send_receipt")
    TaskFactory(name="send_reminder", delayed=True, priority=5)
    TaskFactory(name="build_report", running=True, progress=0.4, message="page 4 of 10")
    TaskFactory(name="sync_stock", cancel_requested=True)
    TaskFactory(name="resize_photos", succeeded=True, result={"resized": 8})
    TaskFactory(name="charge_card", failed=True)
    TaskFactory(name="fetch_rates", canceled=True)
    TaskFactory(running=True, failed_attempts=None, message="m" * 500, **HOSTILE)


def test_tasks_are_filtered_and_searched(visit: Visit) -> None:
    tasks_in_every_state()
    page = visit()
    page.goto(list_url())

    page.locator("#changelist-filter").get_by_role("link", name="failed", exact=True).click()
    page.wait_for_url("**status=failed**")
    assert names(page) == ["charge_card"]

    page.goto(list_url())
    page.locator("#searchbar").fill("payload:beach")
    page.keyboard.press("Enter")
    page.wait_for_url("**payload**")
    expect(page.locator(".paginator")).to_contain_text("0 tasks")

    page.locator("#searchbar").fill("resize_photos")
    page.keyboard.press("Enter")
    page.wait_for_url("**resize_photos**")
    assert names(page) == ["resize_photos"]


def test_tasks_are_sorted_and_paged_through(visit: Visit) -> None:
    a_great_many(59, name="middle")
    TaskFactory(name="newest")
    page = visit()
    page.goto(list_url())
    assert names(page)[0] == "newest"

    page.get_by_role("link", name="2", exact=True).click()
    page.wait_for_url("**p=2**")
    assert len(names(page)) == 10

    page.locator("th.column-age .text a").click()
    page.wait_for_url("**o=**")
    assert "newest" not in names(page)


def test_selected_tasks_are_canceled_after_a_question(visit: Visit) -> None:
    keep, first, second = TaskFactory(name="keep"), TaskFactory(name="first"), TaskFactory(name="second")
    page = visit()
    page.goto(list_url())
    for task in (first, second):
        page.locator(f"input[name=_selected_action][value='{task.pk}']").check()
    expect(page.locator(".action-counter")).to_have_text("2 of 3 selected")

    page.locator("select[name=action]").select_option("cancel_tasks")
    page.locator("button[name=index]").click()
    page.get_by_role("button", name=YES).click()

    told(page, "2 tasks were canceled.")
    assert [task.refresh().status for task in (keep, first, second)] == ["queued", "canceled", "canceled"]


def test_who_may_only_view_sees_all_and_can_do_nothing(visit: Visit) -> None:
    task = TaskFactory(name="charge_card", failed=True)
    page = visit("view_task")
    page.goto(list_url())

    assert names(page) == ["charge_card"]
    expect(page.locator("select[name=action]")).to_have_count(0)

    page.locator("#result_list .field-task a").first.click()
    page.wait_for_url(f"**{task.pk}**")
    expect(page.locator("#content-main .cairnq-failure").first).to_contain_text("boom")
    expect(page.locator("#content-main [type=submit]")).to_have_count(0)


@pytest.mark.parametrize("language", ["en", "ar"])
def test_a_phone_does_not_scroll_sideways(visit: Visit, settings: object, language: str) -> None:
    settings.LANGUAGE_CODE = language  # type: ignore[attr-defined]
    tasks_in_every_state()
    page = visit(viewport={"width": 360, "height": 740})

    page.goto(list_url())

    assert page.evaluate("document.dir || document.documentElement.dir") == ("rtl" if language == "ar" else "ltr")
    assert len(names(page)) == 8
    assert too_wide(page) == []


def test_a_phone_shows_each_task_as_a_card(visit: Visit) -> None:
    TaskFactory(name="charge_card", failed=True)
    page = visit(viewport={"width": 360, "height": 740})
    page.goto(list_url())

    card = page.locator("#result_list tbody tr")

    expect(page.locator("#result_list thead")).to_be_hidden()
    expect(card.locator(".field-short_error")).to_be_visible()
    expect(card).to_contain_text(re.compile("failed.*charge_card.*boom", re.DOTALL))


def test_a_keyboard_reaches_every_control_and_shows_where_it_is(visit: Visit) -> None:
    TaskFactory(name="send_receipt")
    page = visit()
    page.goto(list_url())

    stops = tab_stops(page)

    reached = {stop["name"] for stop in stops}
    assert reached >= {"send_receipt", "Search", "Go", "failed", "running", "the last hour"}
    assert [stop for stop in stops if not stop["visible"]] == []


def test_a_keyboard_alone_cancels_a_task(visit: Visit) -> None:
    task = TaskFactory(delayed=True)
    page = visit()
    page.goto(page_url(task))

    tab_to(page, "Cancel task")
    page.keyboard.press("Enter")
    expect(page.locator("#cairnq-confirm")).to_be_visible()
    tab_to(page, YES)
    page.keyboard.press("Enter")

    told(page, "1 task was canceled.")
    assert task.refresh().canceled


def test_the_list_has_no_serious_flaw_for_assistive_technology(visit: Visit) -> None:
    tasks_in_every_state()
    page = visit(bypass_csp=True)

    page.goto(list_url())

    assert serious_violations(page) == []


def test_the_list_works_without_scripts(visit: Visit) -> None:
    task = TaskFactory(name="send_receipt", delayed=True)
    page = visit(java_script_enabled=False)
    page.goto(list_url())

    page.locator("#result_list .field-task a").first.click()
    page.get_by_role("button", name="Run now").click()
    page.get_by_role("button", name=YES).click()

    told(page, "1 task is due now")
    assert task.run_at > task.refresh().run_at
