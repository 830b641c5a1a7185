from __future__ import annotations

import threading
from datetime import timedelta
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from django.db import DEFAULT_DB_ALIAS as DB
from django.db import connection, transaction

from cairnq_django.clock import after
from cairnq_django.ids import new_task_id
from cairnq_django.models import Task
from cairnq_django.store.claim import Claim, Draw, can_claim_at_once, claim, claim_at_once
from cairnq_django.store.leases import Lease
from cairnq_django.store.submit import Conflict, submit
from tests.factories import TaskFactory, an_error, in_turn, lease_of, new_task
from tests.helpers import eventually, in_threads
from tests.store.sessions import another_transaction, locks_rows, only_data, statements

if TYPE_CHECKING:
    from collections.abc import Callable

    ClaimAll = Callable[..., list[Claim]]

pytestmark = pytest.mark.django_db


def draw(*queues: str, names: tuple[str, ...] = ("work",), limit: int = 10) -> Draw:
    return Draw(queues or ("default",), names, limit)


def claim_all(*draws: Draw, worker_id: str = "worker-1", lease: float = 30) -> list[Claim]:
    return claim(DB, in_turn(*(draws or [draw()])), worker_id=worker_id, lease=lease)


def claim_simply(*draws: Draw, worker_id: str = "worker-1", lease: float = 30) -> list[Claim]:
    """As a worker does it: in one statement where that is enough."""
    only = draws[0] if draws else draw()
    if len(draws) > 1 or not can_claim_at_once(DB, only):
        return claim_all(*draws, worker_id=worker_id, lease=lease)
    return claim_at_once(DB, only, worker_id=worker_id, lease=lease)


either_way = pytest.mark.parametrize("claim_all", [claim_all, claim_simply], ids=["in a transaction", "at once"])


def ids(claims: list[Claim]) -> list[Any]:
    return [task.lease.task_id for task in claims]


def pks(*tasks: Task) -> list[Any]:
    return [task.pk for task in tasks]


@either_way
def test_a_claim_holds_what_was_submitted_and_the_lease(claim_all: ClaimAll) -> None:
    parent = TaskFactory(running=True)
    task = TaskFactory(
        payload={"order": 7},
        metadata={"tenant": "acme"},
        key="order:7",
        max_attempts=5,
        parent_id=parent.pk,
        root_id=parent.pk,
        correlation_id="request-1",
    )
    claimed = claim_all()
    task.refresh()
    assert claimed == [
        Claim(
            lease=Lease(task.pk, "worker-1", 1),
            name="work",
            queue="default",
            payload={"order": 7},
            metadata={"tenant": "acme"},
            max_attempts=5,
            key="order:7",
            parent_id=parent.pk,
            root_id=parent.pk,
            correlation_id="request-1",
            created_at=task.created_at,
            started_at=task.started_at,
            run_at=task.run_at,
            priority=0,
        )
    ]


@either_way
def test_a_claimed_task_runs_its_next_attempt_under_a_lease_by_the_database_s_clock(claim_all: ClaimAll) -> None:
    task = TaskFactory(attempt=1, worker_id="worker-0", error=an_error())
    (claimed,) = claim_all(worker_id="worker-2", lease=12.5)
    task.refresh()
    assert (task.status, task.attempt, task.worker_id) == ("running", 2, "worker-2")
    assert lease_of(task) == claimed.lease
    assert task.started_at is not None
    assert task.lease_until == task.started_at + timedelta(seconds=12.5)
    assert task.started_at == task.updated_at >= task.created_at
    assert task.error == an_error(), "the latest error stays to be seen"


@either_way
def test_the_highest_priority_goes_first_then_the_longest_due_then_the_oldest(claim_all: ClaimAll) -> None:
    late = TaskFactory(run_at=after(-1))
    low = TaskFactory(priority=-1, run_at=after(-9))
    long_due = TaskFactory(run_at=after(-5))
    high = TaskFactory(priority=1, run_at=after(-1))
    ids_in_order = [new_task_id() for _ in range(5)]
    twins = [TaskFactory(id=pk, priority=2, run_at=high.run_at) for pk in reversed(ids_in_order)]
    assert ids(claim_all()) == pks(*reversed(twins), high, long_due, late, low)


@either_way
def test_the_order_holds_over_several_queues(claim_all: ClaimAll) -> None:
    a2 = TaskFactory(queue="a", run_at=after(-2))
    b1 = TaskFactory(queue="b", run_at=after(-3))
    b3 = TaskFactory(queue="b", run_at=after(-1))
    a0 = TaskFactory(queue="a", priority=5)
    c = TaskFactory(queue="c", run_at=after(-4))
    assert ids(claim_all(draw("b", "a", "c"))) == pks(a0, c, b1, a2, b3)


