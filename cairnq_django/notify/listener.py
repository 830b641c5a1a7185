"""One connection of a process that hears PostgreSQL's notifications, shared by all who wait in it."""

from __future__ import annotations

import logging
import os
import selectors
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

from django.db import connections

from .channels import Channel

logger = logging.getLogger(__name__)

LINGER = 0.25  # seconds that the connection, and its presence on a channel, stay for the next subscriber
CLOSE_TIMEOUT = 5.0  # seconds that the thread has to end in when it is told to
ECHO_TIMEOUT = 5.0  # seconds in which a listener must hear what another connection sends to it
ECHO_INTERVAL = 60.0  # seconds between two checks that it does
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
        self._lock = threading.Lock()  # guards the next four
        self._subscriptions: list[Subscription] = []
        # Where announcers see that someone listens, which lasts while there are subscriptions; when the last one left.
        self._present: dict[Channel, float] = {}
        self._thread: threading.Thread | None = None
        self._unused_since = 0.0
        self._hearing = threading.Event()
        self._echo_channel = f"cairnq_echo_{uuid.uuid4().hex}"
        self._echoed = False  # this and the next two for the thread alone
        self._reported = False  # that it is cut off; until it hears again
        self._pause = RECONNECT_FIRST
        self._nudged, self._nudge = socket.socketpair()
        self._nudged.setblocking(False)
        self._nudge.setblocking(False)

    def add(self, subscription: Subscription) -> None:
        with self._lock:
            self._subscriptions.append(subscription)
            is_present = subscription.channel in self._present
            if not is_present:
                self._hearing.clear()
            if self._thread is None:
                self._thread = self._start_thread()
        if not is_present:
            self._interrupt()

    def remove(self, subscription: Subscription) -> None:
        with self._lock:
            self._subscriptions.remove(subscription)
            self._unused_since = time.monotonic()
            if subscription.channel in self._present:
                self._present[subscription.channel] = self._unused_since
        self._interrupt()

    def close_if_unused(self) -> None:
        """End the thread at once, and wait until it ended, unless someone is subscribed."""
        with self._lock:
            thread = None if self._subscriptions else self._thread
            self._unused_since = -LINGER
        if thread is not None:
            self._interrupt()
            thread.join(CLOSE_TIMEOUT)

    def wait_until_hearing(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for all that is subscribed to to arrive here, and return whether it does."""
        return self._hearing.wait(timeout)

    def forget(self) -> None:
        """Let go of what a forked process has of its parent's listener."""
        self._nudged.close()
        self._nudge.close()

    def _start_thread(self) -> threading.Thread | None:
        thread = threading.Thread(target=self._run, name=f"cairnq-listener-{self._using}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            # The process has no thread to spare, or is about to end.
            logger.warning("No wake-ups from database %r, polling instead: %s", self._using, error)
            return None
        return thread

    def _run(self) -> None:
        # Ends nowhere else, and touches nothing after it: from then on there may be another thread.
        while not self._over():
            try:
                self._listen()
            except Exception as error:
                self._report_once(error)
                self._rest(ECHO_INTERVAL if isinstance(error, Deaf) else self._pause)
                self._pause = min(self._pause * 2, RECONNECT_MAX)

    def _listen(self) -> None:
        with closing(self._connect()) as connection:
            # For what arrives while a statement is under way.
            connection.add_notify_handler(lambda notice: self._heard(notice.channel, notice.payload))
            connection.execute(f"LISTEN {self._echo_channel}")
            if not _is_direct(connection):
                self._check_echo(connection)
            # It is idle by nature.
            connection.execute("SET idle_session_timeout = 0")
            for channel in Channel:
                connection.execute(f"LISTEN {channel.value}")
            self._pause, self._reported = RECONNECT_FIRST, False
            try:
                self._hear(connection)
            finally:
                with self._lock:
                    self._hearing.clear()
                    self._present.clear()

    def _over(self) -> bool:
        with self._lock:
            over = self._is_unused()
            if over:
                self._thread = None
            return over

    def _is_unused(self) -> bool:
        return not self._subscriptions and time.monotonic() - self._unused_since >= LINGER

    def _connect(self) -> Any:
        wrapper: Any = connections.create_connection(self._using)
        return wrapper.Database.connect(**{**wrapper.get_connection_params(), "autocommit": True})

    def _hear(self, connection: Any) -> None:
        next_check = time.monotonic() + ECHO_INTERVAL
        while not self._is_unused():
            self._show_presence(connection)
            # What came in with the last statement's answer, of which nothing more is to be read.
            self._take_in(connection)
            self._wait(connection, next_check)
            if time.monotonic() >= next_check:
                self._check_echo(connection)
                next_check = time.monotonic() + ECHO_INTERVAL

    def _show_presence(self, connection: Any) -> None:
        """Hold the lock of each channel that someone here is subscribed to.

        Who looks for news after this misses none: who commits it later sees the lock, and announces it.
        """
        with self._lock:
            absent = self._absent()
        for channel in absent:
            connection.execute(f"SELECT pg_advisory_lock_shared({channel.presence})")
            with self._lock:
                self._present[channel] = time.monotonic()
            self._wake(subscription for subscription in self._current() if subscription.channel is channel)
        for channel in self._take_leave():
            connection.execute(f"SELECT pg_advisory_unlock_shared({channel.presence})")
        with self._lock:
            if not self._absent():
                self._hearing.set()

    def _absent(self) -> list[Channel]:
        """The channels with subscriptions that announcers know nothing of."""
        return [channel for channel in self._channels() if channel not in self._present]

    def _take_leave(self) -> list[Channel]:
        """The channels that nobody is subscribed to any more, from here on not present."""
        over = time.monotonic() - LINGER
        with self._lock:
            left = self._present.keys() - self._channels()
            gone = [channel for channel in left if self._present[channel] <= over]
            for channel in gone:
                del self._present[channel]
            return gone

    def _channels(self) -> set[Channel]:
        return {subscription.channel for subscription in self._subscriptions}

    def _check_echo(self, connection: Any) -> None:
        """Raises `Deaf` unless `connection` brings what another one sends.

        What it sent itself a pooler would hand back to it, and lose what comes while it waits.
        """
        self._echoed = False
        with closing(self._connect()) as other:
            other.execute(f"NOTIFY {self._echo_channel}")
        deadline = time.monotonic() + ECHO_TIMEOUT
        while not self._echoed and not self._is_unused():
            if time.monotonic() >= deadline:
                raise Deaf(
                    "LISTEN was accepted but no notification arrives. Behind PgBouncer in transaction mode there is "
                    "none to be had: the worker polls, or give it a direct connection"
                )
            self._wait(connection, deadline)

    def _rest(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._is_unused() and time.monotonic() < deadline:
            self._wait(None, deadline)

    def _wait(self, connection: Any, deadline: float) -> None:
        """Sleep until something arrives, someone interrupts or `deadline` has come; hear what arrived."""
        patience = deadline - time.monotonic()
        with self._lock:
            if not self._subscriptions or self._present.keys() - self._channels():
                patience = min(patience, LINGER)
        with selectors.DefaultSelector() as selector:
            selector.register(self._nudged, selectors.EVENT_READ)
            if connection is not None:
                selector.register(connection.fileno(), selectors.EVENT_READ)
            selector.select(max(patience, 0))
        with suppress(BlockingIOError):
            self._nudged.recv(4096)
        if connection is not None:
            connection.pgconn.consume_input()
            self._take_in(connection)

    def _take_in(self, connection: Any) -> None:
        while notice := connection.pgconn.notifies():
            self._heard(notice.relname.decode(), notice.extra.decode())

    def _heard(self, channel: str, payload: str) -> None:
        if channel == self._echo_channel:
            self._echoed = True
        self._wake(
            subscription
            for subscription in self._current()
            if subscription.channel.value == channel and payload in subscription.payloads
        )

    def _wake(self, subscriptions: Iterable[Subscription]) -> None:
        for subscription in subscriptions:
            try:
                subscription.wake()
            except Exception:
                # It has gone meanwhile, and its event loop with it.
                logger.debug("Could not wake a subscriber", exc_info=True)

    def _report_once(self, error: Exception) -> None:
        if self._reported:
            return
        self._reported = True
        reports = [subscription.report for subscription in self._current() if subscription.report is not None]
        for report in reports:
            report(error)
        if not reports:
            logger.warning("Wake-ups from database %r are cut off, falling back to polling: %s", self._using, error)

    def _current(self) -> list[Subscription]:
        with self._lock:
            return list(self._subscriptions)

    def _interrupt(self) -> None:
        # If it would block, enough nudges are on their way; if it is closed, this is a forked process.
        with suppress(OSError):
            self._nudge.send(b".")


def _is_direct(connection: Any) -> bool:
    """Whether no pooler stands between; one tells its clients process ids of its own."""
    (backend_pid,) = connection.execute("SELECT pg_backend_pid()").fetchone()
    return bool(backend_pid == connection.info.backend_pid)


_listeners_lock = threading.Lock()  # guards _listeners
_listeners: dict[str, Listener] = {}


def listener_of_this_process(using: str) -> Listener:
    """The listener for a database alias; a forked process makes its own."""
    with _listeners_lock:
        if using not in _listeners:
            _listeners[using] = Listener(using)
        return _listeners[using]


def _start_afresh() -> None:
    """In a forked process: neither the threads of its parent live here, nor may it use their connections."""
    global _listeners_lock
    # Someone may hold the parent's at this moment, for ever as seen from here.
    _listeners_lock = threading.Lock()
    for listener in _listeners.values():
        listener.forget()
    _listeners.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_afresh)
