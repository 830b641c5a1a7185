"""`runworker` hands its options to a worker, and says what it will do."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

import pytest
from django.core.management import CommandError, call_command, get_commands, load_command_class
from django.db import connection

from cairnq_django import Worker, submit, submit_many, task
from cairnq_django.management.warning import warn
from cairnq_django.registry import default_registry
from cairnq_django.store import stats
from tests.app.tasks import write_line
from tests.workers import table_away

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_django.fixtures import SettingsWrapper

pytestmark = pytest.mark.django_db(transaction=True)


def banner_of(*arguments: str, command: str = "runworker") -> dict[str, str]:
    """Run until nothing is left, and return what the banner says, by its headings."""
    out = StringIO()
    call_command(command, "--burst", *arguments, stdout=out)
    rows = (line.split(maxsplit=1) for line in out.getvalue().splitlines() if line.startswith("  "))
    return {row[0]: row[1] for row in rows}


@pytest.mark.parametrize("command", ["runworker", "cairnq_worker"])
def test_a_burst_runs_what_is_due(command: str, tmp_path: Path) -> None:
    task = submit(write_line, {"file": str(tmp_path / "lines")})
    call_command(command, "--burst", stdout=StringIO())
    assert task.refresh().succeeded


def test_both_names_take_the_same_options() -> None:
    commands = [load_command_class(get_commands()[name], name) for name in ("runworker", "cairnq_worker")]
    usages = [command.create_parser("manage.py", "worker").format_help() for command in commands]
    assert usages[0] == usages[1]


def test_the_banner_says_what_starts() -> None:
    banner = banner_of()
    assert banner.keys() == {
        "database",
        "queues",
        "handlers",
        "concurrency",
        "lease",
        "polling",
        "retries",
        "limits",
    }
    assert banner["database"].startswith(f"default: {connection.display_name} {connection.settings_dict['NAME']}")
    assert banner["queues"] == "default"
    assert "write_line (default)" in banner["handlers"].split(", ")
    assert banner["concurrency"] == "8 calls"
    assert banner["lease"] == "30 s, a heartbeat every 10 s"
    assert banner["polling"] == "every 1 s"
    assert banner["retries"] == "after 1 s, doubling up to 30 s"
    assert banner["limits"] == "run without limit, drain without limit"


def test_nothing_is_said_at_verbosity_0() -> None:
    assert banner_of("-v0") == {}


def test_the_banner_shows_no_password() -> None:
    out = StringIO()
    call_command("runworker", "--burst", stdout=out)
    password = connection.settings_dict["PASSWORD"]
    assert not password or password not in out.getvalue()


def test_every_option_reaches_the_worker() -> None:
    banner = banner_of(
        "--concurrency=3",
        "--claim-batch=2",
        "--lease=12",
        "--heartbeat-interval=5",
        "--poll-interval=0.5",
        "--retry-backoff=2",
        "--retry-backoff-max=60",
        "--max-run=90",
        "--drain-timeout=20",
        "--max-tasks=1000",
        "--max-memory=99999",
    )
    assert banner["recycling"] == "after 1000 tasks, past 99999 MiB"
    assert banner["concurrency"] == "3 calls, claiming up to 2 at once"
    assert banner["lease"] == "12 s, a heartbeat every 5 s"
    assert banner["polling"] == "every 0.5 s"
    assert banner["retries"] == "after 2 s, doubling up to 60 s"
    assert banner["limits"] == "run 90 s, drain 20 s"


def test_what_is_not_given_comes_from_the_settings(settings: SettingsWrapper) -> None:
    settings.CAIRNQ = {"QUEUES": ["mail", "default"], "CONCURRENCY": 2, "LEASE": 60, "DRAIN_TIMEOUT": 5}
    banner = banner_of("--lease=45")
    assert banner["queues"] == "mail, default"
    assert banner["concurrency"] == "2 calls"
    assert banner["lease"] == "45 s, a heartbeat every 15 s"
    assert banner["limits"] == "run without limit, drain 5 s"


def test_queues_are_named_one_by_one(tmp_path: Path) -> None:
    payload = {"file": str(tmp_path / "lines")}
    mail, reports, other = (submit(write_line, payload, queue=queue) for queue in ("mail", "reports", "other"))

    banner = banner_of("--queue=mail", "--queue", "reports")

    assert banner["queues"] == "mail, reports"
    assert mail.refresh().succeeded
    assert reports.refresh().succeeded
    assert other.refresh().is_queued


def test_the_banner_says_all_names_of_a_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_registry, "_tasks", {})
    task("charge_card", aliases=["charge", "pay"])(lambda ctx, payload: None)
    assert banner_of()["handlers"] == "charge_card, also charge, also pay (default)"


def test_handlers_whose_queue_is_not_served_are_pointed_out() -> None:
    assert "not" not in banner_of()
    assert "write_line (default)" in banner_of("--queue=mail")["not"]


class TestWarnings:
    """What is said of a worker that starts all the same."""

    @staticmethod
    def warnings(caplog: pytest.LogCaptureFixture, *arguments: str) -> list[str]:
        caplog.clear()
        call_command("runworker", "--burst", *arguments, stdout=StringIO())
        return [record.getMessage() for record in caplog.records if record.name.endswith("management.warning")]

    def test_there_is_none_where_all_is_well(self, caplog: pytest.LogCaptureFixture) -> None:
        submit("elsewhere", queue="unserved")
        submit("write_line", queue="mail", delay=60)
        assert self.warnings(caplog, "--queue=mail") == []

    def test_names_that_it_has_no_handler_for_are_told_and_left_alone(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stats, "COUNTED_AT_LEAST", 2)
        renamed = submit("old_name")
        submit_many("shop.ship", [1, 2, 3], queue="mail", delay=60)
        (said,) = self.warnings(caplog, "--queue=mail", "--queue=default")
        assert "no handler for: 'old_name' in 'default' (1), 'shop.ship' in 'mail' (at least 2). They wait" in said
        assert renamed.refresh().is_queued

    def test_a_great_many_names_are_not_all_told(
        self, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stats, "LEVELS", 14)
        for number in range(20):
            submit(f"old_{number:02}")
        (said,) = self.warnings(caplog)
        assert "'old_09' in 'default' (1) and 4 other names." in said

    def test_a_look_that_fails_does_not_keep_it_from_starting(self, caplog: pytest.LogCaptureFixture) -> None:
        with table_away():
            warn(Worker(["default"]), is_long_lived=False)
        assert caplog.records == []

    def test_debug_is_told_to_one_that_is_to_stay(
        self, caplog: pytest.LogCaptureFixture, settings: SettingsWrapper
    ) -> None:
        settings.DEBUG = True
        assert self.warnings(caplog) == []
        warn(Worker(["default"]), is_long_lived=True)
        assert "DEBUG is on" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--concurrency=0"], "concurrency must be at least 1, got 0"),
        (["--claim-batch=0"], "claim_batch must be at least 1, got 0"),
        (["--lease=0"], "lease must be at least .* seconds, got 0"),
        (["--lease=5", "--heartbeat-interval=5"], "lease must be longer than the time between two heartbeats"),
        (["--poll-interval=0"], "poll_interval must be at least"),
        (["--poll-interval=inf"], "poll_interval must be a finite number of seconds, got inf"),
        (["--retry-backoff=-1"], "retry_backoff must not be negative, got -1"),
        (["--max-run=0"], "max_run must be at least"),
        (["--drain-timeout=-0.1"], "drain_timeout must not be negative, got -0.1"),
        (["--max-tasks=0"], "max_tasks must be at least 1, got 0"),
        (["--max-memory=1"], "max_memory must be more than the .* MiB that the process has now, got 1"),
        (["--processes=0"], "processes must be at least 1, got 0"),
        (["--queue="], "queues must not be empty"),
        (["--queue= "], "queues must not be blank"),
        (["--queue", "q" * 300], "queues must have at most"),
        (["--concurrency=x"], "argument --concurrency: invalid int value: 'x'"),
        (["--autoreload"], "argument --autoreload: not allowed with argument --burst"),
        (["--no-such-option"], "unrecognized arguments: --no-such-option"),
    ],
)
def test_a_wrong_option_is_named(arguments: list[str], complaint: str) -> None:
    with pytest.raises(CommandError, match=complaint):
        call_command("runworker", "--burst", *arguments, stdout=StringIO())


def test_a_number_of_processes_given_as_text_is_refused_by_its_name() -> None:
    with pytest.raises(CommandError, match="processes must be an integer"):
        call_command("runworker", processes="2", stdout=StringIO())


def test_several_processes_and_a_restart_when_code_changes_exclude_each_other() -> None:
    with pytest.raises(CommandError, match="--autoreload is for one process; leave out --processes"):
        call_command("runworker", "--autoreload", "--processes=2", stdout=StringIO())


def test_processes_need_settings_that_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE")
    with pytest.raises(CommandError, match="--processes needs DJANGO_SETTINGS_MODULE in the environment"):
        call_command("runworker", "--processes=2", stdout=StringIO())
