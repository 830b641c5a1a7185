"""What is done to many tasks at once reaches those who wait for them, and the workers."""

from __future__ import annotations

import pytest

from cairnq_django.bulk import cancel_all, retry_all, run_all_now
from cairnq_django.notify import Channel
from tests.factories import TaskFactory
from tests.notify.postgres import on_postgresql, subscribed

pytestmark = [pytest.mark.django_db(transaction=True), on_postgresql]


def test_who_waits_for_a_task_hears_that_it_was_canceled_with_others() -> None:
    tasks = [TaskFactory() for _ in range(3)]

    with subscribed(str(tasks[1].pk), channel=Channel.ENDED) as waiting:
        cancel_all([task.pk for task in tasks])
        waiting.wait()


def test_workers_hear_of_what_is_queued_again_and_of_what_is_due_now() -> None:
    failed, delayed = TaskFactory(failed=True, queue="mail"), TaskFactory(delayed=True, queue="reports")

    with subscribed("mail") as mail, subscribed("reports") as reports:
        retry_all([failed.pk])
        mail.wait()
        run_all_now([delayed.pk])
        reports.wait()
