from __future__ import annotations

import copy
import pickle
from datetime import timedelta
from uuid import UUID

import pytest
from django.db.models import TextChoices
from django.utils import timezone
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy

from cairnq_django import errors
from cairnq_django.envelopes import expired
from cairnq_django.errors import (
    AlreadyExists,
    CairnQError,
    LostLease,
    QueueFull,
    SerializationError,
    Snooze,
    TaskCanceled,
    TaskError,
    TaskFailed,
    TaskTimeout,
)
from cairnq_django.models import Task

TASK_ID = UUID("01990000-0000-7000-8000-000000000001")
ENVELOPE = {
    "type": "shop.OutOfStock",
    "code": "out_of_stock",
    "message": "None left",
    "retryable": False,
    "details": {"sku": "A1"},
}


def a_task(**fields: object) -> Task:
    return Task(
        **{
            "id": TASK_ID,
            "name": "send_receipt",
            "queue": "mail",
            "run_at": timezone.now(),
            "expires_at": None,
            **fields,
        }
    )


def every_error() -> list[CairnQError]:
    return [
        CairnQError("anything"),
        TaskError("No luck", code="luck", retryable=False, details={"dice": [1, 2]}),
        Snooze(timedelta(minutes=1)),
        TaskFailed(a_task(status="failed", attempt=3, error=ENVELOPE)),
        TaskCanceled(a_task(status="canceled")),
        TaskTimeout(a_task(), 5),
        AlreadyExists("receipt:7", a_task()),
        QueueFull("mail", 80, 2.5, limit=100, tasks=30, in_transaction=True),
        LostLease(TASK_ID, 2),
        SerializationError("payload.price", "Decimal is not a JSON type"),
    ]


def name_of(error: CairnQError) -> str:
    return type(error).__name__


def test_every_public_error_is_a_cairnq_error_and_is_covered_here() -> None:
    public = {
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, Exception) and kind.__module__ == errors.__name__
    }
    assert public == {type(error) for error in every_error()}
    assert all(issubclass(kind, CairnQError) for kind in public)


@pytest.mark.parametrize("error", every_error(), ids=name_of)
def test_an_error_survives_pickling_with_all_it_says(error: CairnQError) -> None:
    restored = pickle.loads(pickle.dumps(error))
    assert type(restored) is type(error)
    assert str(restored) == str(error) != ""
    assert vars(restored) == vars(error)


@pytest.mark.parametrize("error", every_error(), ids=name_of)
def test_an_error_can_be_copied(error: CairnQError) -> None:
    assert vars(copy.copy(error)) == vars(error)


def test_a_subclass_with_a_constructor_of_its_own_survives_pickling() -> None:
    restored = pickle.loads(pickle.dumps(OutOfStock("A1", 3)))
    assert (str(restored), restored.code, restored.sku, restored.left) == ("3 of A1 left", "out_of_stock", "A1", 3)


class OutOfStock(TaskError):
    def __init__(self, sku: str, left: int) -> None:
        super().__init__(f"{left} of {sku} left", code="out_of_stock", retryable=False)
        self.sku = sku
        self.left = left


class TestTaskError:
    def test_is_retryable_unless_said_otherwise(self) -> None:
        error = TaskError("No luck")
        assert (error.message, error.code, error.retryable, error.details) == ("No luck", "task_error", True, None)
        assert str(error) == "No luck"

    def test_takes_a_lazy_translation_as_its_message(self) -> None:
        error = TaskError(gettext_lazy("No luck"))
        assert (type(error.message), error.message) == (str, "No luck")

    def test_keeps_plain_strings_of_safe_strings_and_enums(self) -> None:
        class Code(TextChoices):
            GONE = "gone", "Gone"

        error = TaskError(mark_safe("<b>"), code=Code.GONE)
        assert (type(error.message), error.message) == (str, "<b>")
        assert (type(error.code), error.code) == (str, "gone")

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"message": 5}, "message must be a string (convert it with str()), got int"),
            ({"message": None}, "message must be a string (convert it with str()), got NoneType"),
            ({"message": "", "code": 404}, "code must be a string, got int"),
            ({"message": "", "retryable": "no"}, "retryable must be True or False, got str"),
            ({"message": "", "retryable": None}, "retryable must be True or False, got NoneType"),
        ],
    )
    def test_names_the_argument_of_a_wrong_type(self, arguments: dict[str, object], message: str) -> None:
        with pytest.raises(TypeError) as raised:
            TaskError(**arguments)  # type: ignore[arg-type]
        assert str(raised.value) == message

    def test_needs_a_code(self) -> None:
        with pytest.raises(ValueError, match="code must not be empty"):
            TaskError("No luck", code="")


def test_task_failed_says_what_the_envelope_says() -> None:
    task = a_task(status="failed", attempt=3, max_attempts=5, error=ENVELOPE)
    error = TaskFailed(task)
    assert (error.task, error.task_id, error.error) == (task, TASK_ID, ENVELOPE)
    assert (error.type, error.code, error.message) == ("shop.OutOfStock", "out_of_stock", "None left")
    assert (error.retryable, error.details) == (False, {"sku": "A1"})
    assert str(error) == (
        f"Task {TASK_ID} (send_receipt) failed in attempt 3 of 5: shop.OutOfStock [out_of_stock] None left"
    )


