"""What every arrow into a state sets on the row, written once."""

from __future__ import annotations

from typing import Any

from django.db.models import F
from django.db.models.functions import Greatest

from ..clock import Now
from ..envelopes import Envelope
from ..models import Task, TaskAttempt
from ..statuses import AttemptOutcome, TaskStatus

#: Every way back to `queued` clears what the attempt left on the row; the error stays, for people to see.
QUEUED_AGAIN: dict[str, Any] = {
    "status": TaskStatus.QUEUED,
    "progress": None,
    "message": "",
    "lease_until": None,
    "updated_at": Now(),
}


def retried(*, reset_attempts: bool) -> dict[str, Any]:
    """What a person's retry sets: due at once, as if it had not ended, with an attempt left at least."""
    attempts: dict[str, Any] = {"max_attempts": Greatest("max_attempts", F("attempt") + 1)}
    return {
        **QUEUED_AGAIN,
        **({"attempt": 0} if reset_attempts else attempts),
        "run_at": Now(),
        "error": None,
        "cancel_requested_at": None,
        "started_at": None,
        "completed_at": None,
    }


def _ended(status: TaskStatus) -> dict[str, Any]:
    return {"status": status, "lease_until": None, "completed_at": Now(), "updated_at": Now()}


SUCCEEDED: dict[str, Any] = {**_ended(TaskStatus.SUCCEEDED), "error": None}
FAILED: dict[str, Any] = {**_ended(TaskStatus.FAILED), "result": None}
#: A canceled attempt's result is discarded; its error is kept with the attempt.
CANCELED: dict[str, Any] = {**_ended(TaskStatus.CANCELED), "expires_at": None, "result": None, "error": None}


def record_attempt(using: str, task: Task, outcome: AttemptOutcome, error: Envelope) -> None:
    """Keep a row about the attempt that `task` is in, which did not succeed."""
    assert task.started_at is not None
    TaskAttempt.objects.using(using).create(
        task_id=task.pk,
        number=task.attempt,
        worker_id=task.worker_id,
        started_at=task.started_at,
        outcome=outcome,
        error=error,
        name=task.name,
        queue=task.queue,
        error_code=error["code"],
        error_type=error["type"],
    )
