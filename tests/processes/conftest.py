"""A fixture that starts worker processes on the database under test."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pytest

from tests.processes.running import WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class StartWorker(Protocol):
    def __call__(self, *arguments: str, **env: str) -> WorkerProcess: ...


@pytest.fixture
def start_worker(transactional_db: None, subprocess_env: dict[str, str], tmp_path: Path) -> Iterator[StartWorker]:
    """Start `manage.py runworker` with these arguments, and environment variables where given."""
    started: list[WorkerProcess] = []

    def start(*arguments: str, **env: str) -> WorkerProcess:
        log = tmp_path / f"worker-{len(started) + 1}.log"
        started.append(WorkerProcess(*arguments, env={**subprocess_env, **env}, log=log))
        return started[-1]

    yield start
    for number, worker in enumerate(started, start=1):
        worker.end()
        print(f"--- worker {number}\n{worker.output}")  # noqa: T201 - pytest shows it with a test that failed
