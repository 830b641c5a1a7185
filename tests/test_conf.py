from __future__ import annotations

from dataclasses import FrozenInstanceError
from datetime import timedelta
from math import inf
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured

from cairnq_django.conf import RetentionRule, Settings, get_settings, heartbeat_interval, problems
from cairnq_django.statuses import TaskStatus


def test_without_the_setting_everything_has_its_default(settings: Any) -> None:
    settings.CAIRNQ = {}
    del settings.CAIRNQ
    assert get_settings() == Settings(
        queues=("default",),
        concurrency=8,
        lease=30,
        heartbeat_interval=None,
        poll_interval=1,
        claim_batch=None,
        retry_backoff=1,
        retry_backoff_max=30,
        max_run=None,
        drain_timeout=None,
        max_attempts=3,
        max_payload_bytes=1_048_576,
        max_queue_depth=None,
        max_queue_wait=10,
        monitor_token=None,
        health_max_wait=300,
        retention=(),
    )


def test_every_key_can_be_set(settings: Any) -> None:
    settings.CAIRNQ = {
        "DATABASE": "dedicated",
        "QUEUES": ["mail", "default"],
        "CONCURRENCY": 2,
        "LEASE": timedelta(minutes=1),
        "HEARTBEAT_INTERVAL": 5,
        "POLL_INTERVAL": 0.5,
        "CLAIM_BATCH": 4,
        "RETRY_BACKOFF": 0,
        "RETRY_BACKOFF_MAX": timedelta(hours=1),
        "MAX_RUN": 90,
        "DRAIN_TIMEOUT": 0,
        "MAX_ATTEMPTS": 1,
        "MAX_PAYLOAD_BYTES": 1_000,
        "MAX_QUEUE_DEPTH": {"mail": 500, "bulk": 1},
        "MAX_QUEUE_WAIT": 0,
        "MONITOR_TOKEN": "0123456789-._~+/=",
        "HEALTH_MAX_WAIT": timedelta(hours=1),
        "RETENTION": timedelta(days=30),
    }
    assert get_settings() == Settings(
        database="dedicated",
        queues=("mail", "default"),
        concurrency=2,
        lease=60,
        heartbeat_interval=5,
        poll_interval=0.5,
        claim_batch=4,
        retry_backoff=0,
        retry_backoff_max=3600,
        max_run=90,
        drain_timeout=0,
        max_attempts=1,
        max_payload_bytes=1_000,
        max_queue_depth={"mail": 500, "bulk": 1},
        max_queue_wait=0,
        monitor_token="0123456789-._~+/=",
        health_max_wait=3600,
        retention=(RetentionRule(2_592_000),),
    )


def test_none_stands_for_the_default_where_that_depends_on_others(settings: Any) -> None:
    settings.CAIRNQ = {
        "HEARTBEAT_INTERVAL": None,
        "CLAIM_BATCH": None,
        "MONITOR_TOKEN": None,
        "MAX_RUN": None,
        "DRAIN_TIMEOUT": None,
    }
    assert get_settings() == Settings()


@pytest.mark.parametrize("depth", [None, 1, 500, {}, {"mail": 500}])
def test_a_queue_s_depth_is_limited_for_all_for_some_or_for_none(settings: Any, depth: Any) -> None:
    settings.CAIRNQ = {"MAX_QUEUE_DEPTH": depth}
    assert get_settings().max_queue_depth == depth


def test_a_changed_setting_is_noticed(settings: Any) -> None:
    settings.CAIRNQ = {"CONCURRENCY": 2}
    before = get_settings()
    assert get_settings() is before
    settings.CAIRNQ = {"CONCURRENCY": 3}
    assert (before.concurrency, get_settings().concurrency) == (2, 3)


def test_settings_cannot_be_changed_in_place(settings: Any) -> None:
    with pytest.raises(FrozenInstanceError):
        get_settings().lease = 1  # type: ignore[misc]


