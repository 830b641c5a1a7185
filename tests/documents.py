"""The documentation as tests read it: pages, their code blocks and commands, and the project that these make up."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
DEADLINE = 60  # seconds

_FENCE = re.compile(
    r"^(?P<indent> *)(?P<fence>`{3,})(?P<language>[\w{}-]*)(?P<words>[^`\n]*)\n(?P<text>.*?)^ *(?P=fence)$", re.M | re.S
)
_FILE = re.compile(r"# (\S+\.py)\n")
_MANAGE = re.compile(r"manage\.py[\"',]*\s+([a-z_]+)(.*)")


@dataclass(frozen=True)
class Block:
    """A fenced block of code."""

    language: str
    words: frozenset[str]  # that follow the language
    text: str
    line: int  # in the page, of its first line

    @property
    def file(self) -> str:
        """The file of a project that a Python block belongs to, or an empty string."""
        named = _FILE.match(self.text)
        return named[1] if named else ""

    @property
    def is_ours(self) -> bool:
        """Whether it is Python for this package, and not for another library that a page compares it with."""
        return self.language == "python" and "foreign" not in self.words

    @property
    def is_run(self) -> bool:
        return self.is_ours and "no_run" not in self.words


@dataclass(frozen=True)
class Command:
    """A call of `manage.py` that a page shows."""

    name: str
    arguments: tuple[str, ...]
    is_whole: bool  # whether it can be run as it stands; otherwise it is only named, or part of another file

    @property
    def options(self) -> set[str]:
        return {argument.partition("=")[0] for argument in self.arguments if argument.startswith("--")}


class Page:
    """A Markdown file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.text = path.read_text(encoding="utf-8")

    def __str__(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @cached_property
    def blocks(self) -> list[Block]:
        return [
            Block(
                language=found["language"],
                words=frozenset(found["words"].split()),
                text=dedent(found["text"]),
                line=self.text[: found.start("text")].count("\n") + 1,
            )
            for found in _FENCE.finditer(self.text)
        ]

    @property
    def files(self) -> list[Block]:
        """The Python blocks that make up a project, in the order in which they are appended to its files."""
        return [block for block in self.blocks if block.is_run and block.file]

    @property
    def scripts(self) -> list[Block]:
        """The Python blocks that are run in that project."""
        return [block for block in self.blocks if block.is_run and not block.file]

    @property
    def shell_lines(self) -> list[str]:
        """What a reader types into a terminal, without comments."""
        shell = "\n".join(block.text for block in self.blocks if block.language == "sh").replace("\\\n", " ")
        return [line for line in shell.splitlines() if line.strip() and not line.startswith("#")]

    @property
    def prose(self) -> str:
        """All but the blocks of code."""
        return _FENCE.sub("", self.text)

    @property
    def links(self) -> list[str]:
        """What it links or shows of this repository, as it is written."""
        found = re.findall(r"\]\(([^)\s]+)[^)]*\)|(?:href|src)=\"([^\"]+)", self.prose)
        return [target for pair in found for target in pair if target and ":" not in target]

    @property
    def anchors(self) -> set[str]:
        """What its headings are linked by, as MyST and GitHub make it of their text."""
        headings = re.findall(r"^#+ (.+)$", self.prose, re.M)
        return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}

    @property
    def commands(self) -> list[Command]:
        found = [_command(part, is_whole=True) for line in self.shell_lines for part in re.split(r"&&|\|", line)]
        found += [_command(text, is_whole=False) for text in re.findall(r"`([^`]*manage\.py[^`]*)`", self.prose)]
        others = (block.text for block in self.blocks if block.language not in ("sh", "python"))
        found += [_command(line, is_whole=False) for text in others for line in text.splitlines()]
        return [command for command in found if command is not None]

    def table_under(self, heading: str) -> list[list[str]]:
        """The cells of the table that follows this heading."""
        found = re.search(rf"^#+ {re.escape(heading)}$(.*?)(?=^#+ |\Z)", self.prose, re.M | re.S)
        assert found, f"{self} has no heading {heading!r}"
        lines = [line for line in found[1].splitlines() if line.startswith("|")]
        return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


class Project:
    """A new Django project in `folder`, made by `django-admin startproject mysite .`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        foreign = {"DATABASE_URL", "DJANGO_SETTINGS_MODULE"}  # the test run's own
        self.env = {name: value for name, value in os.environ.items() if name not in foreign}
        self.env["PYTHONPATH"] = os.pathsep.join([str(folder), str(ROOT)])
        self.env["PYTEST_PLUGINS"] = "cairnq_django.pytest_plugin"  # which is found by itself once it is installed
        if not (folder / "manage.py").exists():
            self.run(sys.executable, "-m", "django", "startproject", "mysite", ".")
        self.env["DJANGO_SETTINGS_MODULE"] = "mysite.settings"

    def append(self, file: str, text: str) -> None:
        path = self.folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.parent != self.folder:
            (path.parent / "__init__.py").touch()
        with path.open("a", encoding="utf-8") as out:
            out.write(f"\n{text}")

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


def pages() -> list[Page]:
    """The README and all pages of the documentation."""
    return [Page(ROOT / "README.md"), *(Page(path) for path in sorted(DOCS.rglob("*.md")))]


def _command(text: str, *, is_whole: bool) -> Command | None:
    found = _MANAGE.search(text)
    if found is None:
        return None
    name, rest = found.groups()
    # In a list of strings, as in a container's command, each has quotes and a comma of its own.
    arguments = shlex.split(rest, comments=True) if is_whole else re.findall(r"--[a-z][a-z-]*|[\w=.]+", rest)
    return Command(name, tuple(arguments), is_whole)
