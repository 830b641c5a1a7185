"""The states of a task, the ends of an attempt, the rules of a schedule."""

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


class Missed(TextChoices):
    """What a schedule does about the times that it was not able to keep."""

    ONCE = "once", pgettext_lazy("missed times", "run once, for all of them")
    NONE = "none", pgettext_lazy("missed times", "do not run")
    ALL = "all", pgettext_lazy("missed times", "run for each of them")


class Overlap(TextChoices):
    """What a schedule does when it is due while its latest task is still queued or running."""

    SKIP = "skip", pgettext_lazy("overlap", "skip that time")
    ALLOW = "allow", pgettext_lazy("overlap", "run beside it")


class Tick(TextChoices):
    """What became of the latest time that a schedule was due."""

    SUBMITTED = "submitted", pgettext_lazy("schedule", "submitted")
    SKIPPED = "skipped", pgettext_lazy("schedule", "skipped")  # the latest task had not ended
    MISSED = "missed", pgettext_lazy("schedule", "missed")
    HELD_BACK = "held back", pgettext_lazy("schedule", "held back")  # the queue is full
    FAILED = "failed", pgettext_lazy("schedule", "failed")
