"""The overview in a browser: it refreshes itself under whoever reads it, and stops when told to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.urls import reverse
from playwright.sync_api import expect

from cairnq_django.clock import after
from cairnq_django.models import PausedQueue, Task, WorkerProcess
from cairnq_django.store.activity import Work, add
from cairnq_django.store.engine import task_database
from tests.browser.pages import serious_violations, tab_stops, tab_to, too_wide
from tests.factories import TaskFactory, WorkerProcessFactory

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.browser.conftest import Visit

pytestmark = pytest.mark.xdist_group("browser")

EVERY = 5_000  # milliseconds between two looks
PHONE = {"width": 360, "height": 740}


def url(**query: str) -> str:
    return reverse("admin:app_list", args=["cairnq_django"], query=query or None)


def a_bad_night() -> None:
    """Something of all that the page can show."""
    WorkerProcessFactory(host="h" * 60, queues=["default", "mail" + "x" * 90], busy=3, abandoned=1)
    WorkerProcessFactory(id="lost", host="l" * 60, silent=True)
    TaskFactory(queue="default", running=True)
    TaskFactory(queue="default", name="renamed" + "x" * 90, run_at=after(-80))
    TaskFactory(queue="mail" + "x" * 90, run_at=after(-725))
    TaskFactory(queue="reports", run_at=after(-1_900))
    PausedQueue.objects.create(queue="imports", paused_by="ada" * 30, until=after(3_600))
    work = Work(started=9_000, succeeded=8_000, failed=900, retried=77, waited=9_000, longest_wait=725)
    add(task_database(), {"default": work, "mail" + "x" * 90: work})


def opened(visit: Visit, **options: Any) -> Page:
    page = visit(**options)
    page.clock.install()
    page.goto(url())
    expect(page.get_by_role("button", name="Stop refreshing")).to_be_visible()
    return page


def tile(page: Page, status: str) -> Any:
    return page.locator(f".cairnq-tile-{status} .cairnq-tile-count")


def test_it_refreshes_itself_and_leaves_what_is_read_where_it_is(visit: Visit) -> None:
    a_bad_night()
    page = opened(visit, viewport={"width": 1_000, "height": 400})
    page.locator("#cairnq-rows-failures summary").click()
    tab_to(page, "h" * 60)
    page.evaluate("window.scrollTo(0, 300)")

    TaskFactory(queue="another", succeeded=True)
    TaskFactory(queue="another")
    WorkerProcess.objects.update(busy=5)
    page.clock.fast_forward(EVERY)

    expect(tile(page, "succeeded")).to_have_text("1")
    expect(page.locator(".cairnq-table").get_by_role("link", name="another")).to_have_count(1)
    expect(page.locator(".cairnq-workers .cairnq-percent")).to_have_text("5/8")
    assert page.locator("#cairnq-rows-failures").evaluate("each => each.open")
    assert page.evaluate("document.activeElement.innerText") == "h" * 60
    assert page.evaluate("window.scrollY") == 300


def test_nothing_moves_while_a_text_is_selected(visit: Visit) -> None:
    page = opened(visit)
    page.evaluate("getSelection().selectAllChildren(document.getElementById('cairnq-headline'))")

    TaskFactory(succeeded=True)
    with page.expect_response("**/cairnq_django/"):
        page.clock.fast_forward(EVERY)
    assert page.evaluate("getSelection().toString()") == "No worker runs"

    page.evaluate("getSelection().removeAllRanges()")
    page.clock.fast_forward(EVERY)
    expect(tile(page, "succeeded")).to_have_text("1")


def test_it_can_be_stopped_and_remembers_it(visit: Visit) -> None:
    page = opened(visit)
    page.get_by_role("button", name="Stop refreshing").click()
    expect(page.locator("#cairnq-refresh [role=status]")).to_have_text("This page does not refresh itself.")

    page.reload()
    expect(page.locator("#cairnq-refresh [role=status]")).to_have_text("This page does not refresh itself.")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    TaskFactory(succeeded=True)
    page.clock.fast_forward(5 * EVERY)
    assert asked == []
    expect(tile(page, "succeeded")).to_have_text("0")

    page.get_by_role("button", name="Refresh").click()
    expect(tile(page, "succeeded")).to_have_text("1")
    TaskFactory(succeeded=True)
    page.clock.fast_forward(EVERY)
    expect(tile(page, "succeeded")).to_have_text("2")


def test_it_stops_with_a_word_when_the_visitor_is_logged_out(visit: Visit) -> None:
    page = opened(visit)
    page.context.clear_cookies()
    page.clock.fast_forward(EVERY)

    status = page.locator("#cairnq-refresh [role=status]")
    expect(status).to_contain_text("did not answer as expected")
    expect(page.get_by_role("button", name="Refresh")).to_be_visible()
    expect(tile(page, "succeeded")).to_have_text("0")


def test_it_goes_on_when_the_server_was_away(visit: Visit, complaints: list[str]) -> None:
    page = opened(visit)
    status = page.locator("#cairnq-refresh [role=status]")
    page.route("**/cairnq_django/", lambda route: route.fulfill(status=502, body="Bad gateway"))
    page.clock.fast_forward(EVERY)
    expect(status).to_have_text("The server does not answer; trying again.")

    assert "502" in complaints.pop()
    page.unroute("**/cairnq_django/")
    TaskFactory(succeeded=True)
    page.clock.fast_forward(EVERY)
    expect(tile(page, "succeeded")).to_have_text("1")
    expect(status).to_have_text("This page refreshes itself.")


def test_other_pages_are_a_thumb_s_reach_away(visit: Visit) -> None:
    page = visit(viewport=PHONE)
    page.goto(url())
    ways = page.get_by_role("navigation", name="Pages of the task queue").get_by_role("link")
    expect(ways).to_have_text(["Tasks", "Failures", "Queues", "Workers", "Schedules"])
    boxes = [way.bounding_box() for way in ways.all()]
    assert all(box["height"] >= 44 for box in boxes)
    assert len({box["y"] for box in boxes}) <= 2, "in two rows at the most"


def test_no_line_of_a_worker_s_facts_ends_or_begins_with_a_dot(visit: Visit) -> None:
    WorkerProcessFactory(queues=[f"queue-{n}" * 3 for n in range(6)])
    page = visit(viewport=PHONE)
    page.goto(url())
    begins = page.locator(".cairnq-workers .cairnq-notes").evaluate(
        "all => [...all.children].map((each) => each.getBoundingClientRect().x - all.getBoundingClientRect().x)"
    )
    # What begins a line has its dot beyond the edge, where nothing is shown.
    assert min(begins) < 0
    dot = page.locator(".cairnq-workers .cairnq-notes > span").last
    assert dot.evaluate("each => getComputedStyle(each, '::after').content") == "none"
    assert page.locator(".cairnq-workers .cairnq-notes").evaluate("all => getComputedStyle(all).overflow") == "hidden"


def test_it_is_left_by_a_link_to_what_it_counts(visit: Visit) -> None:
    TaskFactory(failed=True)
    page = opened(visit)
    page.locator(".cairnq-tile-failed").click()
    expect(page.locator("#result_list tbody tr")).to_have_count(1)
    assert Task.objects.count() == 1


@pytest.mark.parametrize("language", ["en", "ar"])
def test_a_phone_does_not_scroll_sideways(visit: Visit, settings: Any, language: str) -> None:
    settings.LANGUAGE_CODE = language
    a_bad_night()
    page = visit(viewport=PHONE)
    for span in ("hour", "week"):
        page.goto(url(span=span))
        assert [each for each in too_wide(page) if "cairnq-scrolled" not in each] == []


def test_a_keyboard_reaches_what_can_be_pressed_and_shows_where_it_is(visit: Visit) -> None:
    a_bad_night()
    page = opened(visit)

    stops = tab_stops(page)

    reached = [stop["name"] for stop in stops]
    for name in ("Stop refreshing", "See the failures", "reports", "Last week", "As a table", "h" * 60):
        assert name in reached
    assert [stop for stop in stops if not stop["visible"]] == []


@pytest.mark.parametrize("night", ["bad", "empty"])
def test_the_page_has_no_serious_flaw_for_assistive_technology(visit: Visit, night: str) -> None:
    if night == "bad":
        a_bad_night()
    page = visit(bypass_csp=True)
    page.goto(url())
    for summary in page.locator(".cairnq-rows summary").all():
        summary.click()
    assert serious_violations(page) == []
