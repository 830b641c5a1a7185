"""The questions that are asked of rows of tasks and workers, in the queue's own words; nothing here writes."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from django.db import models

from .clock import Now, after
from .expressions import Among, Slot
from .statuses import LIVE, TERMINAL, TaskStatus

if TYPE_CHECKING:
    from .models import PausedQueue, Task, WorkerProcess  # noqa: F401 - named in the bases of their querysets

#: Seconds after which a worker that says nothing more is taken for dead. It speaks three times as often.
WORKER_SILENCE: Final = 90.0


class TaskQuerySet(models.QuerySet["Task"]):
    def queued(self) -> TaskQuerySet:
        return self.filter(status=TaskStatus.QUEUED)

    def running(self) -> TaskQuerySet:
        return self.filter(status=TaskStatus.RUNNING)

    def succeeded(self) -> TaskQuerySet:
        return self.filter(status=TaskStatus.SUCCEEDED)

    def failed(self) -> TaskQuerySet:
        return self.filter(status=TaskStatus.FAILED)

    def canceled(self) -> TaskQuerySet:
        return self.filter(status=TaskStatus.CANCELED)

    def live(self) -> TaskQuerySet:
        """Not ended: queued or running."""
        return self.filter(status__in=LIVE)

    def terminal(self) -> TaskQuerySet:
        """Ended: succeeded, failed or canceled."""
        return self.filter(status__in=TERMINAL)

    def due(self) -> TaskQuerySet:
        """Queued, and its time has come and not passed."""
        return self.queued().in_time().filter(run_at__lte=Now())

    def delayed(self) -> TaskQuerySet:
        """Queued for later."""
        return self.queued().filter(run_at__gt=Now())

    def in_time(self) -> TaskQuerySet:
        """Not expired."""
        return self.filter(models.Q(expires_at__isnull=True) | models.Q(expires_at__gt=Now()))

    def too_late(self) -> TaskQuerySet:
        """Queued, and not to be started any more: it has expired."""
        return self.queued().filter(expires_at__lte=Now())

    def for_handlers(self, names: Collection[str]) -> TaskQuerySet:
        return self.filter(name__in=sorted(names))

    def in_claim_order(self) -> TaskQuerySet:
        return self.order_by("-priority", "run_at", "id")

    def expired(self) -> TaskQuerySet:
        """Running under a lease that ran out: its worker is gone, or cut off."""
        return self.running().filter(lease_until__lte=Now())

    def leased(self, worker_id: str | Slot, attempt: int | Slot, ids: UUID | Iterable[UUID] | Slot) -> TaskQuerySet:
        """Those of these tasks that this attempt of this worker still owns."""
        which = models.Q(pk=ids) if isinstance(ids, UUID) else Among("pk", ids)
        return self.running().filter(which, worker_id=worker_id, attempt=attempt, lease_until__gt=Now())

    def by_key(self, key: str) -> TaskQuerySet:
        """The current task of a key."""
        return self.filter(current_key__key=key)

    def children_of(self, task: Task) -> TaskQuerySet:
        return self.filter(root_id=task.root_id, parent_id=task.pk)

    if TYPE_CHECKING:
        # The stubs lose the subclass on these.
        def filter(self, *args: Any, **kwargs: Any) -> TaskQuerySet: ...
        def order_by(self, *field_names: Any) -> TaskQuerySet: ...


class WorkerQuerySet(models.QuerySet["WorkerProcess"]):
    def heard_of(self) -> WorkerQuerySet:
        """Those that said lately that they run."""
        return self.filter(seen_at__gt=after(-WORKER_SILENCE))

    def silent_for(self, seconds: float) -> WorkerQuerySet:
        return self.filter(seen_at__lte=after(-seconds))

    def heard_of_or_not(self) -> WorkerQuerySet:
        """All of them, each with `is_heard_of`, whether it said lately that it runs, and `asked_at`, the time now."""
        return self.annotate(is_heard_of=models.Q(seen_at__gt=after(-WORKER_SILENCE)), asked_at=Now())

    if TYPE_CHECKING:

        def filter(self, *args: Any, **kwargs: Any) -> WorkerQuerySet: ...
        def annotate(self, *args: Any, **kwargs: Any) -> WorkerQuerySet: ...


class PausedQueueQuerySet(models.QuerySet["PausedQueue"]):
    def in_force(self) -> PausedQueueQuerySet:
        """Those that are paused now."""
        return self.filter(models.Q(until__isnull=True) | models.Q(until__gt=Now()))

    def over(self) -> PausedQueueQuerySet:
        """Those whose time has come: they count as not paused, and are about to be deleted."""
        return self.filter(until__lte=Now())

    if TYPE_CHECKING:

        def filter(self, *args: Any, **kwargs: Any) -> PausedQueueQuerySet: ...
        def order_by(self, *field_names: Any) -> PausedQueueQuerySet: ...
