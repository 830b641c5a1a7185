"""One connection of a process that hears PostgreSQL's notifications, shared by all who wait in it."""

from __future__ import annotations

import logging
import os
import selectors
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from django.db import connections

from .channels import Channel

logger = logging.getLogger(__name__)

LINGER = 0.25  # seconds that the connection stays for the next subscriber
ECHO_TIMEOUT = 5.0  # seconds in which a listener must hear itself
ECHO_INTERVAL = 60.0  # seconds between two checks that it still does
RECONNECT_FIRST, RECONNECT_MAX = 0.25, 15.0  # seconds before the next try after a loss, doubling


class Deaf(Exception):
    """The connection takes LISTEN but brings no notification, as behind a pooler in transaction mode."""


@dataclass(frozen=True, eq=False)
class Subscription:
    """Who wants to be woken by which news."""

    channel: Channel
    payloads: frozenset[str]
    wake: Callable[[], None]
    report: Callable[[BaseException], None] | None


class Listener:
    """A thread with a connection of its own; it starts with the first subscription and ends soon after the last."""

    def __init__(self, using: str) -> None:
        self._using = using
        self._lock = threading.Lock()  # guards _subscriptions, _thread and _unused_since
        self._subscriptions: list[Subscription] = []
        self._thread: threading.Thread | None = None
        self._unused_since = 0.0
        self._hearing = threading.Event()
        self._echo_channel = f"cairnq_echo_{uuid.uuid4().hex}"
        self._echoed = False
        self._nudged, self._nudge = socket.socketpair()
        self._nudged.setblocking(False)
        self._nudge.setblocking(False)

    def add(self, subscription: Subscription) -> None:
        with self._lock:
            self._subscriptions.append(subscription)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"cairnq-listener-{self._using}", daemon=True)
                self._thread.start()

    def remove(self, subscription: Subscription) -> None:
        with self._lock:
            self._subscriptions.remove(subscription)
            self._unused_since = time.monotonic()
        self._interrupt()

    def close_if_unused(self) -> None:
        """End the thread at once, and wait until it ended, unless someone is subscribed."""
        with self._lock:
            thread = None if self._subscriptions else self._thread
            self._unused_since = -LINGER
        if thread is not None:
            self._interrupt()
            thread.join(ECHO_TIMEOUT)

    def wait_until_hearing(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for notifications to arrive here, and return whether they do."""
        return self._hearing.wait(timeout)

    def _run(self) -> None:
        pause, reported = RECONNECT_FIRST, False
        while not self._over():
            try:
                with self._connect() as connection:
                    self._check_echo(connection)
                    self._hearing.set()
                    pause, reported = RECONNECT_FIRST, False
                    self._wake_all()
                    self._hear(connection)
            except Exception as error:
                if not reported:
                    self._report(error)
                reported = True
                self._wait(None, pause)
                pause = min(pause * 2, RECONNECT_MAX)
            finally:
                self._hearing.clear()

    def _over(self) -> bool:
        with self._lock:
            over = not self._subscriptions and time.monotonic() - self._unused_since >= LINGER
            if over:
                self._thread = None
            return over

    def _connect(self) -> Any:
        wrapper: Any = connections.create_connection(self._using)
        connection = wrapper.Database.connect(**{**wrapper.get_connection_params(), "autocommit": True})
        connection.add_notify_handler(lambda notice: self._heard(notice.channel, notice.payload))
        for channel in (*Channel, self._echo_channel):
            connection.execute(f"LISTEN {channel.value if isinstance(channel, Channel) else channel}")
        return connection

    def _hear(self, connection: Any) -> None:
        checked = time.monotonic()
        while not self._over():
            patience = ECHO_INTERVAL if self._subscriptions else LINGER
            self._wait(connection, patience)
            if time.monotonic() - checked >= ECHO_INTERVAL:
                self._check_echo(connection)
                checked = time.monotonic()

    def _check_echo(self, connection: Any) -> None:
        self._echoed = False
        connection.execute(f"NOTIFY {self._echo_channel}")
        deadline = time.monotonic() + ECHO_TIMEOUT
        while not self._echoed:
            if time.monotonic() >= deadline:
                raise Deaf(
                    "LISTEN was accepted but no notification arrives. Behind PgBouncer in transaction mode there is "
                    "none to be had: the worker polls, or give it a direct connection"
                )
            self._wait(connection, deadline - time.monotonic())

    def _wait(self, connection: Any, timeout: float) -> None:
        """Sleep until something arrives, someone interrupts or `timeout` seconds passed; hear what arrived."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._nudged, selectors.EVENT_READ)
            if connection is not None:
                selector.register(connection.fileno(), selectors.EVENT_READ)
            selector.select(max(timeout, 0))
        with suppress(BlockingIOError):
            self._nudged.recv(4096)
        if connection is not None:
            connection.pgconn.consume_input()
            while notice := connection.pgconn.notifies():
                self._heard(notice.relname.decode(), notice.extra.decode())

    def _heard(self, channel: str, payload: str) -> None:
        if channel == self._echo_channel:
            self._echoed = True
        for subscription in self._current():
            if subscription.channel.value == channel and payload in subscription.payloads:
                subscription.wake()

    def _wake_all(self) -> None:
        for subscription in self._current():
            subscription.wake()

    def _report(self, error: Exception) -> None:
        logger.warning("Wake-ups from database %r are cut off, falling back to polling: %s", self._using, error)
        for subscription in self._current():
            if subscription.report is not None:
                subscription.report(error)

    def _current(self) -> list[Subscription]:
        with self._lock:
            return list(self._subscriptions)

    def _interrupt(self) -> None:
        # If it would block, enough nudges are on their way.
        with suppress(BlockingIOError):
            self._nudge.send(b".")


_listeners_lock = threading.Lock()  # guards _listeners
_listeners: dict[tuple[int, str], Listener] = {}


def listener_of_this_process(using: str) -> Listener:
    """The listener for a database alias; a forked process makes its own."""
    with _listeners_lock:
        process = (os.getpid(), using)
        if process not in _listeners:
            _listeners[process] = Listener(using)
        return _listeners[process]
