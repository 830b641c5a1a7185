"""Run the tests on every database there is: `python -m tests [--db NAME] [--coverage] [pytest arguments]`."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.databases import server_version
from tests.servers import LOCAL_MYSQL, SERVERS, Unavailable, named_by_environment

ROOT = Path(__file__).resolve().parent.parent
NO_TESTS_COLLECTED = 5  # pytest's exit status

# What no database has a part in runs on the first one only.
ONCE = [
    "tests/browser",
    "tests/tasks_backend/test_registering.py",
    "tests/commands/test_supervising.py",
    "tests/processes/test_supervised.py",
    "tests/testing/test_howto.py",
    *(
        f"tests/test_{room}.py"
        for room in (
            "arguments",
            "backoff",
            "checks",
            "conf",
            "docs",
            "envelopes",
            "errors",
            "instrumentation",
            "logs",
            "packaging",
            "public_api",
            "readme",
            "reference",
            "registry",
            "rooms",
            "routers",
            "sentry",
            "serialization",
            "testproject",
            "timing",
            "tracing",
            "tutorial",
            "typing",
        )
    ),
]

# What speaks to the database itself: all that the third one runs.
DEEP = ["tests/notify", "tests/store", "tests/worker", "tests/test_migrations.py"]
# What only one of them has: all that further ones run where time is short.
BRIEF = ["tests/notify", "tests/store/test_insert.py"]


@dataclass(frozen=True)
class Outcome:
    database: str
    text: str
    ran: int = 0
    failed: bool = False


def main() -> int:
    # A terminated run ends like an interrupted one, so that the server it started goes with it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    options, pytest_args = parse_arguments()
    if options.coverage:
        coverage("erase")

    outcomes = []
    try:
        for name in options.db or default_databases():
            chosen = left_to_run(outcomes, brief=options.brief, is_named=names_tests(pytest_args))
            outcomes.append(run_on(name, options, [*chosen, *pytest_args]))
            print(f"==> {outcomes[-1].database}: {outcomes[-1].text}", flush=True)
    except KeyboardInterrupt:
        outcomes.append(Outcome("interrupted", "the remaining tests did not run", failed=True))

    failed = any(outcome.failed for outcome in outcomes) or not any(outcome.ran for outcome in outcomes)
    if options.coverage:
        coverage("combine", "--quiet")
        failed |= coverage("report") != 0
    print("\n==> tests", "failed" if failed else "passed")
    for outcome in outcomes:
        print(f"{outcome.database}: {outcome.text}")
    return int(failed)


def names_tests(pytest_args: list[str]) -> bool:
    return any((ROOT / argument.partition("::")[0]).exists() for argument in pytest_args)


def left_to_run(outcomes: list[Outcome], *, brief: bool, is_named: bool) -> list[str]:
    """Arguments of pytest for the next database: after the first one less is to be learnt, after the second little."""
    databases = sum(outcome.ran > 0 for outcome in outcomes)
    if not databases:
        return []
    ignored = [f"--ignore={path}" for path in ONCE]
    if is_named or not (brief or databases > 1):
        return ignored
    return [*(BRIEF if brief else DEEP), *ignored]


def parse_arguments() -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        prog="python -m tests",
        description="Run the tests on SQLite, on a PostgreSQL server of their own, and on MariaDB or MySQL where one "
        "answers. Other arguments go to pytest.",
        epilog="DATABASE_URL, where set, names the only database to run on. CAIRNQ_TEST_MYSQL_URL names the MariaDB or "
        f"MySQL server, {LOCAL_MYSQL} by default.",
        allow_abbrev=False,
    )
    parser.add_argument("--db", action="append", choices=list(SERVERS), help="run on this database only (repeatable)")
    parser.add_argument(
        "--brief", action="store_true", help="after the first database, run only what speaks to them itself"
    )
    parser.add_argument("--coverage", action="store_true", help="measure the package, over all databases together")
    parser.add_argument(
        "-n",
        dest="processes",
        type=int,
        # Many tests wait for something, and leave their processor to others.
        default=min(8, 2 * (os.cpu_count() or 1)),
        help="test processes, each with a database of its own; 0 runs all in one, for --pdb (default: %(default)s)",
    )
    return parser.parse_known_args()


def default_databases() -> list[str]:
    return ["DATABASE_URL"] if "DATABASE_URL" in os.environ else list(SERVERS)


def run_on(name: str, options: argparse.Namespace, pytest_args: list[str]) -> Outcome:
    server = SERVERS.get(name, named_by_environment)
    try:
        with server() as url:
            database = server_version(url)
            print(f"\n==> {database}", flush=True)
            return run_pytest(database, url, options, pytest_args)
    except Unavailable as error:
        asked_for = bool(options.db) or (name == "mysql" and "CAIRNQ_TEST_MYSQL_URL" in os.environ)
        return Outcome(name, f"{'failed' if asked_for else 'skipped'}: {error}", failed=asked_for)
    except Exception as error:
        # A server that does not start must not keep the tests from the others.
        traceback.print_exc()
        return Outcome(name, f"failed: {error}", failed=True)


def run_pytest(database: str, url: str, options: argparse.Namespace, pytest_args: list[str]) -> Outcome:
    runner = ["coverage", "run", "-m", "pytest"] if options.coverage else ["pytest"]
    processes = ["-n", str(options.processes), "--dist", "loadgroup"] if options.processes else []
    with tempfile.TemporaryDirectory(prefix="cairnq-report-") as folder:
        report = Path(folder) / "junit.xml"
        command = [sys.executable, "-m", *runner, *processes, f"--junitxml={report}", *pytest_args]
        status = run_to_its_end(command, {**os.environ, "DATABASE_URL": url})
        return read_outcome(database, status, report)


def run_to_its_end(command: list[str], env: dict[str, str]) -> int:
    process = subprocess.Popen(command, cwd=ROOT, env=env)
    try:
        return process.wait()
    except KeyboardInterrupt:
        try:
            # A Ctrl-C in the terminal reached pytest too, which is about to drop its databases.
            process.wait(timeout=3)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            process.wait()
        raise


def read_outcome(database: str, status: int, report: Path) -> Outcome:
    if not report.exists():
        return Outcome(database, f"failed: pytest ended with status {status} and without a report", failed=True)
    cases = [{child.tag for child in case} for case in ElementTree.parse(report).iter("testcase")]
    counts = {
        "failed": sum("failure" in case or "error" in case for case in cases),
        "passed": sum(not case & {"failure", "error", "skipped"} for case in cases),
        "skipped": sum("skipped" in case for case in cases),
    }
    text = ", ".join(f"{count} {word}" for word, count in counts.items() if count) or "no tests"
    failed = status not in (0, NO_TESTS_COLLECTED)
    if failed and not counts["failed"]:
        text += f", pytest ended with status {status}"
    return Outcome(database, text, ran=counts["passed"] + counts["failed"], failed=failed)


def coverage(*arguments: str) -> int:
    return subprocess.call([sys.executable, "-m", "coverage", *arguments], cwd=ROOT)


if __name__ == "__main__":
    sys.exit(main())
