"""With `--autoreload` the worker's process is another one after each change of code."""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from cairnq_django import Task, submit
from tests.app.tasks import write_line, write_line_and_block
from tests.helpers import eventually
from tests.processes.running import settings_module, until_all_ended, until_lines

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.processes.conftest import StartWorker

BANNER = "Stop with Ctrl-C"


def test_code_that_changes_restarts_the_process_after_the_running_task(
    start_worker: StartWorker, tmp_path: Path
) -> None:
    env = settings_module(tmp_path, "settings_that_change")
    payload = {"file": str(tmp_path / "lines"), "until": str(tmp_path / "go")}
    task = submit(write_line_and_block, payload)
    worker = start_worker("--autoreload", **env)
    until_lines(tmp_path / "lines", 1)

    touch_until(lambda: "stops claiming" in worker.output, tmp_path / "settings_that_change.py")
    assert worker.output.count(BANNER) == 1
    assert task.refresh().is_running
    (tmp_path / "go").touch()

    worker.until_it_says(BANNER, times=2)
    assert task.refresh().succeeded
    assert task.attempt == 1
    submit(write_line, payload)
    until_all_ended()


@pytest.mark.parametrize("how", ["Ctrl-C in the terminal", "SIGTERM"])
def test_a_signal_lets_the_running_task_end(start_worker: StartWorker, tmp_path: Path, how: str) -> None:
    payload = {"file": str(tmp_path / "lines"), "until": str(tmp_path / "go")}
    task = submit(write_line_and_block, payload)
    worker = start_worker("--autoreload")
    until_lines(tmp_path / "lines", 1)

    if how.startswith("SIG"):
        worker.send(signal.Signals[how])
    else:
        worker.send_to_group(signal.SIGINT)
    worker.until_it_says("stops claiming")
    (tmp_path / "go").touch()

    assert worker.wait() == 0
    assert "Stopping: waiting for 1 running task; a second Ctrl-C kills." in worker.output
    assert worker.output.splitlines()[-1] == "Ended."
    assert task.refresh().succeeded
    assert worker.output.count(BANNER) == 1


def test_signals_that_interrupt_each_other_let_the_running_task_end(start_worker: StartWorker, tmp_path: Path) -> None:
    payload = {"file": str(tmp_path / "lines"), "until": str(tmp_path / "go")}
    submit(write_line_and_block, payload)
    worker = start_worker("--autoreload")
    until_lines(tmp_path / "lines", 1)
    [inner] = re.findall(r"process (\d+)", worker.output)

    for _ in range(500):
        os.kill(int(inner), signal.SIGINT)
        os.kill(int(inner), signal.SIGTERM)
    worker.until_it_says("stops claiming")
    (tmp_path / "go").touch()

    assert worker.wait() == 0
    assert not Task.objects.live().exists()


def test_a_second_signal_kills(start_worker: StartWorker, tmp_path: Path) -> None:
    payload = {"file": str(tmp_path / "lines"), "until": str(tmp_path / "go")}
    task = submit(write_line_and_block, payload)
    worker = start_worker("--autoreload")
    until_lines(tmp_path / "lines", 1)

    worker.send_to_group(signal.SIGINT)
    worker.until_it_says("stops claiming")

    def signal_again() -> bool:
        # The outer process may not have seen the first one yet, and takes two that are pending for one.
        worker.send_to_group(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            worker.wait(2)
        return not worker.is_running()

    eventually(signal_again, 30)
    assert worker.wait() == 128 + signal.SIGKILL
    assert task.refresh().is_running


def touch_until(seen: Callable[[], bool], file: Path) -> None:
    """Change a file until someone has noticed: at its first look the reloader only takes note of what there is."""
    changed_at = itertools.count(time.time())

    def touch_and_look() -> bool:
        now = next(changed_at)
        os.utime(file, (now, now))
        return seen()

    eventually(touch_and_look, 30)
