"""The signals this app sends."""

from __future__ import annotations

from django.dispatch import Signal

#: An error that a worker survived, sent with `sender` (the `Worker` class), `worker`, `phase` (a string: "claim",
#: "recover", "settle", "heartbeat", "presence" (of the row by which others see it), "activity" (of what it did),
#: "listen", "schedule", "sweep" or "loop"), `error` (the exception) and `task_id` (of the task that could not be
#: settled, else None). Receivers run in the thread that met the error; what they raise is logged.
worker_error = Signal()
