"""The threads of a worker: those that sync handlers run in, and those that do one thing over and over."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextvars import Context
from itertools import count
from queue import SimpleQueue

from django.db import connections

Job = Callable[[], None]


class Chore:
    """A thread that does one thing over and over until it is told to stop. A daemon."""

    def __init__(self, name: str) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def interrupt(self) -> None:
        """Begin to stop: after what it is at."""
        self._stopped.set()

    def stop(self) -> None:
        self.interrupt()
        self._thread.join()

    def _run(self) -> None:
        raise NotImplementedError


class HandlerThreads:
    """Threads, started as needed and used again. They are daemons: one that hangs cannot hold up the process."""

    def __init__(self) -> None:
        self._idle: deque[HandlerThread] = deque()  # appended to by the threads themselves
        self._numbers = count(1)

    def start(self, job: Job, then: Job) -> HandlerThread:
        """Run `job`, which must not raise, and `then` once its thread is free again."""
        try:
            thread = self._idle.pop()
        except IndexError:
            thread = HandlerThread(self._idle, name=f"cairnq-handler-{next(self._numbers)}")
            thread.start()
        thread.jobs.put((job, then))
        return thread

    def close(self) -> None:
        """End the idle threads, and wait until they ended."""
        idle = list(self._idle)
        self._idle.clear()
        for thread in idle:
            thread.jobs.put(None)
        for thread in idle:
            thread.join()


class HandlerThread(threading.Thread):
    def __init__(self, idle: deque[HandlerThread], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.jobs: SimpleQueue[tuple[Job, Job] | None] = SimpleQueue()
        self._abandoned = False
        self._idle = idle

    def abandon(self) -> None:
        """Let the thread end after its job, whenever that is; it cannot be stopped before."""
        self._abandoned = True

    def run(self) -> None:
        try:
            while (work := self.jobs.get()) is not None:
                job, then = work
                del work
                # A context of its own: a language or time zone that a handler activates ends with it.
                Context().run(job)
                if self._abandoned:
                    then()
                    return
                self._idle.append(self)
                then()
                # Else an idle thread holds what its latest handler raised, and all that this holds.
                del job, then
        finally:
            connections.close_all()
