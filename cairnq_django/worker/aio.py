"""The event loop that async handlers run on, in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from types import TracebackType
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext
from django.db import connections

logger = logging.getLogger(__name__)

CLOSE_TIMEOUT = 5.0  # seconds that handlers, once cancelled, have to end in


class AsyncHandlers:
    """Starts its thread with the first call. A daemon: a handler that blocks the loop cannot hold up the process."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stopped = False
        self._starting = threading.Lock()  # guards _loop and _thread until they are there

    def start(self, main: Callable[[], Coroutine[Any, Any, None]], then: Callable[[], None]) -> AsyncCall:
        """Run `main()`, which must not raise but when cancelled, and `then` when it has ended."""
        loop = self._started_loop()
        call = AsyncCall(loop, main, then)
        loop.call_soon_threadsafe(call.start, context=Context())
        return call

    def _started_loop(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._run, args=[loop], name="cairnq-async", daemon=True)
                self._thread.start()
                self._loop = loop
            return self._loop

    def close(self) -> None:
        """Cancel what still runs, and wait until the thread ended; a handler that does not end is left behind."""
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._stop, self._loop)
            self._thread.join(CLOSE_TIMEOUT)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        while not self._stopped:
            try:
                loop.run_forever()
            except BaseException:
                # A SystemExit or KeyboardInterrupt in a task that a handler made comes out here.
                logger.exception("A task on the event loop raised out of it; the loop goes on")
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
        connections.close_all()

    def _stop(self, loop: asyncio.AbstractEventLoop) -> None:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.create_task(self._stop_when_idle(loop))

    async def _stop_when_idle(self, loop: asyncio.AbstractEventLoop) -> None:
        others = asyncio.all_tasks(loop) - {asyncio.current_task(loop)}
        if others:
            await asyncio.wait(others, timeout=CLOSE_TIMEOUT / 2)
        self._stopped = True
        loop.stop()


class AsyncCall:
    """One call on the loop. Made and cancelled from the worker's thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        main: Callable[[], Coroutine[Any, Any, None]],
        then: Callable[[], None],
    ) -> None:
        self._loop = loop
        self._main = main
        self._then = then
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = self._loop.create_task(self._main())
        # Not in the coroutine: a task that is cancelled before its first step never runs any of it.
        self._task.add_done_callback(lambda task: self._then())

    def cancel(self) -> None:
        self._loop.call_soon_threadsafe(lambda: self._task is not None and self._task.cancel())


class OwnThread(ThreadSensitiveContext):
    """A thread for the ORM calls of one handler, which would queue up with all other handlers' in a shared one.

    The context ends when the thread is idle, and no cancellation cuts that short: what a handler no longer waits for
    is still its work.
    """

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        executor = SyncToAsync.context_to_thread_executor.pop(self, None)
        await super().__aexit__(kind, error, trace)  # type: ignore[no-untyped-call]
        if executor is not None:
            closing = asyncio.wrap_future(executor.submit(connections.close_all))
            executor.shutdown(wait=False)
            while not closing.done():
                with suppress(asyncio.CancelledError):
                    await asyncio.wait([closing])
