"""The event loop that async handlers run on, in a thread of its own."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
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

    def start(self, main: Callable[[], Coroutine[Any, Any, None]], then: Callable[[], None]) -> AsyncCall:
        """Run `main()`, which must not raise but when cancelled, and `then` when it has ended."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._run, args=[self._loop], name="cairnq-async", daemon=True)
            self._thread.start()
        call = AsyncCall(self._loop, main, then)
        self._loop.call_soon_threadsafe(call.start, context=Context())
        return call

    def close(self) -> None:
        """Cancel what still runs, and wait until the thread ended; a handler that does not end is left behind."""
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._stop, self._loop)
            self._thread.join(CLOSE_TIMEOUT)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        stopped = False
        while not stopped:
            try:
                loop.run_forever()
                stopped = True
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
        self._task = self._loop.create_task(self._run())

    def cancel(self) -> None:
        self._loop.call_soon_threadsafe(lambda: self._task is not None and self._task.cancel())

    async def _run(self) -> None:
        try:
            async with OwnThread():
                await self._main()
        finally:
            self._then()


class OwnThread(ThreadSensitiveContext):
    """A thread for the ORM calls of one handler, which would queue up with all other handlers' in a shared one."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        executor = SyncToAsync.context_to_thread_executor.pop(self, None)
        await super().__aexit__(kind, error, trace)  # type: ignore[no-untyped-call]
        if executor is not None:
            closing = executor.submit(connections.close_all)
            executor.shutdown(wait=False)
            # After a cancellation the thread may be busy with what was cancelled: it ends when that does.
            if error is None:
                await asyncio.wrap_future(closing)
