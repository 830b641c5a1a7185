"""No task is lost with the process that was running it."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from cairnq_django import submit, submit_many
from cairnq_django.clock import after
from cairnq_django.models import WorkerProcess
from cairnq_django.store.workers import FORGOTTEN_AFTER
from tests.app.tasks import write_line, write_line_and_block, write_line_and_kill_the_process
from tests.helpers import eventually
from tests.processes.running import lines, statuses, until_all_ended, until_lines

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes.conftest import StartWorker

TASKS = 200
BLOCKING = 4  # of them, so that a worker dies with some in its hands


@pytest.mark.parametrize(
    "signals", [[signal.SIGKILL], [signal.SIGTERM, signal.SIGTERM]], ids=["kill -9", "SIGTERM twice"]
)
def test_every_task_survives_the_death_of_a_worker(
    start_worker: StartWorker, tmp_path: Path, signals: list[int]
) -> None:
    file, go = tmp_path / "lines", tmp_path / "go"
    blocking = [
        submit(write_line_and_block, {"file": str(file), "until": str(go)}, priority=1) for _ in range(BLOCKING)
    ]
    others = submit_many(write_line, [{"file": str(file), "seconds": 0.02}] * (TASKS - BLOCKING))
    dying = start_worker("--lease=2")
    until_lines(file, TASKS // 4)

    dying.send(signals[0])
    for number in signals[1:]:
        dying.until_it_says("stops claiming").send(number)
    assert dying.wait() == -signals[-1]
    assert len(lines(file)) < TASKS
    go.touch()
    start_worker("--lease=2")

    until_all_ended()
    assert statuses() == {"succeeded": TASKS}
    assert set(lines(file)) == {str(task.pk) for task in [*blocking, *others]}
    assert {task.refresh().attempt for task in blocking} == {2}


def test_a_handler_that_kills_its_process_burns_its_attempts(start_worker: StartWorker, tmp_path: Path) -> None:
    payload = {"file": str(tmp_path / "lines"), "status": 9}
    task = submit(write_line_and_kill_the_process, payload, max_attempts=2)
    for _ in range(2):
        assert start_worker("--lease=1").wait() == 9
    start_worker("--lease=1")

    eventually(lambda: task.refresh().is_terminal, 30)
    assert task.failed
    assert (task.error["code"], task.attempt) == ("lease_expired", 2)
    assert [attempt.outcome for attempt in task.attempts.all()] == ["retried", "failed"]
    assert lines(tmp_path / "lines") == [str(task.pk)] * 2


def test_a_process_that_ends_takes_its_row_along_and_one_that_is_killed_leaves_it_to_others(
    start_worker: StartWorker,
) -> None:
    def row(pid: int) -> WorkerProcess | None:
        return WorkerProcess.objects.filter(pid=pid).first()

    ending, killed = start_worker(), start_worker()
    for worker in (ending, killed):
        eventually(lambda pid=worker.pid: row(pid), 60, "its row")

    killed.send(signal.SIGKILL)
    killed.wait()
    ending.send(signal.SIGTERM)
    assert ending.wait() == 0
    assert [row(ending.pid), row(killed.pid) is None] == [None, False]

    WorkerProcess.objects.update(seen_at=after(-FORGOTTEN_AFTER - 1))
    start_worker()
    eventually(lambda: row(killed.pid) is None, 60, "the row is swept")
