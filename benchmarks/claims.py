"""What a claim costs, with much or little in front of it: run `python -m benchmarks.claims`, or with `--help`."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.databases import server_version
from tests.servers import SERVERS

ROOT = Path(__file__).resolve().parent.parent
ROW = "{:<58}{:>8}{:>8}{:>10}{:>11}{:>9}{:>8}\n"


def main() -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    options = parse_arguments()
    trees = [ROOT, *([options.against] if options.against else [])]
    with SERVERS[options.db]() as url:
        sys.stdout.write(f"{server_version(url)}, the best of {options.repeat} claims\n")
        here, *others = [measure(tree, url, options.repeat) for tree in trees]
    report(here, others[0] if others else None)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.claims",
        description="Measure claims on a server of its own. Ratios are to the same claim with nothing in front of it.",
    )
    parser.add_argument("--db", choices=list(SERVERS), default="postgres", help="default: %(default)s")
    parser.add_argument("--repeat", type=int, default=25, help="claims to take the best of (default: %(default)s)")
    parser.add_argument("--against", type=Path, metavar="PATH", help="measure the package of this checkout, too")
    return parser.parse_args()


def measure(tree: Path, url: str, repeat: int) -> list[dict[str, Any]]:
    """The measurements of the package in `tree`, made in a process of its own."""
    process = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "claim_scenarios.py", str(repeat)],
        cwd=ROOT,
        env={
            **os.environ,
            "DATABASE_URL": url,
            "PYTHONPATH": os.pathsep.join([str(tree.resolve()), str(ROOT)]),
        },
        stdout=subprocess.PIPE,
        check=True,
    )
    measured: list[dict[str, Any]] = json.loads(process.stdout)
    return measured


def report(here: list[dict[str, Any]], there: list[dict[str, Any]] | None) -> None:
    sys.stdout.write(ROW.format("", "claimed", "ms", "to usual", "statements", "pages", "against"))
    usual = {row["scenario"]: row["ms"] for row in here if not row["crowd"]}
    for n, row in enumerate(here):
        name = f"{row['scenario']} {row['crowd']}"
        ratio = f"{row['ms'] / usual[row['scenario']]:.2f}"
        against = f"{there[n]['ms'] / row['ms']:.2f}" if there else ""
        pages = "" if row["pages"] is None else row["pages"]
        sys.stdout.write(ROW.format(name, row["claimed"], f"{row['ms']:.2f}", ratio, row["statements"], pages, against))


if __name__ == "__main__":
    main()
