"""A schedule's times are submitted once each, however many workers there are and whichever are killed."""

from __future__ import annotations

import random
import signal
from collections import Counter
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from django.utils import timezone

from cairnq_django import Task
from cairnq_django.models import Schedule
from tests.factories import ScheduleFactory
from tests.helpers import eventually
from tests.processes.running import lines, settings_module, until_all_ended

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes.conftest import StartWorker

TIMES = 60


def test_an_hour_of_a_schedule_of_each_minute_is_60_tasks_though_workers_are_killed(
    start_worker: StartWorker, tmp_path: Path
) -> None:
    # A limit has them let in one by one, each in a transaction of its own.
    env = settings_module(tmp_path, "limited", CAIRNQ={"MAX_QUEUE_DEPTH": 10_000})
    file = tmp_path / "lines"
    hour = timezone.now().replace(minute=0, second=0, microsecond=0) - timedelta(hours=1)
    minutes = [hour + timedelta(minutes=n) for n in range(TIMES)]
    # With one that is due each second, workers see soon what becomes of the others.
    ScheduleFactory(name="metronome", task_name="write_line", payload={"file": str(tmp_path / "others")}, every=1)
    schedule = ScheduleFactory(
        name="each minute",
        task_name="write_line",
        payload={"file": str(file)},
        every=None,
        cron=f"* {hour.hour} * * *",
        timezone="UTC",
        missed="all",
        overlap="allow",
    )
    workers = [start_worker("--lease=2", **env) for _ in range(3)]
    for worker in workers:
        worker.until_it_says("started")
    Schedule.objects.update(next_run_at=hour)

    for share in (random.randint(1, 15), random.randint(16, 30)):
        eventually(lambda share=share: len(of_the_hour()) >= share, 60, f"{share} tasks")
        victim = workers.pop(random.randrange(len(workers)))
        victim.send(signal.SIGKILL)
        workers.append(start_worker("--lease=2", **env))

    eventually(lambda: len(of_the_hour()) >= TIMES, 60, "all of the hour")
    Schedule.objects.filter(name="metronome").update(next_run_at=None)
    until_all_ended()
    tasks = of_the_hour()
    assert Counter(datetime.fromisoformat(task.metadata["due_at"]) for task in tasks) == dict.fromkeys(minutes, 1)
    assert {task.status for task in tasks} == {"succeeded"}
    assert {*lines(file)} == {str(task.pk) for task in tasks}
    schedule.refresh_from_db()
    assert schedule.next_run_at == hour + timedelta(days=1)


def of_the_hour() -> list[Task]:
    return [task for task in Task.objects.all() if task.metadata["schedule"] == "each minute"]
