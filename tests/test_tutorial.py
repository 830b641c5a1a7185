"""The tutorial, followed to the letter by a reader with a browser, from an empty folder on."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from testproject.demo.browser import Browser, SiteError
from tests.documents import DEADLINE, DOCS, ROOT, Page
from tests.helpers import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TUTORIAL = Page(DOCS / "tutorial.md")
SAID = " ".join(TUTORIAL.text.split())  # wherever its lines break
SITE = "http://127.0.0.1:8000"
ADMIN = "/admin/cairnq_django/"
WATCHED = "time.sleep(1)"  # in the task, ten times

pytestmark = pytest.mark.skipif(os.name != "posix", reason="its commands are those of a POSIX shell")


def test_it_works_as_written(tmp_path: Path) -> None:
    reader = Reader(tmp_path)
    reader.makes_the_project()

    with reader.in_a_terminal("python manage.py runserver"):
        reader.opens_the_site()
        with reader.in_a_terminal("python manage.py runworker"):
            first = reader.orders(f"{SITE}/order/")
            assert reader.sees_end("succeeded", first) == {"sent_to": "ada@example.com"}
        reader.logs_in()
        assert "sent_to" in reader.reads(f"{ADMIN}task/{first}/change/")

        second = reader.orders(f"{SITE}/order/")
        assert reader.outcome(second)["status"] == "queued"
        with reader.in_a_terminal("python manage.py runworker"):
            reader.sees_end("succeeded", second)
            refused = reader.orders(f"{SITE}/order/?email=nobody")
            reader.sees_end("failed", refused)
        assert "bad_address" in reader.reads(f"{ADMIN}task/{refused}/change/")
        assert "bad_address" in reader.reads(f"{ADMIN}taskattempt/")

        reader.writes(reader.repaired)
        with reader.in_a_terminal("python manage.py runworker"):
            reader.presses("Retry task", f"{ADMIN}task/{refused}/change/")
            assert reader.sees_end("succeeded", refused) == {"sent_to": "the front desk"}
        assert "bad_address" in reader.reads(f"{ADMIN}task/{refused}/change/")


class Reader:
    """Does what the tutorial says in `folder`; the package is where this test runs, and the port another one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        foreign = {"DATABASE_URL", "DJANGO_SETTINGS_MODULE"}  # the test run's own
        self.env = {name: value for name, value in os.environ.items() if name not in foreign}
        self.env["PYTHONPATH"] = os.pathsep.join([str(folder), str(ROOT)])
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.browser = Browser(f"http://127.0.0.1:{self.port}")
        *self.files, self.repaired = TUTORIAL.files
        assert sum(WATCHED in block.text for block in self.files) == 1

    def makes_the_project(self) -> None:
        before_migrating = True
        for line in TUTORIAL.shell_lines:
            if line.startswith(("mkdir", "cd ", "python3 ", ". .venv", "pip ")) or "run" in line.split()[-1]:
                continue  # the package is installed; servers are started later
            if before_migrating and "migrate" in line:
                before_migrating = False
                for block in self.files:
                    self.writes(block)
            done = subprocess.run(self.command(line), cwd=self.folder, env=self.env, capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr

    def writes(self, block: Any) -> None:
        """The text says of the settings alone to add to the file. What a person is to watch takes no time here."""
        mode = "a" if block.file == "mysite/settings.py" else "w"
        with (self.folder / block.file).open(mode, encoding="utf-8") as out:
            out.write(f"\n{block.text.replace(WATCHED, 'time.sleep(0.01)')}")

    @contextmanager
    def in_a_terminal(self, line: str) -> Iterator[None]:
        assert line in TUTORIAL.shell_lines
        is_server = line.endswith("runserver")
        more = ["--noreload", f"127.0.0.1:{self.port}"] if is_server else []
        log = self.folder / f"{line.split()[-1]}.log"
        with log.open("w") as out:
            command = [*self.command(line), *more]
            process = subprocess.Popen(command, cwd=self.folder, env=self.env, stdout=out, stderr=subprocess.STDOUT)
        try:
            yield
            if not is_server:
                process.send_signal(signal.SIGINT)
                assert process.wait(DEADLINE) == 0, log.read_text()
        finally:
            process.kill()
            process.wait()

    def command(self, line: str) -> list[str]:
        words = shlex.split(line)
        while "=" in words[0]:
            name, _, value = words.pop(0).partition("=")
            self.env[name] = value
        program = {"python": [sys.executable], "django-admin": [sys.executable, "-m", "django"]}[words[0]]
        return [*program, *words[1:]]

    def opens_the_site(self) -> None:
        eventually(self._answers, DEADLINE, "the site answers")

    def orders(self, url: str) -> str:
        assert f"<{url}>" in SAID
        task: str = self.browser.get(url.removeprefix(SITE))["task"]
        return task

    def outcome(self, task: str) -> Any:
        return self.browser.get(f"/outcome/{task}/")

    def sees_end(self, status: str, task: str) -> Any:
        eventually(lambda: self.outcome(task)["status"] == status, DEADLINE, status)
        return self.outcome(task)["result"]

    def logs_in(self) -> None:
        self.browser.open("/admin/login/")
        found = re.search(r"log in as `(\w+)` with the password `(\w+)`", SAID)
        assert found, "the tutorial says who logs in"
        self.browser.submit("/admin/login/", username=found[1], password=found[2], next=ADMIN)

    def reads(self, path: str) -> str:
        return self.browser.open(path)

    def presses(self, label: str, path: str) -> None:
        assert f"press *{label}*" in SAID
        page = self.reads(path)
        form = next((form for form in re.findall(r"<form.*?</form>", page, re.S) if f">{label}</button>" in form), "")
        assert form, f"the page has no button {label!r}"
        button = re.search(rf'<button [^>]*name="([^"]+)" value="(\w+)">{label}<', form)
        hidden = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', form)
        assert button, form
        self.browser.submit(path, **{**dict(hidden), button[1]: button[2]})

    def _answers(self) -> bool:
        try:
            self.browser.open("/admin/login/")
        except SiteError:
            return False
        return True
