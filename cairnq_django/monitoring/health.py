"""Whether the queue is well: its database answers, a worker was heard of lately, nothing has waited for too long."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.db import connections
from django.http import HttpRequest, HttpResponse, JsonResponse

from ..conf import get_settings
from ..store.engine import task_database
from ..store.stats import queue_figures
from ..store.workers import live_workers, unhandled
from .access import guarded

logger = logging.getLogger(__name__)

NAMED = 5  # names that no worker runs, in a reason

Finding = dict[str, Any]  # "ok", what was found and, unless it is well, the "reason"


@dataclass(frozen=True)
class Health:
    """What each check found, by its name; those that say nothing without another one are left out if that failed."""

    checks: Mapping[str, Finding]

    @property
    def is_well(self) -> bool:
        return all(finding["ok"] for finding in self.checks.values())

    @property
    def reasons(self) -> str:
        """Why it is not well, in one line."""
        return "; ".join(finding["reason"] for finding in self.checks.values() if not finding["ok"])

    def as_json(self) -> dict[str, Any]:
        return {"ok": self.is_well, "checks": self.checks}


@guarded
def health(request: HttpRequest) -> HttpResponse:
    """200 if all is well, else 503; the body tells what was found, and of each check that failed why."""
    found = read_health(task_database())
    if not found.is_well:
        logger.warning("The queue is not well: %s", found.reasons)
    return JsonResponse(found.as_json(), status=200 if found.is_well else 503)


def read_health(using: str) -> Health:
    """How the queue in this database is. Never raises.

    Queues that are paused wait for no worker, and do not count.
    """
    checks = {"database": _checked(_database, using)}
    if checks["database"]["ok"]:
        checks["workers"] = _checked(_workers, using)
        checks["waiting"] = _checked(_waiting, using)
    return Health(checks)


def _checked(check: Callable[[str], Finding], using: str) -> Finding:
    try:
        return check(using)
    except Exception as error:
        return {"ok": False, "reason": f"{type(error).__name__}: {' '.join(str(error).split())}"}


def _database(using: str) -> Finding:
    with connections[using].cursor() as cursor:
        cursor.execute("SELECT 1")
    return {"ok": True}


def _workers(using: str) -> Finding:
    live = len(live_workers(using))
    return {"ok": True, "live": live} if live else {"ok": False, "live": 0, "reason": "No worker was heard of lately"}


def _waiting(using: str) -> Finding:
    limit = get_settings().health_max_wait
    queues = queue_figures(using)
    waits = {
        figures.queue: figures.oldest_wait
        for figures in queues
        if figures.oldest_wait is not None and figures.pause is None
    }
    queue = max(waits, key=lambda queue: waits[queue], default=None)
    longest = waits[queue] if queue is not None else None
    found: Finding = {"longest_wait": longest, "queue": queue, "limit": limit}
    if limit is None or longest is None or longest <= limit:
        return {"ok": True, **found}
    reason = f"In queue {queue!r} a task has been due for {longest:.0f} s, longer than {limit:g} s"
    names = sorted(
        {name for waits in unhandled(using, queues).values() for name, wait in waits.items() if wait > limit}
    )
    if names:
        found["names_without_worker"] = names
        others = f" and {len(names) - NAMED} other names" if len(names) > NAMED else ""
        reason += f"; no live worker runs tasks named {', '.join(map(repr, names[:NAMED]))}{others}"
    return {"ok": False, **found, "reason": reason}
