"""How long to wait: before the next attempt, and between two looks at a task or at a full queue."""

from __future__ import annotations

import random
from collections.abc import Iterator


def retry_delay(attempt: int, *, base: float, cap: float) -> float:
    """
    Return how many seconds to wait after failed attempt number `attempt`, counted from 1.

    The delay is drawn from the upper half of a window of `base` seconds that doubles with every attempt, up to `cap`
    seconds; 0 for either disables waiting.
    """
    # Past a thousand doublings a float overflows, and every cap is reached.
    window = min(cap, base * 2.0 ** min(attempt - 1, 1000))
    return random.uniform(window / 2, window)


def poll_intervals(first: float = 0.1, longest: float = 0.5) -> Iterator[float]:
    """Yield, without end, the seconds to sleep before each look at a task that is waited for."""
    interval = first
    while True:
        yield interval
        interval = min(longest, max(interval * 1.5, interval + 0.001))


def headroom_intervals() -> Iterator[float]:
    """Yield, without end, the seconds to sleep before each look at a queue that is full.

    Each is drawn from the upper half of one that grows from 50 ms to 1 s: those who found it full together spread out.
    """
    for interval in poll_intervals(first=0.05, longest=1.0):
        yield random.uniform(interval / 2, interval)
