"""One connection hears for a whole process, comes back by itself when it is lost, and leaves nothing behind."""

from __future__ import annotations

import subprocess
import sys
import threading
from textwrap import dedent
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection

from cairnq_django import notify
from cairnq_django.notify import Channel, listener
from cairnq_django.notify.listener import Deaf, listener_of_this_process
from tests.helpers import eventually
from tests.notify.postgres import (
    PATIENCE,
    Hearing,
    announce_elsewhere,
    database_alias,
    listener_threads,
    listening_backends,
    on_postgresql,
    pooler,
    subscribed,
    terminate,
)

if TYPE_CHECKING:
    from collections.abc import Callable

IMPATIENT = "-c idle_session_timeout=200"  # milliseconds

pytestmark = [pytest.mark.django_db(transaction=True), on_postgresql]


def test_all_who_wait_in_a_process_share_one_connection() -> None:
    with subscribed("a") as a, subscribed("b") as b, subscribed("b") as another_b:
        assert len(listening_backends()) == len(listener_threads()) == 1
        announce_elsewhere("b")
        b.wait()
        another_b.wait()
        assert not a.woken.is_set()


def test_thread_and_connection_end_after_the_last_subscriber() -> None:
    with subscribed("a", channel=Channel.ENDED):
        with subscribed("b", channel=Channel.ENDED):
            (thread,) = listener_threads()
        assert thread.is_alive()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    eventually(lambda: not listening_backends())


def test_it_is_seen_on_a_channel_for_as_long_as_someone_is_subscribed_there() -> None:
    with subscribed("a"):
        eventually(lambda: seen_on() == {Channel.QUEUED})
        with notify.subscribed("default", Channel.ENDED, ["b"], lambda: None):
            assert listener_of_this_process("default").wait_until_hearing(PATIENCE)
            assert seen_on() == {Channel.QUEUED, Channel.ENDED}
        eventually(lambda: seen_on() == {Channel.QUEUED})
        terminate(listening_backends())
        eventually(lambda: not seen_on())
        eventually(lambda: seen_on() == {Channel.QUEUED})
    eventually(lambda: not seen_on())


def test_a_worker_leaves_no_thread_behind() -> None:
    with subscribed("a"):
        (thread,) = listener_threads()
    assert not thread.is_alive()


def test_one_who_comes_soon_after_the_last_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "LINGER", 60)
    with subscribed("a", channel=Channel.ENDED):
        before = listening_backends()
    hearing = Hearing()
    with notify.subscribed("default", Channel.QUEUED, ["a"], hearing.woken.set):
        announce_elsewhere("a")
        hearing.wait()
        assert listening_backends() == before


def test_one_who_comes_while_the_thread_ends_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    ending, came = threading.Event(), threading.Event()
    connect = listener.Listener._connect

    class SlowToClose:
        def __init__(self, connection: Any) -> None:
            self._connection = connection

        def __getattr__(self, name: str) -> Any:
            return getattr(self._connection, name)

        def close(self) -> None:
            ending.set()
            came.wait(PATIENCE)
            self._connection.close()

    monkeypatch.setattr(listener, "LINGER", 0)
    monkeypatch.setattr(listener.Listener, "_connect", lambda self: SlowToClose(connect(self)))
    hearing = Hearing()
    with notify.subscribed("default", Channel.ENDED, ["a"], lambda: None):
        assert listener_of_this_process("default").wait_until_hearing(PATIENCE)
    assert ending.wait(PATIENCE)
    with notify.subscribed("default", Channel.ENDED, ["a"], hearing.woken.set):
        came.set()
        hearing.wait()
        hearing.woken.clear()
        announce_elsewhere("a", Channel.ENDED)
        hearing.wait()
        assert len(listener_threads()) == 1
    eventually(lambda: not listener_threads())


def test_a_connection_that_is_cut_is_reported_once_and_comes_back() -> None:
    with subscribed("a") as first, subscribed("b") as second:
        terminate(listening_backends())
        eventually(lambda: first.reported and second.reported)
        # News may have been missed meanwhile, so that is a wake-up too.
        first.wait()
        assert listener_of_this_process("default").wait_until_hearing(PATIENCE)
        first.woken.clear()
        announce_elsewhere("a")
        first.wait()
    assert len(first.reported) == len(second.reported) == 1


def test_where_nobody_takes_reports_it_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    with notify.subscribed("default", Channel.ENDED, ["a"], lambda: None):
        assert listener_of_this_process("default").wait_until_hearing(PATIENCE)
        terminate(listening_backends())
        eventually(lambda: "falling back to polling" in caplog.text)
        assert listener_of_this_process("default").wait_until_hearing(PATIENCE)
    assert caplog.text.count("falling back to polling") == 1


def test_a_server_that_stays_away_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "RECONNECT_FIRST", 0.01)
    tries = count_calls(monkeypatch, listener.Listener, "_connect")
    with database_alias("away", HOST="127.0.0.1", PORT="1", OPTIONS={}) as away:
        hearing = Hearing()
        with notify.subscribed(away, Channel.QUEUED, ["a"], hearing.woken.set, hearing.reported.append):
            eventually(lambda: len(tries) >= 4)
    assert len(hearing.reported) == 1
    assert not hearing.woken.is_set()
    assert not listener_threads()


