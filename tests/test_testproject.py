"""The worked example: its views, its settings and `manage.py demo`, in processes of their own."""

from __future__ import annotations

import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from django.conf import settings

from testproject.demo.browser import Browser, SiteError, UnreachableError
from tests.helpers import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
DEADLINE = 60  # seconds

pytestmark = pytest.mark.skipif(
    not settings.DATABASES["default"]["ENGINE"].endswith("sqlite3"),
    reason="the example brings its own database; once is enough",
)
posix_only = pytest.mark.skipif(os.name != "posix", reason="sends POSIX signals")


@pytest.fixture(scope="module")
def site_database(tmp_path_factory: pytest.TempPathFactory) -> str:
    return f"sqlite:///{tmp_path_factory.mktemp('site').as_posix()}/db.sqlite3"


@pytest.fixture(scope="module")
def browser(site_database: str) -> Iterator[Browser]:
    """A visitor of a running site that has no worker: what is submitted stays queued."""
    manage("migrate", "--verbosity=0", database_url=site_database)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = start_manage("runserver", "--noreload", f"127.0.0.1:{port}", database_url=site_database)
    try:
        visitor = Browser(f"http://127.0.0.1:{port}")
        eventually(lambda: answers(visitor) or server.poll() is not None, DEADLINE)
        assert server.poll() is None, server.communicate()[0]
        yield visitor
    finally:
        server.kill()
        server.communicate()


def test_an_order_is_submitted_together_with_its_receipt(browser: Browser) -> None:
    receipt = browser.post("/orders/", email="ada@example.com")

    assert (receipt["name"], receipt["status"]) == ("send_receipt", "queued")
    assert browser.get(receipt["status_url"]) == receipt


def test_an_order_that_is_not_valid_submits_nothing(browser: Browser) -> None:
    before = browser.open("/").count("send_receipt")

    with pytest.raises(SiteError, match="400"):
        browser.post("/orders/", email="nobody")

    assert browser.open("/").count("send_receipt") == before


@pytest.mark.parametrize("name", ["resize_photos", "charge_card", "fetch_rates", "build_report", "average_basket"])
def test_every_job_of_the_page_can_be_started(browser: Browser, name: str) -> None:
    assert f'action="/jobs/{name}/"' in browser.open("/")

    assert browser.post(f"/jobs/{name}/")["status"] == "queued"


def test_a_job_that_does_not_exist_is_not_found(browser: Browser) -> None:
    with pytest.raises(SiteError, match="404"):
        browser.post("/jobs/mine_bitcoin/")


def test_a_task_is_canceled_through_its_view(browser: Browser) -> None:
    task = browser.post("/jobs/build_report/")

    browser.post(task["cancel_url"])

    assert browser.get(task["status_url"])["status"] == "canceled"


def test_a_visitor_without_the_page_s_token_is_refused(browser: Browser) -> None:
    with pytest.raises(SiteError, match="403"):
        Browser(browser.site).post("/jobs/charge_card/")


@pytest.mark.parametrize(
    ("url", "engine", "options"),
    [
        (None, "django.db.backends.sqlite3", ["init_command", "timeout", "transaction_mode"]),
        ("sqlite:////tmp/x.sqlite3", "django.db.backends.sqlite3", ["init_command", "timeout", "transaction_mode"]),
        ("postgres://user:secret@localhost:5432/shop", "django.db.backends.postgresql", []),
        ("mysql://user:secret@localhost:3306/shop", "django.db.backends.mysql", []),
    ],
)
def test_the_settings_follow_database_url(url: str | None, engine: str, options: list[str]) -> None:
    program = (
        "import json; from testproject.settings import DATABASES; database = DATABASES['default']; "
        "print(json.dumps([database['ENGINE'], sorted(database.get('OPTIONS', {}))]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment(url), capture_output=True, text=True, check=True
    )

    assert json.loads(done.stdout) == [engine, options]


@posix_only
def test_the_demo_shows_every_outcome_and_ends_cleanly_on_ctrl_c(demo: Demo) -> None:
    demo.wait_for("Ctrl-C stops both")
    children = demo.children()
    for outcome in (
        "send_receipt    succeeded  3 of 5    {",
        "resize_photos   succeeded  1 of 3    {",
        "charge_card     failed     1 of 3    card_declined: The bank declined the card",
        "fetch_rates     succeeded  1 of 3    {",
        "build_report    canceled   1 of 3",
        "average_basket  failed     3 of 3    ZeroDivisionError: ",
    ):
        assert outcome in demo.output
    assert "/admin/" in demo.output

    demo.interrupt()

    assert demo.exit_status() == 0, demo.output
    assert "web server: stopped, worker: stopped" in demo.output
    assert len(children) == 2
    assert not any(is_running(pid) for pid in children.values())


