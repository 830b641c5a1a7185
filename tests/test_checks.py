from __future__ import annotations

import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import CheckMessage, run_checks
from django.db import ConnectionHandler

from cairnq_django import Registry, checks

SQLITE = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
GOOD_OPTIONS = {"transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode=WAL;"}


def found() -> list[CheckMessage]:
    return run_checks(tags=[checks.TAG])


def ids() -> list[str]:
    return sorted(str(message.id) for message in found())


@pytest.fixture(autouse=True)
def good_database(monkeypatch: pytest.MonkeyPatch) -> None:
    use_database(monkeypatch, {**SQLITE, "OPTIONS": GOOD_OPTIONS})


def use_database(monkeypatch: pytest.MonkeyPatch, database: dict[str, Any], **others: dict[str, Any]) -> None:
    monkeypatch.setattr(checks, "connections", ConnectionHandler({"default": database, **others}))


def test_good_settings_pass() -> None:
    assert found() == []


def test_every_problem_with_the_settings_is_an_error(settings: Any) -> None:
    settings.CAIRNQ = {"LEASE": 0, "QUEUE": "mail"}
    messages = found()
    assert [message.id for message in messages] == ["cairnq_django.E001"] * 2
    assert "CAIRNQ['LEASE'] must be at least" in messages[0].msg
    assert "Did you mean 'QUEUES'?" in messages[1].msg
    assert all(message.is_serious() for message in messages)


def test_naive_times_are_an_error(settings: Any) -> None:
    settings.USE_TZ = False
    assert "cairnq_django.E002" in ids()