def test_a_pooler_that_loses_notifications_is_reported_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "ECHO_TIMEOUT", 0.2)
    monkeypatch.setattr(listener, "ECHO_INTERVAL", 0.1)
    tries = count_calls(monkeypatch, listener.Listener, "_check_echo")
    with pooler() as (between, pooled):
        hearing = Hearing()
        with notify.subscribed(pooled, Channel.QUEUED, ["a"], hearing.woken.set, hearing.reported.append):
            eventually(lambda: len(tries) >= 3)
            assert [type(error) for error in hearing.reported] == [Deaf]
            assert "PgBouncer in transaction mode" in str(hearing.reported[0])
            assert not hearing.woken.is_set()

            # It is given a session of its own after all.
            between.loses_notifications = False
            hearing.wait()
            assert listener_of_this_process(pooled).wait_until_hearing(PATIENCE)
            hearing.woken.clear()
            announce_elsewhere("a")
            hearing.wait()
        assert len(hearing.reported) == 1
        assert not listener_threads()


def test_a_pooler_that_keeps_sessions_is_heard_through() -> None:
    with pooler(loses_notifications=False) as (_, pooled), subscribed("a", using=pooled) as hearing:
        announce_elsewhere("a")
        hearing.wait()
        assert hearing.reported == []


def test_a_connection_that_falls_silent_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listener, "ECHO_TIMEOUT", 0.2)
    monkeypatch.setattr(listener, "ECHO_INTERVAL", 0.1)
    with pooler(loses_notifications=False) as (between, pooled), subscribed("a", using=pooled) as hearing:
        between.loses_notifications = True
        eventually(lambda: hearing.reported)
        assert isinstance(hearing.reported[0], Deaf)


def test_a_server_that_ends_idle_sessions_lets_it_be() -> None:
    with (
        database_alias("impatient", OPTIONS={**connection.settings_dict["OPTIONS"], "options": IMPATIENT}) as alias,
        subscribed("a", using=alias) as hearing,
    ):
        eventually(lambda: idle_for(listening_backends()) > 0.5)
        announce_elsewhere("a")
        hearing.wait()
        assert hearing.reported == []


def test_a_subscriber_that_is_gone_cuts_nobody_off() -> None:
    """As an event loop that was closed between its task's end and the news of it."""
    angry: list[None] = []

    def fail() -> None:
        angry.append(None)
        raise RuntimeError("Event loop is closed")

    with notify.subscribed("default", Channel.QUEUED, ["a"], fail), subscribed("a") as hearing:
        announce_elsewhere("a")
        hearing.wait()
        eventually(lambda: len(angry) >= 2)
        hearing.woken.clear()
        announce_elsewhere("a")
        hearing.wait()
        assert hearing.reported == []


def test_without_a_thread_to_spare_everybody_polls(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with notify.subscribed("default", Channel.QUEUED, ["a"], pytest.fail):
            assert "polling instead" in caplog.text
    with subscribed("a") as hearing:
        announce_elsewhere("a")
        hearing.wait()


def test_the_database_can_be_dropped_as_soon_as_nobody_waits() -> None:
    """As at the end of a project's tests; PostgreSQL gives connections that are about to end a few seconds."""
    name = f"{connection.settings_dict['NAME']}_dropped"
    with connection.cursor() as cursor:
        cursor.execute(f'CREATE DATABASE "{name}"')
        try:
            with (
                database_alias("dropped", NAME=name) as alias,
                notify.subscribed(alias, Channel.ENDED, ["a"], lambda: None),
            ):
                assert listener_of_this_process(alias).wait_until_hearing(PATIENCE)
        finally:
            cursor.execute(f'DROP DATABASE "{name}"')


def test_a_forked_process_makes_its_own(subprocess_env: dict[str, str]) -> None:
    code = """
        import os, warnings
        from django.db import connection
        from tests.notify.postgres import announce_elsewhere, listener_threads, subscribed

        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads
        with subscribed("a") as parents:
            child = os.fork()
            if child == 0:
                connection.connection = None  # the parent's
                assert not listener_threads()
                with subscribed("a") as childs:
                    announce_elsewhere("a")
                    childs.wait()
                    assert len(listener_threads()) == 1
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
            parents.wait()
            parents.woken.clear()
            announce_elsewhere("a")
            parents.wait()
            assert parents.reported == []
    """
    run_python(code, subprocess_env)


def test_a_process_may_end_while_it_waits(subprocess_env: dict[str, str]) -> None:
    code = """
        import threading
        from cairnq_django import submit, wait
        from cairnq_django.notify.listener import listener_of_this_process

        task = submit("anything")
        threading.Thread(target=wait, args=[task.pk], daemon=True).start()
        assert listener_of_this_process("default").wait_until_hearing(10)
    """
    assert run_python(code, subprocess_env) == ""


def seen_on() -> set[Channel]:
    """Where announcers see that someone listens."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND granted"
            " AND mode = 'ShareLock' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        held = {key for (key,) in cursor.fetchall()}
    return {channel for channel in Channel if channel.presence in held}


def idle_for(pids: list[int]) -> float:
    """Seconds since the last of these connections had something to do."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT extract(epoch FROM min(clock_timestamp() - state_change))"
            " FROM pg_stat_activity WHERE pid = ANY(%s)",
            [pids],
        )
        return float(cursor.fetchone()[0] or 0)


def run_python(code: str, env: dict[str, str]) -> str:
    """Run code that uses the project in a process of its own, and return all it wrote."""
    code = "import django\ndjango.setup()\n" + dedent(code)
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def count_calls(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> list[None]:
    calls: list[None] = []
    original: Callable[..., object] = getattr(owner, name)

    def counted(*args: object) -> object:
        calls.append(None)
        return original(*args)

    monkeypatch.setattr(owner, name, counted)
    return calls