@either_way
def test_the_limit_is_that_of_all_queues_together(claim_all: ClaimAll) -> None:
    b = TaskFactory(queue="b", run_at=after(-3))
    a = [TaskFactory(queue="a", run_at=after(-2)) for _ in range(3)]
    TaskFactory(queue="b", run_at=after(-1))
    assert ids(claim_all(draw("a", "b", limit=3))) == pks(b, a[0], a[1])
    assert Task.objects.running().count() == 3


@either_way
def test_a_queue_that_is_named_twice_is_claimed_from_once(claim_all: ClaimAll) -> None:
    task = TaskFactory()
    assert ids(claim_all(draw("default", "default"))) == [task.pk]
    task.refresh()
    assert task.attempt == 1


def test_each_draw_has_its_own_names_queues_and_limit() -> None:
    mails = [TaskFactory(name="mail", queue="mail", run_at=after(-n)) for n in (3, 2, 1)]
    works = [TaskFactory(run_at=after(-n)) for n in (3, 2, 1)]
    draws = draw("mail", names=("mail",), limit=2), draw(limit=1), draw("default", "mail", names=("mail", "work"))
    assert ids(claim_all(*draws)) == pks(mails[0], mails[1], works[0], works[1], mails[2], works[2])
    assert not Task.objects.exclude(attempt=1).exists(), "no draw takes what an earlier one took"


@either_way
def test_a_delayed_task_is_not_claimed_before_it_is_due(claim_all: ClaimAll) -> None:
    delayed = TaskFactory(delayed=True, priority=9)
    due = TaskFactory()
    assert ids(claim_all()) == [due.pk]
    Task.objects.filter(pk=delayed.pk).update(run_at=after(-0.001))
    assert ids(claim_all()) == [delayed.pk]


@either_way
def test_a_task_that_waited_for_its_time_queues_by_when_it_became_due(claim_all: ClaimAll) -> None:
    delayed = TaskFactory(run_at=after(-1))
    submitted_later = TaskFactory(run_at=after(-2))
    assert ids(claim_all()) == pks(submitted_later, delayed)


@either_way
def test_the_order_holds_over_names_and_queues_whatever_the_limit(claim_all: ClaimAll) -> None:
    tasks = [
        TaskFactory(name=name, queue=queue, priority=(n * 7) % 3, run_at=after(-((n * 5) % 4) - 1))
        for n, (queue, name) in enumerate(product("ab", ("one", "two", "three")))
        for _ in range(3)
    ]
    in_order = pks(*sorted(tasks, key=lambda task: (-task.priority, task.run_at, task.pk)))
    for limit in (1, 2, 5, 18, 19):
        with transaction.atomic():
            drawn = claim_all(draw("a", "b", names=("one", "two", "three"), limit=limit))
            transaction.set_rollback(True)
        assert ids(drawn) == in_order[:limit]


@either_way
def test_tasks_of_other_names_hold_nothing_up(claim_all: ClaimAll) -> None:
    for n in range(30):
        TaskFactory(name=f"blocked-{n % 3}", priority=9)
    free = [TaskFactory(name=name, run_at=after(-age)) for name, age in (("two", 3), ("one", 2), ("two", 1))]
    assert ids(claim_all(draw(names=("one", "two"), limit=2))) == pks(free[0], free[1])
    assert ids(claim_all(draw(names=("one", "two"), limit=2))) == pks(free[2])


@either_way
def test_a_claim_of_many_names_and_queues_finds_the_few_that_are_due(claim_all: ClaimAll) -> None:
    names, queues = [f"name-{n}" for n in range(40)], [f"queue-{n}" for n in range(10)]
    delayed = TaskFactory(name=names[3], queue=queues[3], delayed=True)
    last = TaskFactory(name=names[39], queue=queues[9], run_at=after(-1))
    first = TaskFactory(name=names[0], queue=queues[5], run_at=after(-2))
    assert ids(claim_all(draw(*queues, names=tuple(names)))) == pks(first, last)
    assert Task.objects.get(pk=delayed.pk).is_queued


LOOK_ALIKES = ["mail", "Mail", "mail ", " mail", "MAIL", "ma\u00efl", "mai\u0308l", "mail\t", "mail_", "mail%"]


