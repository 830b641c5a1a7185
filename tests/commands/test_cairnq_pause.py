"""`cairnq_pause` and `cairnq_resume`: what they say and do."""

from __future__ import annotations

import getpass
from datetime import datetime, timezone
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from cairnq_django import pause_queue, paused_queues
from cairnq_django.models import PausedQueue

pytestmark = pytest.mark.django_db(databases=["default", "dedicated"])


def run(command: str, *arguments: str) -> str:
    out = StringIO()
    call_command(command, *arguments, stdout=out)
    return out.getvalue()


def test_a_queue_is_paused_and_resumed() -> None:
    said = run("cairnq_pause", "mail")
    assert said == "Paused 'mail' until it is resumed. It takes submits; running tasks go on.\n"
    (paused,) = paused_queues()
    assert (paused.queue, paused.until, paused.paused_by) == ("mail", None, getpass.getuser())
    assert run("cairnq_resume", "mail") == "Resumed 'mail'.\n"
    assert paused_queues() == []
    assert run("cairnq_resume", "mail") == "'mail' was not paused.\n"


@pytest.mark.parametrize(("until", "seconds"), [("90", 90), ("1.5m", 90), ("2h", 7200), ("1d", 86_400)])
def test_until_may_be_a_time_from_now(until: str, seconds: float) -> None:
    run("cairnq_pause", "mail", "--until", until)
    (paused,) = paused_queues()
    assert paused.until is not None
    assert abs((paused.until - paused.paused_at).total_seconds() - seconds) < 1


@pytest.mark.parametrize(
    ("until", "hour"),
    [("2999-01-01T12:00", 3), ("2999-01-01 12:00:00", 3), ("2999-01-01T12:00Z", 12), ("2999-01-01T12:00+02:00", 10)],
)
def test_until_may_be_a_moment_in_the_project_s_time_zone_or_its_own(settings: Any, until: str, hour: int) -> None:
    settings.TIME_ZONE = "Asia/Tokyo"
    said = run("cairnq_pause", "mail", "--until", until)
    assert paused_queues()[0].until == datetime(2999, 1, 1, hour, tzinfo=timezone.utc)
    assert f"until 2999-01-01 {hour + 9:02}:00:00+09:00" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mail", "--until", "tomorrow"], "'tomorrow' is no time; write seconds, a number with m, h or d, as in 30m,"),
        (["mail", "--until", "10x"], "'10x' is no age"),
        (["mail", "--until", "2999-13-01T12:00"], "'2999-13-01T12:00' is no time: month must be in 1..12"),
        (["mail", "--until", "2020-01-01T12:00"], "until must be in the future"),
        ([""], "queue must not be empty"),
        ([], "the following arguments are required: QUEUE"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_with_a_word_on_it(arguments: list[str], message: str) -> None:
    pause_queue("mail", by="ada")
    with pytest.raises(CommandError, match=message):
        run("cairnq_pause", *arguments)
    assert [paused.paused_by for paused in paused_queues()] == ["ada"]


def test_resuming_what_cannot_be_a_queue_is_refused() -> None:
    with pytest.raises(CommandError, match="queue must not be empty"):
        run("cairnq_resume", "")


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_a_pause_may_last_to_the_end_of_time(settings: Any, zone: str) -> None:
    settings.TIME_ZONE = zone
    assert "Paused 'mail' until 9999-12-31" in run("cairnq_pause", "mail", "--until", "9999-12-31T23:00Z")


def test_a_dry_run_changes_nothing() -> None:
    assert run("cairnq_pause", "mail", "--dry-run") == "Would pause 'mail' until it is resumed.\n"
    assert run("cairnq_pause", "mail", "--dry-run", "--until=1h").startswith("Would pause 'mail' until 2")
    with pytest.raises(CommandError, match="until must be in the future"):
        run("cairnq_pause", "mail", "--dry-run", "--until=2020-01-01T12:00")
    assert run("cairnq_resume", "mail", "--dry-run") == "'mail' is not paused.\n"
    pause_queue("mail", by="ada")
    assert run("cairnq_resume", "mail", "--dry-run") == "Would resume 'mail'.\n"
    assert [paused.paused_by for paused in paused_queues()] == ["ada"]


def test_a_database_may_be_named() -> None:
    run("cairnq_pause", "mail", "--database=dedicated")
    assert paused_queues() == []
    assert PausedQueue.objects.using("dedicated").exists()
    assert run("cairnq_resume", "mail") == "'mail' was not paused.\n"
    assert run("cairnq_resume", "mail", "--database=dedicated") == "Resumed 'mail'.\n"
    assert not PausedQueue.objects.using("dedicated").exists()


def test_the_verbosity_says_how_much_is_said() -> None:
    assert run("cairnq_pause", "mail", "-v0") == ""
    assert paused_queues()
    assert run("cairnq_resume", "mail", "-v2").splitlines()[0].startswith("Database default: ")
    with pytest.raises(CommandError, match="queue must not be blank"):
        run("cairnq_resume", " ", "-v0")
