"""Processes of contenders, as the suite drives them: prepared first, then told to go, all of them at once."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 60  # seconds for a process to say something


class Failed(Exception):
    """A contender did not do what it was asked for; the message says what it said last."""


def in_a_line(error: Exception) -> str:
    said = f"{error}".strip().partition("\n")[0]
    return said if isinstance(error, Failed) else f"{type(error).__name__}: {said}"


class Process:
    """One process of a contender, see `benchmarks.contenders.__main__`."""

    def __init__(self, name: str, url: str, action: str, *arguments: object, env: dict[str, str] | None = None) -> None:
        self._title = f"{name} {action}"
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed by end())
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.contenders", name, url, action, *map(str, arguments)],
            cwd=ROOT,
            env={**os.environ, **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def wait_for(self, word: str, patience: float = PATIENCE) -> None:
        """Raises `Failed` if it ends or stays silent instead."""
        silence = threading.Timer(patience, self._process.kill)
        silence.start()
        try:
            for line in self._process.stdout:
                if line.strip() == word:
                    return
        finally:
            silence.cancel()
        raise self.failure(f"no {word!r}")

    def failure(self, what: str) -> Failed:
        """What to raise: what is wrong, and the last that the process had to say."""
        self._errors.seek(0)
        said = self._errors.read().decode(errors="replace").strip().splitlines()
        return Failed(f"{self._title}: {': '.join([what, *said[-1:]])}")

    def go(self) -> None:
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def resident(self) -> float:
        """MiB of memory."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise Failed(f"{self._title}: there is no VmRSS")

    def end(self) -> None:
        """Kill it: whatever it leaves behind is deleted anyway."""
        self._process.kill()
        self._process.wait()
        for file in (self._process.stdin, self._process.stdout, self._errors):
            file.close()


@contextmanager
def ready(processes: int, *arguments: object, **options: dict[str, str]) -> Iterator[list[Process]]:
    """Start so many processes and have them ready; end them afterwards."""
    with ExitStack() as stack:
        started = []
        for _ in range(processes):
            started.append(Process(*arguments, **options))
            stack.callback(started[-1].end)
        for process in started:
            process.wait_for("ready")
        yield started


def run(*arguments: object, **options: dict[str, str]) -> None:
    """Have one process act, to its end."""
    with ready(1, *arguments, **options) as (process,):
        process.go()
        process.wait_for("done")