@either_way
def test_names_that_look_alike_are_different(claim_all: ClaimAll) -> None:
    tasks = {name: TaskFactory(name=name) for name in LOOK_ALIKES}
    for name, task in tasks.items():
        assert ids(claim_all(draw(names=(name,)))) == [task.pk]


@either_way
def test_names_that_look_alike_are_told_apart_in_one_draw(claim_all: ClaimAll) -> None:
    tasks = [TaskFactory(name=name, run_at=after(-n - 1)) for n, name in enumerate(LOOK_ALIKES)]
    others = tuple(name for name in LOOK_ALIKES if name != "Mail")
    expected = [task.pk for task in reversed(tasks) if task.name != "Mail"]
    assert ids(claim_all(draw(names=others, limit=20))) == expected


@either_way
def test_queues_that_look_alike_are_different(claim_all: ClaimAll) -> None:
    tasks = {queue: TaskFactory(queue=queue) for queue in LOOK_ALIKES}
    for queue, task in tasks.items():
        assert ids(claim_all(draw(queue))) == [task.pk]


@pytest.mark.parametrize(
    "nothing",
    [
        [],
        [draw(names=())],
        [draw(limit=0)],
        [draw("default", "other", limit=0)],
        [draw("default", "other", names=())],
        [draw("other", "another")],
        [Draw((), ("work",), 10)],
        [draw("other")],
        [draw(names=("other",))],
    ],
)
def test_nothing_is_claimed_where_nothing_is_asked_for(nothing: list[Draw]) -> None:
    TaskFactory()
    assert claim(DB, in_turn(*nothing), worker_id="worker-1", lease=30) == []
    for each in nothing:
        assert claim_simply(each) == []
    assert Task.objects.queued().count() == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor != "postgresql", reason="The others look for the ids first")
def test_on_postgresql_a_simple_claim_is_one_statement_and_no_transaction_around_it() -> None:
    submit(DB, [new_task(queue=queue) for queue in ("a", "b") for _ in range(30)], Conflict.REUSE)
    assert len(statements(lambda: claim_simply(draw("a", "b", limit=50)))) == 1
    assert Task.objects.running().count() == 50


def test_a_claim_takes_no_more_statements_for_more_tasks() -> None:
    submit(DB, [new_task() for _ in range(60)], Conflict.REUSE)
    few = only_data(statements(lambda: claim_all(draw(limit=2))))
    assert len(only_data(statements(lambda: claim_all(draw(limit=50))))) == len(few)
    assert len(only_data(statements(lambda: claim_all(draw("empty"))))) == 1


@either_way
def test_a_claim_does_not_read_what_handlers_do_not_get(claim_all: ClaimAll) -> None:
    TaskFactory(error=an_error())
    sent = only_data(statements(claim_all))
    assert any(connection.ops.quote_name("payload") in sql for sql in sent)
    assert not any(connection.ops.quote_name("error") in sql for sql in sent)


@locks_rows
@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor == "mysql", reason="It has no simple claim")
def test_a_simple_claim_passes_over_what_another_session_has_locked_too() -> None:
    tasks = [TaskFactory(run_at=after(-n)) for n in range(10, 0, -1)]
    with another_transaction(lambda: claim_all(draw(limit=3), worker_id="worker-2")):
        assert ids(claim_simply(draw("default", "empty", limit=5))) == pks(*tasks[3:5]), "it looks no further"
        assert ids(claim_simply(draw(limit=3))) == pks(*tasks[5:8]), "one queue and name are read on"
    assert {task.worker_id for task in Task.objects.filter(pk__in=pks(*tasks[:3]))} == {"worker-2"}


@pytest.mark.django_db(transaction=True)
@either_way
def test_a_claim_that_is_rolled_back_leaves_the_task_queued(claim_all: ClaimAll) -> None:
    TaskFactory()
    with transaction.atomic():
        claim_all()
        transaction.set_rollback(True)
    assert Task.objects.get().is_queued
    assert Task.objects.get().attempt == 0


@locks_rows
@pytest.mark.django_db(transaction=True)
def test_what_another_session_has_locked_is_passed_over_and_not_waited_for() -> None:
    locked, free = TaskFactory(priority=1), TaskFactory()
    with another_transaction(lambda: Task.objects.select_for_update().get(pk=locked.pk)):
        assert ids(claim_all()) == [free.pk]
    assert ids(claim_all()) == [locked.pk]


