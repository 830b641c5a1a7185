"""Worker processes, started as a person starts them and watched through what they write."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cairnq_django import Task, TaskStatus
from tests.helpers import eventually

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).resolve().parents[2]


class WorkerProcess:
    """`manage.py runworker` in a process of its own."""

    def __init__(self, *arguments: str, env: dict[str, str], log: Path) -> None:
        self._log = log
        with log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, "manage.py", "runworker", *arguments],
                cwd=ROOT,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                # A group of its own, so that what it starts can be signalled and ended with it.
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def output(self) -> str:
        """What it has written so far, to its standard output and to the log."""
        return self._log.read_text()

    def until_it_says(self, text: str, times: int = 1, timeout: float = 30) -> WorkerProcess:
        """Wait until the output holds `text`, and return the process."""

        def said() -> bool:
            if self.output.count(text) >= times:
                return True
            assert self._process.poll() is None, f"it ended with {self._process.returncode}:\n{self.output}"
            return False

        eventually(said, timeout, f"{text!r} in the output of the worker")
        return self

    def send(self, number: int) -> None:
        """Send a signal to the process."""
        self._process.send_signal(number)

    def send_to_group(self, number: int) -> None:
        """Send a signal as a terminal sends Ctrl-C: to the process and to those it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def end(self) -> None:
        """Kill what is left of it."""
        self.send_to_group(signal.SIGKILL)
        self.wait()

    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait(self, timeout: float = 30) -> int:
        """Wait for its end and return its exit status, negative if a signal killed it."""
        return self._process.wait(timeout)


def lines(path: Path) -> list[str]:
    """The complete lines of a file that may not exist yet."""
    return path.read_text().splitlines() if path.exists() else []


def until_lines(path: Path, count: int, timeout: float = 60) -> None:
    eventually(lambda: len(lines(path)) >= count, timeout, f"{count} lines in {path.name}")


def until_all_ended(timeout: float = 60) -> None:
    eventually(lambda: not Task.objects.live().exists(), timeout, "no task is queued or running")


def statuses() -> dict[str, int]:
    """How many tasks there are in each status."""
    counts: dict[str, int] = {}
    for status in Task.objects.values_list("status", flat=True):
        counts[TaskStatus(status).value] = counts.get(TaskStatus(status).value, 0) + 1
    return counts


def settings_module(folder: Path, name: str, **settings: Any) -> dict[str, str]:
    """Write `tests.settings` with other values to a module; return what a process's environment needs to use it."""
    assignments = "".join(f"{setting} = {value!r}\n" for setting, value in settings.items())
    (folder / f"{name}.py").write_text(f"from tests.settings import *\n\n{assignments}")
    return {"DJANGO_SETTINGS_MODULE": name, "PYTHONPATH": _path(folder)}


def _path(folder: Path) -> str:
    inherited: Iterable[str] = filter(None, [os.environ.get("PYTHONPATH")])
    return os.pathsep.join([str(folder), *inherited])
