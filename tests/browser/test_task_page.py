"""The page of one task in a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

from cairnq_django.clock import after
from cairnq_django.store import control, settle
from cairnq_django.store.engine import task_database
from tests.browser.pages import YES, page_url, serious_violations, tab_stops, tab_to, told, too_wide
from tests.factories import TaskFactory, an_error, lease_of

if TYPE_CHECKING:
    from cairnq_django.models import Task
    from tests.browser.conftest import Visit

pytestmark = pytest.mark.xdist_group("browser")

TRACEBACK = (
    'Traceback (most recent call last):\n  File "tasks.py", line 1, in work\n    1 / 0\n' + "ZeroDivisionError" * 20
)
EVERY = 2_000  # milliseconds between two looks of the page that follows a task
PHONE = {"width": 360, "height": 740}


def a_task_with_everything(**fields: Any) -> Task:
    parent = TaskFactory(name="nightly", running=True)
    error = {**an_error("<i>boom</i> " + "o" * 300), "details": {"traceback": TRACEBACK, "row": 7}}
    task = TaskFactory(
        **{
            "failed": True,
            "name": "work" + "-on" * 60,
            "queue": "q" * 60,
            "key": "k" * 200,
            "worker_id": "w" * 90,
            "correlation_id": "c" * 200,
            "parent_id": parent.pk,
            "root_id": parent.pk,
            "message": "m" * 300,
            "progress": 0.5,
            "payload": {"lines": [1, {"text": "x" * 500}], "ok": True},
            "result": ["r" * 400],
            "metadata": {"by": "shop"},
            "error": error,
            **fields,
        }
    )
    TaskFactory(name="part" * 40, parent_id=task.pk, root_id=parent.pk)
    return task


def test_json_folds(visit: Visit) -> None:
    task = TaskFactory(succeeded=True, payload={"order": {"lines": [1, 2]}})
    page = visit()
    page.goto(page_url(task))
    payload = page.get_by_role("region", name="Payload", exact=False).first
    expect(payload).to_contain_text('"lines"')

    fold = payload.locator(".cairnq-fold").nth(1)
    fold.click()

    expect(payload.get_by_text('"lines"')).to_be_hidden()
    expect(fold).to_have_attribute("aria-expanded", "false")
    fold.focus()
    page.keyboard.press("Enter")
    expect(payload.get_by_text('"lines"')).to_be_visible()


def test_the_life_of_a_task_reads_from_its_beginning(visit: Visit) -> None:
    task = TaskFactory(failed=True, created_at=after(-90), run_at=after(-90))
    page = visit()
    page.goto(page_url(task))

    titles = page.locator(".cairnq-event-title").all_inner_texts()

    assert titles[0] == "Submitted"
    assert titles[-1] == "Failed"
    assert [title for title in titles if title.startswith("Attempt")] == [
        "Attempt 1: queued again",
        "Attempt 2: queued again",
        "Attempt 3: failed for good",
    ]


def test_a_running_task_is_followed_until_it_ends(visit: Visit) -> None:
    task = TaskFactory(running=True, progress=0.25, message="page 1 of 4")
    page = visit()
    page.clock.install()
    page.goto(page_url(task))
    expect(page.locator(".cairnq-percent").first).to_have_text("25\u00a0%")

    control.progress(task_database(), lease_of(task), value=0.75, message="page 3 of 4")
    page.clock.fast_forward(EVERY)
    expect(page.locator(".cairnq-percent").first).to_have_text("75\u00a0%")
    expect(page.locator(".cairnq-progress-message")).to_have_text("page 3 of 4")

    settle.complete(task_database(), lease_of(task), {"pages": 4})
    page.clock.fast_forward(EVERY)
    expect(page.locator(".field-state .cairnq-status")).to_have_text("succeeded")
    expect(page.get_by_role("region", name="Result")).to_contain_text('"pages"')
    expect(page.locator("#cairnq-live")).to_have_count(0)


def test_a_task_that_is_purged_is_not_waited_for(visit: Visit, complaints: list[str]) -> None:
    task = TaskFactory(running=True)
    page = visit()
    page.clock.install()
    page.goto(page_url(task))
    task.delete()
    page.clock.fast_forward(EVERY)
    expect(page.get_by_text("Perhaps it was deleted?")).to_be_visible()
    assert "404" in complaints.pop()


def test_who_is_logged_out_meanwhile_is_asked_to_log_in(visit: Visit) -> None:
    task = TaskFactory(running=True)
    page = visit()
    page.clock.install()
    page.goto(page_url(task))
    page.context.clear_cookies()
    page.clock.fast_forward(EVERY)
    expect(page.get_by_label("Password")).to_be_visible()


def test_following_can_be_stopped_and_taken_up_again(visit: Visit) -> None:
    task = TaskFactory(running=True, progress=0.25)
    page = visit()
    page.clock.install()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/live/" in request.url else None)
    page.goto(page_url(task))
    control.progress(task_database(), lease_of(task), value=0.75, message=None)

    page.get_by_role("button", name="Stop following").click()
    expect(page.locator("#cairnq-live [role=status]")).to_have_text("This page does not follow the task.")
    asked.clear()
    page.clock.fast_forward(5 * EVERY)
    page.get_by_role("button", name="Follow").click()
    page.clock.fast_forward(EVERY)

    expect(page.locator(".cairnq-percent").first).to_have_text("75\u00a0%")
    assert len(asked) == 1


def test_a_task_is_canceled_after_a_question(visit: Visit) -> None:
    task = TaskFactory(running=True)
    page = visit()
    page.goto(page_url(task))

    page.get_by_role("button", name="Cancel task").click()
    page.get_by_role("link", name="No, go back").click()
    expect(page.locator(".field-state .cairnq-status")).to_have_text("running")
    assert not task.refresh().cancel_requested

    page.get_by_role("button", name="Cancel task").click()
    expect(page.locator("#cairnq-confirm")).to_be_visible()
    page.get_by_role("button", name=YES).click()

    told(page, "1 running task was asked to stop and will end canceled.")
    assert task.refresh().cancel_requested


def test_a_failed_task_is_retried(visit: Visit) -> None:
    task = TaskFactory(failed=True)
    page = visit()
    page.goto(page_url(task))

    page.get_by_role("button", name="Retry task").click()

    told(page, "1 task was queued again.")
    assert task.refresh().is_queued


def test_a_failed_task_is_retried_with_its_attempts_reset(visit: Visit) -> None:
    task = TaskFactory(failed=True)
    page = visit()
    page.goto(page_url(task))

    page.get_by_role("button", name="Retry with attempts reset").click()
    page.get_by_role("button", name=YES).click()

    told(page, "1 task was queued again with all its attempts left.")
    assert task.refresh().attempt == 0


def test_a_delayed_task_is_run_now(visit: Visit) -> None:
    task = TaskFactory(delayed=True)
    page = visit()
    page.goto(page_url(task))

    page.get_by_role("button", name="Run now").click()
    page.get_by_role("button", name=YES).click()

    told(page, "1 task is due now")
    assert task.run_at > task.refresh().run_at


@pytest.mark.parametrize("language", ["en", "ar"])
def test_a_phone_does_not_scroll_sideways(visit: Visit, settings: Any, language: str) -> None:
    settings.LANGUAGE_CODE = language
    task = a_task_with_everything()
    page = visit(viewport=PHONE)

    page.goto(page_url(task))
    expect(page.locator(".cairnq-fold").first).to_be_visible()
    assert too_wide(page) == []

    page.locator("button[value=reset_tasks]").click()
    expect(page.locator("#cairnq-confirm")).to_be_visible()
    assert too_wide(page) == []


def test_a_language_from_the_right_mirrors_the_page(visit: Visit, settings: Any) -> None:
    settings.LANGUAGE_CODE = "ar"
    task = a_task_with_everything()
    page = visit()
    page.goto(page_url(task))

    dot, title = page.locator(".cairnq-dot").first, page.locator(".cairnq-event-title").first

    assert left(dot) > left(title)
    code = page.locator("pre.cairnq-code").first
    assert code.evaluate("each => getComputedStyle(each).direction") == "ltr"


@pytest.mark.parametrize("state", ["failed", "running", "delayed"])
def test_a_keyboard_reaches_every_button_and_shows_where_it_is(visit: Visit, state: str) -> None:
    task = TaskFactory(**{state: True}, payload={"order": [1]}, name="work")
    TaskFactory(parent_id=task.pk, root_id=task.pk)
    page = visit()
    page.goto(page_url(task))
    expect(page.locator(".cairnq-fold").first).to_be_visible()
    buttons = [each.strip() for each in page.locator("#content-main button").all_inner_texts()]

    stops = tab_stops(page)

    reached = [stop["name"] for stop in stops]
    assert buttons
    assert [each for each in buttons if each and each not in reached] == []
    assert len([stop for stop in stops if stop["tag"] == "BUTTON"]) >= len(buttons)
    assert [stop for stop in stops if not stop["visible"]] == []


def test_focus_stays_on_its_button_when_the_page_is_shown_anew(visit: Visit) -> None:
    task = TaskFactory(running=True)
    page = visit()
    page.clock.install()
    page.goto(page_url(task))
    tab_to(page, "Cancel task")

    control.progress(task_database(), lease_of(task), value=0.5, message="half")
    page.clock.fast_forward(EVERY)
    expect(page.locator(".cairnq-progress-message")).to_have_text("half")

    assert page.evaluate("document.activeElement.innerText") == "Cancel task"


@pytest.mark.parametrize("state", ["failed", "running"])
def test_the_page_has_no_serious_flaw_for_assistive_technology(visit: Visit, state: str) -> None:
    task = a_task_with_everything(**{"failed": False, state: True})
    page = visit(bypass_csp=True)
    page.goto(page_url(task))
    expect(page.locator(".cairnq-fold").first).to_be_visible()
    assert serious_violations(page) == []


def test_the_question_has_no_serious_flaw_for_assistive_technology(visit: Visit) -> None:
    page = visit(bypass_csp=True)
    page.goto(page_url(TaskFactory()))
    page.get_by_role("button", name="Cancel task").click()
    expect(page.locator("#cairnq-confirm")).to_be_visible()
    assert serious_violations(page) == []


def left(locator: Any) -> float:
    box = locator.bounding_box()
    assert box is not None
    return float(box["x"])
