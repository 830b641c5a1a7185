"""A visitor of the site: keeps cookies, sends the CSRF token as a page's form would."""

from __future__ import annotations

import json
from http.cookiejar import CookieJar
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, ProxyHandler, Request, build_opener

TIMEOUT = 30  # seconds


class SiteError(Exception):
    """The site answered with an error."""


class UnreachableError(SiteError):
    """The site did not answer."""


class Browser:
    def __init__(self, site: str) -> None:
        self.site = site
        self._cookies = CookieJar()
        # The site is on this machine, where a proxy that the environment names would not look for it.
        self._opener = build_opener(ProxyHandler({}), HTTPCookieProcessor(self._cookies))

    def open(self, path: str) -> str:
        """Return a page; it brings the cookie that `post` needs."""
        return self._read(Request(self.site + path))

    def get(self, path: str) -> Any:
        return json.loads(self._read(Request(self.site + path, headers={"Accept": "application/json"})))

    def post(self, path: str, **fields: str) -> Any:
        return json.loads(self.submit(path, **fields))

    def submit(self, path: str, **fields: str) -> str:
        """Send a form, and return the page that comes after it."""
        token = next((cookie.value for cookie in self._cookies if cookie.name == "csrftoken"), None)
        body = urlencode({**fields, "csrfmiddlewaretoken": token or ""}).encode()
        return self._read(Request(self.site + path, body, {"Accept": "application/json"}))

    def _read(self, request: Request) -> str:
        try:
            with self._opener.open(request, timeout=TIMEOUT) as response:
                content: bytes = response.read()
        except HTTPError as error:
            raise SiteError(f"{request.get_method()} {request.full_url}: {error}") from error
        except OSError as error:
            raise UnreachableError(f"{request.get_method()} {request.full_url}: {error}") from error
        return content.decode()