def test_all_problems_are_raised_at_once(settings: Any) -> None:
    settings.CAIRNQ = {"CONCURRENCY": 0, "LEASE": "30"}
    with pytest.raises(ImproperlyConfigured) as raised:
        get_settings()
    assert str(raised.value).splitlines() == [
        "CAIRNQ['CONCURRENCY'] must be at least 1, got 0",
        "CAIRNQ['LEASE'] must be a number of seconds or a timedelta, got str",
    ]


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (None, "CAIRNQ must be a dict, got NoneType"),
        ([("LEASE", 30)], "CAIRNQ must be a dict, got list"),
        ({"CONCURENCY": 8}, "CAIRNQ has an unknown key, 'CONCURENCY'. Did you mean 'CONCURRENCY'?"),
        ({"lease": 30}, "CAIRNQ has an unknown key, 'lease'. Did you mean 'LEASE'?"),
        ({"ZZZ": 1}, "CAIRNQ has an unknown key, 'ZZZ'. Its keys are DATABASE, QUEUES, CONCURRENCY, LEASE,"),
        ({7: 1}, "CAIRNQ has an unknown key, 7. Its keys are"),
        ({b"QUEUES": []}, "CAIRNQ has an unknown key, b'QUEUES'. Did you mean 'QUEUES'?"),
        ({"DATABASE": "dedicate"}, "CAIRNQ['DATABASE'] must be an alias in DATABASES, got 'dedicate'. Did you mean 'd"),
        (
            {"DATABASE": "queue"},
            "CAIRNQ['DATABASE'] must be an alias in DATABASES, got 'queue'. Its aliases are default, d",
        ),
        ({"DATABASE": ["default"]}, "CAIRNQ['DATABASE'] must be a string, got list"),
        ({"QUEUES": "mail"}, "CAIRNQ['QUEUES'] must be a list of queue names, got a string; write ['mail']"),
        ({"QUEUES": {"mail"}}, "CAIRNQ['QUEUES'] must be a list of queue names, got set"),
        ({"QUEUES": []}, "CAIRNQ['QUEUES'] must not be empty; leave it out for ['default']"),
        ({"QUEUES": ["mail", ""]}, "CAIRNQ['QUEUES'][1] must not be empty"),
        ({"QUEUES": ["  "]}, "CAIRNQ['QUEUES'][0] must not be blank, got '  '"),
        ({"QUEUES": [7]}, "CAIRNQ['QUEUES'][0] must be a string, got int (7)"),
        ({"QUEUES": ["q" * 101]}, "CAIRNQ['QUEUES'][0] must have at most 100 characters, got 101"),
        ({"CONCURRENCY": True}, "CAIRNQ['CONCURRENCY'] must be an integer, got bool (True)"),
        ({"CONCURRENCY": 1.5}, "CAIRNQ['CONCURRENCY'] must be an integer, got float (1.5)"),
        ({"CONCURRENCY": None}, "CAIRNQ['CONCURRENCY'] must be an integer, got NoneType"),
        ({"LEASE": 0}, "CAIRNQ['LEASE'] must be at least 0.001 seconds, got 0"),
        ({"LEASE": None}, "CAIRNQ['LEASE'] must be a number of seconds or a timedelta, got NoneType"),
        ({"LEASE": 0.05}, "CAIRNQ['LEASE'] must be longer than the time between two heartbeats, got a lease of 0.05"),
        ({"HEARTBEAT_INTERVAL": 30}, "got a lease of 30 seconds and a heartbeat every 30;"),
        ({"LEASE": 5, "HEARTBEAT_INTERVAL": 9}, "got a lease of 5 seconds and a heartbeat every 9;"),
        ({"HEARTBEAT_INTERVAL": 0}, "CAIRNQ['HEARTBEAT_INTERVAL'] must be at least 0.001 seconds, got 0"),
        ({"POLL_INTERVAL": 0}, "CAIRNQ['POLL_INTERVAL'] must be at least 0.001 seconds, got 0"),
        ({"CLAIM_BATCH": 0}, "CAIRNQ['CLAIM_BATCH'] must be at least 1, got 0"),
        ({"RETRY_BACKOFF": -1}, "CAIRNQ['RETRY_BACKOFF'] must not be negative, got -1"),
        ({"RETRY_BACKOFF_MAX": inf}, "CAIRNQ['RETRY_BACKOFF_MAX'] must be a finite number of seconds, got inf"),
        ({"MAX_RUN": 0}, "CAIRNQ['MAX_RUN'] must be at least 0.001 seconds, got 0"),
        ({"MAX_RUN": "1h"}, "CAIRNQ['MAX_RUN'] must be a number of seconds, a timedelta or None, got str"),
        ({"DRAIN_TIMEOUT": timedelta(-1)}, "CAIRNQ['DRAIN_TIMEOUT'] must not be negative, got -86400.0"),
        ({"MAX_ATTEMPTS": 0}, "CAIRNQ['MAX_ATTEMPTS'] must be at least 1, got 0"),
        ({"MAX_PAYLOAD_BYTES": "1M"}, "CAIRNQ['MAX_PAYLOAD_BYTES'] must be an integer, got str"),
        ({"MAX_QUEUE_DEPTH": 0}, "CAIRNQ['MAX_QUEUE_DEPTH'] must be at least 1, got 0"),
        ({"MAX_QUEUE_DEPTH": 2**31}, "CAIRNQ['MAX_QUEUE_DEPTH'] must be at most 2,147,483,647, got 2147483648"),
        (
            {"MAX_QUEUE_DEPTH": [5]},
            "CAIRNQ['MAX_QUEUE_DEPTH'] must be an integer or a dict from queue names to integers, got list",
        ),
        ({"MAX_QUEUE_DEPTH": True}, "must be an integer or a dict from queue names to integers, got bool (True)"),
        ({"MAX_QUEUE_DEPTH": {"mail": 0}}, "CAIRNQ['MAX_QUEUE_DEPTH']['mail'] must be at least 1, got 0"),
        ({"MAX_QUEUE_DEPTH": {"mail": None}}, "CAIRNQ['MAX_QUEUE_DEPTH']['mail'] must be an integer, got NoneType"),
        ({"MAX_QUEUE_DEPTH": {7: 5}}, "a queue in CAIRNQ['MAX_QUEUE_DEPTH'] must be a string, got int (7)"),
        ({"MAX_QUEUE_DEPTH": {"": 5}}, "a queue in CAIRNQ['MAX_QUEUE_DEPTH'] must not be empty"),
        ({"MAX_QUEUE_WAIT": -1}, "CAIRNQ['MAX_QUEUE_WAIT'] must not be negative, got -1"),
        ({"MAX_QUEUE_WAIT": None}, "CAIRNQ['MAX_QUEUE_WAIT'] must be a number of seconds or a timedelta, got NoneType"),
        ({"RETENTION": "30d"}, "CAIRNQ['RETENTION'] must be None, an age (a number of seconds or a timedelta), a dict"),
        ({"RETENTION": True}, "CAIRNQ['RETENTION'] must be a number of seconds or a timedelta, got bool (True)"),
        ({"RETENTION": -1}, "CAIRNQ['RETENTION'] must not be negative, got -1"),
        (
            {"RETENTION": {"done": 60}},
            "A key of CAIRNQ['RETENTION'] must be one of succeeded, failed, canceled, got",
        ),
        ({"RETENTION": {"running": 60}}, "got 'running': only tasks that ended are deleted"),
        ({"RETENTION": {7: 60}}, "A key of CAIRNQ['RETENTION'] must be one of succeeded, failed, canceled, got 7"),
        ({"RETENTION": {"failed": "7d"}}, "CAIRNQ['RETENTION']['failed'] must be a number of seconds or a timedelta"),
        (
            {"RETENTION": {"older_than": 60}},
            "must have statuses for keys, got 'older_than'; put a rule into a list: [",
        ),
        (
            {"RETENTION": [60]},
            "[0] must be a dict with 'older_than', 'status', 'queue', 'name', got int",
        ),
        ({"RETENTION": [{"older_than": 1}, {}]}, "CAIRNQ['RETENTION'][1] must have 'older_than'"),
        (
            {"RETENTION": [{"older_than": 1}, {"older_than": 1, "status": "done"}]},
            "CAIRNQ['RETENTION'][1]['status'] must be one of succeeded, failed, canceled, got 'done'",
        ),
        (
            {"RETENTION": [{"older_than": 1, "status": ["failed"]}]},
            "CAIRNQ['RETENTION'][0]['status'] must be one of succeeded, failed, canceled, got ['failed']",
        ),
        (
            {"RETENTION": [{"older_then": 1}]},
            "CAIRNQ['RETENTION'][0] has an unknown key, 'older_then'. Did you mean 'older_than'?",
        ),
        (
            {"RETENTION": [{"age": 1}]},
            "CAIRNQ['RETENTION'][0] has an unknown key, 'age'. Its keys are older_than,",
        ),
        ({"HEALTH_MAX_WAIT": -1}, "CAIRNQ['HEALTH_MAX_WAIT'] must not be negative, got -1"),
        ({"MONITOR_TOKEN": 7}, "CAIRNQ['MONITOR_TOKEN'] must be a string or None, got int"),
        ({"MONITOR_TOKEN": "short"}, "CAIRNQ['MONITOR_TOKEN'] must have at least 16 characters"),
        ({"MONITOR_TOKEN": "with spaces in between"}, "CAIRNQ['MONITOR_TOKEN'] must have at least 16 characters"),
        ({"RETENTION": [{"older_than": -5}]}, "CAIRNQ['RETENTION'][0]['older_than'] must not be negative, got -5"),
        ({"RETENTION": [{"older_than": None}]}, "CAIRNQ['RETENTION'][0]['older_than'] must be a number of seconds"),
        ({"RETENTION": [{"older_than": 1, "queue": ""}]}, "CAIRNQ['RETENTION'][0]['queue'] must not be empty"),
        ({"RETENTION": [{"older_than": 1, "name": 7}]}, "CAIRNQ['RETENTION'][0]['name'] must be a string, got int (7)"),
    ],
    ids=lambda value: str(value)[:50],
)
def test_a_problem_names_the_key_the_value_and_the_way_out(raw: Any, problem: str) -> None:
    (found,) = problems(raw)
    assert problem in found


