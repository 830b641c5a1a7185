"""The databases that cannot wake anyone: everybody polls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from .channels import Channel

if TYPE_CHECKING:
    from ..models import Task

LOOK_AGAIN = None


def announce(using: str, channel: Channel, payloads: Iterable[str]) -> None:
    """Tell nobody."""


def announcement_of_submit(using: str, task: Task, *, is_awaited: bool) -> None:
    """Nothing."""


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
