"""What type checkers make of the public face."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_types_are_inferred_and_mistakes_found(tmp_path: Path) -> None:
    # Errors elsewhere are for the type check of the package itself to find.
    options = ["--follow-imports=silent", "--config-file=pyproject.toml", f"--cache-dir={tmp_path}"]
    process = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "tests/typing"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stdout + process.stderr
