"""The README, followed to the letter: its Python blocks make up a project, its commands run, its tables are true."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from django.conf import settings
from django.core.management import load_command_class
from django.core.management.base import BaseCommand

from cairnq_django.conf import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
DEADLINE = 60  # seconds
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
    scripts = [block for file, block in python_blocks() if not file]
    assert scripts
    project.run(*shell_command("manage.py migrate"))

    with project.running(*shell_command("manage.py runworker")):
        for script in scripts:
            project.run(sys.executable, "-c", f"import django; django.setup()\n{script}")


@on_sqlite
def test_the_example_of_a_test_passes(project: Project) -> None:
    assert "Ran 1 test" in project.run(sys.executable, "manage.py", "test", "shop")


def test_the_settings_table_says_every_key_and_its_default() -> None:
    rows = table_under("Settings")

    assert {key.strip("`").lower(): ast.literal_eval(default.strip("`")) for key, default, _ in rows} == {
        name: list(value) if isinstance(value, tuple) else value for name, value in asdict(Settings()).items()
    }


def test_the_options_table_says_every_option_of_runworker() -> None:
    rows = table_under("The worker's options")

    assert {option for row in rows for option in re.findall(r"--[a-z-]+", row[0])} == (
        options_of(load_command_class("cairnq_django", "runworker")) - options_of(BaseCommand())
    )


class Project:
    """A new Django project in `folder`, made of the README's blocks that say which file they belong to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        foreign = {"DATABASE_URL", "DJANGO_SETTINGS_MODULE"}  # the test run's own
        self.env = {name: value for name, value in os.environ.items() if name not in foreign}
        self.env["PYTHONPATH"] = os.pathsep.join([str(folder), str(ROOT)])
        self.run(sys.executable, "-m", "django", "startproject", "mysite", ".")
        self.env["DJANGO_SETTINGS_MODULE"] = "mysite.settings"
        (folder / "shop").mkdir()
        (folder / "shop/__init__.py").touch()
        (folder / "mysite/urls.py").write_text(URLS)
        for file, block in python_blocks():
            if file:
                with (folder / file).open("a", encoding="utf-8") as out:
                    out.write(f"\n{block}")

    def run(self, *command: str) -> str:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLINE,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    @contextmanager
    def running(self, *command: str) -> Iterator[None]:
        """Have `command` run meanwhile; told to end, it is to end well."""
        log = self.folder / "running.log"
        with log.open("w") as out:
            process = subprocess.Popen(command, cwd=self.folder, env=self.env, stdout=out, stderr=subprocess.STDOUT)
        try:
            yield
            process.terminate()
            assert process.wait(DEADLINE) == 0, log.read_text()
        finally:
            process.kill()
            process.wait()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def python_blocks() -> list[tuple[str, str]]:
    """The README's Python blocks, each with the file that its first line names, or an empty string."""
    return re.findall(r"^```python\n(?:# (\S+\.py)\n)?(.*?)^```$", README, re.M | re.S)


def shell_command(start: str) -> list[str]:
    """The README's command `python <start> ...`, for this Python."""
    line = re.search(rf"^python ({re.escape(start)}.*)$", README, re.M)
    assert line, f"the README has no command 'python {start}'"
    return [sys.executable, *shlex.split(line[1])]


def table_under(heading: str) -> list[list[str]]:
    section = README.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def options_of(command: Any) -> set[str]:
    actions = command.create_parser("manage.py", "runworker")._actions
    return {option for action in actions for option in action.option_strings if option.startswith("--")}
