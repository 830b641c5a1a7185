"""Failures in a browser: from what fails to its tasks, and all of them queued again, in chunks that can be stopped."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from django.urls import reverse
from playwright.sync_api import expect

from cairnq_django.admin import jobs
from cairnq_django.clock import after
from cairnq_django.models import Task
from tests.browser.pages import YES, list_url, serious_violations, tab_stops, tab_to, too_wide
from tests.factories import TaskAttemptFactory, TaskFactory, a_great_many

if TYPE_CHECKING:
    from playwright.sync_api import Page
    from pytest_django.fixtures import SettingsWrapper

    from tests.browser.conftest import Visit

pytestmark = pytest.mark.xdist_group("browser")

PHONE = {"width": 360, "height": 740}


def url() -> str:
    return reverse("admin:cairnq_django_taskattempt_changelist")


def failed_tasks(number: int, **fields: Any) -> list[Task]:
    """Tasks that failed in one way at their first attempt."""
    tasks = [TaskFactory(failed=True, attempt=1, **fields) for _ in range(number)]
    assert all(task.attempts.count() == 1 for task in tasks)
    return tasks


def a_bad_night() -> None:
    failed_tasks(3, name="charge", queue="shop")
    waiting = TaskFactory(name="w" * 90, queue="q" * 60, delayed=True, attempt=1)
    traceback = "Traceback (most recent call last):\n" + "x" * 200
    error = {"type": "t" * 90, "code": "c" * 90, "message": "m" * 300, "details": {"traceback": traceback}}
    TaskAttemptFactory(task=waiting, error=error, ended_at=after(-900))
    TaskAttemptFactory(task=waiting, error=error, ended_at=after(-9))


def begin_to_cancel_all(page: Page) -> None:
    page.goto(list_url())
    page.get_by_label("Select all objects on this page for an action").check()
    page.get_by_title("Click here to select the objects across all pages").click()
    page.get_by_label("Action:").select_option(label="Cancel selected tasks")
    page.get_by_role("button", name="Go").click()
    page.get_by_role("button", name=YES).click()


def test_all_failed_tasks_of_a_group_are_queued_again(visit: Visit) -> None:
    tasks = failed_tasks(3, name="charge")
    failed_tasks(1, name="other")
    page = visit()
    page.goto(url())

    page.get_by_role("link", name="charge").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("task_error in charge")
    page.get_by_role("button", name="Retry all 3 failed tasks").click()

    expect(page.get_by_role("status")).to_have_text("Finished.")
    expect(page.locator("#cairnq-job .messagelist")).to_have_text("3 tasks were queued again.")
    assert {task.status for task in Task.objects.filter(pk__in=[task.pk for task in tasks])} == {"queued"}
    page.get_by_role("link", name="Back to where this began").click()
    expect(page.locator(".cairnq-now")).to_contain_text("queued 3")


def test_a_keyboard_is_enough(visit: Visit) -> None:
    failed_tasks(2, name="charge")
    page = visit()
    page.goto(url())

    tab_to(page, "charge task_error")
    page.keyboard.press("Enter")
    page.wait_for_url("**/group/**")
    tab_to(page, "Retry all 2 failed tasks")
    page.keyboard.press("Enter")

    expect(page.get_by_role("status")).to_have_text("Finished.")


def test_a_job_goes_on_by_itself_until_it_is_stopped_and_from_there_when_it_is_continued(
    visit: Visit, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "CHUNK", 1)
    a_great_many(101)
    page = visit()
    begin_to_cancel_all(page)
    expect(page.locator(".cairnq-percent")).to_have_text(re.compile(r"^[3-9] of 101"))

    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_role("status")).to_have_text("Stopped; what was done stays done.")
    with page.expect_response(lambda response: "/job/" in response.url):
        page.reload()
    expect(page.get_by_role("button", name="Continue")).to_be_visible()
    expect(page.get_by_role("status")).to_have_text("Stopped; what was done stays done.")
    assert 0 < Task.objects.canceled().count() < 101

    monkeypatch.setattr(jobs, "CHUNK", 50)
    page.get_by_role("button", name="Continue").click()
    expect(page.get_by_role("status")).to_have_text("Finished.")
    expect(page.locator("#cairnq-job .messagelist")).to_have_text("101 tasks were canceled.")
    assert Task.objects.canceled().count() == 101


def test_without_scripts_a_button_goes_on(visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "CHUNK", 2)
    failed_tasks(3, name="charge")
    page = visit(java_script_enabled=False)
    page.goto(url())
    page.get_by_role("link", name="charge").click()
    page.get_by_role("button", name="Retry all 3 failed tasks").click()
    expect(page.locator(".cairnq-percent")).to_have_text("2 of 3 tasks looked at")

    page.get_by_role("button", name="Continue").click()

    expect(page.get_by_role("status")).to_have_text("Finished.")


@pytest.mark.parametrize("language", ["en", "ar"])
def test_nothing_is_too_wide_for_a_phone(visit: Visit, settings: SettingsWrapper, language: str) -> None:
    settings.LANGUAGE_CODE = language
    a_bad_night()
    page = visit(viewport=PHONE)

    page.goto(url())
    assert page.locator("html").get_attribute("dir") == ("rtl" if language == "ar" else "ltr")
    assert too_wide(page) == []
    page.locator(".cairnq-groups a").last.click()
    page.wait_for_url("**/group/**")
    assert too_wide(page) == []


def test_the_pages_are_accessible(visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "CHUNK", 1)
    a_bad_night()
    page = visit(bypass_csp=True)
    page.goto(url())
    assert serious_violations(page) == []
    assert [stop for stop in tab_stops(page) if not stop["visible"] or not stop["name"]] == []

    page.get_by_role("link", name="charge").click()
    page.wait_for_url("**/group/**")
    assert serious_violations(page) == []

    page.get_by_role("button", name="Retry all 3 failed tasks").click()
    expect(page.get_by_role("status")).to_have_text("Finished.")
    assert serious_violations(page) == []
