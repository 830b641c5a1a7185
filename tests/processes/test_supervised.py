"""`runworker --processes N`: what ends is replaced, what is told to stop drains, and nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from django.conf import settings

from cairnq_django import Task, submit
from tests.app.tasks import hold_memory, write_line, write_line_and_block
from tests.helpers import eventually
from tests.processes.running import WorkerProcess, lines, settings_module, until_all_ended, until_lines

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.processes.conftest import StartWorker

BANNER = "Stop with Ctrl-C"
STARTED = "started on queues"
DRAINS = "stops claiming"


@pytest.fixture(autouse=True)
def let_all_end(tmp_path: Path) -> Iterator[None]:
    """So that no process waits for ever in a test that failed."""
    yield
    (tmp_path / "go").touch()


def test_a_killed_process_is_replaced_and_signals_to_all_processes_lose_no_task(
    start_worker: StartWorker, tmp_path: Path
) -> None:
    handlers = {"stderr": {"class": "logging.StreamHandler", "formatter": "names"}}
    formatters = {"names": {"format": "%(processName)s: %(message)s"}}
    logs = {**settings.LOGGING, "handlers": handlers, "formatters": formatters}
    worker, tasks = two_at_work(
        start_worker, tmp_path, **settings_module(tmp_path, "settings_with_names", LOGGING=logs)
    )
    killed = pid_of(tasks[0])
    os.kill(killed, signal.SIGKILL)
    worker.until_it_says(f"(pid {killed}) was killed by SIGKILL; another one starts")
    until_lines(tmp_path / "lines", 3)

    for pid in [worker.pid, *(pid_of(task.refresh()) for task in tasks)]:
        os.kill(pid, signal.SIGTERM)
    worker.until_it_says("Stopping: waiting for the running tasks of 2 processes; a second Ctrl-C kills.")
    worker.until_it_says(DRAINS, times=2)
    (tmp_path / "go").touch()

    assert worker.wait() == 0
    assert [task.refresh().attempt for task in tasks] == [2, 1]
    assert all(task.succeeded for task in tasks)
    assert worker.output.count(BANNER) == 1
    assert worker.output.splitlines()[-1] == "Ended."
    # The logs tell the processes apart.
    assert set(re.findall(rf"^(\S+): Worker \S+ {DRAINS}", worker.output, re.M)) == {"worker-1", "worker-2"}


def test_a_second_signal_kills_all(start_worker: StartWorker, tmp_path: Path) -> None:
    worker, tasks = two_at_work(start_worker, tmp_path)
    worker.send(signal.SIGINT)
    worker.until_it_says(DRAINS, times=2)
    worker.send(signal.SIGINT)

    assert worker.wait(10) == -signal.SIGINT
    until_gone(pids(worker))
    assert all(task.refresh().is_running for task in tasks)


def test_the_processes_of_a_killed_supervisor_end_and_lose_no_task(start_worker: StartWorker, tmp_path: Path) -> None:
    worker, tasks = two_at_work(start_worker, tmp_path)
    left = submit(write_line, payload(tmp_path))
    worker.send(signal.SIGKILL)
    worker.wait()

    eventually(lambda: worker.output.count(DRAINS) == 2, 30)
    (tmp_path / "go").touch()

    until_gone(pids(worker))
    assert all(task.refresh().succeeded for task in tasks)
    assert left.refresh().is_queued


def test_a_process_that_is_too_large_or_held_by_handlers_is_replaced(start_worker: StartWorker, tmp_path: Path) -> None:
    worker = start_worker("--processes=1", "--concurrency=1", "--poll-interval=0.1", "--max-memory=250", "--max-run=1")
    tasks = [submit(hold_memory, {"mib": 250})]
    worker.until_it_says("is replaced")
    tasks.append(submit(write_line_and_block, payload(tmp_path), max_attempts=1))
    worker.until_it_says("is replaced", times=2)
    tasks.append(submit(hold_memory, {"mib": 1}))
    until_all_ended()
    worker.send(signal.SIGTERM)

    assert worker.wait() == 0
    assert re.search(r"has grown to \d{3} MiB, past 250; it is to be replaced", worker.output)
    assert worker.output.count("abandoned handlers do not end; this worker is to be replaced") == 1
    assert worker.output.count("is replaced") == len({task.refresh().worker_id for task in tasks}) - 1 == 2
    # Nothing went wrong with them, so that it counts towards no giving up.
    assert "another one starts" not in worker.output


def test_without_a_supervisor_a_worker_ends_well_to_be_started_again(start_worker: StartWorker, tmp_path: Path) -> None:
    for _ in range(3):
        submit(write_line, payload(tmp_path))
    worker = start_worker("--concurrency=1", "--max-tasks=2")

    assert worker.wait() == 0

    assert worker.output.splitlines()[-1] == "Ended, to be started again (after 2 tasks)."
    assert len(lines(tmp_path / "lines")) == 2
    assert Task.objects.get(status="queued").attempt == 0


def two_at_work(start_worker: StartWorker, folder: Path, **env: str) -> tuple[WorkerProcess, list[Task]]:
    """Two processes, each with a task that runs until it may end."""
    tasks = [submit(write_line_and_block, payload(folder)) for _ in range(2)]
    worker = start_worker("--processes=2", "--concurrency=1", "--lease=2", "--poll-interval=0.1", **env)
    until_lines(folder / "lines", 2)
    assert len({task.refresh().worker_id for task in tasks}) == 2
    return worker, tasks


def payload(folder: Path) -> dict[str, str]:
    return {"file": str(folder / "lines"), "until": str(folder / "go")}


def pid_of(task: Task) -> int:
    return int(task.worker_id.rsplit("-", 2)[1])


def pids(worker: WorkerProcess) -> list[int]:
    """Of the processes that the supervisor has started."""
    return [int(pid) for pid in re.findall(rf"-(\d+)-[0-9a-f]+ {STARTED}", worker.output)]


def until_gone(processes: list[int]) -> None:
    assert processes
    eventually(lambda: not any(map(_is_there, processes)), 30, f"processes {processes} have ended")


def _is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        # A container's first process may take no notice of the ends of processes that were left to it.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except ProcessLookupError:
        return False
    except FileNotFoundError:
        return not Path("/proc/self").exists()
