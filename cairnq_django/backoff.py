"""How long to wait: before the next attempt, and between two looks at a task."""

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


def poll_intervals() -> Iterator[float]:
    """Yield, without end, the seconds to sleep before each look at a task that is waited for."""
    interval = 0.1
    while True:
        yield interval
        interval = min(0.5, max(interval * 1.5, interval + 0.001))
