from __future__ import annotations

import time
import uuid
from datetime import datetime, timezone

import pytest

from cairnq_django.ids import first_id_at, new_task_id
from cairnq_django.models import Task
from tests.factories import new_task
from tests.helpers import in_threads


def moment(task_id: uuid.UUID) -> float:
    """The time in an id, in seconds."""
    return (task_id.int >> 80) / 1000


def test_an_id_is_a_uuid_of_version_7() -> None:
    task_id = new_task_id()
    assert (task_id.version, task_id.variant) == (7, uuid.RFC_4122)


def test_an_id_holds_the_time_it_was_made_at() -> None:
    before = time.time() - 0.001
    task_id = new_task_id()
    # Those made within one millisecond before may have pushed it ahead a little.
    assert before <= moment(task_id) <= time.time() + 0.1


def test_ids_sort_by_the_order_they_were_made_in() -> None:
    ids = [new_task_id() for _ in range(20_000)]
    assert ids == sorted(ids)
    assert [str(task_id) for task_id in ids] == sorted(map(str, ids))
    assert len(set(ids)) == len(ids)
    assert {(task_id.version, task_id.variant) for task_id in ids} == {(7, uuid.RFC_4122)}


def test_ids_of_many_threads_are_unique_and_in_order_for_each() -> None:
    made = in_threads(8, lambda n: [new_task_id() for _ in range(2_000)])
    assert all(ids == sorted(ids) for ids in made)
    assert len({task_id for ids in made for task_id in ids}) == 16_000


def test_ids_go_on_in_order_when_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = new_task_id()
    monkeypatch.setattr(time, "time_ns", lambda: 1_000_000_000 * 86_400)
    after = [new_task_id() for _ in range(1_000)]
    assert [before, *after] == sorted([before, *after])


def test_the_first_id_of_a_moment_comes_after_those_before_it_and_before_those_after() -> None:
    before = new_task_id()
    time.sleep(0.002)
    now = datetime.now(timezone.utc)
    time.sleep(0.002)
    assert before < first_id_at(now) < new_task_id()
    assert (first_id_at(now).version, first_id_at(now).variant) == (7, uuid.RFC_4122)
    assert first_id_at(datetime(1969, 1, 1, tzinfo=timezone.utc)) < before


def test_ids_cannot_be_guessed_from_their_neighbours() -> None:
    tails = [new_task_id().int & (2**48 - 1) for _ in range(1_000)]
    assert len(set(tails)) == len(tails)
    ones = [sum(tail >> bit & 1 for tail in tails) for bit in range(48)]
    assert all(350 < count < 650 for count in ones)


@pytest.mark.django_db
def test_the_database_sorts_ids_as_they_were_made() -> None:
    tasks = [new_task() for _ in range(300)]
    Task.objects.bulk_create(reversed(tasks))
    assert list(Task.objects.order_by("id")) == tasks
