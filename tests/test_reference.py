"""The tables of the reference are true: codes, exceptions, limits, permissions."""

from __future__ import annotations

import inspect
import re
from typing import Any

from django.apps import apps
from django.contrib.auth import get_permission_codename

import cairnq_django
from cairnq_django import backpressure, conf, envelopes, errors, limits, serialization
from cairnq_django.worker import attempt, lookahead
from tests.documents import DOCS, Page

REFERENCE = DOCS / "reference"


def test_every_code_that_is_recorded_is_explained() -> None:
    source = inspect.getsource(envelopes)
    recorded = {*re.findall(r'code="(\w+)"', source), *re.findall(r'code: str = "(\w+)"', source), envelopes.UNEXPECTED}

    assert named_in("errors.md", "Codes") == recorded


def test_every_exception_is_explained() -> None:
    raised = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, errors.CairnQError) and value.__module__ == errors.__name__
    }

    assert named_in("errors.md", "Exceptions") == raised


def test_every_public_name_is_explained() -> None:
    api = (REFERENCE / "api.md").read_text(encoding="utf-8")
    explained = {*re.findall(r"^\.\. (?:auto\w+|py:\w+):: (\w+)$", api, re.M), *named_in("errors.md", "Exceptions")}
    twins = {f"a{name}" for name in explained} | {"await_", "await_by_key"}

    assert set(cairnq_django.__all__) - twins == explained - {"cairnq_django"}


def test_the_limits_are_those_of_the_code() -> None:
    found = dict(Page(REFERENCE / "limits.md").table_under("Limits"))

    for what, number in LIMITS.items():
        assert numbers(found.pop(what)) == [number], what
    assert numbers(found.pop("priority")) == [limits.MIN_PRIORITY, limits.MAX_PRIORITY]
    assert found == {"result": "none but the database's"}


def test_json_may_be_nested_as_deep_as_it_says() -> None:
    found = dict(Page(REFERENCE / "limits.md").table_under("JSON"))

    assert numbers(found["levels of lists and dicts"]) == [
        serialization.max_depth_for("postgresql"),
        serialization.max_depth_for("mysql", is_mariadb=True),
        serialization.max_depth_for("mysql"),
    ]
    assert numbers(found["keys"]) == [serialization.MAX_KEY_LENGTH]


def test_every_permission_is_listed() -> None:
    given = {
        codename
        for model in apps.get_app_config("cairnq_django").get_models()
        for codename in (
            *(get_permission_codename(action, model._meta) for action in model._meta.default_permissions),
            *(codename for codename, _ in model._meta.permissions),
        )
    }

    assert named_in("admin.md", "Permissions") == given


LIMITS: dict[str, Any] = {
    "name of a task, of a resource": limits.NAME_LENGTH,
    "name of a queue": limits.QUEUE_LENGTH,
    "key": limits.KEY_LENGTH,
    "correlation id": limits.CORRELATION_ID_LENGTH,
    "who paused a queue": limits.USER_LENGTH,
    "code and type of an error": limits.ERROR_KIND_LENGTH,
    "cron expression": limits.CRON_LENGTH,
    "name of a schedule's time zone": limits.ZONE_LENGTH,
    "shortest interval of a schedule": limits.SHORTEST_INTERVAL,
    "progress message": limits.MESSAGE_LENGTH,
    "error message": envelopes.MESSAGE_LIMIT,
    "traceback": envelopes.TRACEBACK_LIMIT,
    "details of an error": envelopes.DETAILS_LIMIT,
    "payload": conf.Settings.max_payload_bytes,
    "attempts": limits.MAX_ATTEMPTS,
    "tasks in a batch": limits.MAX_BATCH,
    "depth of a queue that can be set": limits.MAX_QUEUE_DEPTH,
    "shortest lease, poll interval, time limit": limits.SHORTEST,
    "shortest time between two heartbeats": conf.MIN_HEARTBEAT_INTERVAL,
    "shortest snooze": attempt.SHORTEST_SNOOZE,
    "tasks claimed ahead of a free slot": lookahead.MOST,
    "submits past a queue's limit": backpressure.GRANT,
}


def named_in(page: str, heading: str) -> set[str]:
    """What the first column of a table names."""
    return {row[0].strip("`") for row in Page(REFERENCE / page).table_under(heading)}


def numbers(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)]
