"""Moments on this host's clock, sent from the processes of a contender to the suite."""

from __future__ import annotations

import os
import socket
import time
from functools import cache
from typing import NamedTuple

ADDRESS = "BENCHMARK_STAMPS"  # the environment variable that says where to


class Stamp(NamedTuple):
    what: str
    n: int
    seconds: float


def stamp(what: str, n: int, seconds: float | None = None) -> None:
    """Send a number's moment, now by default."""
    moment = time.monotonic() if seconds is None else seconds
    _socket().send(f"{what} {n} {moment!r}".encode())


class Stamps:
    """Receives stamps, for as long as the context lasts."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __enter__(self) -> Stamps:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._socket.close()
        os.unlink(self.path)

    def next(self, timeout: float) -> Stamp | None:
        """Return the next stamp, or None if none comes within `timeout` seconds."""
        self._socket.settimeout(timeout)
        try:
            what, n, seconds = self._socket.recv(1000).decode().split()
        except TimeoutError:
            return None
        return Stamp(what, int(n), float(seconds))


@cache
def _socket() -> socket.socket:
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sender.connect(os.environ[ADDRESS])
    return sender
