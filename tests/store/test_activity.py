"""What workers did is added up by queue, minute and hour, whoever else adds at the same time."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest
from django.db import DEFAULT_DB_ALIAS as DB
from django.db import connection
from django.test.utils import CaptureQueriesContext

from cairnq_django.models import Activity
from cairnq_django.store import activity
from cairnq_django.store.activity import HOUR, MINUTE, Work, add, begin_of_span, by_queue, by_time, read_clock
from tests.helpers import in_threads
from tests.store.sessions import another_transaction, locks_rows

if TYPE_CHECKING:
    from typing import Any

pytestmark = pytest.mark.django_db


def long_ago() -> datetime:
    return read_clock(DB) - timedelta(hours=1)


def minutes(**at_most: Any) -> dict[str, Work]:
    return by_queue(DB, seconds=MINUTE, since=long_ago())


def test_the_clock_is_the_databases() -> None:
    assert abs((read_clock(DB) - datetime.now(timezone.utc)).total_seconds()) < 60


@pytest.mark.parametrize("seconds", [MINUTE, HOUR])
def test_what_is_added_is_in_the_current_minute_and_hour(seconds: int) -> None:
    work = Work(started=5, succeeded=2, failed=1, retried=1, canceled=1, waited=10, longest_wait=4)

    before = begin_of_span(read_clock(DB), seconds)
    add(DB, {"mail": work})
    after = begin_of_span(read_clock(DB), seconds)

    (found,) = by_queue(DB, seconds=seconds, since=before).items()
    assert found == ("mail", Work(5, 2, 1, 1, 1, pytest.approx(10, abs=1), pytest.approx(4, abs=1)))
    (begins_at,) = by_time(DB, seconds=seconds, since=before)
    assert before <= begins_at <= after


def test_more_of_it_adds_up_and_the_longest_wait_stays() -> None:
    add(DB, {"mail": Work(started=1, succeeded=1, waited=30, longest_wait=30)})
    add(DB, {"mail": Work(started=2, failed=2, waited=3, longest_wait=2), "Mail": Work(retried=7)})

    rows = minutes()
    assert list(rows) == ["Mail", "mail"]
    assert rows["Mail"] == Work(retried=7)
    assert rows["mail"] == Work(3, 1, 2, 0, 0, pytest.approx(33, abs=1), pytest.approx(30, abs=1))


def test_all_queues_are_added_up_by_time() -> None:
    add(DB, {"mail": Work(started=1, waited=1, longest_wait=1), "reports": Work(started=2, waited=8, longest_wait=6)})

    (work,) = by_time(DB, seconds=HOUR, since=long_ago() - timedelta(hours=1)).values()
    assert (work.started, round(work.waited), round(work.longest_wait)) == (3, 9, 6)


def test_a_host_whose_clock_is_an_hour_behind_or_ahead_measures_the_same_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    for off in (-3_600, 3_600):
        now = time.time
        monkeypatch.setattr(activity.time, "time", lambda now=now, off=off: now() + off)
        add(DB, {f"{off}": Work(started=2, waited=2 * (off + 7), longest_wait=off + 9)})
        monkeypatch.setattr(activity.time, "time", now)

    for work in minutes().values():
        assert work.waited == pytest.approx(14, abs=1)
        assert work.longest_wait == pytest.approx(9, abs=1)


def test_parts_that_are_added_up_in_memory_keep_the_longest_wait_also_by_a_clock_that_is_behind() -> None:
    work = Work()
    work.add(Work(started=1, waited=-50, longest_wait=-50))
    work.add(Work(started=1, waited=-40, longest_wait=-40))
    work.add(Work(succeeded=1))

    assert work == Work(started=2, succeeded=1, waited=-90, longest_wait=-40)


def test_whoever_begins_an_hour_deletes_what_is_too_old() -> None:
    now = read_clock(DB)
    for seconds, kept in activity.KEPT.items():
        for queue, age in (("young", kept - 2 * HOUR), ("old", kept + 2 * HOUR)):
            begins_at = begin_of_span(now - timedelta(seconds=age), seconds)
            Activity.objects.create(queue=queue, seconds=seconds, begins_at=begins_at)

    add(DB, {"mail": Work(succeeded=1)})

    left = Activity.objects.exclude(queue="mail").values_list("queue", "seconds")
    assert sorted(left) == [("young", MINUTE), ("young", HOUR)]


@locks_rows
@pytest.mark.django_db(transaction=True)
def test_what_others_hold_is_not_waited_for_and_not_added() -> None:
    add(DB, {"mail": Work(succeeded=1), "reports": Work(succeeded=1)})
    held = Activity.objects.filter(queue="mail").order_by("-seconds").first()
    with another_transaction(lambda: Activity.objects.select_for_update().get(pk=held.pk)):
        left = add(DB, {"mail": Work(succeeded=7), "reports": Work(succeeded=1)})

    assert left == {"mail": Work(succeeded=7)}
    assert add(DB, left) == {}
    by_the_hour = by_queue(DB, seconds=HOUR, since=long_ago() - timedelta(hours=1))
    assert {queue: work.succeeded for queue, work in by_the_hour.items()} == {"mail": 8, "reports": 2}


def test_adding_again_takes_few_statements() -> None:
    add(DB, {"mail": Work(succeeded=1)})
    with CaptureQueriesContext(connection) as captured:
        add(DB, {"mail": Work(succeeded=1)})

    # The clock, what is there, a lock, two updates and what is around them; more if an hour is just over.
    assert len(captured) <= 7 or Activity.objects.count() > 2


@pytest.mark.django_db(transaction=True)
def test_those_who_add_at_once_lose_nothing() -> None:
    queues = ["a", "b", "c"]

    def work(n: int) -> None:
        for _ in range(5):
            # Each names them in another order.
            left = {queue: Work(started=1, succeeded=1, longest_wait=n) for queue in queues[n % 3 :] + queues[: n % 3]}
            while left:  # what others were at
                left = add(DB, left)

    in_threads(4, work)

    for seconds in (MINUTE, HOUR):
        for found in by_queue(DB, seconds=seconds, since=long_ago() - timedelta(hours=1)).values():
            assert (found.started, found.succeeded) == (20, 20)
            assert found.longest_wait == pytest.approx(3, abs=1)
