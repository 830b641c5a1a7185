"""What there is to announce."""

from __future__ import annotations

from enum import Enum


class Channel(str, Enum):
    """A kind of news; its payload says of what."""

    QUEUED = "cairnq_queued"  # payload: a queue that a task was put in
    ENDED = "cairnq_ended"  # payload: the id of a task that has ended
