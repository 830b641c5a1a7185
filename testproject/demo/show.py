"""What the demo does, step by step."""

from __future__ import annotations

import json
import math
import shutil
import socket
import time
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.management import CommandError, call_command
from django.db import connection

from testproject.demo.browser import Browser, SiteError, UnreachableError
from testproject.demo.processes import Process, Processes, StopSignals
from testproject.shop.jobs import JOBS

if TYPE_CHECKING:
    from collections.abc import Callable

HOST = "127.0.0.1"
LOGIN = PASSWORD = "admin"
TERMINAL = {"succeeded", "failed", "canceled"}
CANCEL_AT = 0.02  # of build_report's progress

INTERVAL = 0.2  # seconds between two looks at the tasks
SITE_TIMEOUT = 60  # seconds until the web server answers
TASKS_TIMEOUT = 120  # seconds until every task has ended
PATIENCE = 20  # seconds to stop in; more than the worker's DRAIN_TIMEOUT

TaskJson = dict[str, Any]


class Stopped(Exception):
    """The user asked to stop."""


class Show:
    def __init__(self, say: Callable[..., None], *, port: int, concurrency: int) -> None:
        self.say = say
        self.port = port
        self.concurrency = concurrency
        self.signals = StopSignals()
        self.processes = Processes(self.signals, PATIENCE)

    def run(self) -> None:
        """Run until told to stop; raise CommandError if it cannot go on."""
        with self.signals:
            login_note = self.prepare_database()
            with self.processes:
                try:
                    self.perform(login_note)
                except Stopped:
                    self.stop()
                except SiteError as error:
                    raise CommandError(f"{error}\n{log_of(self.processes.all[0])}") from error

    def perform(self, login_note: str) -> None:
        browser = self.open_site()
        tasks = self.submit(browser)
        self.watch(browser, tasks)
        self.say_outcomes(tasks)
        self.say("")
        self.say(f"Shop:  {browser.site}/")
        self.say(f"Admin: {browser.site}/admin/")
        self.say(f"       {login_note}")
        self.say("Web server and worker go on running; Ctrl-C stops both.")
        self.wait_until(lambda: False)

    def prepare_database(self) -> str:
        """Migrate, see to a login, and return what is to be said about it."""
        if not settings.DEBUG:
            raise CommandError("The demo creates a login that anybody can guess, so it runs only with DEBUG on.")
        self.say(f"Database: {connection.vendor}, {connection.settings_dict['NAME']}")
        call_command("migrate", verbosity=0, interactive=False)
        users = get_user_model().objects
        user = users.filter(username=LOGIN).first() or users.create_superuser(LOGIN, password=PASSWORD)
        connection.close()
        if user.check_password(PASSWORD):
            return f"log in as {LOGIN} with the password {PASSWORD} (for this demo only: never on a server)"
        return f"log in as {LOGIN} with the password you gave it"

    def open_site(self) -> Browser:
        """Start web server and worker, and wait until the site answers."""
        port = free_port(self.port)
        if port != self.port:
            self.say(f"Port {self.port} is taken, using {port}")
        site = f"http://{HOST}:{port}"
        server = self.processes.start("web server", "runserver", "--noreload", f"{HOST}:{port}")
        worker = self.processes.start("worker", "runworker", "--concurrency", str(self.concurrency))
        self.say(f"Web server: {site}/ (log: {server.log})")
        self.say(f"Worker: {self.concurrency} tasks at a time (log: {worker.log})")
        browser = Browser(site)
        self.wait_until(lambda: answers(browser), SITE_TIMEOUT, "The web server does not answer.", server)
        return browser

    def submit(self, browser: Browser) -> dict[str, TaskJson]:
        """Submit a task of every kind through the site's forms; return them by id."""
        submitted = [browser.post("/orders/", email="ada@example.com")]
        submitted += [browser.post(f"/jobs/{name}/") for name in JOBS]
        self.began = time.monotonic()
        self.say("")
        self.say(f"Submitted {len(submitted)} tasks through {browser.site}/")
        return {task["id"]: task for task in submitted}

    def watch(self, browser: Browser, tasks: dict[str, TaskJson]) -> None:
        """Show every change, and cancel the report while it is being built, until all tasks have ended."""
        canceled = set()

        def look() -> bool:
            for task_id, before in tasks.items():
                if before["status"] in TERMINAL:
                    continue
                task = tasks[task_id] = browser.get(before["status_url"])
                if state(task) != state(before):
                    self.say_event(task["name"], state(task))
                if task["name"] == "build_report" and (task["progress"] or 0) > CANCEL_AT and task_id not in canceled:
                    canceled.add(task_id)
                    browser.post(task["cancel_url"])
                    self.say_event(task["name"], "-> cancel, through the site")
            return all(task["status"] in TERMINAL for task in tasks.values())

        self.wait_until(look, TASKS_TIMEOUT, "Some tasks have not ended.", self.processes.all[-1])

    def say_event(self, name: str, event: str) -> None:
        self.say(f"{time.monotonic() - self.began:6.1f} s  {name:<15} {event}")

    def say_outcomes(self, tasks: dict[str, TaskJson]) -> None:
        width = max(60, shutil.get_terminal_size((100, 24)).columns - 40)
        self.say("")
        self.say(f"{'TASK':<15} {'STATUS':<10} {'ATTEMPTS':<9} RESULT OR ERROR")
        for task in tasks.values():
            attempts = f"{task['attempt']} of {task['max_attempts']}"
            result = shortened(outcome(task), width)
            self.say(f"{task['name']:<15} {task['status']:<10} {attempts:<9} {result}".rstrip())

    def wait_until(
        self,
        done: Callable[[], bool],
        timeout: float = math.inf,
        complaint: str = "",
        blamed: Process | None = None,
    ) -> None:
        """Wait while everything is well: raise Stopped on a signal, CommandError if a process or the time ends."""
        deadline = time.monotonic() + timeout
        while not done():
            if self.signals.count:
                raise Stopped
            for process in self.processes.ended():
                raise CommandError(f"The {process.title} ended with status {process.exit_status}.\n{log_of(process)}")
            if blamed and time.monotonic() > deadline:
                raise CommandError(f"{complaint} Waited {timeout:.0f} s.\n{log_of(blamed)}")
            time.sleep(INTERVAL)

    def stop(self) -> None:
        self.say("")
        self.say("Stopping: the worker finishes what it is running (Ctrl-C again kills it)")
        killed = self.processes.stop()
        if killed:
            raise CommandError(f"Killed: {', '.join(process.title for process in killed)}")
        self.say(", ".join(f"{process.title}: {ending(process)}" for process in self.processes.all))


