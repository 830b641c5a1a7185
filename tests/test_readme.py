"""The README, followed to the letter: its Python blocks make up a project, its commands run, its tables are true."""

from __future__ import annotations

import ast
import re
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management import load_command_class
from django.core.management.base import BaseCommand

from cairnq_django.conf import Settings
from tests.documents import ROOT, Page, Project

README = Page(ROOT / "README.md")
URLS = """
from django.urls import path
from shop.views import place_order

urlpatterns = [path("orders/", place_order)]
"""

on_sqlite = pytest.mark.skipif(
    not settings.DATABASES["default"]["ENGINE"].endswith("sqlite3"),
    reason="a new Django project starts on SQLite; once is enough",
)


@on_sqlite
def test_the_quick_start_runs_as_written(project: Project) -> None:
    assert README.scripts
    project.run(*shell_command("manage.py migrate"))

    with project.running(*shell_command("manage.py runworker")):
        for script in README.scripts:
            project.run(sys.executable, "-c", f"import django; django.setup()\n{script.text}")


@on_sqlite
def test_the_example_of_a_test_passes(project: Project) -> None:
    assert "Ran 1 test" in project.run(sys.executable, "manage.py", "test", "shop")


def test_the_settings_table_says_every_key_and_its_default() -> None:
    rows = README.table_under("Settings")

    assert {key.strip("`").lower(): ast.literal_eval(default.strip("`")) for key, default, _ in rows} == {
        name: list(value) if isinstance(value, tuple) else value for name, value in asdict(Settings()).items()
    }


def test_the_options_table_says_every_option_of_runworker() -> None:
    rows = README.table_under("The worker's options")

    assert {option for row in rows for option in re.findall(r"--[a-z-]+", row[0])} == (
        options_of(load_command_class("cairnq_django", "runworker")) - options_of(BaseCommand())
    )


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A new project, made of the README's blocks that say which file they belong to."""
    project = Project(tmp_path)
    (tmp_path / "mysite/urls.py").write_text(URLS)
    for block in README.files:
        project.append(block.file, block.text)
    return project


def shell_command(start: str) -> list[str]:
    """The README's command `python <start> ...`, for this Python."""
    line = next((line for line in README.shell_lines if line.startswith(f"python {start}")), None)
    assert line, f"the README has no command 'python {start}'"
    return [sys.executable, *shlex.split(line)[1:]]


def options_of(command: Any) -> set[str]:
    actions = command.create_parser("manage.py", "runworker")._actions
    return {option for action in actions for option in action.option_strings if option.startswith("--")}
