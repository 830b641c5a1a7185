"""The package as others install it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from importlib.metadata import version
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command

import cairnq_django

PACKAGE = Path(cairnq_django.__file__).parent


def test_the_version_is_that_of_the_installed_distribution() -> None:
    assert cairnq_django.__version__ == version("cairnq-django")


def test_the_package_says_that_it_is_typed() -> None:
    assert (PACKAGE / "py.typed").is_file()


def test_every_public_name_can_be_imported() -> None:
    missing = [name for name in cairnq_django.__all__ if not hasattr(cairnq_django, name)]
    assert missing == []


def test_tasks_can_be_declared_before_django_is_set_up() -> None:
    code = "import sys; from cairnq_django import task; assert 'cairnq_django.models' not in sys.modules"
    env = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    process = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr


@pytest.mark.django_db
def test_system_checks_find_nothing() -> None:
    call_command("check", databases=["default"], fail_level="WARNING", stdout=StringIO())


@pytest.mark.django_db
def test_no_migration_is_missing() -> None:
    output = StringIO()
    try:
        call_command("makemigrations", "cairnq_django", check_changes=True, dry_run=True, stdout=output)
    except SystemExit:
        pytest.fail(output.getvalue())


@pytest.mark.skipif("CAIRNQ_TEST_INSTALLED" not in os.environ, reason="only where a built wheel is under test")
def test_the_installed_wheel_is_what_the_tests_import() -> None:
    assert Path(sysconfig.get_paths()["purelib"]) in PACKAGE.parents
