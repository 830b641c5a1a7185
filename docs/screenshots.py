"""Takes the pictures in `docs/images/`, in light colours, in dark ones and on a phone: `python -m docs.screenshots`.

They show the worked example in `testproject/` after a made-up day, on a database that is thrown away. It takes the
extras `dev` and `docs`, Chromium, and a font: Debian's `fonts-noto-core`.
"""

from __future__ import annotations

import argparse
import io
import os
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image
from playwright.sync_api import Error, expect

from tests.browser.chromium import running_chromium

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import Page

ROOT = Path(__file__).resolve().parent.parent
IMAGES = ROOT / "docs" / "images"
PATIENCE = 30_000  # milliseconds

LOOKS: dict[str, dict[str, Any]] = {
    "light": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "light"},
    "dark": {"viewport": {"width": 1280, "height": 800}, "color_scheme": "dark"},
    "phone": {"viewport": {"width": 360, "height": 740}, "color_scheme": "light"},
}


def overview(page: Page) -> None:
    page.goto("/admin/cairnq_django/")


def tasks(page: Page) -> None:
    page.goto("/admin/cairnq_django/task/")


def failed_task(page: Page) -> None:
    open_newest(page, name="average_basket", status="failed")


def running_task(page: Page) -> None:
    open_newest(page, name="close_books", status="running")


def cancel(page: Page) -> None:
    running_task(page)
    page.get_by_role("button", name="Cancel with descendants").click()
    expect(page.locator("#cairnq-confirm")).to_be_visible()


def failures(page: Page) -> None:
    page.goto("/admin/cairnq_django/taskattempt/")


def failure(page: Page) -> None:
    failures(page)
    page.locator(".cairnq-groups h2 a", has_text="send_receipt").click()
    expect(page.locator("#cairnq-group-form")).to_be_visible()


def queues(page: Page) -> None:
    page.goto("/admin/cairnq_django/pausedqueue/")


def workers(page: Page) -> None:
    page.goto("/admin/cairnq_django/workerprocess/")


PAGES: dict[str, Callable[[Page], None]] = {
    "overview": overview,
    "tasks": tasks,
    "failed-task": failed_task,
    "running-task": running_task,
    "failures": failures,
    "failure": failure,
    "queues": queues,
    "workers": workers,
    "cancel": cancel,
}

#: Pages whose lower half says as much as the upper one.
WHOLE = {"overview"}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m docs.screenshots", description=__doc__)
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"one of {', '.join(PAGES)}; default: all of them")
    parser.add_argument("--into", type=Path, default=IMAGES, metavar="FOLDER", help="default: docs/images")
    options = parser.parse_args()
    with running_site() as site, running_chromium() as browser:
        for look, settings in LOOKS.items():
            context = browser.new_context(base_url=site, reduced_motion="reduce", **settings)
            context.set_default_timeout(PATIENCE)
            page = context.new_page()
            log_in(page)
            for name in options.pages or PAGES:
                PAGES[name](page)
                page.evaluate("document.activeElement.blur()")
                picture = page.screenshot(animations="disabled", full_page=name in WHOLE)
                save(picture, options.into / f"{name}-{look}.png")
            context.close()


def save(picture: bytes, path: Path) -> None:
    """Save it with 256 colours, which takes a third of the room and is not seen."""
    shown = Image.open(io.BytesIO(picture)).convert("RGB")
    few = shown.quantize(256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    path.parent.mkdir(parents=True, exist_ok=True)
    few.save(path, optimize=True)


def log_in(page: Page) -> None:
    # The server may still be starting.
    for _ in range(100):
        try:
            page.goto("/admin/login/?next=/admin/")
            break
        except Error:
            page.wait_for_timeout(300)
    page.locator("[name=username]").fill("admin")
    page.locator("[name=password]").fill("admin")
    page.keyboard.press("Enter")
    page.wait_for_url(lambda url: "/login/" not in url)


def open_newest(page: Page, **filters: str) -> None:
    query = "&".join(f"{name}={value}" for name, value in filters.items())
    page.goto(f"/admin/cairnq_django/task/?{query}")
    page.locator("#result_list .field-task a").first.click()
    expect(page.locator("#task_form")).to_be_visible()


@contextmanager
def running_site() -> Iterator[str]:
    """The address of the example's web server."""
    with tempfile.TemporaryDirectory(prefix="cairnq-screenshots-") as folder, socket.socket() as probe:
        env = {**os.environ, "DATABASE_URL": f"sqlite:///{folder}/day.sqlite3"}
        manage = [sys.executable, str(ROOT / "manage.py")]
        subprocess.run([*manage, "make_up_a_day"], env=env, check=True)
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
        probe.close()
        with open(Path(folder) / "log", "w") as log:
            server = subprocess.Popen([*manage, "runserver", "--noreload", address], env=env, stdout=log, stderr=log)
        try:
            yield f"http://{address}"
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    main()
