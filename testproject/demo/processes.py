"""The demo's processes: started together, watched, and never left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from django.conf import settings

if TYPE_CHECKING:
    from types import FrameType

STOP_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
# Not SIGINT: while Python starts, a hook that swallows exceptions, as coverage's does, would swallow it too.
ASK_TO_STOP = signal.SIGTERM


class StopSignals:
    """Counts the requests to stop, so that they are noticed between two steps and never in the middle of one."""

    def __init__(self) -> None:
        self.count = 0

    def __enter__(self) -> StopSignals:
        self._before = {number: signal.signal(number, self._note) for number in STOP_SIGNALS}
        return self

    def __exit__(self, *exc_info: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.count += 1


class Process:
    """One `manage.py` command, in a session of its own: Ctrl-C reaches only the demo, which passes it on."""

    def __init__(self, title: str, log: Path, *arguments: str) -> None:
        self.title = title
        self.log = log
        with log.open("wb") as out:
            self.popen = subprocess.Popen(
                [sys.executable, str(settings.BASE_DIR / "manage.py"), *arguments],
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def exit_status(self) -> int | None:
        return self.popen.poll()

    @property
    def ended_well(self) -> bool:
        """Whether it ended as asked to: by itself, or by the signal."""
        return self.exit_status in (0, -ASK_TO_STOP)

    def tail(self, lines: int = 20) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class Processes:
    """All of them, as a context manager: leaving it, however that comes about, leaves none of them running."""

    def __init__(self, signals: StopSignals, patience: float) -> None:
        self.signals = signals
        self.patience = patience  # seconds
        self.all: list[Process] = []

    def __enter__(self) -> Processes:
        self.logs = Path(tempfile.mkdtemp(prefix="cairnq-demo-"))
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()
        shutil.rmtree(self.logs, ignore_errors=True)

    def start(self, title: str, *arguments: str) -> Process:
        process = Process(title, self.logs / f"{arguments[0]}.log", *arguments)
        self.all.append(process)
        return process

    def ended(self) -> list[Process]:
        return [process for process in self.all if process.exit_status is not None]

    def stop(self) -> list[Process]:
        """Ask them to stop; kill what still runs when the user asks once more or patience ends, and return that."""
        first = min(self.signals.count, 1)  # the request that led here, unless something else did
        deadline = time.monotonic() + self.patience
        for process in self._running():
            process.popen.send_signal(ASK_TO_STOP)
        while self._running() and self.signals.count <= first and time.monotonic() < deadline:
            time.sleep(0.05)
        killed = self._running()
        for process in killed:
            process.popen.kill()
            process.popen.wait()
        return killed

    def _running(self) -> list[Process]:
        return [process for process in self.all if process.exit_status is None]