@pytest.mark.parametrize("engine", ["sqlite3", "mysql"])
def test_a_database_that_stores_local_times_is_an_error(monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    if engine == "mysql":
        pytest.importorskip("MySQLdb")
    database = {**SQLITE, "ENGINE": f"django.db.backends.{engine}", "TIME_ZONE": "Europe/Berlin"}
    use_database(monkeypatch, {**database, "OPTIONS": GOOD_OPTIONS})
    (message,) = found()
    assert message.id == "cairnq_django.E003"
    assert "'default'" in message.msg
    assert "Europe/Berlin" in message.msg
    assert "DATABASES['default']" in str(message.hint)


@pytest.mark.parametrize("time_zone", [None, "UTC", "Etc/UTC"])
def test_a_database_that_stores_utc_passes(monkeypatch: pytest.MonkeyPatch, time_zone: str | None) -> None:
    use_database(monkeypatch, {**SQLITE, "TIME_ZONE": time_zone, "OPTIONS": GOOD_OPTIONS})
    assert ids() == []


def test_a_time_zone_does_not_matter_to_postgresql(monkeypatch: pytest.MonkeyPatch) -> None:
    use_database(monkeypatch, {"ENGINE": "django.db.backends.postgresql", "NAME": "x", "TIME_ZONE": "Europe/Berlin"})
    assert ids() == []


class ToQueueDatabase:
    def db_for_write(self, model: type, **hints: Any) -> str | None:
        return "queue" if model._meta.app_label == "cairnq_django" else None  # type: ignore[attr-defined]


def test_the_database_that_tasks_are_routed_to_is_the_one_that_counts(
    monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    bad = {**SQLITE, "TIME_ZONE": "Europe/Berlin"}
    use_database(monkeypatch, bad, queue={**SQLITE, "OPTIONS": GOOD_OPTIONS})
    assert ids() == ["cairnq_django.E003", "cairnq_django.W002"]
    settings.DATABASE_ROUTERS = [ToQueueDatabase()]
    # Other models stay where they are, those of an atomic handler, too.
    assert ids() == ["cairnq_django.W004", "cairnq_django.W007"]


class TestChannels:
    @pytest.fixture(autouse=True)
    def channels(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        (tmp_path / "channels").mkdir()
        (tmp_path / "channels" / "__init__.py").touch()
        monkeypatch.syspath_prepend(str(tmp_path))
        yield
        sys.modules.pop("channels", None)

    def test_is_warned_about_because_of_its_runworker(self, settings: Any) -> None:
        settings.INSTALLED_APPS = ["channels", *settings.INSTALLED_APPS]
        (message,) = found()
        assert message.id == "cairnq_django.W001"
        assert "here it is that of channels" in message.msg
        assert "cairnq_worker" in str(message.hint)

    def test_is_shadowed_when_it_comes_later(self, settings: Any) -> None:
        settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "channels"]
        (message,) = found()
        assert "here it is that of cairnq_django" in message.msg


@pytest.mark.parametrize("mode", [None, "DEFERRED"])
def test_sqlite_transactions_that_begin_without_the_lock_are_warned_about(
    monkeypatch: pytest.MonkeyPatch, mode: str | None
) -> None:
    use_database(monkeypatch, {**SQLITE, "OPTIONS": {**GOOD_OPTIONS, "transaction_mode": mode}})
    (message,) = found()
    assert message.id == "cairnq_django.W002"
    assert str(message.hint) == "Set DATABASES['default']['OPTIONS']['transaction_mode'] = 'IMMEDIATE'."


@pytest.mark.parametrize("mode", ["immediate", "EXCLUSIVE"])
def test_sqlite_transactions_that_begin_with_the_lock_pass(monkeypatch: pytest.MonkeyPatch, mode: str) -> None:
    use_database(monkeypatch, {**SQLITE, "OPTIONS": {**GOOD_OPTIONS, "transaction_mode": mode}})
    assert ids() == []


class TestWAL:
    @staticmethod
    def use_file(monkeypatch: pytest.MonkeyPatch, path: Path, init_command: str = "") -> None:
        options = {"transaction_mode": "IMMEDIATE", "init_command": init_command}
        use_database(monkeypatch, {**SQLITE, "NAME": path, "OPTIONS": options})

    @staticmethod
    def make_file(path: Path, journal_mode: str) -> None:
        connection = sqlite3.connect(path)
        connection.execute(f"PRAGMA journal_mode={journal_mode}")
        connection.execute("CREATE TABLE t (x)")
        connection.close()

    def test_is_missed_in_a_database_that_does_not_exist_yet(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        self.use_file(monkeypatch, tmp_path / "new.sqlite3", "PRAGMA synchronous=NORMAL;")
        (message,) = found()
        assert message.id == "cairnq_django.W003"
        assert "DATABASES['default']['OPTIONS']['init_command'] = 'PRAGMA journal_mode=WAL;" in str(message.hint)

    @pytest.mark.parametrize(
        "init_command", ["PRAGMA journal_mode=WAL", "pragma synchronous=normal; pragma journal_mode = 'wal';"]
    )
    def test_may_be_set_up_by_the_settings(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, init_command: str
    ) -> None:
        self.use_file(monkeypatch, tmp_path / "new.sqlite3", init_command)
        assert ids() == []

    def test_may_be_set_up_in_the_file(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.make_file(tmp_path / "wal.sqlite3", "WAL")
        self.use_file(monkeypatch, tmp_path / "wal.sqlite3")
        assert ids() == []

    def test_is_missed_in_a_file_with_a_rollback_journal(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.make_file(tmp_path / "delete.sqlite3", "DELETE")
        self.use_file(monkeypatch, tmp_path / "delete.sqlite3")
        assert ids() == ["cairnq_django.W003"]

    def test_makes_no_sense_in_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        use_database(monkeypatch, {**SQLITE, "OPTIONS": {"transaction_mode": "IMMEDIATE"}})
        assert ids() == []


class OtherwiseRouted:
    """Tasks to one database, the tests' own models to another."""

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "default" if model._meta.app_label == "cairnq_django" else "dedicated"


class TestResources:
    def test_that_are_not_declared_are_warned_about(self, monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
        registry = Registry()
        registry.task("render", resource="gpu")(lambda ctx, payload: None)
        registry.task("write", resource="disk")(lambda ctx, payload: None)
        monkeypatch.setattr(checks, "default_registry", registry)

        settings.CAIRNQ = {"RESOURCES": {"disk": 1}}
        (message,) = checks.check_resources(None)
        assert (message.id, message.obj) == ("cairnq_django.W005", "render")
        assert "--resource gpu=1" in str(message.hint)

        settings.CAIRNQ = {"RESOURCES": {"disk": 1, "gpu": 0}}
        assert checks.check_resources(None) == []
        settings.CAIRNQ = {"RESOURCES": 7}
        assert checks.check_resources(None) == [], "that is said already"


class TestAtomicHandlers:
    def test_are_warned_about_where_their_app_s_models_are_in_another_database(self, settings: Any) -> None:
        settings.DATABASE_ROUTERS = [f"{__name__}.OtherwiseRouted"]

        (message,) = checks.check_atomic_handlers(None)

        assert message.id == "cairnq_django.W004"
        assert message.obj == "increment_counter_once"
        assert "are written to 'dedicated'" in message.msg

    def test_pass_where_they_are_in_the_same(self) -> None:
        assert checks.check_atomic_handlers(None) == []


class TestSettingNames:
    @pytest.mark.parametrize(
        ("name", "value", "meant"),
        [
            ("CAIRNQ_CONCURRENCY", 4, "CAIRNQ['CONCURRENCY']"),
            ("CAIRNQ_DJANGO", {"QUEUES": ["mail"]}, "CAIRNQ"),
            ("CARINQ", {"queues": ["mail"]}, "CAIRNQ"),
        ],
    )
    def test_that_nothing_reads_are_pointed_out(self, settings: Any, name: str, value: Any, meant: str) -> None:
        setattr(settings, name, value)
        (message,) = found()
        assert (message.id, message.obj) == ("cairnq_django.W006", name)
        assert str(message.hint) == f"Did you mean {meant}?"

    def test_of_the_project_s_own_pass(self, settings: Any) -> None:
        settings.CAIRNQ_DASHBOARD = {"title": "Tasks"}
        settings.CAIRNS = {"QUEUE": 7}
        assert ids() == []


class TestRouting:
    @pytest.fixture(autouse=True)
    def two_databases(self, monkeypatch: pytest.MonkeyPatch) -> None:
        database = {**SQLITE, "OPTIONS": GOOD_OPTIONS}
        use_database(monkeypatch, database, dedicated=database)

    def test_a_database_that_tasks_are_not_sent_to_is_an_error(self, settings: Any) -> None:
        settings.CAIRNQ = {"DATABASE": "dedicated"}
        (message,) = found()
        assert message.id == "cairnq_django.E004"
        assert message.msg == "CAIRNQ['DATABASE'] is 'dedicated', but tasks are written to 'default'."
        assert "'cairnq_django.routers.CairnQRouter' first in DATABASE_ROUTERS" in str(message.hint)

    def test_a_database_that_the_router_sends_them_to_passes(self, settings: Any) -> None:
        settings.CAIRNQ = {"DATABASE": "dedicated"}
        settings.DATABASE_ROUTERS = ["cairnq_django.routers.CairnQRouter"]
        assert ids() == ["cairnq_django.W004"], "what is atomic there does not cover the models of its app"

    def test_a_router_that_comes_first_is_noticed(self, settings: Any) -> None:
        settings.CAIRNQ = {"DATABASE": "default"}
        settings.DATABASE_ROUTERS = [AllToQueue(), "cairnq_django.routers.CairnQRouter"]
        assert "cairnq_django.E004" in ids()

    def test_an_unknown_alias_is_an_error_with_a_suggestion(self, settings: Any) -> None:
        settings.CAIRNQ = {"DATABASE": "dedicate"}
        settings.DATABASE_ROUTERS = ["cairnq_django.routers.CairnQRouter"]
        (message,) = found()
        assert message.id == "cairnq_django.E001"
        assert "Did you mean 'dedicated'?" in message.msg

    def test_models_of_the_queue_in_two_databases_are_an_error(self, settings: Any) -> None:
        settings.DATABASE_ROUTERS = [KeysElsewhere()]
        (message,) = found()
        assert message.id == "cairnq_django.E004"
        assert "TaskKey to 'dedicated'" in message.msg

    def test_tables_that_are_not_allowed_are_an_error(self, settings: Any) -> None:
        settings.DATABASE_ROUTERS = [NoTables()]
        (message,) = found()
        assert message.id == "cairnq_django.E004"
        assert "allow no tables there for Activity, " in message.msg

    def test_tasks_apart_from_all_other_models_are_warned_about_unless_that_is_said(self, settings: Any) -> None:
        settings.DATABASE_ROUTERS = [OtherwiseRouted()]
        (message,) = checks.check_transactions(None)
        assert message.id == "cairnq_django.W007"
        assert "Tasks live in the database 'default'" in message.msg
        assert "submit_on_commit()" in str(message.hint)
        settings.CAIRNQ = {"DATABASE": "default"}
        assert checks.check_transactions(None) == []


class AllToQueue:
    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "dedicated"


class KeysElsewhere:
    def db_for_write(self, model: Any, **hints: Any) -> str | None:
        return "dedicated" if model.__name__ == "TaskKey" else None


class NoTables:
    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        return False if app_label == "cairnq_django" else None


class TestConnections:
    POSTGRESQL = {"ENGINE": "django.db.backends.postgresql", "NAME": "x"}

    @pytest.mark.parametrize(
        ("pool", "config", "is_enough"),
        [
            (True, {}, False),
            (True, {"CONCURRENCY": 1}, False),
            ({"min_size": 2, "max_size": 12}, {}, True),
            ({"min_size": 2, "max_size": 11}, {}, False),
            ({"min_size": 12}, {}, True),
            ({"min_size": 5}, {"CONCURRENCY": 1}, True),
            ({"max_size": 12}, {"RETENTION": 3600}, False),
            ({"max_size": 13}, {"RETENTION": 3600}, True),
            (False, {}, True),
            ({}, {}, True),
        ],
    )
    def test_a_pool_is_to_hold_what_a_worker_needs(
        self, monkeypatch: pytest.MonkeyPatch, settings: Any, pool: Any, config: Any, is_enough: bool
    ) -> None:
        use_database(monkeypatch, {**self.POSTGRESQL, "OPTIONS": {"pool": pool}})
        settings.CAIRNQ = config
        assert ids() == ([] if is_enough else ["cairnq_django.W008"])

    def test_a_pool_that_is_too_small_is_told_its_size(self, monkeypatch: pytest.MonkeyPatch) -> None:
        use_database(monkeypatch, {**self.POSTGRESQL, "OPTIONS": {"pool": True}})
        (message,) = found()
        assert "holds 4, but a worker with a concurrency of 8 may need 12" in message.msg
        assert "DATABASES['default']['OPTIONS']['pool'] = {'max_size': 12}" in str(message.hint)

    def test_without_autocommit_nothing_that_a_worker_does_is_committed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        use_database(monkeypatch, {**SQLITE, "OPTIONS": GOOD_OPTIONS, "AUTOCOMMIT": False})
        (message,) = found()
        assert message.id == "cairnq_django.W009"
        assert "Remove AUTOCOMMIT from DATABASES['default']" in str(message.hint)
