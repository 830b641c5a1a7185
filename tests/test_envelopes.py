from __future__ import annotations

import asyncio
import builtins
import json
import sys
import traceback
import tracemalloc
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest
from django.utils.translation import gettext_lazy

from cairnq_django import backoff
from cairnq_django.envelopes import (
    DETAILS_LIMIT,
    MESSAGE_LIMIT,
    TRACEBACK_LIMIT,
    Envelope,
    canceled_while_running,
    custom,
    expired,
    from_exception,
    handler_timeout,
    lease_expired,
    unserializable_result,
)
from cairnq_django.errors import SerializationError, TaskError
from cairnq_django.serialization import StrictJSONEncoder, normalize

ExceptionGroup: Any = getattr(builtins, "ExceptionGroup", None)
needs_groups = pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no exception groups")


def raised_by(work: Callable[[], object]) -> BaseException:
    try:
        work()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def throw(error: BaseException) -> None:
    raise error


def envelope_of(error: BaseException, *, max_depth: int = 31) -> Envelope:
    """The envelope, after checking what holds for every envelope."""
    envelope = from_exception(error, max_depth=max_depth)
    assert envelope.keys() == {"type", "code", "message", "retryable", "details"}
    assert all(type(envelope[key]) is str for key in ("type", "code", "message"))
    assert type(envelope["retryable"]) is bool
    assert normalize(envelope, max_depth=max_depth) == envelope
    assert len(envelope["message"]) <= MESSAGE_LIMIT
    assert len(json.dumps(envelope, cls=StrictJSONEncoder)) < 100_000
    return envelope


def traceback_of(error: BaseException) -> str:
    envelope = envelope_of(error)
    assert (envelope["code"], envelope["retryable"]) == ("unexpected_exception", True)
    assert envelope["details"].keys() == {"traceback"}
    text: str = envelope["details"]["traceback"]
    assert len(text) <= TRACEBACK_LIMIT
    return text


