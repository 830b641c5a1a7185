"""A deploy as it happens: worker processes of two versions of an app, killed and started while tasks come in."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

from django.conf import settings

from cairnq_django import get, submit
from tests.helpers import eventually
from tests.processes.running import settings_module, statuses

if TYPE_CHECKING:
    from pathlib import Path

    from tests.processes.conftest import StartWorker

TASKS = """
import time
from pathlib import Path
from cairnq_django import task

def work(ctx, payload):
    while not Path(payload).exists():
        time.sleep(0.01)
    return VERSION

"""
OLD = "VERSION = 'old'\ntask('charge')(work)\ntask('removed')(work)\n"
NEW = "VERSION = 'new'\ntask('charge_card', aliases=['charge'])(work)\ntask('added')(work)\n"


def version(folder: Path, called: str, tasks: str) -> dict[str, str]:
    """An app with these tasks; returns what a process's environment needs to have it installed."""
    app = folder / called / "billing"
    app.mkdir(parents=True)
    (app / "__init__.py").touch()
    (app / "tasks.py").write_text(TASKS + tasks)
    return settings_module(folder / called, f"settings_{called}", INSTALLED_APPS=[*settings.INSTALLED_APPS, "billing"])


def test_a_killed_worker_s_tasks_are_kept_for_a_version_that_knows_them(
    start_worker: StartWorker, tmp_path: Path
) -> None:
    old, new = version(tmp_path, "old", OLD), version(tmp_path, "new", NEW)
    go = str(tmp_path / "go")
    charge, removed, added = [submit(name, go) for name in ("charge", "removed", "added")]
    dying = start_worker("--lease=1", **old)
    eventually(lambda: get(charge).is_running and get(removed).is_running, 60, "the old version runs what it knows")
    dying.send(signal.SIGKILL)
    dying.wait()
    (tmp_path / "go").touch()

    start_worker("--lease=1", **new)
    eventually(lambda: get(removed).is_queued and get(charge).is_terminal and get(added).is_terminal, 60)
    assert (get(charge).result, get(charge).name, get(charge).attempt) == ("new", "charge", 2)
    assert (get(removed).attempt, get(removed).error["code"]) == (1, "lease_expired"), "taken back, and not run"

    start_worker("--burst", **old)
    eventually(lambda: get(removed).is_terminal, 60)
    assert (get(removed).result, get(removed).attempt) == ("old", 2)
    assert statuses() == {"succeeded": 3}
