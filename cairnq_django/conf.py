"""The project's setting `CAIRNQ`, validated, with its defaults."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from difflib import get_close_matches
from functools import cache, partial
from typing import Any, Final

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.db import connections

from .arguments import integer, seconds, text
from .limits import MAX_ATTEMPTS, MAX_QUEUE_DEPTH, NAME_LENGTH, QUEUE_LENGTH, SHORTEST
from .statuses import TERMINAL, TaskStatus

SETTING: Final = "CAIRNQ"

MIN_HEARTBEAT_INTERVAL: Final = 0.05  # seconds

_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/=-]{16,}")


@dataclass(frozen=True)
class RetentionRule:
    """Tasks to delete: those that ended so long ago and, where it says so, in this status, queue or under this name."""

    older_than: float
    status: TaskStatus | None = None
    queue: str | None = None
    name: str | None = None


@dataclass(frozen=True)
class Settings:
    """What `CAIRNQ` says: each of its keys in lower case. Durations are in seconds."""

    database: str | None = None  # alias that `CairnQRouter` sends tasks to; None: where the other routers send them
    queues: tuple[str, ...] = ("default",)  # that a worker serves
    concurrency: int = 8  # handler calls at a time
    lease: float = 30.0
    heartbeat_interval: float | None = None  # None: a third of the lease
    poll_interval: float = 1.0
    claim_batch: int | None = None  # None: as there is room for
    resources: Mapping[str, int] = field(default_factory=dict)  # calls at a time that share each resource
    max_in_flight_bytes: int | None = None  # None: no limit
    retry_backoff: float = 1.0
    retry_backoff_max: float = 30.0
    max_run: float | None = None  # None: no limit
    drain_timeout: float | None = None  # None: no limit
    max_attempts: int = 3
    max_payload_bytes: int = 1_048_576
    max_queue_depth: int | dict[str, int] | None = None  # tasks queued, for all queues or by name; None: no limit
    max_queue_wait: float = 10.0  # that a submit waits for a full queue
    monitor_token: str | None = None  # for machines that ask for health and metrics; None: staff alone may
    health_max_wait: float | None = 300.0  # that a due task may wait before the queue is not well; None: any
    retention: tuple[RetentionRule, ...] = ()  # a task is deleted when any of these matches it


def get_settings() -> Settings:
    """Return the project's settings. Raises `ImproperlyConfigured`, which lists every problem."""
    return _settings()


@cache
def database() -> str | None:
    """The alias that `CAIRNQ["DATABASE"]` names, None if there is none of that name; whatever else may be wrong there.

    For the router, which Django asks before its system checks have told of a mistake.
    """
    alias: str | None = _read(getattr(settings, SETTING, {}))[0].get("database")
    return alias


def problems(raw: Any) -> list[str]:
    """Return what is wrong with `raw` as the value of `CAIRNQ`, one message for each problem."""
    return _read(raw)[1]


def heartbeat_interval(lease: float, chosen: float | None = None) -> float:
    """Return the seconds between two beats for a lease of `lease` seconds; `chosen` is None for the usual third."""
    return max(lease / 3 if chosen is None else chosen, MIN_HEARTBEAT_INTERVAL)


def resources(value: Any, name: str) -> dict[str, int]:
    """Return how many calls at a time may share each resource. Raises `TypeError` or `ValueError` naming the place."""
    if not isinstance(value, Mapping):
        raise TypeError(
            f'{name} must be a dict from a resource\'s name to a number of calls, such as {{"gpu": 2}}, got '
            f"{type(value).__name__}"
        )
    return {
        text(resource, f"the name of a resource in {name}", maximum=NAME_LENGTH): integer(
            calls, f"{name}[{resource!r}]", minimum=0
        )
        for resource, calls in value.items()
    }


@cache
def _settings() -> Settings:
    values, found = _read(getattr(settings, SETTING, {}))
    if found:
        raise ImproperlyConfigured("\n".join(found))
    return Settings(**values)


def _forget(*, setting: str, **kwargs: Any) -> None:
    if setting == SETTING:
        _settings.cache_clear()
        database.cache_clear()


setting_changed.connect(_forget, dispatch_uid="cairnq_django.conf")


def _read(raw: Any) -> tuple[dict[str, Any], list[str]]:
    if not isinstance(raw, dict):
        return {}, [f"{SETTING} must be a dict, got {type(raw).__name__}"]
    values: dict[str, Any] = {}
    found: list[str] = []
    for key, value in raw.items():
        if key not in _READERS:
            hint = _hint(str(key).upper(), _READERS)
            found.append(f"{SETTING} has an unknown key, {key!r}. {hint}")
            continue
        try:
            values[key.lower()] = _READERS[key](value, f"{SETTING}[{key!r}]")
        except (TypeError, ValueError) as error:
            found.append(str(error))
    return values, found or _contradictions(values)


def _hint(key: Any, known: Iterable[str], what: str = "Its keys") -> str:
    close = get_close_matches(str(key), known, n=1)
    return f"Did you mean {close[0]!r}?" if close else f"{what} are {', '.join(known)}"


def _contradictions(values: dict[str, Any]) -> list[str]:
    lease = values.get("lease", Settings.lease)
    interval = heartbeat_interval(lease, values.get("heartbeat_interval"))
    if interval < lease:
        return []
    return [
        f"{SETTING}['LEASE'] must be longer than the time between two heartbeats, got a lease of {lease:g} seconds and "
        f"a heartbeat every {interval:g}; raise it, or set a shorter HEARTBEAT_INTERVAL"
    ]


