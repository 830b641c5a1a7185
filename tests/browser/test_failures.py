"""Failures, and work on many tasks at once, in a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.urls import reverse
from playwright.sync_api import expect

from cairnq_django.admin import jobs
from cairnq_django.models import Task
from tests.browser.pages import YES, list_url, serious_violations, tab_stops, tab_to, too_wide
from tests.factories import TaskAttemptFactory, TaskFactory, a_great_many, an_error
from tests.helpers import eventually

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

    from tests.browser.conftest import Visit

pytestmark = pytest.mark.xdist_group("browser")

PHONE = {"width": 360, "height": 740}


def failures_url() -> str:
    return reverse("admin:cairnq_django_taskattempt_changelist")


def fail(number: int, **fields: Any) -> list[Task]:
    return [TaskFactory(**{"failed": True, "attempt": 1, "name": "charge_card", **fields}) for _ in range(number)]


def open_group(page: Page) -> None:
    page.goto(failures_url())
    page.locator(".cairnq-groups h2 a").first.click()
    expect(page.locator("#cairnq-group-form, .cairnq-now").first).to_be_visible()


def statuses() -> set[str]:
    return set(Task.objects.values_list("status", flat=True))


def test_a_group_is_retried_in_chunks(visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "CHUNK", 2)
    fail(5)
    page = visit()
    open_group(page)

    page.get_by_role("button", name="Retry").click()

    expect(page.locator("#cairnq-job [role=status]")).to_have_text("Finished.")
    expect(page.locator("#cairnq-job .cairnq-percent")).to_have_text("5 of 5 tasks looked at")
    expect(page.locator("#cairnq-job .messagelist")).to_contain_text("5 tasks were queued again.")
    assert statuses() == {"queued"}


def test_work_on_many_tasks_is_stopped_and_continued(visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "CHUNK", 20)
    a_great_many(60, name="sync_stock")
    page = visit()
    page.goto(list_url())
    page.locator("#action-toggle").check()
    page.locator(".actions .question a").click()
    page.locator("select[name=action]").select_option("cancel_tasks")
    page.locator("button[name=index]").click()
    held: list[Route] = []
    page.route("**/job/**", lambda route: held.append(route) if is_first_chunk(route) else route.continue_())

    def is_first_chunk(route: Route) -> bool:
        return route.request.method == "POST" and not held

    page.get_by_role("button", name=YES).click()
    eventually(lambda: page.wait_for_timeout(10) or held, timeout=30)
    page.get_by_role("button", name="Stop").click()
    held[0].continue_()

    expect(page.locator("#cairnq-job .cairnq-percent")).to_have_text("40 of 60 tasks looked at")
    expect(page.locator("#cairnq-job [role=status]")).to_have_text("Stopped; what was done stays done.")
    page.reload()
    expect(page.get_by_role("button", name="Continue")).to_be_visible()
    assert Task.objects.filter(status="canceled").count() == 40

    page.get_by_role("button", name="Continue").click()
    expect(page.locator("#cairnq-job [role=status]")).to_have_text("Finished.")
    assert statuses() == {"canceled"}


def test_a_keyboard_alone_retries_a_group(visit: Visit) -> None:
    fail(3)
    page = visit()
    page.goto(failures_url())

    tab_to(page, "charge_card task_error")
    page.keyboard.press("Enter")
    page.wait_for_url("**/group/**")
    tab_to(page, "Retry all 3 failed tasks")
    page.keyboard.press("Enter")

    expect(page.locator("#cairnq-job [role=status]")).to_have_text("Finished.")
    assert statuses() == {"queued"}


def test_work_goes_on_without_scripts(visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "CHUNK", 2)
    fail(3)
    page = visit(java_script_enabled=False)
    open_group(page)

    page.get_by_role("button", name="Retry").click()
    while page.get_by_role("button", name="Continue").count():
        page.get_by_role("button", name="Continue").click()
        page.wait_for_load_state()

    expect(page.locator("#cairnq-job [role=status]")).to_have_text("Finished.")
    assert statuses() == {"queued"}


def test_who_may_only_view_can_do_nothing_about_failures(visit: Visit) -> None:
    fail(1)
    page = visit("view_task", "view_taskattempt")

    open_group(page)

    expect(page.locator(".cairnq-failure")).to_contain_text("boom")
    expect(page.locator("#content button")).to_have_count(0)


@pytest.mark.parametrize("language", ["en", "ar"])
def test_a_phone_does_not_scroll_sideways(visit: Visit, settings: Any, language: str) -> None:
    settings.LANGUAGE_CODE = language
    fail(2, queue="q" * 90)
    task = TaskFactory(name="n" * 90, delayed=True, attempt=1)
    TaskAttemptFactory(task=task, error={**an_error("m" * 300), "code": "c" * 90, "type": "t" * 90})
    page = visit(viewport=PHONE)

    page.goto(failures_url())
    assert too_wide(page) == []

    for link in page.locator(".cairnq-groups h2 a").evaluate_all("all => all.map((each) => each.href)"):
        page.goto(link)
        assert too_wide(page) == []
    page.goto(failures_url())
    page.locator(".cairnq-groups h2 a", has_text="task_error").click()
    page.locator("[value=retry_tasks]").click()
    expect(page.locator("#cairnq-job")).to_be_visible()
    assert too_wide(page) == []


def test_a_keyboard_reaches_every_control_and_shows_where_it_is(visit: Visit) -> None:
    fail(2)
    TaskFactory(failed=True, name="other", queue="other")
    page = visit()
    page.goto(failures_url())
    shown = every_control_is_reached(page)
    page.locator(".cairnq-groups h2 a").first.click()
    expect(page.locator("#cairnq-group-form")).to_be_visible()
    assert shown + every_control_is_reached(page) > 10


def every_control_is_reached(page: Page) -> int:
    """How many controls the Tab key has to reach, and does, each of them so that this can be seen."""
    controls = page.locator("#content").locator("a[href]:visible, button:visible, select:visible, summary:visible")
    count = controls.count()
    stops = tab_stops(page)
    assert len(stops) >= count
    assert [stop for stop in stops if not stop["visible"]] == []
    return count


def test_the_pages_of_failures_have_no_serious_flaw_for_assistive_technology(visit: Visit) -> None:
    fail(2)
    TaskFactory(failed=True, name="other", queue="other")
    page = visit(bypass_csp=True)
    page.goto(failures_url())
    assert serious_violations(page) == []

    open_group(page)
    assert serious_violations(page) == []

    page.get_by_role("button", name="Retry").click()
    expect(page.locator("#cairnq-job [role=status]")).to_have_text("Finished.")
    assert serious_violations(page) == []
