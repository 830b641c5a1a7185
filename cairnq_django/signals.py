"""The signals this app sends.

Those about a task have `Task` as their `sender` and take `task`, its row as it is now. Some of its fields may be
deferred: they are read when they are asked for, and say what holds then. Where an attempt ended, `error` is its
envelope, `exception` what its handler raised, which is being handled while the receivers run (None where nothing was
raised), and `duration` how many seconds the handler took (None if that is not known).

A function that you call sends its signals before it returns, in the thread and transaction it was called in. A worker
sends them once what they tell is committed. What receivers raise is logged, by Django.
"""

from __future__ import annotations

from django.dispatch import Signal

#: A task was inserted: `task`. By `submit()` and its kin, in their transaction; not where a key handed back another. By
#: the worker that submitted it for a schedule, in its thread for these.
task_submitted = Signal()

#: A handler is about to be called: `task`. By the worker, in the handler's thread and context; once for each attempt.
task_started = Signal()

#: An attempt has succeeded: `task` with its result, `duration`. By the worker, in its thread for signals.
task_succeeded = Signal()

#: A task has failed for good: `task`, `error`, `exception`, `duration`. By the worker, in its thread for signals.
task_failed = Signal()

#: A task is queued again: `task`, `error`, `exception`, `duration` and `delay`, the seconds until it is due. By the
#: worker, in its thread for signals; by `retry()`, with an `error` of None, in its transaction.
task_retried = Signal()

#: A task has been canceled: `task`, `error` (None for one that was queued, unless it expired), `exception`, `duration`.
#: By the worker, in its thread for signals; for what was queued by `cancel()` or by the submit that takes its place.
task_canceled = Signal()

#: A worker is ready and about to claim its first tasks: `worker`, with the `Worker` class as `sender`. In its thread.
worker_started = Signal()

#: A worker was told to stop and claims nothing more, while what runs goes on: `worker`, with the `Worker` class as
#: `sender`. In its thread.
worker_stopping = Signal()

#: An error that a worker survived, sent with `sender` (the `Worker` class), `worker`, `phase` (a string: "claim",
#: "recover", "settle", "heartbeat", "presence" (of the row by which others see it), "activity" (of what it did),
#: "listen", "schedule", "sweep" or "loop"), `error` (the exception) and `task_id` (of the task that could not be
#: settled, else None). Receivers run in the thread that met the error; what they raise is logged.
worker_error = Signal()
