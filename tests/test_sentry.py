"""Sentry gets one event for each failed attempt, with nothing set up but the SDK itself."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest
import sentry_sdk
from sentry_sdk.integrations.dedupe import DedupeIntegration
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.integrations.threading import ThreadingIntegration
from sentry_sdk.transport import Transport

from cairnq_django import AsyncTaskContext, Registry, Snooze, TaskContext, TaskError, cancel, retry, submit, submit_many
from cairnq_django.sentry import report_failures
from tests.factories import TaskFactory
from tests.helpers import eventually, output_of
from tests.workers import ended, handlers_wait_for, quick, run, runs_workers, wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sentry_sdk.envelope import Envelope

pytestmark = runs_workers

Event = dict[str, Any]
DSN = "https://public@sentry.invalid/1"


class Kept(Transport):
    """Sends nothing, and keeps the events."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        event = envelope.get_event()
        if event is not None:
            self.events.append(dict(event))


class Defiant(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("no")


@pytest.fixture
def events() -> Iterator[list[Event]]:
    """What Sentry gets from workers that find it set up."""
    kept = Kept()
    # The others patch Django and the standard library for as long as this process lives.
    integrations = [LoggingIntegration(), DedupeIntegration(), ThreadingIntegration()]
    sentry_sdk.init(dsn=DSN, transport=kept, default_integrations=False, integrations=integrations)
    yield kept.events
    report_failures()()
    sentry_sdk.get_client().close()
    sentry_sdk.get_global_scope().set_client(None)


@pytest.fixture
def registry(go: threading.Event) -> Registry:
    registry = Registry()
    logger = logging.getLogger("shop")

    @registry.task
    def work(ctx: TaskContext, payload: Any) -> Any:
        sentry_sdk.add_breadcrumb(message=f"working on {payload}")
        if payload == "log":
            try:
                raise ValueError("boom")
            except ValueError:
                logger.exception("Not again")
                raise
        if payload == "capture":
            error = ValueError("boom")
            sentry_sdk.capture_exception(error)
            raise error
        if payload == "ours":
            raise TaskError("declined", code="declined", retryable=False)
        if payload == "fail":
            ctx.fail("declined", code="declined", retryable=False)
            return None
        if payload == "snooze":
            raise Snooze(60)
        if payload == "wait":
            wait_for(go)
        if payload == "message":
            sentry_sdk.capture_message("look at this")
            return None
        if payload == "defy":
            raise Defiant
        raise ValueError("boom")

    @registry.task
    async def work_async(ctx: AsyncTaskContext, payload: Any) -> None:
        raise ValueError("boom")

    @registry.task(batch=10)
    def together(items: list[TaskContext]) -> None:
        raise ValueError("boom")

    return registry


def tags(event: Event) -> dict[str, Any]:
    return dict(event["tags"])


def raised(event: Event) -> tuple[str, str]:
    last = event["exception"]["values"][-1]
    return last["type"], last["value"]


@pytest.mark.parametrize("name", ["work", "work_async"])
def test_each_failed_attempt_is_one_event_that_says_which_it_was(
    registry: Registry, events: list[Event], name: str
) -> None:
    task = submit(name, "raise", queue="mail", max_attempts=3)
    run(registry, queues=["mail"])
    assert [tags(event) for event in events] == [
        {"task_id": str(task.pk), "task_name": name, "queue": "mail", "attempt": number} for number in (1, 2, 3)
    ]
    for event in events:
        assert raised(event) == ("ValueError", "boom")
        assert (event["transaction"], event["level"]) == (name, "error")
        frames = event["exception"]["values"][-1]["stacktrace"]["frames"]
        assert frames[-1]["function"] == name
        assert event["contexts"]["cairnq_django"]["max_attempts"] == 3
    assert [event["contexts"]["cairnq_django"]["retried_in"] is not None for event in events] == [True, True, False]


@pytest.mark.parametrize("payload", ["log", "capture"])
def test_what_the_handler_has_reported_itself_is_not_reported_again(
    registry: Registry, events: list[Event], payload: str
) -> None:
    task = submit("work", payload, max_attempts=2)
    run(registry)
    assert [tags(event)["attempt"] for event in events] == [1, 2]
    assert {tags(event)["task_id"] for event in events} == {str(task.pk)}


@pytest.mark.parametrize(("payload", "error"), [("ours", "TaskError"), ("fail", "cairnq_django.errors.TaskError")])
def test_a_failure_on_purpose_is_an_event_too(
    registry: Registry, events: list[Event], payload: str, error: str
) -> None:
    submit("work", payload)
    run(registry)
    (event,) = events
    assert raised(event) == (error, "declined")
    assert event["contexts"]["cairnq_django"]["error_code"] == "declined"


def test_a_timeout_and_a_worker_that_is_gone_are_events_without_an_exception(
    registry: Registry, events: list[Event], go: threading.Event
) -> None:
    late = submit("work", "wait", max_attempts=1)
    lost = TaskFactory(expired=True, max_attempts=1, name="elsewhere")
    worker = quick(registry, max_run=0.2)
    with worker.background():
        ended(late)
        ended(lost)
        go.set()
        eventually(lambda: len(events) == 2)
    by_task = {tags(event)["task_id"]: event for event in events}
    assert by_task[str(late.pk)]["fingerprint"] == ["work", "handler_timeout"]
    assert by_task[str(lost.pk)]["fingerprint"] == ["elsewhere", "lease_expired"]


def test_an_exception_that_defies_being_looked_at_is_an_event_too(registry: Registry, events: list[Event]) -> None:
    submit("work", "defy", max_attempts=1)
    run(registry)
    (event,) = events
    assert tags(event)["task_name"] == "work"


def test_each_task_of_a_batch_that_raised_is_an_event(registry: Registry, events: list[Event]) -> None:
    tasks = submit_many("together", range(3), max_attempts=1)
    run(registry)
    assert sorted(tags(event)["task_id"] for event in events) == sorted(str(task.pk) for task in tasks)


def test_what_is_no_failed_attempt_is_no_event(registry: Registry, events: list[Event], go: threading.Event) -> None:
    canceled, snoozed = submit("work", "wait"), submit("work", "snooze")
    with quick(registry).background():
        handlers_wait_for(go)
        eventually(lambda: snoozed.refresh().started_at and snoozed.is_queued)
        cancel(canceled.pk)
        # It raises.
        go.set()
        ended(canceled)
    retry(canceled.pk)
    assert events == []


def test_breadcrumbs_and_tags_are_of_the_task_alone(registry: Registry, events: list[Event]) -> None:
    first, _, second = (submit("work", what, max_attempts=1) for what in ("first", "message", "second"))
    run(registry, concurrency=1)
    # This one is sent by the handler, those of failed attempts once they are recorded.
    (message,) = [event for event in events if "message" in event]
    by_task = {tags(event)["task_id"]: event for event in events}
    for event, payload in ((by_task[str(first.pk)], "first"), (by_task[str(second.pk)], "second")):
        crumbs = [
            crumb["message"] for crumb in event["breadcrumbs"]["values"] if crumb["message"].startswith("working")
        ]
        assert crumbs == [f"working on {payload}"]
    assert tags(message)["task_name"] == "work"
    assert message["message"] == "look at this"


FAILING_WORKER = """
    import django

    django.setup()
    from cairnq_django import Registry, Worker, submit

    registry = Registry()

    @registry.task
    def work(ctx, payload):
        raise ValueError("boom")

    submit("work", max_attempts=2)
    Worker(registry=registry, retry_backoff=0).run(burst=True)
"""


def test_neither_sentry_nor_opentelemetry_is_imported_where_the_project_does_not(
    subprocess_env: dict[str, str],
) -> None:
    told = output_of(
        subprocess_env,
        "import sys",
        FAILING_WORKER,
        "print([name for name in ('sentry_sdk', 'opentelemetry') if name in sys.modules])",
    )
    assert told == "[]"


def test_sentry_as_it_comes_gets_one_event_for_each_failed_attempt(subprocess_env: dict[str, str]) -> None:
    told = output_of(
        subprocess_env,
        f"""
        import sentry_sdk
        from sentry_sdk.transport import Transport

        events = []

        class Kept(Transport):
            def capture_envelope(self, envelope):
                events.extend(item for item in [envelope.get_event()] if item)

        sentry_sdk.init({DSN!r}, transport=Kept(), traces_sample_rate=1.0)
        """,
        FAILING_WORKER,
        "print([(event['tags']['task_name'], event['tags']['attempt']) for event in events])",
    )
    assert told == "[('work', 1), ('work', 2)]"


def test_what_is_buffered_is_sent_before_a_process_is_left_that_handlers_would_hold_up(
    subprocess_env: dict[str, str],
) -> None:
    told = output_of(
        subprocess_env,
        f"""
        import threading
        import django
        import sentry_sdk
        from django.core.management import call_command
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from sentry_sdk.transport import Transport

        class Buffered(Transport):
            def capture_envelope(self, envelope):
                pass

            def flush(self, timeout, callback=None):
                print("events")

        class Spans(TracerProvider):
            def force_flush(self, timeout_millis=0):
                print("spans")
                return True

        sentry_sdk.init({DSN!r}, transport=Buffered())
        trace.set_tracer_provider(Spans())
        django.setup()
        from cairnq_django import submit, task

        @task
        def hang(ctx, payload):
            threading.Event().wait()

        submit("hang", max_attempts=1)
        call_command("runworker", concurrency=1, max_run=0.2, verbosity=0)
        """,
        status=1,
    )
    assert told.splitlines()[-2:] == ["events", "spans"]
