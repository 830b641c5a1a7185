"""What an atomic handler writes is there exactly once, however often its worker is killed."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import TYPE_CHECKING

from cairnq_django import Task, submit_many
from tests.app.models import Counter
from tests.app.tasks import increment_counter_once
from tests.processes.running import statuses, until_all_ended

if TYPE_CHECKING:
    from tests.processes.conftest import StartWorker

# By hand: CAIRNQ_TEST_TASKS=1000 CAIRNQ_TEST_KILLS=200
TASKS = int(os.environ.get("CAIRNQ_TEST_TASKS", "60"))
KILLS = int(os.environ.get("CAIRNQ_TEST_KILLS", "4"))
SECONDS = 0.03  # of each handler; one at a time, since they share a row


def test_a_counter_is_exact_after_kills_at_random_moments(start_worker: StartWorker) -> None:
    counter = Counter.objects.create(name="exact")
    payload = {"name": "exact", "seconds": SECONDS}
    submit_many(increment_counter_once, [payload] * TASKS, max_attempts=10_000)

    for _ in range(KILLS):
        worker = start_worker("--lease=1").until_it_says("started on queues")
        time.sleep(random.uniform(0, 0.5 * TASKS * SECONDS / KILLS))
        worker.send(signal.SIGKILL)
        assert worker.wait() == -signal.SIGKILL
    assert Task.objects.live().exists(), "there was nothing left to lose"
    start_worker("--lease=1")

    until_all_ended(120)
    assert statuses() == {"succeeded": TASKS}
    counter.refresh_from_db()
    assert counter.value == TASKS
