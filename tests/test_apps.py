"""What is wired together once Django is ready."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import django
import pytest
from django.apps import apps
from django.conf import settings
from django.core.checks import registry as checks
from django.test import override_settings
from django.utils.translation import override

from cairnq_django import Task, client
from cairnq_django.apps import CairnQConfig
from cairnq_django.registry import default_registry

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to import apps from; the handlers that they register are forgotten afterwards."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(default_registry, "_tasks", dict(default_registry._tasks))
    return tmp_path


def install(project: Path, app: str, tasks: str | None) -> override_settings:
    (project / app).mkdir()
    (project / app / "__init__.py").touch()
    if tasks is not None:
        (project / app / "tasks.py").write_text(tasks)
    return override_settings(INSTALLED_APPS=[*settings.INSTALLED_APPS, app])


def test_the_app_is_installed_under_a_name_for_people() -> None:
    config = apps.get_app_config("cairnq_django")
    assert isinstance(config, CairnQConfig)
    with override("en"):
        assert str(config.verbose_name) == "Task queue"


def test_rows_act_through_the_functions_that_callers_use() -> None:
    assert Task.actions is client


def test_the_system_checks_are_registered() -> None:
    assert "cairnq_django" in checks.registry.tags_available()


def test_the_tasks_of_an_installed_app_are_discovered(project: Path) -> None:
    tasks = "from cairnq_django import task\n\n@task\ndef fly_to_the_moon(ctx, payload): ...\n"
    with install(project, "app_with_tasks", tasks):
        assert "fly_to_the_moon" in default_registry
        # Each time that settings of a test change the installed apps, every app is made ready once more.
        with install(project, "app_without_tasks", None):
            assert "fly_to_the_moon" in default_registry


def test_a_tasks_module_that_cannot_be_imported_stops_the_start(project: Path) -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        install(project, "app_that_is_broken", "import no_such_library\n").enable()
    assert apps.is_installed("tests.app")


def test_two_apps_with_a_task_of_the_same_name_stop_the_start(project: Path) -> None:
    tasks = "from cairnq_django import task\n\n@task\ndef land(ctx, payload): ...\n"
    with install(project, "app_of_the_moon", tasks):
        places = r"app_of_the_moon\.tasks\.land \(line 3\) and app_of_mars\.tasks\.land \(line 3\)"
        with pytest.raises(ValueError, match=f"Two handlers are named 'land': {places}"):
            install(project, "app_of_mars", tasks).enable()


@pytest.mark.skipif(django.VERSION < (6, 0), reason="the framework is not Django's own")
def test_mistakes_in_tasks_are_found_though_nothing_has_imported_the_framework() -> None:
    options = {"BACKEND": "cairnq_django.tasks_backend.CairnQBackend", "OPTIONS": {"max_atempts": 2}}
    code = f"""
import sys

import django
from django.conf import settings
from django.core.checks import run_checks

database = {{"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
tasks = {{"default": {options!r}}}
settings.configure(INSTALLED_APPS=["cairnq_django"], DATABASES={{"default": database}}, TASKS=tasks)
django.setup()
sys.stdout.write(" ".join(message.id for message in run_checks()))
"""
    checked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert "cairnq_django.E102" in checked.stdout, checked.stderr
