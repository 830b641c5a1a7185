"""One browser for all tests of this folder, and who visits the admin with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pytest
from django.conf import settings
from django.contrib.auth.models import Permission
from django.test import Client
from playwright.sync_api import expect

from tests.browser.chromium import MissingChromium, running_chromium

if TYPE_CHECKING:
    from collections.abc import Iterator

    from django.contrib.auth.models import User
    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page
    from pytest_django.live_server_helper import LiveServer

PATIENCE = 30_000  # milliseconds for what must come; a machine under load may take long


class Visit(Protocol):
    def __call__(self, *permissions: str, **options: Any) -> Page: ...


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    with pytest.MonkeyPatch.context() as patch:
        # Django refuses to work in a thread with an event loop, and Playwright keeps one in this.
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "yes")
        expect.set_options(timeout=PATIENCE)
        try:
            with running_chromium() as browser:
                yield browser
        except MissingChromium as error:
            pytest.skip(f"no browser tests: {error}")


@pytest.fixture
def complaints() -> list[str]:
    """What browsers reported as errors. A test takes out what it expects."""
    return []


@pytest.fixture
def visit(
    chromium: Browser,
    live_server: LiveServer,
    transactional_db: None,
    django_user_model: type[User],
    complaints: list[str],
) -> Iterator[Visit]:
    """Log in with these permissions, or with all there are, and return an empty page, of which nothing may be wrong.

    What the browser reports as an error fails the test: scripts that break, files that are missing, and whatever the
    Content-Security-Policy refuses.
    """
    contexts: list[BrowserContext] = []

    def note(message: ConsoleMessage) -> None:
        url = message.location["url"]
        # Browsers ask by themselves for an icon, of which Django's admin has none.
        if message.type == "error" and not url.endswith("/favicon.ico"):
            complaints.append(f"{message.text} ({url})")

    def visit(*permissions: str, **options: Any) -> Page:
        context = chromium.new_context(**{"base_url": live_server.url, "reduced_motion": "reduce", **options})
        contexts.append(context)
        context.set_default_timeout(PATIENCE)
        context.on("console", note)
        context.on("weberror", lambda error: complaints.append(str(error.error)))
        user = django_user_model.objects.create_user(f"visitor {len(contexts)}", is_staff=True)
        allowed = Permission.objects.filter(content_type__app_label="cairnq_django")
        user.user_permissions.set(allowed.filter(codename__in=permissions) if permissions else allowed)
        client = Client()
        client.force_login(user)
        session = {"name": settings.SESSION_COOKIE_NAME, "value": client.cookies[settings.SESSION_COOKIE_NAME].value}
        context.add_cookies([{**session, "url": live_server.url}])
        return context.new_page()

    yield visit
    for context in contexts:
        context.close()
    assert complaints == []
