"""Schedules in a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.urls import reverse
from playwright.sync_api import expect

from cairnq_django.clock import after
from cairnq_django.models import Schedule
from tests.browser.pages import serious_violations, tab_stops, told, too_wide
from tests.factories import ScheduleFactory, TaskFactory

if TYPE_CHECKING:
    from tests.browser.conftest import Visit

pytestmark = pytest.mark.xdist_group("browser")

PHONE = {"width": 360, "height": 740}


def some_of_everything() -> list[str]:
    """Schedules in each state, with texts that have no place to break; the addresses of the pages that show them."""
    failed = TaskFactory(failed=True)
    mine = ScheduleFactory(name="mine", last_run_at=after(-120), last_task_id=failed.pk)
    code = ScheduleFactory(name="of code", declared=True, every=None, cron="30 2 * * 1-5", timezone="Europe/Berlin")
    ScheduleFactory(name="b" * 90, task_name="n" * 90, paused=True, next_run_at=None)
    ScheduleFactory(name="old", declared=True, retired=True, next_run_at=None)
    ScheduleFactory(name="broken", next_run_at=after(-3600), last_tick="failed", error="E" * 200)
    ScheduleFactory(name="skipped", last_tick="skipped")
    pages = [("changelist", []), ("add", []), ("change", [mine.pk]), ("change", [code.pk])]
    return [reverse(f"admin:cairnq_django_schedule_{page}", args=args) for page, args in pages]


def test_a_schedule_is_made_paused_resumed_and_run(visit: Visit) -> None:
    page = visit()
    page.goto(reverse("admin:cairnq_django_schedule_add"))
    page.get_by_label("Name").fill("each night")
    page.get_by_label("Task").select_option("write_line")
    page.get_by_label("Cron expression").fill("0 3 * *")
    page.get_by_role("button", name="Save and continue editing").click()
    expect(page.locator(".errorlist", has_text="0 3 * *")).to_be_visible()

    page.get_by_label("Cron expression").fill("0 3 * * *")
    page.get_by_role("button", name="Save and continue editing").click()
    expect(page.locator(".cairnq-runs li")).to_have_count(5)
    page.get_by_role("button", name="Pause").click()
    told(page, "is paused")
    page.get_by_role("button", name="Resume").click()
    told(page, "goes on")
    page.get_by_role("button", name="Run now").click()
    told(page, "runs now")
    assert Schedule.objects.get().last_task_id is not None


def test_buttons_are_on_a_line_of_their_own_below_the_history(visit: Visit) -> None:
    schedule = ScheduleFactory(name="mine")
    page = visit(viewport={"width": 1280, "height": 800})
    page.goto(reverse("admin:cairnq_django_schedule_change", args=[schedule.pk]))
    history = page.locator(".object-tools").bounding_box()
    run, pause = (page.get_by_role("button", name=name).bounding_box() for name in ("Run now", "Pause"))
    form = page.locator("#schedule_form").bounding_box()
    assert history
    assert run
    assert pause
    assert form
    assert run["y"] == pause["y"] >= history["y"] + history["height"]
    assert run["y"] + run["height"] <= form["y"]
    assert min(run["x"], pause["x"]) < form["x"] + 40


def test_a_phone_does_not_scroll_sideways_whichever_way_it_reads(visit: Visit, settings: Any) -> None:
    settings.LANGUAGE_CODE = "ar"
    page = visit(viewport=PHONE)
    for url in some_of_everything():
        page.goto(url)
        assert too_wide(page) == [], url


def test_no_page_has_a_serious_flaw_for_assistive_technology_and_a_keyboard_gets_around(visit: Visit) -> None:
    page = visit(bypass_csp=True)
    for url in some_of_everything():
        page.goto(url)
        assert serious_violations(page) == [], url
        assert [stop for stop in tab_stops(page) if not stop["visible"]] == [], url
