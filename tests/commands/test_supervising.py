"""What a supervisor makes of how its processes end; the real ones are in `tests/processes`."""

from __future__ import annotations

import re
import signal
import sys
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from django.core.management import CommandError

from cairnq_django.management import supervising
from cairnq_django.management.lifeline import RECYCLE
from cairnq_django.management.supervising import Supervisor, equal_command

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# Each is for the start of a process: it is told to stop by its supervisor, or tells it to.
UNTIL_TOLD = "sys.stdin.read()"
RECYCLES = f"sys.exit({RECYCLE})"
STOP_ALL = f"os.kill(os.getppid(), {signal.SIGTERM:d}); {UNTIL_TOLD}"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Supervise a process that does one thing after the other, one at each start; return the exit status."""
    monkeypatch.setattr(supervising, "FIRST_PAUSE", 0.01)

    def run(*starts: str, processes: int = 1, burst: bool = False) -> int:
        log = tmp_path / "starts"
        script = f"import os, sys\nlog = open({str(log)!r}, 'a')\nlog.write('.')\nstart = log.tell()\nlog.close()\n"
        script += "\n".join(f"if start == {number}: {start}" for number, start in enumerate(starts, start=1))
        stops: list[str] = []
        status = Supervisor([sys.executable, "-c", script], processes=processes, env={}, burst=burst).run(
            lambda: stops.append("stopped")
        )
        assert len(log.read_text()) == len(starts)
        assert len(stops) == sum(STOP_ALL in start for start in starts)
        return status

    return run


def test_what_ends_is_replaced_after_pauses_that_double(
    run: Callable[..., int], caplog: pytest.LogCaptureFixture
) -> None:
    assert run("sys.exit(2)", "os.kill(os.getpid(), 9)", "sys.exit(0)", STOP_ALL) == 0
    assert re.findall(r"process 1 \(pid \d+\) (.*); another one starts in (\S+) s", caplog.text) == [
        ("ended with status 2", "0.01"),
        ("was killed by SIGKILL", "0.02"),
        ("ended with status 0", "0.04"),
    ]


def test_what_asks_for_a_replacement_has_it_at_once(run: Callable[..., int], caplog: pytest.LogCaptureFixture) -> None:
    assert run(*[RECYCLES] * 7, STOP_ALL) == 0
    assert "another one starts" not in caplog.text


@pytest.mark.skipif(not hasattr(signal, "SIGCHLD"), reason="the platform has no SIGCHLD")
def test_an_ignored_sigchld_hides_no_exit_status(run: Callable[..., int], caplog: pytest.LogCaptureFixture) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        assert run(RECYCLES, STOP_ALL) == 0
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert "another one starts" not in caplog.text


def test_what_a_thread_holds_after_its_work_ends_nevertheless(
    run: Callable[..., int], capfd: pytest.CaptureFixture[str]
) -> None:
    held = (
        "import threading; from cairnq_django.management import lifeline; lifeline.EXIT_TIMEOUT = 0.1; "
        "threading.Thread(target=threading.Event().wait, name='forgotten').start(); "
        f"lifeline.end_in_time({RECYCLE})"
    )
    assert run(held, STOP_ALL) == 0
    assert "its process did not: given up (threads: forgotten)" in capfd.readouterr().err


def test_what_has_run_for_a_while_is_replaced_at_once(
    run: Callable[..., int], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervising, "EARLY", 0.0)
    assert run(*["sys.exit(1)"] * 7, STOP_ALL) == 0
    assert caplog.text.count("ended with status 1; another one starts now") == 7


def test_what_does_not_stay_up_is_given_up(run: Callable[..., int], caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(CommandError, match=r"Each has ended within 30 s of its start, 5 times .*ended with status 1\."):
        run(*["sys.exit(1)"] * 5)
    assert [record.getMessage().rpartition("; ")[2] for record in caplog.records] == [
        *(f"another one starts in {pause} s" for pause in (0.01, 0.02, 0.04, 0.08)),
        "no other one starts",
    ]


def test_as_long_as_one_stays_up_none_is_given_up(run: Callable[..., int], monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(UNTIL_TOLD, *["sys.exit(1)"] * 7, STOP_ALL, processes=2) == 0


def test_what_ends_badly_when_it_is_to_stop_is_told(run: Callable[..., int], caplog: pytest.LogCaptureFixture) -> None:
    assert run(f"{STOP_ALL}; sys.exit(1)") == 1
    assert re.search(r"process 1 \(pid \d+\) ended with status 1 while it was to end", caplog.text)


def test_a_burst_is_over_when_each_has_found_nothing_left(run: Callable[..., int]) -> None:
    assert run(RECYCLES, "sys.exit(1)", "sys.exit(0)", "sys.exit(0)", processes=2, burst=True) == 0


def test_what_cannot_be_started_is_tried_again_and_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervising, "FIRST_PAUSE", 0.01)
    supervisor = Supervisor(["/no/such/program"], processes=1, env={})
    with pytest.raises(CommandError, match="cannot be kept up"):
        supervisor.run(lambda: None)
    assert caplog.text.count("Worker process 1 could not be started: ") == 5


def test_what_code_asks_for_is_said_on_a_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "tests.settings")
    command, _ = equal_command(
        {
            "queues": ["mail", "default"],
            "resources": {"gpu": 1},
            "max_run": timedelta(minutes=2),
            "concurrency": 4,
            "lease": None,
            "burst": True,
            "autoreload": False,
        }
    )
    assert command[-7:] == [
        "cairnq_worker",
        *("--queue=mail", "--queue=default", "--resource=gpu=1", "--max-run=120.0", "--concurrency=4", "--burst"),
    ]
