"""The first signal lets the running tasks end, the second one kills."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from cairnq_django import Task, TaskStatus, submit
from tests.app.tasks import write_line, write_line_and_block
from tests.processes.running import lines, statuses, until_all_ended, until_lines

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes.conftest import StartWorker

STARTED = "started on queues"


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_running_tasks_end_and_no_other_is_started(start_worker: StartWorker, tmp_path: Path, stop: int) -> None:
    blocking = [submit(write_line_and_block, payload(tmp_path)) for _ in range(2)]
    worker = start_worker("--concurrency=2")
    until_lines(tmp_path / "lines", 2)
    left = submit(write_line, payload(tmp_path))

    worker.send(stop)
    worker.until_it_says("Stopping: waiting for 2 running tasks; a second Ctrl-C kills.")
    worker.until_it_says("stops claiming and waits for 2 running tasks")
    (tmp_path / "go").touch()

    assert worker.wait() == 0
    assert worker.output.splitlines()[-1] == "Ended."
    assert all(task.refresh().succeeded for task in blocking)
    assert left.refresh().is_queued


def test_an_idle_worker_ends_at_once(start_worker: StartWorker) -> None:
    worker = start_worker("--poll-interval=60").until_it_says(STARTED)
    worker.send(signal.SIGTERM)
    assert worker.wait(10) == 0


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_kills_and_the_task_is_delivered_again(
    start_worker: StartWorker, tmp_path: Path, stop: int
) -> None:
    task = submit(write_line_and_block, payload(tmp_path))
    worker = start_worker("--lease=2")
    until_lines(tmp_path / "lines", 1)

    worker.send(stop)
    worker.until_it_says("stops claiming")
    worker.send(stop)
    assert worker.wait(10) == -stop

    (tmp_path / "go").touch()
    start_worker("--lease=2")
    until_all_ended()
    assert task.refresh().succeeded
    assert task.attempt == 2
    assert [attempt.error["code"] for attempt in task.attempts.all()] == ["lease_expired"]


def test_after_the_drain_timeout_unfinished_tasks_are_given_back(start_worker: StartWorker, tmp_path: Path) -> None:
    task = submit(write_line_and_block, payload(tmp_path))
    worker = start_worker("--drain-timeout=0.2")
    until_lines(tmp_path / "lines", 1)

    worker.send(signal.SIGTERM)

    assert worker.wait(10) == 0
    task.refresh()
    assert (task.status, task.attempt) == (TaskStatus.QUEUED, 0)
    # Another worker has it at once, without waiting for a lease to run out.
    (tmp_path / "go").touch()
    assert start_worker("--burst").wait() == 0
    assert Task.objects.get().succeeded


def test_workers_share_a_queue(start_worker: StartWorker, tmp_path: Path) -> None:
    for _ in range(4):
        submit(write_line_and_block, payload(tmp_path))
    start_worker("--concurrency=2")
    start_worker("--concurrency=2")
    until_lines(tmp_path / "lines", 4)
    assert statuses() == {"running": 4}
    assert Task.objects.values("worker_id").distinct().count() == 2

    (tmp_path / "go").touch()
    until_all_ended()
    assert len(lines(tmp_path / "lines")) == 4


def payload(folder: Path) -> dict[str, str]:
    return {"file": str(folder / "lines"), "until": str(folder / "go")}