@locks_rows
@pytest.mark.django_db(transaction=True)
def test_a_claim_locks_no_more_of_its_queue_than_it_takes() -> None:
    tasks = [TaskFactory(run_at=after(-n)) for n in range(20, 0, -1)]
    with another_transaction(lambda: claim_all(draw(limit=3), worker_id="worker-2")):
        assert ids(claim_all(draw(limit=100))) == pks(*tasks[3:])


@locks_rows
@pytest.mark.django_db(transaction=True)
def test_what_is_locked_in_one_name_is_made_up_for_by_others() -> None:
    locked = [TaskFactory(name="one", priority=2) for _ in range(3)]
    behind = [TaskFactory(name="one", run_at=after(-1))]
    free = [TaskFactory(name="two", run_at=after(-n)) for n in (5, 4)]
    both = draw(names=("one", "two"), limit=3)
    with another_transaction(lambda: list(Task.objects.select_for_update().filter(priority=2))):
        assert ids(claim_all(both)) == pks(*free, *behind)
    assert ids(claim_all(both)) == pks(*locked)


@locks_rows
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("others", [1, 2, 5])
def test_the_urgent_tasks_of_one_name_go_first_while_others_claim_them_too(others: int) -> None:
    urgent = [TaskFactory(name="urgent", priority=1, run_at=after(-60 + n)) for n in range(20)]
    for _ in range(20):
        TaskFactory(name="bulk")
    both = draw(names=("bulk", "urgent"), limit=2)

    def others_claim() -> None:
        for _ in range(others):
            claim_all(both, worker_id="worker-2")

    with another_transaction(others_claim):
        assert ids(claim_all(both)) == pks(*urgent[2 * others :][:2])


@locks_rows
@pytest.mark.django_db(transaction=True)
def test_a_draw_of_several_names_takes_no_more_than_its_limit_when_others_are_ahead() -> None:
    names = ("one", "two", "three")
    tasks = [TaskFactory(name=names[n % 3], run_at=after(-20 + n)) for n in range(18)]
    with another_transaction(lambda: claim_all(draw(names=names, limit=5), worker_id="worker-2")):
        claimed = claim_all(draw(names=names, limit=5))
        assert len(claimed) == len(set(ids(claimed))) == 5
        assert not set(ids(claimed)) & set(pks(*tasks[:5]))
        assert claimed == sorted(claimed, key=lambda task: task.run_at)
        assert len(claim_all(draw(names=names, limit=100))) == 8
    assert claim_all(draw(names=names)) == []


@pytest.mark.django_db(transaction=True)
@either_way
def test_claimers_of_several_names_and_queues_leave_nothing_and_take_nothing_twice(claim_all: ClaimAll) -> None:
    names, queues = tuple(f"name-{n}" for n in range(5)), ("a", "b")
    lanes = list(product(names, queues))
    submit(DB, [new_task(name=lanes[n % 10][0], queue=lanes[n % 10][1]) for n in range(400)], Conflict.REUSE)

    def claim_until_nothing_is_left(n: int) -> list[Lease]:
        mine = draw(*queues[:: 1 if n % 2 else -1], names=names[n:] + names[:n], limit=7)
        claimed: list[Lease] = []

        def claim_some() -> bool:
            claimed.extend(task.lease for task in claim_all(mine, worker_id=f"worker-{n}"))
            return not Task.objects.queued().exists()

        eventually(claim_some, timeout=60, message="nothing is queued any more")
        return claimed

    claimed = [lease for leases in in_threads(4, claim_until_nothing_is_left) for lease in leases]
    assert len(claimed) == len({lease.task_id for lease in claimed}) == 400
    assert {lease_of(task) for task in Task.objects.running()} == set(claimed)


@pytest.mark.django_db(transaction=True)
@either_way
def test_workers_that_claim_at_the_same_time_get_each_task_once(claim_all: ClaimAll) -> None:
    submit(DB, [new_task(queue=queue) for queue in ("a", "b") for _ in range(100)], Conflict.REUSE)
    claimed: list[Any] = []
    lock = threading.Lock()

    def work(n: int) -> None:
        def claim_some() -> bool:
            some = claim_all(draw(*("ab" if n % 2 else "ba"), limit=7), worker_id=f"worker-{n}")
            with lock:
                claimed.extend(task.lease for task in some)
                return len(claimed) >= 200

        eventually(claim_some, timeout=60, message="everything is claimed")

    in_threads(8, work)
    assert len(claimed) == len({lease.task_id for lease in claimed}) == 200
    assert {lease_of(task) for task in Task.objects.running()} == set(claimed)
    assert set(Task.objects.values_list("attempt", flat=True)) == {1}
