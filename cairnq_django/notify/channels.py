"""What there is to announce."""

from __future__ import annotations

from enum import Enum
from hashlib import blake2b


class Channel(str, Enum):
    """A kind of news; its payload says of what."""

    QUEUED = "cairnq_queued"  # payload: a queue that a task was put in
    ENDED = "cairnq_ended"  # payload: the id of a task that has ended

    @property
    def presence(self) -> int:
        """The advisory lock that is shared by all who listen, so that nothing is announced to nobody."""
        return int.from_bytes(blake2b(self.value.encode(), digest_size=8).digest(), "big", signed=True)