@posix_only
def test_the_demo_leaves_nothing_behind_when_it_is_terminated(demo: Demo) -> None:
    demo.wait_for("Worker: ")
    children = demo.children()

    demo.process.send_signal(signal.SIGTERM)

    assert demo.exit_status() == 0, demo.output
    assert len(children) == 2
    assert not any(is_running(pid) for pid in children.values())


@posix_only
def test_a_second_ctrl_c_kills_what_the_worker_is_running(demo: Demo) -> None:
    demo.wait_for("build_report    running")
    children = demo.children()

    demo.interrupt()
    eventually(lambda: not is_running(children["runserver"]), DEADLINE)
    began = time.monotonic()
    demo.interrupt()

    assert demo.exit_status() == 1
    assert "Killed: worker" in demo.output
    assert time.monotonic() - began < 5, "the worker was given its time to drain"
    assert not any(is_running(pid) for pid in children.values())


@posix_only
def test_the_demo_says_which_process_died_and_shows_its_log(demo: Demo) -> None:
    demo.wait_for("resize_photos   running")
    worker = demo.children()["runworker"]

    os.kill(worker, signal.SIGKILL)

    assert demo.exit_status() == 1
    assert "The worker ended with status -9" in demo.output
    assert "The end of its log:" in demo.output


class Demo:
    """`manage.py demo` on a database and a port of its own; its output is read line by line as it comes."""

    def __init__(self, database_url: str) -> None:
        self.output = ""
        self._lines: queue.Queue[str | None] = queue.Queue()
        # The port that everybody's demo wants is likely to be taken, here by the tests themselves.
        self._taken = socket.socket()
        self._taken.bind(("127.0.0.1", 0))
        self._taken.listen()
        self.port = self._taken.getsockname()[1]
        self.process = start_manage("demo", "--port", str(self.port), database_url=database_url)
        self._reader = threading.Thread(target=self._read, name="demo-output", daemon=True)
        self._reader.start()

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + DEADLINE
        while text not in self.output:
            line = self._lines.get(timeout=max(0, deadline - time.monotonic()))
            assert line is not None, f"the demo ended without {text!r}:\n{self.output}"
            self.output += line

    def children(self) -> dict[str, int]:
        """The two processes that it starts, once they are there: command to process id."""
        return eventually(lambda: children if len(children := self._children()) == 2 else None, DEADLINE)

    def _children(self) -> dict[str, int]:
        listing = subprocess.check_output(["ps", "-A", "-ww", "-o", "ppid=,pid=,args="], text=True)
        processes = [line.split(None, 2) for line in listing.splitlines()]
        return {
            command: int(pid)
            for parent, pid, arguments in processes
            for command in ("runserver", "runworker")
            if int(parent) == self.process.pid and f"manage.py {command} " in arguments
        }

    def interrupt(self) -> None:
        os.killpg(self.process.pid, signal.SIGINT)  # a terminal sends Ctrl-C to the whole process group

    def exit_status(self) -> int:
        status = self.process.wait(DEADLINE)
        while (line := self._lines.get(timeout=DEADLINE)) is not None:
            self.output += line
        return status

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(DEADLINE)
        self._reader.join()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._taken.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    running = Demo(f"sqlite:///{tmp_path.as_posix()}/db.sqlite3")
    yield running
    running.close()


def environment(database_url: str | None) -> dict[str, str]:
    """This process's, without what the test run has put there for itself."""
    own = {"DATABASE_URL", "DJANGO_SETTINGS_MODULE"}
    inherited = {name: value for name, value in os.environ.items() if name not in own}
    return inherited if database_url is None else {**inherited, "DATABASE_URL": database_url}


def start_manage(*arguments: str, database_url: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(ROOT / "manage.py"), *arguments],
        env=environment(database_url),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def manage(*arguments: str, database_url: str) -> None:
    subprocess.run([sys.executable, str(ROOT / "manage.py"), *arguments], env=environment(database_url), check=True)


def answers(browser: Browser) -> bool:
    try:
        browser.open("/")
    except UnreachableError:
        return False
    return True


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
