"""The package as others install it."""

from __future__ import annotations

import fnmatch
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from email import message_from_bytes
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from typing import NamedTuple

import django
import pytest
from django.core.management import call_command

import cairnq_django

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path(cairnq_django.__file__).parent

# One process builds for all of them.
pytestmark = pytest.mark.xdist_group("packaging")
from_source = pytest.mark.skipif("CAIRNQ_TEST_INSTALLED" in os.environ, reason="a built wheel is under test already")


class Dist(NamedTuple):
    sdist: Path
    wheel: Path  # of the sdist
    wheel_of_the_tree: Path


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


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Dist:
    """What `python -m build` makes: an sdist, and a wheel of that."""
    folder = tmp_path_factory.mktemp("dist")
    build(str(ROOT), out=folder)
    build("--wheel", str(ROOT), out=folder / "of-the-tree")
    return Dist(*folder.glob("*.tar.gz"), *folder.glob("*.whl"), *folder.glob("of-the-tree/*.whl"))


@from_source
def test_the_sdist_makes_the_same_wheel_as_the_repository(dist: Dist) -> None:
    assert contents(dist.wheel) == contents(dist.wheel_of_the_tree)


@from_source
def test_what_others_need_is_in_the_wheel_and_nothing_else(dist: Dist) -> None:
    tracked = {str(path.relative_to(ROOT)) for path in PACKAGE.rglob("*") if path.is_file()}
    sources = {path for path in tracked if "__pycache__" not in path}
    inside = {name for name in contents(dist.wheel) if ".dist-info/" not in name}
    assert inside == sources
    for pattern in ("py.typed", "templates/**/*.html", "static/**/*.css", "static/**/*.js", "locale/**/*.mo"):
        assert fnmatch.filter(inside, f"cairnq_django/{pattern}"), pattern


@from_source
def test_an_index_accepts_both(dist: Dist) -> None:
    run("-m", "twine", "check", "--strict", str(dist.sdist), str(dist.wheel))
    run("-m", "check_wheel_contents", str(dist.wheel), cwd=ROOT)


@from_source
def test_the_description_leads_nowhere_that_an_index_does_not_have(dist: Dist) -> None:
    (metadata,) = (data for name, data in contents(dist.wheel).items() if name.endswith(".dist-info/METADATA"))
    headers, _, description = metadata.decode().partition("\n\n")
    assert "Description-Content-Type: text/markdown" in headers
    assert "\n## Quick start\n" in description
    code = re.findall(r"```python\n.*?```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert [block for block in code if block not in description] == []
    leads = re.findall(r"\]\(([^)]*)\)|(?:href|src)=\"([^\"]*)\"", prose(description))
    assert [target for pair in leads for target in pair if target and not target.startswith(("https://", "#"))] == []


@from_source
def test_the_metadata_name_every_version_that_is_tested(dist: Dist) -> None:
    metadata = message_from_bytes(
        next(data for name, data in contents(dist.wheel).items() if name.endswith(".dist-info/METADATA"))
    )
    tox = (ROOT / "tox.ini").read_text()
    pythons = {f"3.{minor}" for minor in re.findall(r"py3(\d+)-", tox)}
    djangos = {f"{major}.{minor}" for major, minor in re.findall(r"django(\d)(\d): ", tox)}
    classifiers = metadata.get_all("Classifier") or []
    assert {each[len("Programming Language :: Python :: ") :] for each in classifiers if ":: Python :: 3." in each} == (
        pythons
    )
    assert {each[len("Framework :: Django :: ") :] for each in classifiers if ":: Django :: " in each} == djangos
    assert metadata["License-Expression"] == "MIT"
    assert metadata.get_all("License-File") == ["LICENSE"]


@from_source
def test_a_wheel_installed_into_an_empty_project_works(dist: Dist, tmp_path: Path) -> None:
    project = EmptyProject(tmp_path, dist.wheel)

    project.python("-c", PREPARE)
    project.python("manage.py", "runworker", "--burst")
    said = project.python("-c", LOOK)

    assert said.split("\n")[:3] == ["succeeded 42", str(project.packages / "cairnq_django"), "200 Aufgaben"]
    shown = {path.name for path in (PACKAGE / "static").rglob("*.*")}
    assert shown <= {path.name for path in (tmp_path / "static/cairnq_django").iterdir()}


PREPARE = """
import django
from django.core.management import call_command
django.setup()
call_command("migrate", verbosity=0)
call_command("check", fail_level="WARNING", verbosity=0)
call_command("makemigrations", check_changes=True, dry_run=True, verbosity=0)
call_command("collectstatic", interactive=False, verbosity=0)
from cairnq_django import submit
submit("double", 21, key="first")
"""
LOOK = """
import cairnq_django, django
from pathlib import Path
django.setup()
from django.contrib.auth.models import User
from django.test import Client
task = cairnq_django.get_by_key("first")
print(task.status, task.result)
print(Path(cairnq_django.__file__).parent)
client = Client(SERVER_NAME="localhost")
client.force_login(User.objects.create_superuser("ada"))
page = client.get("/admin/cairnq_django/", headers={"accept-language": "de"})
print(page.status_code, "Aufgaben" if "Aufgaben" in page.text else page.text)
"""


class EmptyProject:
    """A new Django project in an environment of its own, which has this wheel and shares this one's Django."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self._folder = folder
        venv.create(folder / "venv", with_pip=False)
        self._python = str(next(folder.glob("venv/*/python")))
        (self.packages,) = folder.glob("venv/lib/*/site-packages")
        (self.packages / "shared.pth").write_text(str(Path(django.__file__).parents[1]))
        run("-m", "pip", f"--python={self._python}", "install", "--quiet", "--no-deps", "--no-index", str(wheel))
        run("-m", "django", "startproject", "mysite", ".", cwd=folder)
        with (folder / "mysite/settings.py").open("a") as settings:
            settings.write(SETTINGS)
        (folder / "shop").mkdir()
        (folder / "shop/__init__.py").touch()
        (folder / "shop/tasks.py").write_text(TASKS)

    def python(self, *arguments: str) -> str:
        settings = {"DJANGO_SETTINGS_MODULE": "mysite.settings"}
        return run("-W", "error", *arguments, cwd=self._folder, python=self._python, env=settings)


SETTINGS = """
INSTALLED_APPS += ["cairnq_django", "shop"]
MIDDLEWARE.insert(2, "django.middleware.locale.LocaleMiddleware")
STATIC_ROOT = BASE_DIR / "static"
DATABASES["default"]["OPTIONS"] = {
    "transaction_mode": "IMMEDIATE",
    "timeout": 20,
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
}
"""
TASKS = """
from cairnq_django import task


@task
def double(ctx, payload):
    return payload * 2
"""


def build(*arguments: str, out: Path) -> None:
    run("-m", "build", "--no-isolation", "--outdir", str(out), *arguments)


def run(
    *arguments: str, cwd: Path | None = None, python: str = sys.executable, env: dict[str, str] | None = None
) -> str:
    foreign = {"DATABASE_URL", "DJANGO_SETTINGS_MODULE", "PYTHONPATH"}
    own = {name: value for name, value in os.environ.items() if name not in foreign}
    process = subprocess.run(
        [python, *arguments], cwd=cwd, env={**own, **(env or {})}, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr
    return process.stdout


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def prose(markdown: str) -> str:
    """Without code."""
    return re.sub(r"```.*?```|`[^`]*`", "", markdown, flags=re.DOTALL)
