"""`cairnq_purge` deletes by hand, says how many, and ends early when told to."""

from __future__ import annotations

import os
import re
import signal
import threading
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

from cairnq_django.clock import after
from cairnq_django.management.purging import age
from cairnq_django.models import Task
from cairnq_django.store import maintenance
from tests.factories import TaskFactory
from tests.store.sessions import in_another_session, statements

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "dedicated"])


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def purge(*arguments: str, out: StringIO | None = None) -> str:
    out = StringIO() if out is None else out
    call_command("cairnq_purge", *arguments, stdout=out)
    return out.getvalue()


def ended(seconds_ago: float, state: str = "succeeded", **fields: Any) -> Task:
    return TaskFactory(**{state: True}, completed_at=after(-seconds_ago), **fields)


def names_left() -> set[str]:
    return set(Task.objects.values_list("name", flat=True))


def test_it_deletes_what_ended_long_enough_ago_and_says_how_many() -> None:
    for _ in range(2):
        ended(120)
    ended(30, name="young")
    TaskFactory(name="live")
    assert purge("--older-than=1m") == "Deleted 2 tasks.\n"
    assert names_left() == {"young", "live"}
    assert purge("--older-than", "60") == "Deleted 0 tasks.\n"
    assert purge("--older-than=20s") == "Deleted 1 task.\n"


@pytest.mark.parametrize(
    ("arguments", "deleted"),
    [
        (["--status=failed"], {"failure", "mail"}),
        (["--status=failed", "--status", "canceled"], {"failure", "mail", "cancel"}),
        (["--queue=mail"], {"mail"}),
        (["--queue=Mail"], set()),
        (["--name=success"], {"success"}),
        (["--status=succeeded", "--queue=mail"], set()),
        (["--limit=2"], {"success", "failure"}),
        (["--limit=0"], set()),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
@pytest.mark.parametrize("dry_run", [False, True], ids=["deleted", "dry run"])
def test_its_options_narrow_it_down(arguments: list[str], deleted: set[str], dry_run: bool) -> None:
    ended(130, name="success")
    ended(120, "failed", name="failure")
    ended(110, "canceled", name="cancel")
    ended(100, "failed", name="mail", queue="mail")
    before = names_left()
    told = purge("--older-than=60", *arguments, *(["--dry-run"] if dry_run else []))
    number = f"{len(deleted)} task{'' if len(deleted) == 1 else 's'}"
    assert told == (f"Would delete {number}.\n" if dry_run else f"Deleted {number}.\n")
    assert before - names_left() == (set() if dry_run else deleted)


def test_a_dry_run_only_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "WINDOW", 3)
    for n in range(10):
        ended(100 + n)
    sent = statements(lambda: purge("--older-than=60", "--dry-run"))
    assert all(sql.startswith(("SELECT", "SHOW", "\n")) for sql in sent), sent
    assert Task.objects.count() == 10


def test_a_database_may_be_named() -> None:
    ended(120)
    assert purge("--older-than=60", "--database=dedicated") == "Deleted 0 tasks.\n"
    assert purge("--older-than=60", "--database=default") == "Deleted 1 task.\n"


def test_the_verbosity_says_how_much_is_said() -> None:
    for _ in range(2):
        ended(120)
    assert purge("--older-than=60", "--limit=1", "-v0", out=Terminal()) == ""
    assert Task.objects.count() == 1
    assert purge("--older-than=60", "-v3").splitlines()[0].startswith("Database default: ")


def test_progress_is_shown_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "PURGE_BATCH", 2)
    for _ in range(6):
        ended(120)
    shown = purge("--older-than=60", "--limit=4", out=Terminal())
    assert re.findall(r"\rDeleted (\d) so far", shown) == ["2", "4"]
    assert shown.endswith("\r\x1b[KDeleted 4 tasks.\n")
    assert purge("--older-than=60") == "Deleted 2 tasks.\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_after_the_batch(monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    monkeypatch.setattr(maintenance, "PURGE_BATCH", 2)
    for _ in range(6):
        ended(120)

    def interrupt(execute: Any, sql: str, *rest: Any) -> Any:
        if sql.startswith("DELETE") and f"{Task._meta.db_table}" in sql and not interrupted:
            interrupted.append(sql)
            os.kill(os.getpid(), number)
        return execute(sql, *rest)

    interrupted: list[str] = []
    before = signal.getsignal(number)
    with connection.execute_wrapper(interrupt), pytest.raises(CommandError) as raised:
        purge("--older-than=60")
    assert str(raised.value) == "Interrupted. Deleted 2 tasks."
    assert raised.value.returncode == 130
    assert Task.objects.count() == 4
    assert signal.getsignal(number) is before


def test_a_handler_in_a_thread_may_call_it() -> None:
    ended(120)
    assert in_another_session(lambda: purge("--older-than=60")) == "Deleted 1 task.\n"
    assert threading.current_thread() is threading.main_thread()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("90", 90),
        ("1.5", 1.5),
        ("90s", 90),
        ("15m", 900),
        ("12h", 43_200),
        ("0.5d", 43_200),
        ("30d", 2_592_000),
    ],
)
def test_an_age_is_seconds_or_has_a_unit(text: str, seconds: float) -> None:
    assert age(text) == seconds


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "the following arguments are required: --older-than"),
        (["--older-than=soon"], "argument --older-than: 'soon' is no age; write seconds, or a number with m, h or d"),
        (["--older-than=-5"], "'-5' is no age"),
        (["--older-than=5w"], "'5w' is no age"),
        (["--older-than=99999d"], "older_than must be at most"),
        (["--older-than=1", "--status=running"], "argument --status: invalid choice: 'running'"),
        (["--older-than=1", "--queue="], "queue must not be empty"),
        (["--older-than=1", "--name", "n" * 300], "name must have at most"),
        (["--older-than=1", "--limit=-1"], "limit must be at least 0, got -1"),
    ],
)
def test_a_wrong_option_is_named(arguments: list[str], complaint: str) -> None:
    ended(120)
    with pytest.raises(CommandError, match=complaint):
        purge(*arguments)
    assert Task.objects.exists()
