"""Small tools for tests that involve time and threads."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING, TypeVar

from django.db import connections

if TYPE_CHECKING:
    from collections.abc import Callable

R = TypeVar("R")


def eventually(predicate: Callable[[], R], timeout: float = 10, message: str = "") -> R:
    """Return the first true value of `predicate()`; fail after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        if value := predicate():
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(f"not so within {timeout} s: {message or predicate!r}; last value: {value!r}")
        time.sleep(0.01)


def in_threads(n: int, fn: Callable[[int], R]) -> list[R]:
    """Run `fn(0)` to `fn(n - 1)` at once, each in its own thread; return their results, or raise the first error."""
    barrier = threading.Barrier(n)

    def run(i: int) -> R:
        barrier.wait(30)
        try:
            return fn(i)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(n) as pool:
        return [future.result() for future in [pool.submit(run, i) for i in range(n)]]


def output_of(env: dict[str, str], *sources: str, status: int = 0) -> str:
    """What these pieces of Python print, run one after the other in a process that is to end with `status`."""
    process = subprocess.run(
        [sys.executable, "-c", "\n".join(map(dedent, sources))],
        cwd=Path(__file__).resolve().parent.parent,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert process.returncode == status, process.stderr
    return process.stdout.strip()