@pytest.mark.parametrize("token", ["hunter2", "hunter2 hunter2 hunter2"])
def test_a_token_is_not_repeated_in_the_problem(token: str) -> None:
    (found,) = problems({"MONITOR_TOKEN": token})
    assert "hunter2" not in found


@pytest.mark.parametrize(
    ("raw", "rules"),
    [
        (None, ()),
        ([], ()),
        ({}, ()),
        (0, (RetentionRule(0),)),
        (60.5, (RetentionRule(60.5),)),
        (
            {"succeeded": 60, TaskStatus.FAILED: timedelta(hours=1)},
            (RetentionRule(60, status=TaskStatus.SUCCEEDED), RetentionRule(3600, status=TaskStatus.FAILED)),
        ),
        (
            [{"queue": "rpc", "older_than": 300}, {"status": "failed", "older_than": timedelta(days=7)}],
            (RetentionRule(300, queue="rpc"), RetentionRule(604_800, status=TaskStatus.FAILED)),
        ),
        (
            ({"older_than": 1, "queue": "mail", "name": "receipt", "status": "canceled"}, {"older_than": 2}),
            (RetentionRule(1, TaskStatus.CANCELED, "mail", "receipt"), RetentionRule(2)),
        ),
    ],
    ids=str,
)
def test_retention_is_one_age_or_ages_by_status_or_rules(
    raw: Any, rules: tuple[RetentionRule, ...], settings: Any
) -> None:
    settings.CAIRNQ = {"RETENTION": raw}
    assert get_settings().retention == rules


def test_good_settings_have_no_problems() -> None:
    assert problems({}) == []
    assert problems({"QUEUES": ("mail",), "LEASE": 0.06}) == []


@pytest.mark.parametrize(
    ("lease", "chosen", "interval"), [(30, None, 10), (30, 3, 3), (0.09, None, 0.05), (30, 0.001, 0.05)]
)
def test_a_heart_beats_three_times_a_lease_but_never_faster_than_every_50_ms(
    lease: float, chosen: float | None, interval: float
) -> None:
    assert heartbeat_interval(lease, chosen) == interval
