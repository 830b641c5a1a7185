"""Where a Chromium is that Playwright can drive, and how to start it."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, Playwright

COMMANDS = ("chromium", "chromium-browser", "google-chrome")


class MissingChromium(Exception):
    """There is no browser to drive."""


@contextmanager
def running_chromium() -> Iterator[Browser]:
    """Start a Chromium without a window. Raises `MissingChromium`.

    Until it is closed, an event loop counts as running in this thread.
    """
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=_path(playwright))
        try:
            yield browser
        finally:
            browser.close()


def _path(playwright: Playwright) -> str:
    """Where the system's Chromium is, or else the one that `playwright install chromium` fetched."""
    found = next(filter(None, map(shutil.which, COMMANDS)), None) or playwright.chromium.executable_path
    if not Path(found).exists():
        raise MissingChromium("Chromium is not installed (apt-get install chromium, or playwright install chromium)")
    return found