def ending(process: Process) -> str:
    return "stopped" if process.ended_well else f"exit status {process.exit_status}"


def free_port(wanted: int) -> int:
    for port in range(wanted, min(wanted + 100, 65536)):
        with socket.socket() as probe:
            # As the web server binds: a port is not taken by connections of a server that has just ended.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((HOST, port))
            except OSError:
                continue
            return port
    raise CommandError(f"No port from {wanted} on is free; choose one with --port.")


def answers(browser: Browser) -> bool:
    try:
        browser.open("/")
    except UnreachableError:
        return False
    return True


def state(task: TaskJson) -> str:
    """What there is to say about the task now, in one line."""
    attempt = f"attempt {task['attempt']} of {task['max_attempts']}"
    if task["status"] == "queued" and task["error"]:
        return f"{'queued':<10} {attempt} failed, to be retried: {error_of(task)}"
    if task["status"] == "running":
        progress = "" if task["progress"] is None else f"{task['progress']:4.0%} {task['message']}"
        return f"{'running':<10} {attempt} {progress}".rstrip()
    return f"{task['status']:<10} {outcome(task)}".rstrip()


def outcome(task: TaskJson) -> str:
    if task["status"] == "failed":
        return error_of(task)
    return json.dumps(task["result"]) if task["status"] == "succeeded" else ""


def error_of(task: TaskJson) -> str:
    error = task["error"]
    kind = error["type"] if error["code"] == "unexpected_exception" else error["code"]
    return f"{kind}: {error['message']}"


def shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3] + "..."


def log_of(process: Process) -> str:
    return f"The end of its log:\n{process.tail()}"