def test_task_failed_copes_with_a_row_without_an_envelope() -> None:
    error = TaskFailed(a_task(status="failed"))
    assert (error.code, error.message, error.retryable, error.details) == ("", "", False, None)


def test_task_canceled_says_that_the_task_expired_if_it_did() -> None:
    canceled = TaskCanceled(a_task(status="canceled"))
    assert (str(canceled), canceled.error) == (f"Task {TASK_ID} (send_receipt) was canceled", None)
    envelope = expired(timezone.now())
    error = TaskCanceled(a_task(status="canceled", error=envelope))
    assert (error.task_id, error.error) == (TASK_ID, envelope)
    assert str(error) == f"Task {TASK_ID} (send_receipt) was canceled: {envelope['message']}"


def test_already_exists_names_the_key_and_the_task_that_has_it() -> None:
    task = a_task(status="running")
    error = AlreadyExists("receipt:7", task)
    assert (error.key, error.task) == ("receipt:7", task)
    assert str(error) == f"Key 'receipt:7' already has a live task: {TASK_ID} (send_receipt, running)"


def test_queue_full_names_the_queue_its_depth_and_the_wait() -> None:
    assert str(QueueFull("mail", 100, 2.5)) == "Queue 'mail' is full: it still held 100 tasks after waiting 2.5 s"


def test_queue_full_of_many_tasks_says_how_many_had_no_room() -> None:
    error = QueueFull("mail", 80, 2.5049, limit=100, tasks=30)
    assert (error.queue, error.depth, error.waited, error.limit, error.tasks) == ("mail", 80, 2.5049, 100, 30)
    assert str(error) == "Queue 'mail' has no room for 30 tasks: it still held 80 of at most 100 after waiting 2.5 s"


def test_queue_full_in_a_transaction_says_why_it_did_not_wait_and_what_to_do() -> None:
    error = QueueFull("mail", 100, 0, in_transaction=True)
    assert (error.limit, error.in_transaction) == (100, True)
    assert str(error) == (
        "Queue 'mail' is full: it holds 100 tasks. In the open transaction submit() does not wait for room: its locks "
        "might be what keeps others from making any. Submit outside of the atomic block, for example with "
        "submit_on_commit(), or allow more with max_queue_depth"
    )


def test_a_serialization_error_is_a_type_error_with_a_path() -> None:
    error = SerializationError("payload.price", "not JSON")
    assert isinstance(error, TypeError)
    assert (error.path, str(error)) == ("payload.price", "payload.price: not JSON")


class TestTaskTimeout:
    def test_is_a_builtin_timeout_error_too(self) -> None:
        task = a_task()
        error = TaskTimeout(task, 5)
        assert isinstance(error, TimeoutError)
        assert (error.task, error.task_id, error.timeout) == (task, TASK_ID, 5)

    def test_says_that_the_task_expired_and_nobody_ended_it(self) -> None:
        task = a_task(attempt=0, expires_at=timezone.now() - timedelta(seconds=3))
        assert "is still queued after 5 s: it expired at" in str(TaskTimeout(task, 5))

    def test_says_that_no_worker_claimed_the_task(self) -> None:
        assert str(TaskTimeout(a_task(attempt=0, max_attempts=3), 5)) == (
            f"Task {TASK_ID} (send_receipt) is still queued after 5 s: no worker claimed it "
            "(queue 'mail', attempt 0 of 3); is a worker running that serves this queue and has a handler of this name?"
        )

    def test_says_that_no_worker_claimed_the_retry(self) -> None:
        assert "no worker claimed its retry (queue 'mail', attempt 1 of 3)" in str(TaskTimeout(a_task(attempt=1), 5))

    def test_says_when_a_delayed_task_is_due(self) -> None:
        due = timezone.now() + timedelta(days=1)
        assert f"after 0.5 s: delayed, due at {due.isoformat()}" in str(TaskTimeout(a_task(run_at=due), 0.5))

    def test_says_when_the_retry_is_due(self) -> None:
        due = timezone.now() + timedelta(days=1)
        message = str(TaskTimeout(a_task(run_at=due, attempt=1), 5))
        assert f"waiting for its retry, due at {due.isoformat()} (queue 'mail', attempt 1 of 3)" in message

    def test_says_which_worker_still_runs_the_task(self) -> None:
        task = a_task(status="running", attempt=2, worker_id="web1:77")
        assert str(TaskTimeout(task, 5)) == (
            f"Task {TASK_ID} (send_receipt) is still running after 5 s (attempt 2 of 3, worker web1:77)"
        )

    def test_says_that_the_worker_has_not_obeyed_a_cancel_yet(self) -> None:
        task = a_task(status="running", attempt=1, worker_id="w", cancel_requested_at=timezone.now())
        assert str(TaskTimeout(task, 5)).endswith("(attempt 1 of 3, worker w, cancel requested)")

    def test_says_that_the_task_ended_at_the_last_moment(self) -> None:
        message = str(TaskTimeout(a_task(status="succeeded"), 5))
        assert message.endswith("had not ended after 5 s; it has now: succeeded")
