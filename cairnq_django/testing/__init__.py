"""Helpers for the tests of projects: run tasks in the test's own thread, and see what was submitted."""

from __future__ import annotations

from .asserting import assert_not_submitted, assert_submitted, submitted
from .live import live_worker
from .running import arun_pending, immediate, run_pending

__all__ = [
    "arun_pending",
    "assert_not_submitted",
    "assert_submitted",
    "immediate",
    "live_worker",
    "run_pending",
    "submitted",
]
