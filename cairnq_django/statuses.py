"""The states of a task and the ends of an attempt."""

from __future__ import annotations

from django.db.models import TextChoices
from django.utils.translation import pgettext_lazy


class TaskStatus(TextChoices):
    QUEUED = "queued", pgettext_lazy("task status", "queued")
    RUNNING = "running", pgettext_lazy("task status", "running")
    SUCCEEDED = "succeeded", pgettext_lazy("task status", "succeeded")
    FAILED = "failed", pgettext_lazy("task status", "failed")
    CANCELED = "canceled", pgettext_lazy("task status", "canceled")


LIVE = (TaskStatus.QUEUED, TaskStatus.RUNNING)
TERMINAL = (TaskStatus.SUCCEEDED, TaskStatus.FAILED, TaskStatus.CANCELED)


class AttemptOutcome(TextChoices):
    """What became of the task when an attempt did not succeed."""

    RETRIED = "retried", pgettext_lazy("attempt outcome", "queued again")
    FAILED = "failed", pgettext_lazy("attempt outcome", "failed for good")
    CANCELED = "canceled", pgettext_lazy("attempt outcome", "canceled")