class TestUnexpectedExceptions:
    def test_are_retryable_and_keep_their_traceback(self) -> None:
        error = raised_by(lambda: 1 // 0)
        envelope = envelope_of(error)
        assert envelope["type"] == "ZeroDivisionError"
        assert envelope["code"] == "unexpected_exception"
        assert envelope["message"] in str(error)
        assert envelope["retryable"] is True
        assert envelope["details"]["traceback"] == "".join(traceback.format_exception(error))

    def test_are_named_with_their_module_unless_they_are_builtins(self) -> None:
        class Local(Exception):
            pass

        assert envelope_of(KeyError("a"))["type"] == "KeyError"
        assert envelope_of(Local())["type"].startswith(f"{__name__}.TestUnexpectedExceptions.")
        assert envelope_of(Local())["type"].endswith(".<locals>.Local")

    @pytest.mark.parametrize(
        "error",
        [
            ValueError("plain"),
            ValueError(),
            ValueError("two", "arguments"),
            ValueError(["a", ("list",)]),
            KeyError("missing"),
            KeyError("two", "arguments"),
            KeyError(),
            OSError(2, "No such file", "name"),
            UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
            StopIteration(5),
            StopAsyncIteration(),
            SystemExit(3),
            KeyboardInterrupt(),
            GeneratorExit(),
            asyncio.CancelledError("stopped"),
            MemoryError(),
            SyntaxError("bad", ("file.py", 1, 2, "x = ", 1, 3)),
        ],
        ids=repr,
    )
    def test_say_what_str_says(self, error: BaseException) -> None:
        envelope = envelope_of(raised_by(lambda: throw(error)))
        assert (envelope["type"], envelope["message"]) == (traceback_name(error), str(error))

    def test_show_causes_contexts_and_notes_as_python_does(self) -> None:
        def work() -> None:
            try:
                try:
                    throw(ValueError("first"))
                except ValueError:
                    throw(KeyError("second"))
            except KeyError as error:
                third = TypeError("third")
                if sys.version_info >= (3, 11):
                    third.add_note("a note")
                raise third from error

        error = raised_by(work)
        assert traceback_of(error) == "".join(traceback.format_exception(error))

    def test_do_not_show_a_suppressed_context(self) -> None:
        def work() -> None:
            try:
                throw(ValueError("hidden"))
            except ValueError:
                raise KeyError("shown") from None

        assert "hidden" not in traceback_of(raised_by(work))

    @needs_groups
    def test_show_the_members_of_a_group(self) -> None:
        inner = ExceptionGroup("inner", [raised_by(lambda: throw(KeyError("deep")))])
        error = raised_by(lambda: throw(ExceptionGroup("outer", [raised_by(lambda: 1 // 0), inner])))
        text = traceback_of(error)
        assert envelope_of(error)["message"] == "outer (2 sub-exceptions)"
        assert "  ---- exception 1 of 2 ----\n  Traceback" in text
        assert "  ZeroDivisionError" in text
        assert "  ExceptionGroup: inner (1 sub-exception)\n    ---- exception 1 of 1 ----" in text
        assert "    KeyError: 'deep'" in text

    def test_do_not_show_the_frames_of_this_package_above_the_handler(self) -> None:
        namespace = {"__name__": "cairnq_django.worker.call", "handler": lambda: 1 // 0}
        exec("def call(): handler()", namespace)
        error = raised_by(namespace["call"])
        error.__traceback__ = error.__traceback__.tb_next  # type: ignore[union-attr]
        assert error.__traceback__.tb_frame.f_code.co_name == "call"  # type: ignore[union-attr]
        text = traceback_of(error)
        assert "in call" not in text
        assert "1 // 0" in text

    def test_show_the_frames_of_this_package_if_there_are_no_others(self) -> None:
        error = raised_by(lambda: backoff.retry_delay("1", base=1, cap=1))  # type: ignore[arg-type]
        while error.__traceback__.tb_frame.f_code.co_name != "retry_delay":  # type: ignore[union-attr]
            error.__traceback__ = error.__traceback__.tb_next  # type: ignore[union-attr]
        assert "in retry_delay" in traceback_of(error)


def traceback_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


class TestTaskErrors:
    def test_say_themselves_what_goes_into_the_envelope(self) -> None:
        error = TaskError(gettext_lazy("None left"), code="out_of_stock", retryable=False, details={"sku": ("A", 1)})
        assert envelope_of(error) == {
            "type": "cairnq_django.errors.TaskError",
            "code": "out_of_stock",
            "message": "None left",
            "retryable": False,
            "details": {"sku": ["A", 1]},
        }

    def test_are_retryable_without_details_by_default(self) -> None:
        envelope = envelope_of(TaskError("No luck"))
        assert (envelope["code"], envelope["retryable"], envelope["details"]) == ("task_error", True, None)

    def test_may_be_subclassed(self) -> None:
        class OutOfStock(TaskError):
            pass

        assert envelope_of(OutOfStock("None left"))["type"].endswith("OutOfStock")

    def test_are_recorded_even_if_their_constructor_was_not_called(self) -> None:
        class Careless(TaskError):
            def __init__(self) -> None:
                pass

        envelope = envelope_of(Careless())
        assert (envelope["code"], envelope["message"], envelope["retryable"]) == ("task_error", "", True)

    def test_are_recorded_whatever_became_of_their_attributes(self) -> None:
        error = TaskError("No luck", retryable=False)
        error.code = error.retryable = object()  # type: ignore[assignment]
        envelope = envelope_of(error)
        assert (envelope["code"], envelope["message"]) == ("task_error", "No luck")

    @pytest.mark.parametrize(
        ("details", "problem", "shown"),
        [
            ({"when": {1}}, "details.when: set is not a JSON type; convert it with list()", "{'when': {1}}"),
            (b"x" * 1_000_000, "details: bytes is not a JSON type", "b'xxx"),
            (["x" * DETAILS_LIMIT], "details: 65,540 bytes are more than the 65,536 that are kept", "['xxx"),
            ("\ud800", "details: a string with a lone surrogate", r"'\ud800'"),
        ],
        ids=["not JSON", "huge bytes", "too large", "surrogate"],
    )
    def test_with_details_that_cannot_be_stored_say_so(self, details: Any, problem: str, shown: str) -> None:
        envelope = envelope_of(TaskError("No luck", code="c", retryable=False, details=details))
        assert (envelope["code"], envelope["message"], envelope["retryable"]) == ("c", "No luck", False)
        assert envelope["details"]["not_stored"].startswith(problem)
        assert envelope["details"]["repr"].startswith(shown)

    def test_with_details_that_misbehave_keep_the_rest(self) -> None:
        class Trap(dict):  # type: ignore[type-arg]
            def items(self) -> Any:
                raise SystemExit("items")

            def __repr__(self) -> str:
                raise SystemExit("repr")

        envelope = envelope_of(TaskError("No luck", code="c", retryable=False, details=Trap(a=1)))
        assert (envelope["code"], envelope["retryable"]) == ("c", False)
        assert "not_stored" in envelope["details"]

    def test_leave_a_level_for_the_envelope_around_their_details(self) -> None:
        details: Any = "leaf"
        for _ in range(30):
            details = [details]
        assert envelope_of(TaskError("", details=details), max_depth=31)["details"] == details
        assert "30 levels" in envelope_of(TaskError("", details=[details]), max_depth=31)["details"]["not_stored"]


class StrRaises(Exception):
    def __str__(self) -> str:
        raise SystemExit("no message")

    __repr__ = __str__


class StrIsNoString(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]


class SlyString(str):
    def __len__(self) -> int:
        raise ValueError

    def __str__(self) -> str:
        return self


class StrIsSly(Exception):
    def __str__(self) -> str:
        return SlyString("sly")


class Untraceable(Exception):
    @property
    def __traceback__(self) -> Any:
        raise RuntimeError

    @property
    def __cause__(self) -> Any:
        raise RuntimeError

    @property
    def __class__(self) -> Any:
        raise RuntimeError


class EndlessCauses(Exception):
    @property
    def __cause__(self) -> Any:
        return EndlessCauses()


class NamelessMeta(type):
    def __getattribute__(cls, name: str) -> Any:
        if name == "__qualname__":
            raise RuntimeError
        return super().__getattribute__(name)


class Nameless(Exception, metaclass=NamelessMeta):
    pass


class TestRecordingAnErrorNeverFails:
    @pytest.mark.parametrize(
        ("error", "message"),
        [
            (StrRaises(), "(the message cannot be read: str() of the exception failed)"),
            (StrIsNoString(), "(the message cannot be read: str() of the exception failed)"),
            (StrIsSly(), "sly"),
            (Untraceable("odd"), "odd"),
            (EndlessCauses("odd"), "odd"),
            (Nameless("odd"), "odd"),
            (ValueError("a\x00b\ud800c\x1b"), r"a\x00b\ud800c\x1b"),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_whatever_the_exception_does(self, error: BaseException, message: str) -> None:
        envelope = envelope_of(error)
        assert envelope["code"] == "unexpected_exception"
        assert envelope["message"] == message
        assert envelope["details"]["traceback"]

    def test_when_a_cause_leads_back_to_the_error(self) -> None:
        first, second = ValueError("first"), KeyError("second")
        first.__cause__, second.__cause__ = second, first
        text = traceback_of(first)
        assert text.count("ValueError: first") == text.count("KeyError: 'second'") == 1

    @needs_groups
    def test_when_a_group_shares_its_members_exponentially(self) -> None:
        error: Exception = ValueError("leaf")
        for _ in range(100):
            error = ExceptionGroup("twice", [error, error])
        assert "left out)" in traceback_of(error)

    @needs_groups
    def test_when_the_members_of_a_group_are_many(self) -> None:
        text = traceback_of(ExceptionGroup("many", [ValueError(str(number)) for number in range(1_000)]))
        assert "ValueError: 5\n" in text
        assert "to 1000 left out)" in text

    @needs_groups
    def test_when_a_member_comes_twice(self) -> None:
        error = ValueError("twin")
        text = traceback_of(ExceptionGroup("twins", [error, error]))
        assert text.count("ValueError: twin") == 1
        assert "ValueError (shown above)" in text


class TestTracebacksAreBounded:
    def test_a_recursion_error_shows_both_ends(self) -> None:
        def forever(depth: int) -> None:
            other(depth + 1)

        def other(depth: int) -> None:
            forever(depth + 1)

        error = raised_by(lambda: forever(0))
        text = traceback_of(error)
        assert envelope_of(error)["type"] == "RecursionError"
        assert text.startswith("Traceback (most recent call last):\n")
        assert "frames left out]" in text or "characters cut]" in text
        assert text.rstrip().splitlines()[-1].startswith("RecursionError: maximum recursion depth exceeded")

    def test_a_thousand_causes_show_the_last_ones(self) -> None:
        error = ValueError("cause 0")
        for number in range(1, 1_000):
            following = ValueError(f"cause {number}")
            following.__cause__ = error
            error = following
        text = traceback_of(error)
        assert text.startswith("(earlier exceptions left out)\n")
        assert text.endswith("ValueError: cause 999\n")
        assert "cause 990" in text

    @needs_groups
    def test_many_notes_show_the_first_ones(self) -> None:
        error = ValueError("noted")
        for number in range(1_000):
            error.add_note(f"note {number}")
        text = traceback_of(error)
        assert "note 9\n" in text
        assert "note 10\n" not in text

    @pytest.mark.parametrize(
        "make",
        [
            lambda huge: ValueError(huge),
            lambda huge: ValueError(huge, 1),
            lambda huge: ValueError([huge]),
            lambda huge: ValueError({"k": huge.encode()}),
            lambda huge: KeyError(huge),
            lambda huge: KeyError(huge.encode()),
            lambda huge: TaskError(huge),
        ],
        ids=["text", "two arguments", "list", "bytes", "key", "bytes key", "task error"],
    )
    def test_a_huge_message_costs_little(self, make: Callable[[str], Exception]) -> None:
        error = raised_by(lambda: throw(make("x" * 50_000_000)))
        tracemalloc.start()
        try:
            envelope = envelope_of(error)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert "xxx" in envelope["message"]
        assert peak < 5_000_000

    def test_a_long_message_keeps_its_head_and_its_tail(self) -> None:
        message = envelope_of(ValueError("head" + "x" * 10_000 + "tail"))["message"]
        assert message.startswith("headxx")
        assert message.endswith("xxtail")
        assert "characters cut]" in message


class TestWhatTheWorkerRecords:
    def test_a_handler_that_ran_too_long(self) -> None:
        assert handler_timeout(90.0) == {
            "type": "TimeoutError",
            "code": "handler_timeout",
            "message": "The handler ran longer than its limit of 90 s",
            "retryable": True,
            "details": {"max_run": 90.0},
        }

    def test_a_worker_that_went_away(self) -> None:
        envelope = lease_expired("web1:77", 2)
        assert (envelope["code"], envelope["retryable"]) == ("lease_expired", True)
        assert envelope["details"] == {"worker_id": "web1:77", "attempt": 2}
        assert envelope["message"] == (
            "Worker web1:77 stopped renewing the lease of attempt 2. Most likely its process was killed "
            "(out of memory?), it froze, or it lost the connection to the database; on SQLite, something may have held "
            "the write lock for longer than the lease"
        )

    def test_a_result_that_is_not_json(self) -> None:
        with pytest.raises(SerializationError) as raised:
            normalize({"total": {1}}, root="result", max_depth=31)
        assert unserializable_result(raised.value) == {
            "type": "cairnq_django.errors.SerializationError",
            "code": "unserializable_result",
            "message": (
                "The handler's result cannot be stored: result.total: set is not a JSON type; convert it with list()"
            ),
            "retryable": False,
            "details": {"path": "result.total"},
        }

    def test_a_task_canceled_on_the_way(self) -> None:
        envelope = canceled_while_running()
        assert (envelope["code"], envelope["retryable"], envelope["details"]) == ("canceled", False, None)

    def test_a_task_that_was_not_started_in_time(self) -> None:
        assert expired(datetime(2031, 1, 2, 3, 4, 5, tzinfo=timezone.utc)) == {
            "type": "cairnq_django.errors.TaskCanceled",
            "code": "expired",
            "message": "The task expired at 2031-01-02T03:04:05+00:00: no worker had started it by then",
            "retryable": False,
            "details": {"expires_at": "2031-01-02T03:04:05+00:00"},
        }

    def test_a_failure_that_the_handler_reports(self) -> None:
        assert custom("None left", code="out_of_stock", retryable=False, details={"sku": "A"}, max_depth=31) == {
            "type": "cairnq_django.errors.TaskError",
            "code": "out_of_stock",
            "message": "None left",
            "retryable": False,
            "details": {"sku": "A"},
        }

    def test_a_failure_that_the_handler_reports_wrongly_is_its_mistake(self) -> None:
        with pytest.raises(TypeError, match="message must be a string"):
            custom(5, max_depth=31)  # type: ignore[arg-type]
