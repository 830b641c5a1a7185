"""The rows of the queue: tasks, their keys and failed attempts, schedules, paused queues, workers and what they did."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Protocol
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from .clock import Now
from .columns import ExactCharField, PartialIndex
from .ids import new_task_id
from .limits import (
    CORRELATION_ID_LENGTH,
    CRON_LENGTH,
    ERROR_KIND_LENGTH,
    HOST_LENGTH,
    KEY_LENGTH,
    NAME_LENGTH,
    QUEUE_LENGTH,
    USER_LENGTH,
    VERSION_LENGTH,
    WORKER_ID_LENGTH,
    ZONE_LENGTH,
)
from .querysets import PausedQueueQuerySet, TaskQuerySet, WorkerQuerySet
from .serialization import StrictJSONEncoder
from .statuses import TERMINAL, AttemptOutcome, Missed, Overlap, TaskStatus, Tick


class TaskActions(Protocol):
    """What a task row acts through; the app's configuration plugs it in, so that rows stay below the store."""

    def cancel(self, task_id: UUID, *, family: bool = False) -> Task: ...

    def retry(self, task_id: UUID, *, reset_attempts: bool = False) -> Task: ...

    def run_now(self, task_id: UUID) -> Task: ...


class Task(models.Model):
    """One durable execution. Read it freely; it is written by the functions of `cairnq_django` alone."""

    actions: ClassVar[TaskActions]

    id: models.UUIDField[Any, UUID] = models.UUIDField(_("id"), primary_key=True, default=new_task_id, editable=False)
    name: models.CharField[Any, str] = ExactCharField(_("name"), max_length=NAME_LENGTH)
    queue: models.CharField[Any, str] = ExactCharField(_("queue"), max_length=QUEUE_LENGTH, default="default")
    status: models.CharField[Any, str] = models.CharField(
        _("status"), max_length=10, choices=TaskStatus, default=TaskStatus.QUEUED
    )
    payload: models.JSONField[Any, Any] = models.JSONField(_("payload"), null=True, encoder=StrictJSONEncoder)
    result: models.JSONField[Any, Any] = models.JSONField(_("result"), null=True, encoder=StrictJSONEncoder)
    error: models.JSONField[Any, Any] = models.JSONField(_("error"), null=True, encoder=StrictJSONEncoder)
    metadata: models.JSONField[Any, Any] = models.JSONField(_("metadata"), default=dict, encoder=StrictJSONEncoder)
    progress: models.FloatField[Any, float | None] = models.FloatField(_("progress"), null=True)  # 0 to 1
    message: models.TextField[Any, str] = models.TextField(_("message"), default="")
    attempt: models.IntegerField[Any, int] = models.IntegerField(
        _("attempt"), default=0
    )  # deliveries so far, the running one included
    max_attempts: models.IntegerField[Any, int] = models.IntegerField(_("attempts allowed"), default=3)
    priority: models.SmallIntegerField[Any, int] = models.SmallIntegerField(_("priority"), default=0)  # higher first
    key: models.CharField[Any, str | None] = ExactCharField(_("key"), max_length=KEY_LENGTH, null=True)
    worker_id: models.CharField[Any, str] = ExactCharField(_("worker"), max_length=WORKER_ID_LENGTH, default="")
    lease_until: models.DateTimeField[Any, datetime | None] = models.DateTimeField(_("lease until"), null=True)
    run_at: models.DateTimeField[Any, datetime] = models.DateTimeField(_("due"), db_default=Now())
    # Held by queued tasks alone that were never started. The default makes an insert hand back what was stored.
    expires_at: models.DateTimeField[Any, datetime | None] = models.DateTimeField(
        _("expires"), null=True, db_default=None
    )
    cancel_requested_at: models.DateTimeField[Any, datetime | None] = models.DateTimeField(
        _("cancel requested"), null=True
    )
    parent_id: models.UUIDField[Any, UUID | None] = models.UUIDField(_("parent"), null=True)
    root_id: models.UUIDField[Any, UUID] = models.UUIDField(_("root"))
    correlation_id: models.CharField[Any, str | None] = ExactCharField(
        _("correlation id"), max_length=CORRELATION_ID_LENGTH, null=True
    )
    created_at: models.DateTimeField[Any, datetime] = models.DateTimeField(_("created"), db_default=Now())
    updated_at: models.DateTimeField[Any, datetime] = models.DateTimeField(_("updated"), db_default=Now())
    started_at: models.DateTimeField[Any, datetime | None] = models.DateTimeField(
        _("started"), null=True
    )  # of the latest attempt
    completed_at: models.DateTimeField[Any, datetime | None] = models.DateTimeField(_("completed"), null=True)

    objects = TaskQuerySet.as_manager()

    class Meta:
        verbose_name = _("task")
        verbose_name_plural = _("tasks")
        default_permissions = ("view",)
        permissions = [
            ("cancel_task", _("Can cancel tasks")),
            ("cancel_family_task", _("Can cancel tasks with their descendants")),
            ("retry_task", _("Can retry tasks")),
            ("reset_task", _("Can retry tasks with their attempts reset")),
            ("run_now_task", _("Can make delayed tasks run now")),
        ]
        constraints = [
            models.CheckConstraint(name="cairnq_task_status", condition=Q(status__in=TaskStatus.values)),
            models.CheckConstraint(name="cairnq_task_attempts", condition=Q(attempt__gte=0, max_attempts__gte=1)),
            models.CheckConstraint(
                name="cairnq_task_progress", condition=Q(progress__isnull=True) | Q(progress__gte=0, progress__lte=1)
            ),
            models.CheckConstraint(
                name="cairnq_task_leased",
                condition=Q(status=TaskStatus.RUNNING, lease_until__isnull=False)
                | (~Q(status=TaskStatus.RUNNING) & Q(lease_until__isnull=True)),
            ),
            models.CheckConstraint(
                name="cairnq_task_ended",
                condition=Q(status__in=TERMINAL, completed_at__isnull=False)
                | (~Q(status__in=TERMINAL) & Q(completed_at__isnull=True)),
            ),
        ]
        indexes = [
            PartialIndex(
                name="cairnq_task_claim",
                # The last one orders nothing: it lets a look at what is due do without the rows.
                fields=["queue", "name", "-priority", "run_at", "id", "expires_at"],
                where=Q(status=TaskStatus.QUEUED),
                otherwise=["status", "queue", "name", "-priority", "run_at", "id", "expires_at"],
            ),
            PartialIndex(
                name="cairnq_task_lease",
                fields=["lease_until"],
                where=Q(lease_until__isnull=False),
                otherwise=["lease_until"],
            ),
            PartialIndex(
                name="cairnq_task_expiry",
                fields=["expires_at"],
                where=Q(expires_at__isnull=False),
                otherwise=["expires_at"],
            ),
            PartialIndex(
                name="cairnq_task_completed",
                fields=["status", "completed_at"],
                where=Q(completed_at__isnull=False),
                otherwise=["status", "completed_at"],
            ),
            PartialIndex(name="cairnq_task_key", fields=["key"], where=Q(key__isnull=False), otherwise=["key"]),
            PartialIndex(
                name="cairnq_task_correlation",
                fields=["correlation_id"],
                where=Q(correlation_id__isnull=False),
                otherwise=["correlation_id"],
            ),
            PartialIndex(
                name="cairnq_task_family",
                fields=["root_id", "parent_id"],
                where=Q(parent_id__isnull=False),
                otherwise=["root_id", "parent_id"],
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} {self.pk}"

    @property
    def is_terminal(self) -> bool:
        """Whether the task has ended, in whichever way."""
        return self.status in TERMINAL

    @property
    def is_queued(self) -> bool:
        return self.status == TaskStatus.QUEUED

    @property
    def is_running(self) -> bool:
        return self.status == TaskStatus.RUNNING

    @property
    def succeeded(self) -> bool:
        return self.status == TaskStatus.SUCCEEDED

    @property
    def failed(self) -> bool:
        return self.status == TaskStatus.FAILED

    @property
    def canceled(self) -> bool:
        return self.status == TaskStatus.CANCELED

    @property
    def cancel_requested(self) -> bool:
        """Whether someone asked a running task to stop; it ends `canceled` however its handler ends."""
        return self.cancel_requested_at is not None

    def cancel(self, *, family: bool = False) -> Task:
        """Cancel this task, as `cairnq_django.cancel(task.id)` does, and take over what the row says then."""
        return self._take_over(self.actions.cancel(self.id, family=family))

    async def acancel(self, *, family: bool = False) -> Task:
        return await sync_to_async(self.cancel)(family=family)

    def retry(self, *, reset_attempts: bool = False) -> Task:
        """Queue this task again, as `cairnq_django.retry(task.id)` does, and take over what the row says then."""
        return self._take_over(self.actions.retry(self.id, reset_attempts=reset_attempts))

    async def aretry(self, *, reset_attempts: bool = False) -> Task:
        return await sync_to_async(self.retry)(reset_attempts=reset_attempts)

    def run_now(self) -> Task:
        """Make this task due now, as `cairnq_django.run_now(task.id)` does, and take over what the row says then."""
        return self._take_over(self.actions.run_now(self.id))

    async def arun_now(self) -> Task:
        return await sync_to_async(self.run_now)()

    def refresh(self) -> Task:
        """Read the row again. Raises `Task.DoesNotExist` if it was purged."""
        self.refresh_from_db()
        return self

    async def arefresh(self) -> Task:
        await self.arefresh_from_db()
        return self

    def _take_over(self, current: Task) -> Task:
        for field in self._meta.concrete_fields:
            setattr(self, field.attname, getattr(current, field.attname))
        return self


class TaskKey(models.Model):
    """A business key's current task. Whoever decides for a key holds this row's lock, so they decide one by one."""

    key = ExactCharField(_("key"), max_length=KEY_LENGTH, primary_key=True)
    # Null only inside the transaction that makes the row: the lock comes before the task.
    task = models.OneToOneField(Task, models.CASCADE, null=True, related_name="current_key", verbose_name=_("task"))
    updated_at = models.DateTimeField(_("updated"), db_default=Now())

    class Meta:
        verbose_name = _("task key")
        verbose_name_plural = _("task keys")
        default_permissions = ()

    def __str__(self) -> str:
        return str(self.key)


class TaskAttempt(models.Model):
    """An attempt that did not succeed: who ran it, when, how it ended and the error."""

    task = models.ForeignKey(Task, models.CASCADE, db_index=False, related_name="attempts", verbose_name=_("task"))
    number = models.IntegerField(_("attempt"))
    worker_id = ExactCharField(_("worker"), max_length=WORKER_ID_LENGTH)
    started_at = models.DateTimeField(_("started"))
    ended_at = models.DateTimeField(_("ended"), db_default=Now())
    outcome = models.CharField(_("outcome"), max_length=10, choices=AttemptOutcome)
    error = models.JSONField(_("error"), encoder=StrictJSONEncoder)
    # What failures are grouped by, beside the error and the task's row, from which a great many cannot be read at once.
    # The database's own default lets a worker of an earlier version write its rows during an upgrade.
    name = ExactCharField(_("name"), max_length=NAME_LENGTH, db_default="")
    queue = ExactCharField(_("queue"), max_length=QUEUE_LENGTH, db_default="")
    error_code = ExactCharField(_("error code"), max_length=ERROR_KIND_LENGTH, db_default="")
    error_type = ExactCharField(_("error type"), max_length=ERROR_KIND_LENGTH, db_default="")

    class Meta:
        verbose_name = _("failure")
        verbose_name_plural = _("failures")
        default_permissions = ()
        constraints = [
            models.CheckConstraint(name="cairnq_attempt_outcome", condition=Q(outcome__in=AttemptOutcome.values)),
            models.CheckConstraint(name="cairnq_attempt_number", condition=Q(number__gte=1)),
        ]
        indexes = [
            models.Index(name="cairnq_attempt_task", fields=["task", "number"]),
            models.Index(name="cairnq_attempt_ended", fields=["ended_at"]),
        ]
        ordering = ["number", "id"]

    def __str__(self) -> str:
        return f"{self.task_id} #{self.number}"


class Duty(models.Model):
    """A chore that one worker at a time does, however many there are. No row: nobody ever did."""

    name = ExactCharField(_("name"), max_length=NAME_LENGTH, primary_key=True)
    worker_id = ExactCharField(_("worker"), max_length=WORKER_ID_LENGTH, default="")
    # Anyone may take it afterwards; until then, only the worker that has it.
    held_until = models.DateTimeField(_("held until"), db_default=Now())

    class Meta:
        verbose_name = _("duty")
        verbose_name_plural = _("duties")
        default_permissions = ()

    def __str__(self) -> str:
        return str(self.name)


class WorkerProcess(models.Model):
    """A running worker, as it says of itself from time to time. To be looked at: nothing depends on it."""

    id = ExactCharField(_("id"), max_length=WORKER_ID_LENGTH, primary_key=True)  # a task's `worker_id`
    host = models.CharField(_("host"), max_length=HOST_LENGTH)
    pid = models.BigIntegerField(_("process id"))
    version = models.CharField(_("version"), max_length=VERSION_LENGTH)  # of this package
    queues = models.JSONField(_("queues"), default=list, encoder=StrictJSONEncoder)  # that it serves
    names = models.JSONField(_("handlers"), default=list, encoder=StrictJSONEncoder)  # whose tasks it runs
    concurrency = models.IntegerField(_("concurrency"))  # calls at the same time
    busy = models.IntegerField(_("busy calls"), default=0)  # whose handlers are at work
    bytes_in_flight = models.BigIntegerField(_("bytes in flight"), null=True)  # of payloads; null: not measured
    abandoned = models.IntegerField(_("abandoned calls"), default=0)  # given up, but their handlers go on
    draining = models.BooleanField(_("draining"), default=False)  # it claims nothing more, and ends
    started_at = models.DateTimeField(_("started"), db_default=Now())
    seen_at = models.DateTimeField(_("last seen"), db_default=Now())

    objects = WorkerQuerySet.as_manager()

    class Meta:
        verbose_name = _("worker")
        verbose_name_plural = _("workers")
        default_permissions = ("view",)

    def __str__(self) -> str:
        return str(self.id)


class PausedQueue(models.Model):
    """A queue that takes submits and gives out nothing, until it is resumed or its time has come. No row: not paused.

    Read it freely; it is written by `pause_queue()` and `resume_queue()` alone.
    """

    queue = ExactCharField(_("queue"), max_length=QUEUE_LENGTH, primary_key=True)
    paused_at = models.DateTimeField(_("paused since"), db_default=Now())
    paused_by = models.CharField(_("paused by"), max_length=USER_LENGTH, default="", blank=True)
    until = models.DateTimeField(_("until"), null=True, blank=True)  # null: until it is resumed

    objects = PausedQueueQuerySet.as_manager()

    class Meta:
        verbose_name = _("queue")
        verbose_name_plural = _("queues")
        default_permissions = ("view",)
        permissions = [
            ("pause_queue", _("Can pause queues")),
            ("resume_queue", _("Can resume queues")),
        ]

    def __str__(self) -> str:
        return str(self.queue)


class Activity(models.Model):
    """What workers did for one queue within a minute, or within an hour. They add to it a few seconds later."""

    queue = ExactCharField(_("queue"), max_length=QUEUE_LENGTH)
    seconds = models.PositiveSmallIntegerField(_("length"))  # of the span of time
    begins_at = models.DateTimeField(_("begins"))
    started = models.BigIntegerField(_("started"), default=0)
    succeeded = models.BigIntegerField(_("succeeded"), default=0)
    failed = models.BigIntegerField(_("failed for good"), default=0)
    retried = models.BigIntegerField(_("queued again"), default=0)
    canceled = models.BigIntegerField(_("canceled"), default=0)
    waited = models.FloatField(_("waited"), default=0)  # seconds from due to started, of all that were started
    longest_wait = models.FloatField(_("longest wait"), default=0)  # seconds

    class Meta:
        verbose_name = _("activity")
        verbose_name_plural = _("activity")
        default_permissions = ()
        constraints = [
            models.UniqueConstraint(name="cairnq_activity_span", fields=["seconds", "begins_at", "queue"]),
        ]

    def __str__(self) -> str:
        return f"{self.queue} {self.begins_at:%Y-%m-%d %H:%M} + {self.seconds} s"


class Schedule(models.Model):
    """What is submitted again and again, made in the admin or declared by code: `@task(cron=...)`, `@task(every=...)`.

    Read it freely; it is written by workers and by the admin.
    """

    name = ExactCharField(_("name"), max_length=NAME_LENGTH)
    task_name = ExactCharField(_("task"), max_length=NAME_LENGTH)
    payload = models.JSONField(_("payload"), null=True, blank=True, encoder=StrictJSONEncoder)
    queue = ExactCharField(_("queue"), max_length=QUEUE_LENGTH, default="", blank=True)  # empty: the task's own
    priority = models.SmallIntegerField(_("priority"), null=True, blank=True)  # null: the task's own
    cron = models.CharField(_("cron expression"), max_length=CRON_LENGTH, default="", blank=True)
    timezone = models.CharField(_("time zone"), max_length=ZONE_LENGTH, default="", blank=True)  # of the expression
    every = models.FloatField(_("seconds"), null=True, blank=True)  # from one time to the next
    missed = models.CharField(_("missed times"), max_length=10, choices=Missed, default=Missed.ONCE)
    overlap = models.CharField(_("overlap"), max_length=10, choices=Overlap, default=Overlap.SKIP)
    declared = models.BooleanField(_("declared in code"), default=False)
    retired = models.BooleanField(_("retired"), default=False)  # the code does not declare it any more
    paused = models.BooleanField(_("paused"), default=False)
    next_run_at = models.DateTimeField(_("next run"), null=True)  # null: paused, retired or never again
    last_run_at = models.DateTimeField(_("last run"), null=True)  # when its latest task was submitted
    last_task_id = models.UUIDField(_("last task"), null=True)
    last_tick = models.CharField(_("what became of the latest time"), max_length=10, choices=Tick, default="")
    error = models.TextField(_("error"), default="")  # why the latest time was held back, or failed

    class Meta:
        verbose_name = _("schedule")
        verbose_name_plural = _("schedules")
        default_permissions = ("view", "add", "change", "delete")
        permissions = [
            ("pause_schedule", _("Can pause schedules")),
            ("resume_schedule", _("Can resume schedules")),
            ("run_now_schedule", _("Can run schedules now")),
        ]
        constraints = [
            models.UniqueConstraint(name="cairnq_schedule_name", fields=["declared", "name"]),
            models.CheckConstraint(
                name="cairnq_schedule_timing",
                condition=Q(every__isnull=True) & ~Q(cron="") | Q(every__isnull=False, every__gt=0, cron=""),
            ),
            models.CheckConstraint(
                name="cairnq_schedule_rules", condition=Q(missed__in=Missed.values, overlap__in=Overlap.values)
            ),
        ]
        indexes = [models.Index(name="cairnq_schedule_next", fields=["next_run_at"])]

    def __str__(self) -> str:
        return str(self.name)
