"""The databases that cannot wake anyone: everybody polls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from .channels import Channel


def announce(using: str, channel: Channel, payloads: Iterable[str]) -> None:
    """Tell nobody."""


@contextmanager
def subscribed(
    using: str,
    channel: Channel,
    payloads: Iterable[str],
    wake: Callable[[], None],
    report: Callable[[BaseException], None] | None = None,
) -> Iterator[None]:
    """Never call `wake`."""
    yield