def _alias(value: Any, name: str) -> str | None:
    if value is None:
        return None
    alias = text(value, name)
    if alias not in connections.settings:
        hint = _hint(alias, connections.settings, what="Its aliases")
        raise ValueError(f"{name} must be an alias in DATABASES, got {alias!r}. {hint}")
    return alias


def _queues(value: Any, name: str) -> tuple[str, ...]:
    if isinstance(value, str):
        raise TypeError(f"{name} must be a list of queue names, got a string; write [{value!r}]")
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"{name} must be a list of queue names, got {type(value).__name__}")
    if not value:
        raise ValueError(f"{name} must not be empty; leave it out for ['default']")
    return tuple(text(queue, f"{name}[{index}]", maximum=QUEUE_LENGTH) for index, queue in enumerate(value))


def _optional_integer(value: Any, name: str) -> int | None:
    return None if value is None else integer(value, name, minimum=1)


def _depths(value: Any, name: str) -> int | dict[str, int] | None:
    depth = partial(integer, minimum=1, maximum=MAX_QUEUE_DEPTH)
    if value is None:
        return None
    if not isinstance(value, dict):
        return depth(value, name, expected="an integer or a dict from queue names to integers")
    return {
        text(queue, f"a queue in {name}", maximum=QUEUE_LENGTH): depth(limit, f"{name}[{queue!r}]")
        for queue, limit in value.items()
    }


def _token(value: Any, name: str) -> str | None:
    # The messages go into logs, and leave the value out.
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a string or None, got {type(value).__name__}")
    if not _TOKEN.fullmatch(value):
        raise ValueError(
            f"{name} must have at least 16 characters of those that a header may hold in a token (letters, digits and "
            "-._~+/=); make one with: python -c 'import secrets; print(secrets.token_urlsafe())'"
        )
    return value


def _retention(value: Any, name: str) -> tuple[RetentionRule, ...]:
    if value is None:
        return ()
    if isinstance(value, dict):
        return tuple(_status_rule(status, age, name) for status, age in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(_rule(rule, f"{name}[{index}]") for index, rule in enumerate(value))
    if isinstance(value, (int, float, timedelta)):
        return (RetentionRule(seconds(value, name)),)
    raise TypeError(
        f"{name} must be None, an age (a number of seconds or a timedelta), a dict of ages by status or a list of "
        f"rules, got {type(value).__name__}"
    )


def _status_rule(status: Any, age: Any, name: str) -> RetentionRule:
    if status in _RULE_KEYS:
        raise ValueError(f"{name} must have statuses for keys, got {status!r}; put a rule into a list: [{{...}}]")
    return RetentionRule(seconds(age, f"{name}[{status!r}]"), status=_terminal(status, f"A key of {name}"))


def _rule(value: Any, name: str) -> RetentionRule:
    if not isinstance(value, dict):
        raise TypeError(f"{name} must be a dict with {', '.join(map(repr, _RULE_KEYS))}, got {type(value).__name__}")
    for key in value:
        if key not in _RULE_KEYS:
            raise ValueError(f"{name} has an unknown key, {key!r}. {_hint(key, _RULE_KEYS)}")
    if "older_than" not in value:
        raise ValueError(f"{name} must have 'older_than', the age in seconds at which it deletes a task")
    return RetentionRule(**{key: _RULE_KEYS[key](given, f"{name}[{key!r}]") for key, given in value.items()})


def _terminal(value: Any, name: str) -> TaskStatus:
    if value not in TERMINAL:
        raise ValueError(
            f"{name} must be one of {', '.join(TERMINAL)}, got {value!r}: only tasks that ended are deleted"
        )
    return TaskStatus(value)


_RULE_KEYS: dict[str, Callable[[Any, str], Any]] = {
    "older_than": seconds,
    "status": _terminal,
    "queue": partial(text, maximum=QUEUE_LENGTH),
    "name": partial(text, maximum=NAME_LENGTH),
}

_READERS: dict[str, Callable[[Any, str], Any]] = {
    "DATABASE": _alias,
    "QUEUES": _queues,
    "CONCURRENCY": partial(integer, minimum=1),
    "LEASE": partial(seconds, minimum=SHORTEST),
    "HEARTBEAT_INTERVAL": partial(seconds, minimum=SHORTEST, allow_none=True),
    "POLL_INTERVAL": partial(seconds, minimum=SHORTEST),
    "CLAIM_BATCH": _optional_integer,
    "RESOURCES": resources,
    "MAX_IN_FLIGHT_BYTES": _optional_integer,
    "RETRY_BACKOFF": seconds,
    "RETRY_BACKOFF_MAX": seconds,
    "MAX_RUN": partial(seconds, minimum=SHORTEST, allow_none=True),
    "DRAIN_TIMEOUT": partial(seconds, allow_none=True),
    "MAX_ATTEMPTS": partial(integer, minimum=1, maximum=MAX_ATTEMPTS),
    "MAX_PAYLOAD_BYTES": partial(integer, minimum=1),
    "MAX_QUEUE_DEPTH": _depths,
    "MAX_QUEUE_WAIT": seconds,
    "MONITOR_TOKEN": _token,
    "HEALTH_MAX_WAIT": partial(seconds, allow_none=True),
    "RETENTION": _retention,
}

KEYS: Final = tuple(_READERS)
