"""What reaches a worker's loop from other threads and from signal handlers."""

from __future__ import annotations

import time
from queue import Empty, SimpleQueue

from .call import Call


class Inbox:
    """Calls that have ended, wake-ups, and the word to stop. `SimpleQueue.put()` alone is safe in a signal handler."""

    def __init__(self) -> None:
        self._messages: SimpleQueue[Call | None] = SimpleQueue()
        self.stopped = False
        self.woken = False  # there may be something to claim

    def call_ended(self, call: Call) -> None:
        self._messages.put(call)

    def wake(self) -> None:
        self.woken = True
        self._messages.put(None)

    def take_wake_up(self) -> bool:
        """Whether it was woken since this was asked last. Who does nothing about it sets it back."""
        if not self.woken:
            return False
        # A wake-up may come between the two; whoever takes one looks at everything afterwards.
        self.woken = False
        return True

    def nudge(self) -> None:
        """Have the loop look around."""
        self._messages.put(None)

    def stop(self) -> None:
        self.stopped = True
        self._messages.put(None)

    def wait(self, timeout: float, linger: float = 0.0) -> list[Call]:
        """Sleep until there is a message, or for `timeout` seconds, and return the calls that have ended.

        After the first message it sleeps for `linger` seconds more, unless it is told to stop.
        """
        ended = []
        try:
            message = self._messages.get(timeout=max(0.0, timeout))
            if linger and not self.stopped:
                time.sleep(linger)
            while True:
                if message is not None:
                    ended.append(message)
                message = self._messages.get_nowait()
        except Empty:
            return ended
