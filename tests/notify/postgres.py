"""Tools for tests of PostgreSQL's notifications."""

from __future__ import annotations

import socket
import struct
import threading
import uuid
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest
from django.db import connection, connections

from cairnq_django import notify
from cairnq_django.notify import Channel
from cairnq_django.notify.listener import listener_of_this_process
from tests.helpers import in_threads

if TYPE_CHECKING:
    from collections.abc import Iterator

on_postgresql = pytest.mark.skipif(connection.vendor != "postgresql", reason="needs LISTEN and NOTIFY")

PATIENCE = 30.0  # seconds for what must come; far less than any poll interval of these tests


class Hearing:
    """A subscription, and what it has heard."""

    def __init__(self) -> None:
        self.woken = threading.Event()
        self.reported: list[BaseException] = []

    def wait(self) -> None:
        assert self.woken.wait(PATIENCE), "nothing was announced"


@contextmanager
def subscribed(*payloads: str, channel: Channel = Channel.QUEUED, using: str = "default") -> Iterator[Hearing]:
    """Listen for `payloads`, from the moment that notifications arrive."""
    hearing, ready, fence = Hearing(), threading.Event(), uuid.uuid4().hex
    with notify.subscribed(using, channel, payloads, hearing.woken.set, hearing.reported.append):
        assert listener_of_this_process(using).wait_until_hearing(PATIENCE)
        with notify.subscribed(using, Channel.ENDED, [fence], ready.set):
            # A new connection's first wake-up comes before this one.
            announce_elsewhere(fence, Channel.ENDED)
            assert ready.wait(PATIENCE)
        hearing.woken.clear()
        yield hearing


def announce_elsewhere(payload: str, channel: Channel = Channel.QUEUED) -> None:
    """Announce and commit on another connection."""
    in_threads(1, lambda _: notify.announce("default", channel, [payload]))


def listening_backends() -> list[int]:
    """The server's numbers of the connections to this database that listen."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
            " AND (query LIKE 'LISTEN %%' OR query LIKE 'SELECT pg_advisory_%%') ORDER BY pid"
        )
        return [pid for (pid,) in cursor.fetchall()]


def terminate(pids: list[int]) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pid) FROM unnest(%s::int[]) AS pid", [pids])


def listener_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("cairnq-listener-")]


@contextmanager
def database_alias(name: str, **changes: Any) -> Iterator[str]:
    """Another alias for the database under test, for listeners only: Django's own connections are not let through."""
    settings = {**connection.settings_dict, **changes}
    connections.settings[name] = settings
    try:
        yield name
    finally:
        del connections.settings[name]
        with suppress(AttributeError):
            del connections[name]


class Pooler:
    """What PgBouncer in transaction mode is to a listener: LISTEN goes through, notifications are lost on the way.

    As PgBouncer does, it tells its clients process ids that are not the server's.
    """

    def __init__(self, loses_notifications: bool = True) -> None:
        self.loses_notifications = loses_notifications
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = self._server.getsockname()[1]
        self._sockets: set[socket.socket] = {self._server}
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        for end in list(self._sockets):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._server.accept()
                server = _connect_to_server()
                self._sockets |= {client, server}
                for work in (self._pass_requests, self._pass_answers):
                    self._threads.append(threading.Thread(target=work, args=[client, server]))
                    self._threads[-1].start()

    def _pass_requests(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(65536):
                server.sendall(data)
        with suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)

    def _pass_answers(self, client: socket.socket, server: socket.socket) -> None:
        """Every message is a letter, its length and a body."""
        with suppress(OSError), server.makefile("rb") as answers:
            while header := answers.read(5):
                kind, length = struct.unpack("!cI", header)
                body = answers.read(length - 4)
                if kind == b"K":  # the process id, and a secret to cancel with
                    body = struct.pack("!I", 1) + body[4:]
                if kind == b"A" and self.loses_notifications:
                    continue
                client.sendall(header + body)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)


def _connect_to_server() -> socket.socket:
    settings = connection.settings_dict
    host, port = settings["HOST"] or settings["OPTIONS"].get("host"), int(settings["PORT"] or 5432)
    if not host.startswith("/"):
        return socket.create_connection((host, port))
    server = socket.socket(socket.AF_UNIX)
    server.connect(f"{host}/.s.PGSQL.{port}")
    return server


@contextmanager
def pooler(**options: Any) -> Iterator[tuple[Pooler, str]]:
    """A pooler in front of the server, and a database alias that goes through it."""
    between = Pooler(**options)
    try:
        # Encryption is negotiated in messages of another form.
        plain = {
            **{
                name: value
                for name, value in connection.settings_dict["OPTIONS"].items()
                if name not in ("host", "port")
            },
            "sslmode": "disable",
            "gssencmode": "disable",
        }
        with database_alias("pooled", HOST="127.0.0.1", PORT=str(between.port), OPTIONS=plain) as alias:
            yield between, alias
    finally:
        between.close()
