"""The worker as its users hold it: configured once, then run, served or kept in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from django.db import connections

from ..arguments import Seconds
from ..registry import Registry, default_registry
from .inbox import Inbox
from .loop import Loop
from .options import WorkerOptions, refuse_undeclared_resources
from .shutdown import stopping_on_signals

HEARING = 1.0  # seconds; signals end a wait by themselves, but not on every platform


class Worker:
    """Claims tasks of a registry's handlers from `queues`, runs them and records how they ended.

    What is not given comes from `CAIRNQ`; durations are seconds or `timedelta`. `concurrency` bounds the handler calls
    at the same time, `resources` those that share each resource, and `max_in_flight_bytes` the payloads of running
    calls together, as JSON; one that is larger by itself runs alone. Raises `TypeError` or `ValueError` naming the
    argument that is wrong, and `ValueError` for a handler whose resource is not declared.

    It stops by itself, for its process to be replaced, once it has started `max_tasks` tasks (each of a batch counts),
    or when a call has ended and the process holds more than `max_memory` MiB; these two have no setting.
    """

    def __init__(
        self,
        queues: str | Sequence[str] | None = None,
        *,
        registry: Registry | None = None,
        concurrency: int | None = None,
        lease: Seconds | None = None,
        heartbeat_interval: Seconds | None = None,
        poll_interval: Seconds | None = None,
        claim_batch: int | None = None,
        resources: Mapping[str, int] | None = None,
        max_in_flight_bytes: int | None = None,
        retry_backoff: Seconds | None = None,
        retry_backoff_max: Seconds | None = None,
        max_run: Seconds | None = None,
        drain_timeout: Seconds | None = None,
        max_tasks: int | None = None,
        max_memory: int | None = None,
    ) -> None:
        self.options = WorkerOptions.build(
            queues,
            concurrency=concurrency,
            lease=lease,
            heartbeat_interval=heartbeat_interval,
            poll_interval=poll_interval,
            claim_batch=claim_batch,
            resources=resources,
            max_in_flight_bytes=max_in_flight_bytes,
            retry_backoff=retry_backoff,
            retry_backoff_max=retry_backoff_max,
            max_run=max_run,
            drain_timeout=drain_timeout,
            max_tasks=max_tasks,
            max_memory=max_memory,
        )
        self.registry = registry if registry is not None else default_registry
        refuse_undeclared_resources(self.options.resources, self.registry)
        self.task = self.registry.task
        self.id = ""  # of the current run, or of the latest
        self.hanging = 0  # handlers that the latest run left behind, because they do not end
        self.worn_out = False  # whether it ended by itself because of them: replace the process
        self.recycled = False  # whether it ended by itself because of `max_tasks` or `max_memory`: replace it, too
        self._loop: Loop | None = None  # of the current run
        self._inbox = Inbox()
        self._running = threading.Lock()

    def run(self, *, burst: bool = False) -> None:
        """Work, in the calling thread, until `stop()` is called; then let the running calls end.

        After `drain_timeout` seconds of that, their tasks are given back to the queue. With `burst`, it stops by itself
        when no task of its queues and handlers is due, running here or waiting for its retry. Nothing that it started
        outlives it, except handlers that hang. Raises `RuntimeError` if it is running already, and `ValueError` for a
        handler whose resource is not declared.
        """
        with self._alone():
            self._run(burst)

    def serve(self, *, burst: bool = False, on_stop: Callable[[], None] | None = None) -> None:
        """`run()`, stopped by the first SIGINT or SIGTERM; a second one kills. In a process's main thread only.

        `on_stop()` is called after the first signal, in its handler. The main thread waits for signals: one that waits
        for a lock of SQLite's would not hear them.
        """

        def stop() -> None:
            self.stop()
            if on_stop is not None:
                on_stop()

        with stopping_on_signals(stop), self._in_a_thread(burst=burst) as thread:
            while thread.is_alive():
                thread.join(HEARING)

    @contextmanager
    def background(self) -> Iterator[Worker]:
        """Run in a thread of its own while the context lasts: for tests and for embedding. Leaves signals alone.

        Raises on leaving what `run()` raised, and `RuntimeError` if it is running already.
        """
        with self._in_a_thread(burst=False):
            try:
                yield self
            finally:
                self.stop()

    def stop(self) -> None:
        """Claim no more, and end when the running calls have. Safe in a signal handler and from any thread."""
        self._inbox.stop()

    @property
    def running_tasks(self) -> int:
        """How many tasks its handlers are at."""
        loop = self._loop
        return loop.running_tasks if loop is not None else 0

    @contextmanager
    def _in_a_thread(self, *, burst: bool) -> Iterator[threading.Thread]:
        failures: list[BaseException] = []
        thread = threading.Thread(target=self._run_in_thread, args=[burst, failures], name="cairnq-worker", daemon=True)
        with self._alone():
            thread.start()
            try:
                yield thread
            finally:
                thread.join()
        if failures:
            raise failures[0]

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._running.acquire(blocking=False):
            raise RuntimeError(f"Worker {self.id} is running already; make another one to run two")
        try:
            yield
        finally:
            self._inbox = Inbox()
            self._running.release()

    def _run(self, burst: bool) -> None:
        refuse_undeclared_resources(self.options.resources, self.registry)
        loop = Loop(self, self.options, self.registry, self._inbox, burst=burst)
        self.id, self.hanging, self.worn_out, self.recycled = loop.worker_id, 0, False, False
        self._loop = loop
        try:
            loop.run()
        finally:
            self._loop = None
        self.hanging, self.worn_out, self.recycled = loop.hanging_calls, loop.worn_out, loop.recycled

    def _run_in_thread(self, burst: bool, failures: list[BaseException]) -> None:
        try:
            self._run(burst)
        except BaseException as error:
            failures.append(error)
        finally:
            connections.close_all()
