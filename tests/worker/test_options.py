"""What a worker may be told, where the rest comes from, and what is refused."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from cairnq_django import Registry, Worker
from cairnq_django.worker.options import WorkerOptions


def options(queues: Any = None, **given: Any) -> WorkerOptions:
    return Worker(queues, registry=Registry(), **given).options


def test_without_a_word_the_documented_defaults_hold() -> None:
    assert options() == WorkerOptions(
        queues=("default",),
        concurrency=8,
        lease=30,
        heartbeat_interval=10,
        poll_interval=1,
        claim_batch=None,
        resources={},
        max_in_flight_bytes=None,
        retry_backoff=1,
        retry_backoff_max=30,
        max_run=None,
        drain_timeout=None,
    )


ALL = {
    "CONCURRENCY": 3,
    "LEASE": 60,
    "HEARTBEAT_INTERVAL": 5,
    "POLL_INTERVAL": timedelta(seconds=2),
    "CLAIM_BATCH": 2,
    "RESOURCES": {"gpu": 2},
    "MAX_IN_FLIGHT_BYTES": 1000,
    "RETRY_BACKOFF": 0,
    "RETRY_BACKOFF_MAX": 7,
    "MAX_RUN": 100,
    "DRAIN_TIMEOUT": 0,
}


@override_settings(CAIRNQ={**ALL, "QUEUES": ["a", "b"]})
def test_what_is_not_given_comes_from_the_settings() -> None:
    assert options() == WorkerOptions(("a", "b"), 3, 60, 5, 2, 2, {"gpu": 2}, 1000, 0, 7, 100, 0)


@override_settings(CAIRNQ={"QUEUES": ["a"], "CONCURRENCY": 1, "MAX_RUN": 5, "LEASE": 5})
def test_what_is_given_counts_more_than_the_settings() -> None:
    given = {name.lower(): value for name, value in ALL.items()}
    assert (options(max_tasks=5).max_tasks, options(max_memory=10**6).max_memory) == (5, 10**6)
    assert options("b", **given) == WorkerOptions(("b",), 3, 60, 5, 2, 2, {"gpu": 2}, 1000, 0, 7, 100, 0)


@override_settings(CAIRNQ={"RESOURCES": {"gpu": 1, "disk": 3}})
def test_a_resource_that_is_not_given_is_as_the_settings_declare_it() -> None:
    assert options(resources={"gpu": 2, "net": 5}).resources == {"gpu": 2, "disk": 3, "net": 5}


@pytest.mark.parametrize(
    ("resources", "error", "message"),
    [
        ("gpu", TypeError, "resources must be a dict from a resource's name to a number of calls"),
        ({"gpu": -1}, ValueError, "resources['gpu'] must be at least 0, got -1"),
        ({"gpu": 1.5}, TypeError, "resources['gpu'] must be an integer, got float (1.5)"),
        ({"": 1}, ValueError, "the name of a resource in resources must not be empty"),
        ({7: 1}, TypeError, "the name of a resource in resources must be a string, got int (7)"),
    ],
)
def test_resources_that_are_none_are_refused(resources: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as raised:
        options(resources=resources)
    assert str(raised.value).startswith(message)


def test_an_undeclared_resource_is_refused_and_the_declared_ones_are_named() -> None:
    registry = Registry()
    worker = Worker(registry=registry, resources={"disk": 1, "net": 2})

    @registry.task(resource="gpu")
    def render(ctx: Any, payload: Any) -> None: ...

    message = r"Task 'render' draws on the resource 'gpu', .*\(declared: 'disk', 'net'\).*--resource gpu=1"
    with pytest.raises(ValueError, match=message):
        Worker(registry=registry, resources={"disk": 1, "net": 2})
    with pytest.raises(ValueError, match=message):
        worker.run(burst=True)
    with pytest.raises(ValueError, match=r"\(declared: none\)"):
        Worker(registry=registry)


@override_settings(CAIRNQ={"CONCURRENCY": 0})
def test_settings_that_are_wrong_are_refused() -> None:
    with pytest.raises(ImproperlyConfigured, match="CONCURRENCY"):
        options()


def test_a_claim_has_no_limit_of_its_own_unless_told_otherwise() -> None:
    assert options(concurrency=40).claim_batch is None
    assert options(concurrency=40, claim_batch=100).claim_batch == 100


def test_durations_are_seconds_or_timedeltas() -> None:
    assert options(lease=timedelta(minutes=1), max_run=timedelta(milliseconds=500)).lease == 60
    assert options(max_run=timedelta(milliseconds=500)).max_run == 0.5


@pytest.mark.parametrize(("lease", "beat"), [(30, 10), (0.3, 0.1), (0.06, 0.05)])
def test_the_heartbeat_beats_three_times_a_lease_but_not_more_than_20_times_a_second(lease: float, beat: float) -> None:
    assert options(lease=lease).heartbeat_interval == pytest.approx(beat)


@pytest.mark.parametrize(
    ("queues", "taken"),
    [
        ("mail", ("mail",)),
        (["a", "b"], ("a", "b")),
        (("b", "a", "b"), ("b", "a")),
    ],
)
def test_queues_are_one_name_or_several_each_once_in_their_order(queues: Any, taken: tuple[str, ...]) -> None:
    assert options(queues).queues == taken


@pytest.mark.parametrize(
    ("queues", "error", "message"),
    [
        ([], ValueError, "queues must name at least one queue"),
        ("", ValueError, "queues must not be empty"),
        (["a", ""], ValueError, "queues must not be empty"),
        ("x" * 101, ValueError, "queues must have at most 100 characters"),
        ([7], TypeError, "queues must be a string, got int"),
        ([["a"]], TypeError, "queues must be a string, got list"),
        (7, TypeError, "queues must be a queue's name or a list of them, got int"),
    ],
)
def test_queues_that_are_none_are_refused(queues: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        options(queues)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"concurrency": 0}, ValueError, "concurrency must be at least 1, got 0"),
        ({"concurrency": 2.5}, TypeError, "concurrency must be an integer"),
        ({"concurrency": True}, TypeError, "concurrency must be an integer"),
        ({"claim_batch": 0}, ValueError, "claim_batch must be at least 1"),
        ({"lease": 0}, ValueError, "lease must be at least"),
        ({"lease": -1}, ValueError, "lease must be at least"),
        ({"lease": "30"}, TypeError, "lease must be a number of seconds or a timedelta"),
        ({"lease": float("inf")}, ValueError, "lease must be a finite number"),
        ({"lease": 0.05}, ValueError, "lease must be longer than the time between two heartbeats"),
        ({"lease": 5, "heartbeat_interval": 5}, ValueError, "a lease of 5 seconds and a heartbeat every 5"),
        ({"heartbeat_interval": 0}, ValueError, "heartbeat_interval must be at least"),
        ({"poll_interval": 0}, ValueError, "poll_interval must be at least"),
        ({"retry_backoff": -1}, ValueError, "retry_backoff must not be negative"),
        ({"retry_backoff_max": -1}, ValueError, "retry_backoff_max must not be negative"),
        ({"max_run": 0}, ValueError, "max_run must be at least"),
        ({"max_tasks": 0}, ValueError, "max_tasks must be at least 1"),
        ({"max_memory": 1}, ValueError, r"max_memory must be more than the \d+ MiB that the process has now, got 1"),
        ({"max_memory": 1.5}, TypeError, "max_memory must be an integer"),
        ({"drain_timeout": -1}, ValueError, "drain_timeout must not be negative"),
    ],
)
def test_what_is_wrong_is_refused_by_name(given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        options(**given)


def test_an_option_that_does_not_exist_is_refused() -> None:
    with pytest.raises(TypeError, match="concurency"):
        options(concurency=3)
