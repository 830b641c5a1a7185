"""What type checkers make of the public face."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_mypy_infers_types_and_finds_mistakes(tmp_path: Path) -> None:
    # Errors elsewhere are for the type check of the package itself to find.
    options = ["--follow-imports=silent", "--config-file=pyproject.toml", f"--cache-dir={tmp_path}"]
    check("mypy", *options, "tests/typing")


def test_pyright_infers_types_and_finds_mistakes() -> None:
    check("basedpyright", f"--pythonpath={sys.executable}")


def check(checker: str, *arguments: str) -> None:
    """Run it with strict rules; what it ignores without need is an error, too."""
    process = subprocess.run(
        [sys.executable, "-m", checker, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr
