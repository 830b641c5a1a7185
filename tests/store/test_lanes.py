from __future__ import annotations

import random
import sys
from datetime import datetime, timedelta
from itertools import count
from uuid import UUID

import pytest
from django.db import DEFAULT_DB_ALIAS as DB
from django.db import connection, transaction
from django.utils import timezone

from cairnq_django.clock import after
from cairnq_django.limits import MAX_PRIORITY, MIN_PRIORITY
from cairnq_django.models import Task
from cairnq_django.statuses import TaskStatus
from cairnq_django.store import lanes as lanes_module
from cairnq_django.store.claim import Draw, claim
from cairnq_django.store.engine import filled
from cairnq_django.store.lanes import Lane, Place, ahead, first_due_sql, first_due_template, lane_slots, lanes_of
from tests.factories import TaskFactory, a_great_many, in_turn, new_task
from tests.store.sessions import another_transaction

pytestmark = pytest.mark.django_db

LANES = lanes_of(["default", "other"], ["mail", "sms"])


def place(task: Task) -> Place:
    return Place(Lane(task.queue, task.name), task.pk)


def test_each_queue_and_name_is_a_lane_once() -> None:
    assert lanes_of(["b", "a", "b"], ["mail", "sms", "mail"]) == [
        Lane("b", "mail"),
        Lane("b", "sms"),
        Lane("a", "mail"),
        Lane("a", "sms"),
    ]
    assert lanes_of([], ["mail"]) == lanes_of(["a"], []) == []


def test_what_is_due_in_any_lane_stands_in_claim_order() -> None:
    late = TaskFactory(name="sms", run_at=after(-1))
    early = TaskFactory(name="mail", run_at=after(-2))
    high = TaskFactory(name="mail", queue="other", priority=1)
    TaskFactory(name="sms", queue="other", delayed=True)
    TaskFactory(name="sms", running=True)
    TaskFactory(name="fax", priority=9)
    assert ahead(DB, LANES, 10) == [place(high), place(early), place(late)]
    assert ahead(DB, LANES, 2) == [place(high), place(early)]


def test_the_limit_is_that_of_all_lanes_together() -> None:
    long_ago = timezone.now() - timedelta(minutes=1)
    mails = [TaskFactory(name="mail", run_at=long_ago + timedelta(seconds=n)) for n in range(5)]
    sms = TaskFactory(name="sms", run_at=long_ago + timedelta(seconds=0.5))
    assert ahead(DB, LANES, 3) == [place(mails[0]), place(sms), place(mails[1])]


class Field:
    """Tasks of all kinds, made by chance, and what is due of them by a plain sort."""

    names = ("mail", "Mail", "it's", '"quoted", {braces} %s', "", "\u00fc \U0001f4ee")
    queues = ("a", "b,c", "NULL")

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        now = timezone.now()
        self.tasks = [self.a_task(now) for _ in range(300)]
        Task.objects.bulk_create(self.tasks)
        self.due = sorted(
            (
                task
                for task in self.tasks
                if task.is_queued and task.run_at < now and (task.expires_at is None or task.expires_at > now)
            ),
            key=lambda task: (-task.priority, task.run_at, task.pk),
        )

    def a_task(self, now: datetime) -> Task:
        def moment(*minutes: int) -> datetime:
            return now + timedelta(minutes=self.chance.choice(minutes))

        return new_task(
            name=self.chance.choice(self.names),
            queue=self.chance.choice(self.queues),
            priority=self.chance.choice([MIN_PRIORITY, -1, 0, 0, 0, 1, 7, MAX_PRIORITY]),
            run_at=moment(-9, -8, -8, -7, 60, 61),
            expires_at=self.chance.choice([None, None, moment(-5, -4, 30)]),
            **self.chance.choice([{}] * 9 + [{"status": TaskStatus.CANCELED, "completed_at": now}]),
        )

    def lanes(self) -> list[Lane]:
        """A few of them, or all, with some that hold nothing."""
        queues, names = [*self.queues, "empty"], [*self.names, "none"]
        return lanes_of(
            self.chance.sample(queues, self.chance.randint(1, len(queues))),
            self.chance.sample(names, self.chance.choice([1, len(names)])),
        )

    def first_due(self, lanes: list[Lane], limit: int) -> list[Place]:
        return [each for each in map(place, self.due) if each.lane in lanes][:limit]


