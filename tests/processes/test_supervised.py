"""`runworker --processes N`: what ends is replaced, what is told to stop drains, and nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from django.conf import settings

from cairnq_django import Task, submit
from tests.app.tasks import hold_memory, write_line, write_line_and_block
from tests.helpers import eventually
from tests.processes.running import ROOT, WorkerProcess, lines, settings_module, until_all_ended, until_lines

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


def test_a_killed_process_is_replaced_and_its_task_runs_again(start_worker: StartWorker, tmp_path: Path) -> None:
    worker, tasks = two_at_work(start_worker, tmp_path)
    killed = pid_of(tasks[0])
    os.kill(killed, signal.SIGKILL)
    worker.until_it_says(f"(pid {killed}) was killed by SIGKILL; another one starts")
    until_lines(tmp_path / "lines", 3)

    worker.send(signal.SIGTERM)
    worker.until_it_says("Stopping: waiting for the running tasks of 2 processes; a second Ctrl-C kills.")
    worker.until_it_says(DRAINS, times=2)
    (tmp_path / "go").touch()

    assert worker.wait() == 0
    assert [task.refresh().attempt for task in tasks] == [2, 1]
    assert all(task.succeeded for task in tasks)
    assert worker.output.count(BANNER) == 1
    assert worker.output.splitlines()[-1] == "Ended."


def test_a_signal_to_all_processes_at_once_lets_their_tasks_end(start_worker: StartWorker, tmp_path: Path) -> None:
    handlers = {"stderr": {"class": "logging.StreamHandler", "formatter": "names"}}
    formatters = {"names": {"format": "%(processName)s: %(message)s"}}
    logs = {**settings.LOGGING, "handlers": handlers, "formatters": formatters}
    worker, tasks = two_at_work(
        start_worker, tmp_path, **settings_module(tmp_path, "settings_with_names", LOGGING=logs)
    )
    for pid in [worker.pid, *map(pid_of, tasks)]:
        os.kill(pid, signal.SIGTERM)
    worker.until_it_says(DRAINS, times=2)
    (tmp_path / "go").touch()

    assert worker.wait() == 0
    assert all(task.refresh().succeeded for task in tasks)
    assert {task.attempt for task in tasks} == {1}
    # The logs tell the processes apart.
    assert set(re.findall(rf"^(\S+): Worker \S+ {DRAINS}", worker.output, re.M)) == {"worker-1", "worker-2"}


def test_a_second_signal_kills_all(start_worker: StartWorker, tmp_path: Path) -> None:
    worker, tasks = two_at_work(start_worker, tmp_path)
    worker.send_to_group(signal.SIGINT)
    worker.until_it_says(DRAINS, times=2)
    worker.send_to_group(signal.SIGINT)

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


def test_a_process_is_replaced_after_so_many_tasks(start_worker: StartWorker, tmp_path: Path) -> None:
    tasks = [submit(write_line, payload(tmp_path)) for _ in range(2)]
    worker = start_worker("--processes=1", "--max-tasks=1", "--poll-interval=0.1")

    until_all_ended()

    assert len({task.refresh().worker_id for task in tasks}) == 2
    assert {task.attempt for task in tasks} == {1}
    end_well(worker)


def test_a_process_that_has_grown_too_large_is_replaced(start_worker: StartWorker) -> None:
    tasks = [submit(hold_memory, {"mib": 250})]
    worker = start_worker("--processes=1", "--max-memory=250", "--poll-interval=0.1").until_it_says("is replaced")
    tasks.append(submit(hold_memory, {"mib": 1}))
    until_all_ended()

    assert len({task.refresh().worker_id for task in tasks}) == 2
    assert re.search(r"has grown to \d{3} MiB, past 250; it is to be replaced", worker.output)
    end_well(worker)
    assert worker.output.count("is replaced") == 1


def test_without_a_supervisor_a_worker_ends_well_to_be_started_again(start_worker: StartWorker, tmp_path: Path) -> None:
    for _ in range(3):
        submit(write_line, payload(tmp_path))
    worker = start_worker("--concurrency=1", "--max-tasks=2")

    assert worker.wait() == 0

    assert worker.output.splitlines()[-1] == "Ended, to be started again (after 2 tasks)."
    assert len(lines(tmp_path / "lines")) == 2
    assert Task.objects.get(status="queued").attempt == 0


def test_a_burst_called_from_code_runs_in_processes_of_the_same_project(
    transactional_db: None, subprocess_env: dict[str, str], tmp_path: Path
) -> None:
    tasks = [submit(write_line, payload(tmp_path), queue="mail") for _ in range(2)]
    script = tmp_path / "script.py"
    script.write_text(
        "import django\ndjango.setup()\n"
        "from django.core.management import call_command\n"
        "call_command('runworker', processes=2, burst=True, queues=['mail'], resources={'gpu': 1})\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env={**subprocess_env, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout.count(BANNER)) == (0, 1), done.stderr
    assert all(task.refresh().succeeded for task in tasks)


def two_at_work(start_worker: StartWorker, folder: Path, **env: str) -> tuple[WorkerProcess, list[Task]]:
    """Two processes, each with a task that runs until it may end."""
    tasks = [submit(write_line_and_block, payload(folder)) for _ in range(2)]
    worker = start_worker("--processes=2", "--concurrency=1", "--lease=2", "--poll-interval=0.1", **env)
    until_lines(folder / "lines", 2)
    assert len({task.refresh().worker_id for task in tasks}) == 2
    return worker, tasks


def end_well(worker: WorkerProcess) -> None:
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0


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
