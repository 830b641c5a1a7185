"""What can be asked of a page in a browser: where it is, how wide, whether a keyboard gets around in it."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import axe_playwright_python
from django.urls import reverse
from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from cairnq_django.models import Task

YES = "Yes, I\u2019m sure"  # what a question's button says

TAB_STOPS = 200  # more than any page of the tests has

# Elements that scroll sideways although they do not hold code, and what is too wide where that is the page itself.
_TOO_WIDE = """
() => {
    const name = (each) => `${each.tagName}#${each.id}.${each.className}: ${each.textContent.trim().slice(0, 30)}`;
    const scrolls = (each) => /auto|scroll/.test(getComputedStyle(each).overflowX) && each.tagName !== "PRE";
    const wide = [...document.querySelectorAll("*")].filter((each) => each.scrollWidth > each.clientWidth);
    const innermost = (each) => !wide.some((other) => other !== each && each.contains(other));
    return [
        ...wide.filter(scrolls).map(name),
        ...(wide.includes(document.documentElement) ? ["the page", ...wide.filter(innermost).map(name)] : []),
    ];
}
"""

# What has the focus, and whether that can be seen: without it, the element looks otherwise.
_FOCUSED = """
() => {
    const element = document.activeElement;
    const texts = [element.getAttribute("aria-label"), element.innerText, element.value, element.name];
    if (element === document.body) {
        return null;
    }
    const look = () => {
        element.getAnimations().forEach((each) => each.finish());
        const style = getComputedStyle(element);
        return JSON.stringify([
            style.outlineStyle, style.outlineWidth, style.boxShadow, style.backgroundColor, style.borderColor,
            style.color, style.textDecorationLine,
        ]);
    };
    const place = element.getBoundingClientRect();
    const inView = place.bottom > 0 && place.top < innerHeight && place.right > 0 && place.left < innerWidth;
    if (element === window.lastStop) {
        return { tag: element.tagName, name: "", visible: true }; // another part of the same
    }
    window.lastStop = element;
    const focused = look();
    element.blur();
    const plain = look();
    element.focus();
    const name = (texts.find(Boolean) || "").trim().replace(/\\s+/g, " ");
    return { tag: element.tagName, name, visible: inView && focused !== plain };
}
"""

# Links change their colours gradually.
_RUN_AXE = """
(runOnly) => {
    document.getAnimations().forEach((each) => each.finish());
    const exclude = ["#header", ".breadcrumbs", "#nav-sidebar", "#searchbar"];
    return axe.run({ exclude }, { resultTypes: ["violations"], ...(runOnly && { runOnly }) });
}
"""


def list_url(**query: str) -> str:
    return reverse("admin:cairnq_django_task_changelist", query=query or None)


def page_url(task: Task) -> str:
    return reverse("admin:cairnq_django_task_change", args=[task.pk])


def too_wide(page: Page) -> list[str]:
    """What of the page has to be scrolled sideways."""
    found: list[str] = page.evaluate(_TOO_WIDE)
    return found


def tab_stops(page: Page) -> list[dict[str, Any]]:
    """What the Tab key reaches, in order."""
    stops: list[dict[str, Any]] = []
    for _ in range(TAB_STOPS):
        page.keyboard.press("Tab")
        stop = page.evaluate(_FOCUSED)
        if stop is None:
            return stops
        stops.append(stop)
    raise AssertionError(f"the page takes more than {TAB_STOPS} presses of the Tab key")


def tab_to(page: Page, name: str) -> None:
    """Press the Tab key until what has this name has the focus."""
    for _ in range(TAB_STOPS):
        page.keyboard.press("Tab")
        stop = page.evaluate(_FOCUSED)
        if stop is not None and stop["name"] == name:
            return
    raise AssertionError(f"the Tab key does not reach {name!r}")


def serious_violations(page: Page) -> list[str]:
    """What axe-core objects to most, in light colours and in dark ones, except for what Django gives to every page.

    The visit must be one with `bypass_csp=True`: axe-core has styles of its own.
    """
    found = []
    page.evaluate(_axe())
    for scheme, rules in (("light", None), ("dark", ["color-contrast", "link-in-text-block"])):
        page.emulate_media(color_scheme=scheme)
        results = page.evaluate(_RUN_AXE, rules)
        found += [
            f"{scheme}: {violation['id']} at {node['target']}: {node['failureSummary']}"
            for violation in results["violations"]
            if violation["impact"] in ("serious", "critical")
            for node in violation["nodes"]
        ]
    return found


@cache
def _axe() -> str:
    return (Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")


def told(page: Page, text: str) -> None:
    """Expect a message on top of the page."""
    expect(page.locator(".messagelist")).to_contain_text(text)