@pytest.fixture(params=["as it is", "stepping"] if connection.vendor == "postgresql" else ["as it is"])
def looks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way to look that this database is able to go."""
    if request.param == "stepping":
        monkeypatch.setattr(lanes_module, "SKIPS_SINCE", sys.maxsize)


@pytest.mark.usefixtures("looks")
@pytest.mark.parametrize("seed", range(4))
def test_whatever_there_is_what_is_due_stands_in_claim_order(seed: int) -> None:
    field = Field(seed)
    for limit in (1, 2, 5, 17, 1000) * 3:
        lanes = field.lanes()
        expected = field.first_due(lanes, limit)
        assert ahead(DB, lanes, limit) == expected
        assert first_due(lanes, limit) == [each.task_id for each in expected]


@pytest.mark.parametrize("seed", range(4, 8))
def test_whatever_there_is_it_is_claimed_in_order(seed: int) -> None:
    field = Field(seed)
    left = [place(task) for task in field.due]
    while left:
        lanes, limit = field.lanes(), field.chance.choice([1, 3, 20])
        draw = Draw(tuple({lane.queue for lane in lanes}), tuple({lane.name for lane in lanes}), limit)
        expected = [each for each in left if each.lane in lanes][:limit]
        claims = claim(DB, in_turn(draw), worker_id="worker-1", lease=30)
        assert [Place(Lane(each.queue, each.name), each.lease.task_id) for each in claims] == expected
        left = [each for each in left if each not in expected]
    assert Task.objects.running().count() == len(field.due)


def first_due(lanes: list[Lane], limit: int, *, lock: bool = False) -> list[UUID]:
    if connection.vendor == "mysql":
        return [each.task_id for each in ahead(DB, lanes, limit)]
    sql, params = first_due_sql(DB, lanes, limit)
    if lock:
        sql, slots = first_due_template(DB, one_lane=True, lock=True)
        params = filled(slots, {**lane_slots(lanes), "limit": limit})
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return [UUID(str(task_id)) for (task_id,) in cursor.fetchall()]


@pytest.mark.skipif(connection.vendor == "mysql", reason="reads past what is delayed")
@pytest.mark.usefixtures("looks")
@pytest.mark.parametrize("lanes", [LANES[:1], LANES], ids=["a lane", "lanes"])
def test_no_more_is_read_however_much_is_delayed_at_higher_priorities(lanes: list[Lane]) -> None:
    a_great_many(10, name="mail")
    usual = effort(lanes)
    for priority in (1, 5):
        a_great_many(1_000, name="mail", priority=priority, run_at=timezone.now() + timedelta(hours=1))
    assert len(ahead(DB, lanes, 8)) == 8
    assert effort(lanes) < 3 * usual


@pytest.mark.skipif(connection.vendor == "mysql", reason="reads past what is delayed")
@pytest.mark.usefixtures("looks")
def test_priorities_below_those_that_suffice_are_not_looked_for() -> None:
    a_great_many(10, name="mail", priority=1_000)
    usual = effort(LANES[:1])
    Task.objects.bulk_create(new_task(name="mail", priority=priority) for priority in range(500))
    assert effort(LANES[:1]) < 3 * usual


def effort(lanes: list[Lane]) -> int:
    """What a look costs, in the database's own measure: pages read, or steps of its machine."""
    sql, params = first_due_sql(DB, lanes, 8)
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            steps = count()
            connection.connection.set_progress_handler(lambda: next(steps) < 0, 10)
            cursor.execute(sql, params)
            cursor.fetchall()
            connection.connection.set_progress_handler(None, 0)
            return next(steps)
        cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", params)
        ((plan,),) = cursor.fetchall()
        return plan[0]["Plan"]["Shared Hit Blocks"] + plan[0]["Plan"]["Shared Read Blocks"]


@pytest.mark.skipif(connection.vendor != "postgresql", reason="locks in the same statement")
@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("looks")
def test_a_look_that_locks_passes_over_what_others_hold_and_locks_no_more_than_it_finds() -> None:
    high = [TaskFactory(name="mail", priority=2, run_at=after(-n)) for n in (3, 2, 1)]
    low = [TaskFactory(name="mail", run_at=after(-n)) for n in (3, 2, 1)]
    in_order = [task.pk for task in high + low]
    with another_transaction(lambda: first_due(LANES[:1], 2, lock=True)):
        with transaction.atomic():
            assert first_due(LANES[:1], 2, lock=True) == in_order[2:4]
        with transaction.atomic():
            assert first_due(LANES[:1], 10, lock=True) == in_order[2:]
