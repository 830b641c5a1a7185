"""What a worker may be told: what its maker says, the rest from `CAIRNQ`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..arguments import integer, seconds, text
from ..backoff import retry_delay
from ..conf import RetentionRule, get_settings, heartbeat_interval, resources
from ..limits import QUEUE_LENGTH, SHORTEST
from ..registry import TaskDef
from .memory import resident_mib


@dataclass(frozen=True)
class WorkerOptions:
    """A worker's limits and rhythms, checked and complete. Durations are seconds; None is "no limit"."""

    queues: tuple[str, ...]
    concurrency: int  # handler calls at the same time
    lease: float
    heartbeat_interval: float
    poll_interval: float
    claim_batch: int | None  # calls that one claim takes tasks for, at the most
    resources: Mapping[str, int]  # calls at the same time that share each resource
    max_in_flight_bytes: int | None  # of the payloads of running calls
    retry_backoff: float
    retry_backoff_max: float
    max_run: float | None
    drain_timeout: float | None
    retention: tuple[RetentionRule, ...] = ()
    max_tasks: int | None = None  # started, after which the process is to be replaced
    max_memory: int | None = None  # MiB resident, past which it is

    @classmethod
    def build(cls, queues: str | Sequence[str] | None, **given: Any) -> WorkerOptions:
        """The options that are given and not None, the others from `CAIRNQ`.

        Raises `TypeError` or `ValueError` naming the option that is wrong.
        """
        settings = get_settings()

        def option(name: str) -> Any:
            value = given.get(name)
            return value if value is not None else getattr(settings, name)

        concurrency = integer(option("concurrency"), "concurrency", minimum=1)
        claim_batch = option("claim_batch")
        max_bytes = option("max_in_flight_bytes")
        max_tasks, max_memory = given.get("max_tasks"), given.get("max_memory")  # which have no setting
        lease = seconds(option("lease"), "lease", minimum=SHORTEST)
        chosen = seconds(option("heartbeat_interval"), "heartbeat_interval", minimum=SHORTEST, allow_none=True)
        interval = heartbeat_interval(lease, chosen)
        if interval >= lease:
            raise ValueError(
                f"lease must be longer than the time between two heartbeats, got a lease of {lease:g} seconds and a "
                f"heartbeat every {interval:g}"
            )
        return cls(
            queues=_queues(settings.queues if queues is None else queues),
            concurrency=concurrency,
            lease=lease,
            heartbeat_interval=interval,
            poll_interval=seconds(option("poll_interval"), "poll_interval", minimum=SHORTEST),
            claim_batch=integer(claim_batch, "claim_batch", minimum=1) if claim_batch is not None else None,
            # Those that are not given here are as they are declared there.
            resources={**settings.resources, **resources(given.get("resources") or {}, "resources")},
            max_in_flight_bytes=integer(max_bytes, "max_in_flight_bytes", minimum=1) if max_bytes is not None else None,
            retry_backoff=seconds(option("retry_backoff"), "retry_backoff"),
            retry_backoff_max=seconds(option("retry_backoff_max"), "retry_backoff_max"),
            max_run=seconds(option("max_run"), "max_run", minimum=SHORTEST, allow_none=True),
            drain_timeout=seconds(option("drain_timeout"), "drain_timeout", allow_none=True),
            retention=settings.retention,
            max_tasks=integer(max_tasks, "max_tasks", minimum=1) if max_tasks is not None else None,
            max_memory=_more_than_it_holds(max_memory) if max_memory is not None else None,
        )

    def retry_delay(self, definition: TaskDef[Any, Any], attempt: int) -> float:
        """How many seconds after this attempt at such a task, which failed, the next one is due."""
        base, cap = definition.retry_backoff, definition.retry_backoff_max
        if cap is None:
            # What a task asks for by itself is not cut to a limit that was not made for it.
            cap = max(self.retry_backoff_max, base or 0)
        return retry_delay(attempt, base=self.retry_backoff if base is None else base, cap=cap)


def refuse_undeclared_resources(resources: Mapping[str, int], definitions: Iterable[TaskDef[Any, Any]]) -> None:
    """Raises `ValueError` for a definition that draws on a resource which the worker does not declare."""
    for definition in definitions:
        if definition.resource is not None and definition.resource not in resources:
            declared = ", ".join(repr(name) for name in sorted(resources)) or "none"
            raise ValueError(
                f"Task {definition.name!r} draws on the resource {definition.resource!r}, which this worker does not "
                f"declare (declared: {declared}). Declare it in CAIRNQ['RESOURCES'], Worker(resources=...) or with "
                f"--resource {definition.resource}=1; 0 means that this worker runs none of its tasks"
            )


def _more_than_it_holds(max_memory: int) -> int:
    limit, resident = integer(max_memory, "max_memory", minimum=1), resident_mib()
    if limit <= resident:
        raise ValueError(f"max_memory must be more than the {resident:.0f} MiB that the process has now, got {limit}")
    return limit


def _queues(queues: str | Sequence[str]) -> tuple[str, ...]:
    if not isinstance(queues, Iterable):
        raise TypeError(f"queues must be a queue's name or a list of them, got {type(queues).__name__}")
    names = [text(name, "queues", maximum=QUEUE_LENGTH) for name in ([queues] if isinstance(queues, str) else queues)]
    if not names:
        raise ValueError("queues must name at least one queue")
    return tuple(dict.fromkeys(names))
