"""The documentation: it builds without a warning, its code runs, its commands exist, its tables are true."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from itertools import dropwhile, takewhile
from pathlib import Path

import pytest
from django.core.management import find_commands, get_commands, load_command_class
from django.core.management.base import BaseCommand, CommandError, CommandParser

from tests.block_checks import found_wrong, not_installed
from tests.documents import DEADLINE, DOCS, ROOT, Block, Command, Page, Project, pages

PAGES = pages()
TUTORIAL = DOCS / "tutorial.md"
README = ROOT / "README.md"
MEASURED = ROOT / "benchmarks" / "results" / "full.md"

#: What every page may take for granted, beside what Django's template of a project has.
SETTINGS = """
DATABASES["default"]["OPTIONS"] = {
    "transaction_mode": "IMMEDIATE",
    "timeout": 20,
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
}
DATABASES["default"]["TEST"] = {"NAME": BASE_DIR / "test.sqlite3"}
INSTALLED_APPS += ["cairnq_django"]
"""
URLS = "from django.urls import include\n"


def test_sphinx_builds_it_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--nitpicky", "--quiet"]
    built = subprocess.run(
        [*command, "-b", "html", str(DOCS), str(tmp_path / "html")],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=2 * DEADLINE,
    )
    assert built.returncode == 0, built.stdout


def test_what_is_to_be_expected_is_what_the_benchmarks_measured() -> None:
    measured = [median for row in rows_of(MEASURED) for median in numbers(row[2])[:1]]
    rows = rows_of(DOCS / "tuning.md", "What to expect")
    expected = [number for row in rows for number in numbers(" ".join(row[1:]))]

    assert len(expected) > 10
    assert [number for number in expected if not any(is_rounded(number, figure) for figure in measured)] == []


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_lead_to_what_is_there(page: Page) -> None:
    assert [target for target in page.links if not leads_somewhere(page, target)] == []


@pytest.mark.parametrize("page", [page for page in PAGES if any(block.is_ours for block in page.blocks)], ids=str)
def test_its_code_imports_and_passes_what_exists(page: Page) -> None:
    blocks = [block for block in page.blocks if block.is_ours and not not_installed(block.text)]

    assert [f"{page}:{block.line}: {wrong}" for block in blocks for wrong in found_wrong(block.text)] == []


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_its_commands_exist_and_take_their_options(page: Page) -> None:
    assert [f"{page}: {wrong}" for command in page.commands if (wrong := problem_with(command))] == []


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_code_is_marked_so_that_it_can_be_tested(page: Page) -> None:
    assert [f"{page}:{block.line}: {wrong}" for block in page.blocks if (wrong := mark_missing(block))] == []


RUN = [page for page in PAGES if page.path not in (README, TUTORIAL) and any(block.is_run for block in page.blocks)]


# In one process, so that the project that pages start from is made once.
@pytest.mark.xdist_group("docs")
@pytest.mark.parametrize("page", RUN, ids=str)
def test_its_code_runs(page: Page, new_project: Path, tmp_path: Path) -> None:
    missing = {name for block in page.blocks if block.is_run for name in not_installed(block.text)}
    if missing:
        pytest.skip(f"not installed here: {', '.join(sorted(missing))}")
    project = project_of(page, new_project, tmp_path / "project")
    scripts = []
    for script in page.scripts:
        scripts.append(tmp_path / f"line_{script.line}.py")
        scripts[-1].write_text(script.text, encoding="utf-8")

    # A copy, so that neither its folder nor a project's own tests/ stands in the way of the other.
    runner = shutil.copy(ROOT / "tests/run_blocks.py", tmp_path)

    project.run(sys.executable, runner, *map(str, scripts))
    if tests := [block.file for block in page.files if Path(block.file).name.startswith("test")]:
        project.run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *dict.fromkeys(tests))


@pytest.fixture(scope="module")
def new_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated project on SQLite with this package, to be copied."""
    project = Project(tmp_path_factory.mktemp("new"))
    project.append("mysite/settings.py", SETTINGS)
    project.append("mysite/urls.py", URLS)
    project.run(sys.executable, "manage.py", "migrate", "--verbosity=0")
    return project.folder


def project_of(page: Page, new_project: Path, folder: Path) -> Project:
    """What this page's blocks make of a new project."""
    shutil.copytree(new_project, folder)
    project = Project(folder)
    for block in page.files:
        project.append(block.file, block.text.partition("\n")[2])
    roots = sorted({block.file.partition("/")[0] for block in page.files if "/" in block.file} - {"mysite", "tests"})
    # Pages may say which of their apps are installed, or leave that out.
    project.append("mysite/settings.py", f"INSTALLED_APPS = list(dict.fromkeys([*INSTALLED_APPS, *{roots!r}]))\n")
    return project


def rows_of(path: Path, heading: str = "") -> list[list[str]]:
    """The cells of the first table below that heading, without its own heading."""
    _, _, below = path.read_text().partition(f"## {heading}\n" if heading else "\n")
    lines = list(takewhile(is_row, dropwhile(lambda line: not is_row(line), below.splitlines())))
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def is_row(line: str) -> bool:
    return line.startswith("|")


def numbers(text: str) -> list[str]:
    return [number.replace(",", "") for number in re.findall(r"\d[\d,]*(?:\.\d+)?", text)]


def is_rounded(number: str, figure: str) -> bool:
    decimals = len(number.partition(".")[2])
    return abs(float(number) - float(figure)) <= 0.5001 * 10**-decimals


def leads_somewhere(page: Page, target: str) -> bool:
    name, _, anchor = target.partition("#")
    path = page.path.parent / name if name else page.path
    return path.exists() and (not anchor or anchor in Page(path).anchors)


def problem_with(command: Command) -> str:
    if command.name in find_commands(str(ROOT / "testproject/demo/management")):
        return ""  # of this repository's own project
    if command.name not in get_commands():
        return f"there is no command {command.name!r}"
    owner = get_commands()[command.name]
    instance = owner if isinstance(owner, BaseCommand) else load_command_class(owner, command.name)
    parser = instance.create_parser("manage.py", command.name)
    if not command.is_whole:
        known = {option for action in parser._actions for option in action.option_strings}
        return f"{command.name} has no {', '.join(command.options - known)}" if command.options - known else ""
    return parsing_fails(parser, command)


def parsing_fails(parser: CommandParser, command: Command) -> str:
    parser.called_from_command_line = False
    for action in parser._actions:
        if "--database" in action.option_strings:
            action.choices = None  # those of the reader's project
    try:
        parser.parse_args(list(command.arguments))
    except CommandError as error:
        return f"{command.name} {' '.join(command.arguments)}: {error}"
    return ""


def mark_missing(block: Block) -> str:
    if block.language in ("py", "python3", "pycon", "{code-block}"):
        return f"write ```python in place of ```{block.language}"
    if block.language in ("bash", "shell", "console", "shell-session"):
        return f"write ```sh in place of ```{block.language}, without prompts"
    if block.language == "python" and (unknown := block.words - {"foreign", "no_run"}):
        return f"```python is followed by no_run, foreign or nothing, got {' '.join(unknown)}"
    return ""
