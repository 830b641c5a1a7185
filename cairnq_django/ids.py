"""Task ids: UUIDs of version 7, which sort by the time they were made."""

from __future__ import annotations

import os
import threading
import time
import uuid
from datetime import datetime

_lock = threading.Lock()  # guards _last
_last = 0  # the 74 bits of the newest id: 48 of milliseconds, 26 of counter


def first_id_at(when: datetime) -> uuid.UUID:
    """The least id that can be made at this moment; ids made before it are less."""
    return uuid.UUID(int=max(0, int(when.timestamp() * 1000)) << 80 | 7 << 76 | 2 << 62)


def new_task_id() -> uuid.UUID:
    """A new id, greater than every id this process made before it (RFC 9562, monotonic counter)."""
    global _last
    milliseconds = time.time_ns() // 1_000_000
    with _lock:
        # A fresh millisecond starts its counter in the lower half, so that it has room to grow.
        _last = max(_last + 1, milliseconds << 26 | int.from_bytes(os.urandom(4), "big") >> 7)
        stamp = _last
    head, counter = stamp >> 26, stamp & 0x3FFFFFF
    tail = int.from_bytes(os.urandom(6), "big")
    return uuid.UUID(int=head << 80 | 7 << 76 | (counter >> 14) << 64 | 2 << 62 | (counter & 0x3FFF) << 48 | tail)
