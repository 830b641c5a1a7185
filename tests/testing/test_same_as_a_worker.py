"""What the helpers for tests make of a task is what a worker makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.db import transaction

from cairnq_django.testing import immediate, run_pending
from tests.testing import outcomes
from tests.workers import run, runs_workers

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def signals() -> Iterator[dict[str, list[str]]]:
    with outcomes.signals() as heard:
        yield heard


@runs_workers
def test_a_worker_ends_tasks_like_this(signals: dict[str, list[str]]) -> None:
    outcomes.submit_one_of_each()

    run(outcomes.registry, queues=["default", "batches"], concurrency=4)

    they_ended_as_expected(signals)


@pytest.mark.django_db
def test_run_pending_ends_them_alike_in_the_transaction_of_a_test(signals: dict[str, list[str]]) -> None:
    outcomes.submit_one_of_each()

    run_pending(registry=outcomes.registry, fail_silently=True)

    they_ended_as_expected(signals)


@runs_workers
def test_run_pending_ends_them_alike_where_all_is_committed(signals: dict[str, list[str]]) -> None:
    outcomes.submit_one_of_each()

    run_pending(registry=outcomes.registry, fail_silently=True)

    they_ended_as_expected(signals)


@pytest.mark.django_db
def test_immediate_ends_them_alike_in_the_transaction_of_a_test(signals: dict[str, list[str]]) -> None:
    with immediate(registry=outcomes.registry, fail_silently=True):
        outcomes.submit_one_of_each()

    they_ended_as_expected(signals)


@runs_workers
def test_immediate_ends_them_alike_where_all_is_committed(signals: dict[str, list[str]]) -> None:
    with immediate(registry=outcomes.registry, fail_silently=True):
        outcomes.submit_one_of_each()

    they_ended_as_expected(signals)


@runs_workers
def test_immediate_ends_them_alike_in_a_transaction_of_the_code_under_test(signals: dict[str, list[str]]) -> None:
    with immediate(registry=outcomes.registry, fail_silently=True), transaction.atomic():
        outcomes.submit_one_of_each()

    they_ended_as_expected(signals)


def they_ended_as_expected(signals: dict[str, list[str]]) -> None:
    assert outcomes.ends() == outcomes.ENDS
    assert outcomes.counts() == outcomes.COUNTS
    assert outcomes.progress() == outcomes.PROGRESS
    assert outcomes.is_put_off("snoozes")
    assert signals == outcomes.SIGNALS
