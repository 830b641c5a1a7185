"""How many calls a worker claims before it has a slot for them; pure arithmetic."""

from __future__ import annotations

AHEAD = 0.05  # seconds that what is claimed may have to wait for a slot
SLOW_CLAIM = 0.05  # seconds
MOST = 128  # calls; if the process is killed, each of them has lost an attempt

_SHORTEST = 1e-5  # seconds; no handler takes less


class Lookahead:
    """Learns from how long handlers and claims take. Nothing is claimed ahead before that is known."""

    def __init__(self, concurrency: int, *, longest: float = AHEAD) -> None:
        """`longest` is how many seconds handlers may take, on average, for anything to be claimed ahead."""
        self._concurrency = concurrency
        self._longest = longest
        self._pace = float("inf")  # seconds that a handler takes, on average
        self._window = concurrency  # calls; what a claim takes to read and write is not known before

    @property
    def calls(self) -> int:
        """How many calls may wait for a slot: no more than all handlers together get through in `AHEAD` seconds."""
        if self._pace > self._longest:
            return 0
        return min(self._window, int(self._concurrency * AHEAD / max(self._pace, _SHORTEST)))

    def handled(self, seconds: float) -> None:
        """A handler took so long."""
        self._pace = seconds if self._pace == float("inf") else 0.9 * self._pace + 0.1 * seconds

    def claimed(self, calls: int, seconds: float) -> None:
        """A claim of so many calls took so long."""
        if seconds > SLOW_CLAIM:
            self._window = max(self._window // 2, 1)
        elif calls >= self._window:
            self._window = min(self._window * 2, MOST)

    def waited_too_long(self) -> None:
        """What was claimed had to be given back: handlers take longer than it seemed."""
        self._pace = max(self._pace, AHEAD)
        self._window = self._concurrency
