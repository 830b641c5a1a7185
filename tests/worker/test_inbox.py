"""What reaches a worker's loop from elsewhere."""

from __future__ import annotations

import threading
import time
from typing import Any

from cairnq_django.worker.inbox import Inbox
from tests.workers import PATIENCE


def test_it_waits_no_longer_than_it_is_told() -> None:
    began = time.monotonic()
    assert Inbox().wait(0.05) == []
    assert 0.05 <= time.monotonic() - began < PATIENCE


def test_a_time_in_the_past_is_no_time_to_wait() -> None:
    assert Inbox().wait(-5) == []


def test_calls_that_ended_come_out_together_and_in_order() -> None:
    inbox, calls = Inbox(), [object(), object(), object()]
    for call in calls:
        ended: Any = call
        inbox.call_ended(ended)
        inbox.wake()
    assert inbox.wait(PATIENCE) == calls
    assert inbox.wait(0) == []


def test_a_wake_up_ends_the_wait_and_is_remembered() -> None:
    inbox = Inbox()
    threading.Timer(0.05, inbox.wake).start()
    began = time.monotonic()
    assert inbox.wait(PATIENCE) == []
    assert time.monotonic() - began < PATIENCE
    assert inbox.woken
    assert not inbox.stopped


def test_the_word_to_stop_ends_the_wait_and_is_remembered() -> None:
    inbox = Inbox()
    threading.Timer(0.05, inbox.stop).start()
    began = time.monotonic()
    assert inbox.wait(PATIENCE) == []
    assert time.monotonic() - began < PATIENCE
    assert inbox.stopped
