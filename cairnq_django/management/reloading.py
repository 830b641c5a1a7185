"""Restart a worker's process when its code changes, after what it was running has ended."""

from __future__ import annotations

import itertools
import os
import subprocess
import threading
from types import FrameType
from typing import cast

from django.db import connections
from django.utils import autoreload

from ..worker.shutdown import handle_stop_signals
from ..worker.worker import Worker
from .telling import Voice
from .warning import warn

RESTART = 3  # the exit status with which a process under Django's reloader asks to be started again


def run_with_reloader(worker: Worker, voice: Voice) -> int:
    """Run `worker` in a process within this one, again each time code has changed, and return the exit status.

    The first SIGINT or SIGTERM lets the running calls end, as without the reloader; a second one kills.
    """
    if os.environ.get(autoreload.DJANGO_AUTORELOAD_ENV) == "true":
        return _run_until_code_changes(worker, voice)
    connections.close_all()
    return _keep_running()


def _keep_running() -> int:
    """The outer process. Django's own would kill the inner one at the first signal."""
    signals = []
    inner: subprocess.Popen[bytes] | None = None

    def pass_on(number: int, frame: FrameType | None) -> None:
        signals.append(number)
        if inner is not None and len(signals) == 1:
            inner.terminate()
        elif inner is not None:
            inner.kill()

    handle_stop_signals(pass_on)
    status = RESTART
    while status == RESTART and not signals:
        inner = subprocess.Popen(
            autoreload.get_child_arguments(), env={**os.environ, autoreload.DJANGO_AUTORELOAD_ENV: "true"}
        )
        if signals:
            inner.terminate()
        status = inner.wait()
    if status == RESTART:
        return 0
    return status if status >= 0 else 128 - status


def _run_until_code_changes(worker: Worker, voice: Voice) -> int:
    """The inner process: the worker in a thread, the reloader in the main one."""
    reloader = autoreload.get_reloader()
    ended = threading.Event()
    ended.set()

    def run() -> None:
        ended.clear()
        try:
            voice.starts()
            warn(worker, is_long_lived=False)
            worker.run()
        finally:
            connections.close_all()
            ended.set()
        if worker.worn_out or worker.recycled:
            os._exit(RESTART)

    signals = itertools.count()

    def stop(number: int, frame: FrameType | None) -> None:
        # A terminal's Ctrl-C arrives here, and once more from the outer process. The second may interrupt the first
        # in the middle of reloader.stop(), which would wait for a lock that the first holds.
        if next(signals) == 0:
            worker.stop()
            voice.stops()
            reloader.stop()

    # To the end of the process: the second one may come late.
    handle_stop_signals(stop)
    status = 0
    try:
        autoreload.start_django(reloader, run)
    except SystemExit as changed:
        status = cast("int", changed.code)
    worker.stop()
    ended.wait()
    if status == 0:
        voice.ends()
    return status
