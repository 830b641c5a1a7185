"""As long as nothing fails, each task runs once, however many workers share its queue."""

from __future__ import annotations

import os
from collections import Counter
from typing import TYPE_CHECKING

from django.db import connection

from cairnq_django import submit_many
from tests.app.tasks import write_line
from tests.processes.running import lines, statuses

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes.conftest import StartWorker

WORKERS = 4


def test_four_workers_of_eight_threads_run_each_task_once(start_worker: StartWorker, tmp_path: Path) -> None:
    tasks = how_many()
    file = tmp_path / "lines"
    submitted = submit_many(write_line, [{"file": str(file)}] * tasks)

    workers = [start_worker("--burst", "--concurrency=8") for _ in range(WORKERS)]

    assert [worker.wait(100) for worker in workers] == [0] * WORKERS
    assert statuses() == {"succeeded": tasks}
    assert Counter(lines(file)) == Counter(str(task.pk) for task in submitted)


def how_many() -> int:
    """As many as the time allows; `CAIRNQ_TEST_TASKS` asks for another number."""
    usual = 1000 if connection.vendor == "postgresql" else 300
    return int(os.environ.get("CAIRNQ_TEST_TASKS", usual))
