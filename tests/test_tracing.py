"""OpenTelemetry spans: a submit's, and those of the calls that a worker makes for it, in any process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from cairnq_django import (
    AlreadyExists,
    AsyncTaskContext,
    Registry,
    Snooze,
    TaskContext,
    TaskError,
    cancel,
    get,
    submit,
    submit_many,
    tracing,
)
from tests.helpers import eventually, output_of
from tests.workers import quick, run, runs_workers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.trace import ReadableSpan

pytestmark = runs_workers


class Spans(InMemorySpanExporter):
    def of(self, operation: str) -> list[ReadableSpan]:
        return [span for span in self.get_finished_spans() if _said(span).get("messaging.operation.type") == operation]

    def only(self, operation: str) -> ReadableSpan:
        (span,) = self.of(operation)
        return span


def _linked(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def _said(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def current_span() -> str:
    return str(trace.get_current_span().get_span_context().span_id)


@pytest.fixture
def provider() -> TracerProvider:
    return TracerProvider()


@pytest.fixture
def spans(provider: TracerProvider) -> Iterator[Spans]:
    exporter = Spans()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.instrument(tracer_provider=provider)
    yield exporter
    tracing.uninstrument()


@pytest.fixture
def registry() -> Registry:
    registry = Registry()

    @registry.task
    def work(ctx: TaskContext, payload: Any) -> Any:
        if payload == "raise":
            raise ValueError("boom")
        if payload == "raise ours":
            raise TaskError("declined", retryable=False)
        if payload == "fail":
            ctx.fail("declined", code="declined", retryable=False)
        if payload == "snooze":
            raise Snooze(0)
        return {"span": current_span(), "baggage": baggage.get_baggage("user")}

    @registry.task
    async def work_async(ctx: AsyncTaskContext, payload: Any) -> Any:
        await asyncio.sleep(0)
        return {"span": current_span()}

    @registry.task
    def parent(ctx: TaskContext, payload: Any) -> None:
        ctx.submit("work")

    @registry.task(batch=10)
    def together(items: list[TaskContext]) -> None:
        items[0].fail("declined", code="declined", retryable=False)

    return registry


@pytest.mark.parametrize("name", ["work", "work_async"])
def test_a_call_is_a_span_below_its_submit_and_linked_to_it(
    registry: Registry, spans: Spans, provider: TracerProvider, name: str
) -> None:
    with provider.get_tracer("shop").start_as_current_span("checkout") as checkout:
        task = submit(name, queue="mail", correlation_id="order:7")
    run(registry, queues=["mail"])
    send, process = spans.only("send"), spans.only("process")

    assert (send.name, send.kind, send.parent) == ("submit mail", SpanKind.PRODUCER, checkout.get_span_context())
    assert _said(send) == {
        "messaging.system": "cairnq_django",
        "messaging.operation.name": "submit",
        "messaging.operation.type": "send",
        "messaging.destination.name": "mail",
        "messaging.message.id": str(task.pk),
        "messaging.message.conversation_id": "order:7",
        "messaging.cairnq_django.task.name": name,
    }
    assert (process.name, process.kind) == ("process mail", SpanKind.CONSUMER)
    assert process.parent is not None
    assert process.parent.span_id == send.context.span_id
    assert _linked(process) == [send.context.span_id]
    assert process.context.trace_id == checkout.get_span_context().trace_id
    assert _said(process) == {
        **_said(send),
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.client.id": get(task.pk).worker_id,
        "messaging.cairnq_django.message.delivery_attempt": 1,
    }
    assert process.status.status_code == StatusCode.UNSET
    # It was the current one while the handler ran.
    assert get(task.pk).result["span"] == str(process.context.span_id)


def test_the_trace_goes_on_in_another_process(spans: Spans, subprocess_env: dict[str, str]) -> None:
    task = submit("work")
    told = output_of(
        subprocess_env,
        """
        import django
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import SimpleSpanProcessor
        from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

        exporter = InMemorySpanExporter()
        trace.set_tracer_provider(TracerProvider())
        trace.get_tracer_provider().add_span_processor(SimpleSpanProcessor(exporter))
        django.setup()
        from cairnq_django import Registry, Worker, tracing

        tracing.instrument()
        registry = Registry()
        registry.task("work")(lambda ctx, payload: None)
        Worker(registry=registry).run(burst=True)
        for span in exporter.get_finished_spans():
            print(span.name, span.context.trace_id, span.parent.span_id, span.attributes["messaging.message.id"])
        """,
    )
    sent = spans.only("send").context
    assert told == f"process default {sent.trace_id} {sent.span_id} {task.pk}"


def test_the_context_travels_in_the_metadata_beside_what_the_caller_put_there(registry: Registry, spans: Spans) -> None:
    token = context.attach(baggage.set_baggage("user", "ada"))
    try:
        task = submit("work", metadata={"by": "me"})
    finally:
        context.detach(token)
    assert get(task.pk).metadata["by"] == "me"
    assert set(get(task.pk).metadata[tracing.METADATA_KEY]) >= {"traceparent"}
    run(registry)
    assert get(task.pk).result["baggage"] == "ada"


def test_each_attempt_is_a_span_that_says_what_it_raised(registry: Registry, spans: Spans) -> None:
    submit("work", "raise", max_attempts=2)
    run(registry)
    first, second = spans.of("process")
    assert [_said(span)["messaging.cairnq_django.message.delivery_attempt"] for span in (first, second)] == [1, 2]
    for span in (first, second):
        assert span.status.status_code == StatusCode.ERROR
        assert span.status.description == "ValueError: boom"
        assert _said(span)["error.type"] == "ValueError"
        assert [event.name for event in span.events] == ["exception"]
        assert _linked(span) == [spans.only("send").context.span_id]


@pytest.mark.parametrize(
    ("payload", "error"),
    [("raise ours", "cairnq_django.errors.TaskError"), ("fail", "declined")],
)
def test_a_failure_on_purpose_is_an_error_too(registry: Registry, spans: Spans, payload: str, error: str) -> None:
    submit("work", payload)
    run(registry)
    process = spans.only("process")
    assert (process.status.status_code, _said(process)["error.type"]) == (StatusCode.ERROR, error)


def test_a_snooze_is_no_error(registry: Registry, spans: Spans) -> None:
    task = submit("work", "snooze")
    with quick(registry).background():
        eventually(lambda: spans.of("process"))
        cancel(task.pk)
    assert spans.of("process")[0].status.status_code == StatusCode.UNSET


def test_what_a_handler_submits_belongs_to_its_span(registry: Registry, spans: Spans) -> None:
    submit("parent")
    run(registry)
    by_name = {_said(span)["messaging.cairnq_django.task.name"]: span for span in spans.of("process")}
    outer, inner = by_name["parent"], by_name["work"]
    child = next(span for span in spans.of("send") if span.parent)
    assert child.parent is not None
    assert child.parent.span_id == outer.context.span_id
    assert _linked(inner) == [child.context.span_id]


def test_many_are_one_span_and_a_batch_links_to_each_of_its_submits(registry: Registry, spans: Spans) -> None:
    many = submit_many("together", range(2))
    one = submit("together")
    run(registry)
    sent_many, sent_one = spans.of("send")
    assert _said(sent_many)["messaging.batch.message_count"] == 2
    assert "messaging.message.id" not in _said(sent_many)
    process = spans.only("process")
    assert _said(process)["messaging.batch.message_count"] == 3
    assert "messaging.message.id" not in _said(process)
    assert process.parent is None
    assert _linked(process) == [each.context.span_id for each in (sent_many, sent_many, sent_one)]
    assert [dict(link.attributes or {}) for link in process.links] == [
        {"messaging.message.id": str(task.pk)} for task in (*many, one)
    ]
    assert (process.status.status_code, process.status.description) == (StatusCode.ERROR, "declined")


def test_a_submit_that_gave_way_names_no_message_and_one_that_raised_is_an_error(spans: Spans) -> None:
    submit("work", key="k")
    submit("work", key="k")
    with pytest.raises(AlreadyExists):
        submit("work", key="k", conflict="reject")
    new, reused, rejected = spans.of("send")
    assert "messaging.message.id" in _said(new)
    assert "messaging.message.id" not in _said(reused)
    assert (rejected.status.status_code, _said(rejected)["error.type"]) == (
        StatusCode.ERROR,
        "cairnq_django.errors.AlreadyExists",
    )


def test_a_context_that_the_caller_gives_is_kept(registry: Registry, spans: Spans) -> None:
    theirs = {"traceparent": f"00-{7:032x}-{8:016x}-01"}
    task = submit("work", metadata={tracing.METADATA_KEY: theirs})
    run(registry)
    assert get(task.pk).metadata[tracing.METADATA_KEY] == theirs
    send, process = spans.only("send"), spans.only("process")
    assert (send.kind, send.links[0].context.span_id) == (SpanKind.CLIENT, 8)
    assert process.context.trace_id == 7


def test_instrumenting_twice_makes_no_span_twice_and_none_are_made_afterwards(
    registry: Registry, spans: Spans, provider: TracerProvider
) -> None:
    tracing.instrument(tracer_provider=provider)
    submit("work")
    run(registry)
    assert len(spans.get_finished_spans()) == 2
    tracing.uninstrument()
    task = submit("work")
    run(registry)
    assert len(spans.get_finished_spans()) == 2
    assert get(task.pk).metadata == {}


@pytest.mark.parametrize(
    "metadata", [{"otel": "nonsense"}, {"otel": {"traceparent": 7}}, {"otel": {"traceparent": "?"}}]
)
def test_metadata_that_holds_no_context_is_run_all_the_same(
    registry: Registry, spans: Spans, metadata: dict[str, Any]
) -> None:
    task = submit("work", metadata=metadata)
    run(registry)
    assert get(task.pk).succeeded
    assert spans.only("process").parent is None
