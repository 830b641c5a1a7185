"""OpenTelemetry spans of submits and of handler calls, by its conventions for messaging; none until asked for.

A submit is a `send` span. Its context travels in the task's metadata, under `METADATA_KEY`, and the `process` span of
each call of a handler links to it; where the call is for a single task, it is its parent, too. Needs the extra `otel`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final

try:
    from opentelemetry import context as contexts
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode, Tracer, TracerProvider
except ImportError as error:
    raise ImportError('cairnq_django.tracing needs OpenTelemetry: pip install "cairnq-django[otel]"') from error

from . import __version__
from .errors import Snooze
from .instrumentation import surround

if TYPE_CHECKING:
    from .models import Task

METADATA_KEY: Final = "otel"  # of what the propagators inject, such as {"traceparent": "00-..."}
SYSTEM: Final = "cairnq_django"

_undo: Callable[[], None] | None = None


def instrument(*, tracer_provider: TracerProvider | None = None) -> None:
    """Make spans in this process from now on, with the global tracer provider unless one is given.

    For `AppConfig.ready()`, in the processes that submit and in the workers. What is instrumented stays as it is.
    """
    global _undo
    if _undo is None:
        tracing = _Tracing(trace.get_tracer("cairnq_django", __version__, tracer_provider))
        _undo = surround(submits=tracing.send, calls=tracing.process)


def uninstrument() -> None:
    """Make no more spans."""
    global _undo
    if _undo is not None:
        _undo()
        _undo = None


class _Tracing:
    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    @contextmanager
    def send(self, rows: Sequence[Task]) -> Iterator[None]:
        """The span of a submit."""
        first = rows[0]
        given = METADATA_KEY in first.metadata  # by the caller, who wants it kept
        links = _links([first.metadata]) if given else []
        attributes = {**_operation("submit", "send", first), **_number(len(rows), in_batch=len(rows) > 1)}
        kind = SpanKind.CLIENT if given else SpanKind.PRODUCER
        with self._span(f"submit {first.queue}", kind, attributes, links) as span:
            if not given:
                carrier: dict[str, str] = {}
                propagate.inject(carrier)
                metadata = {**first.metadata, METADATA_KEY: carrier}
                for row in rows if carrier else ():
                    row.metadata = metadata
            yield
            # One that gave way to its key's current task never was.
            if len(rows) == 1 and not first._state.adding:
                span.set_attribute("messaging.message.id", str(first.pk))

    @contextmanager
    def process(self, tasks: Sequence[Any], in_batch: bool) -> Iterator[None]:
        """The span of a handler's call."""
        first = tasks[0]
        attributes = {
            **_operation("process", "process", first),
            **_number(len(tasks), in_batch=in_batch),
            "messaging.client.id": first.worker_id,
        }
        name = f"process {first.queue}"
        if any(task.queue != first.queue for task in tasks):
            name = "process"
            del attributes["messaging.destination.name"]
        if not in_batch:
            attributes["messaging.message.id"] = str(first.task_id)
            attributes["messaging.cairnq_django.message.delivery_attempt"] = first.attempt
        ids = [str(task.task_id) for task in tasks] if in_batch else None
        links = _links([task.metadata for task in tasks], ids)
        below = _below_its_submit(first.metadata) if not in_batch else nullcontext()
        with below, self._span(name, SpanKind.CONSUMER, attributes, links) as span:
            yield
            for task in tasks:
                _note_failure(span, task)

    @contextmanager
    def _span(self, name: str, kind: SpanKind, attributes: dict[str, Any], links: Sequence[Link]) -> Iterator[Span]:
        with self._tracer.start_as_current_span(
            name, kind=kind, attributes=attributes, links=links, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield span
            except Snooze:
                # Not an error: the task is to run again later.
                raise
            except BaseException as exception:
                span.record_exception(exception)
                _fail(span, _type_of(exception), f"{type(exception).__name__}: {exception}")
                raise


@contextmanager
def _below_its_submit(metadata: Mapping[str, Any]) -> Iterator[None]:
    """Continue what the task was submitted in, its baggage included, unless a span is open here."""
    if trace.get_current_span().get_span_context().is_valid:
        yield
        return
    token = contexts.attach(propagate.extract(_carrier(metadata)))
    try:
        yield
    finally:
        contexts.detach(token)


def _operation(name: str, kind: str, task: Any) -> dict[str, Any]:
    attributes = {
        "messaging.system": SYSTEM,
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        "messaging.destination.name": task.queue,
        "messaging.cairnq_django.task.name": task.name,
    }
    if task.correlation_id is not None:
        attributes["messaging.message.conversation_id"] = task.correlation_id
    return attributes


def _number(tasks: int, *, in_batch: bool) -> dict[str, int]:
    return {"messaging.batch.message_count": tasks} if in_batch else {}


def _links(metadata: Sequence[Mapping[str, Any]], ids: Sequence[str] | None = None) -> list[Link]:
    """One to each span that submitted one of these, with the message's id where there are several."""
    links = []
    for index, each in enumerate(metadata):
        creation = _creation_of(each)
        if creation.is_valid:
            links.append(Link(creation, {"messaging.message.id": ids[index]} if ids is not None else None))
    return links


def _creation_of(metadata: Mapping[str, Any]) -> SpanContext:
    return trace.get_current_span(propagate.extract(_carrier(metadata), Context())).get_span_context()


def _carrier(metadata: Mapping[str, Any]) -> dict[str, str]:
    carrier = metadata.get(METADATA_KEY)
    if not isinstance(carrier, Mapping):
        return {}
    return {key: value for key, value in carrier.items() if isinstance(value, str)}


def _note_failure(span: Span, task: Any) -> None:
    """The handler has returned, but the attempt has failed, or is no longer its own."""
    if task.lost_lease:
        _fail(span, "lease_lost", "The task was no longer this attempt's when its handler ended")
    elif task.error is not None:
        _fail(span, task.error["code"], task.error["message"])


def _fail(span: Span, kind: str, description: str) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(StatusCode.ERROR, description)


def _type_of(exception: BaseException) -> str:
    kind = type(exception)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
