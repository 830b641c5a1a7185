"""`CairnQRouter` keeps the queue in the database that `CAIRNQ["DATABASE"]` names, and leaves other apps alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest
from django.apps import apps
from django.contrib.auth.models import Permission, User
from django.db import router

from cairnq_django import Task
from cairnq_django.models import TaskAttempt
from cairnq_django.store.engine import task_database
from tests.app.models import Counter

if TYPE_CHECKING:
    from pytest_django.fixtures import SettingsWrapper

ROOT = Path(__file__).resolve().parent.parent
ROUTER = "cairnq_django.routers.CairnQRouter"
MODELS = list(apps.get_app_config("cairnq_django").get_models())


class EverythingToReplicas:
    """What a project may have beside it."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "default"

    db_for_write = db_for_read


@pytest.fixture(autouse=True)
def _routed(settings: SettingsWrapper) -> None:
    settings.CAIRNQ = {"DATABASE": "dedicated"}
    settings.DATABASE_ROUTERS = [ROUTER, EverythingToReplicas()]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_each_model_of_the_queue_lives_there_alone(model: Any) -> None:
    assert router.db_for_read(model) == router.db_for_write(model) == "dedicated"
    assert router.allow_migrate_model("dedicated", model)
    assert not router.allow_migrate_model("default", model)


def test_tasks_are_sought_there() -> None:
    assert task_database() == Task.objects.db == "dedicated"


@pytest.mark.parametrize("model", [User, Permission, Counter], ids=lambda model: model.__name__)
def test_other_apps_are_for_other_routers(model: Any) -> None:
    assert router.db_for_read(model) == router.db_for_write(model) == "default"
    assert router.allow_migrate_model("default", model)
    assert router.allow_migrate_model("dedicated", model)


def test_rows_of_the_queue_may_be_related_with_each_other_alone() -> None:
    assert router.allow_relation(Task(), TaskAttempt())
    stored = User(pk=1)
    stored._state.db = "default"
    task = Task()
    task._state.db = "dedicated"
    assert not router.allow_relation(task, stored)


def test_without_the_setting_other_routers_decide(settings: SettingsWrapper) -> None:
    settings.CAIRNQ = {}
    assert task_database() == "default"
    settings.DATABASE_ROUTERS = [ROUTER]
    assert task_database() == "default"
    assert all(router.allow_migrate_model(alias, Task) for alias in ("default", "dedicated"))


def test_a_mistake_in_another_setting_does_not_turn_tasks_away(settings: SettingsWrapper) -> None:
    """It is an error of the system checks, which ask the router themselves."""
    settings.CAIRNQ = {"DATABASE": "dedicated", "LEASE": "long"}
    assert task_database() == "dedicated"


def test_migrations_make_the_tables_there_and_the_permissions_where_users_are(tmp_path: Path) -> None:
    (tmp_path / "routed.py").write_text(
        f"from tests.settings import *\n\nCAIRNQ = {{'DATABASE': 'dedicated'}}\nDATABASE_ROUTERS = [{ROUTER!r}]\n"
    )
    source = """
        import json, sys
        import django
        django.setup()
        from django.contrib.auth.models import Permission
        from django.core.management import call_command
        from django.db import connections
        call_command("migrate", verbosity=0)
        call_command("migrate", "cairnq_django", database="dedicated", verbosity=0)
        from cairnq_django import get, submit
        task = submit("work", key="order:7")
        json.dump(
            {
                "tables": {alias: connections[alias].introspection.table_names() for alias in connections},
                "found": get(task.pk).key,
                "permissions": Permission.objects.filter(content_type__app_label="cairnq_django").count(),
            },
            sys.stdout,
        )
    """
    process = subprocess.run(
        [sys.executable, "-W", "error", "-c", dedent(source)],
        cwd=ROOT,
        env={
            **os.environ,
            "DATABASE_URL": f"sqlite:///{tmp_path}/queue.sqlite3",
            "DJANGO_SETTINGS_MODULE": "routed",
            "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    said = json.loads(process.stdout)
    ours = {model._meta.db_table for model in MODELS}
    assert set(said["tables"]["dedicated"]) == {*ours, "django_migrations"}
    assert ours.isdisjoint(said["tables"]["default"])
    assert said["found"] == "order:7"
    assert said["permissions"] >= 8
