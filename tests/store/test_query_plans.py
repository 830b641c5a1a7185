"""Each query that runs often finds its rows by the index that is made for it, however many others there are."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from django.db import DEFAULT_DB_ALIAS as DB
from django.db import connection, transaction

from cairnq_django.clock import Now, after
from cairnq_django.models import Activity, Schedule, Task, TaskAttempt, TaskKey
from cairnq_django.statuses import TERMINAL, AttemptOutcome, TaskStatus
from cairnq_django.store import activity, control, failures, maintenance, schedules, settle, stats
from cairnq_django.store.claim import Draw, claim, claim_at_once
from cairnq_django.store.lanes import ahead, lanes_of
from cairnq_django.store.look import look
from cairnq_django.store.maintenance import Ended
from tests.factories import WORKER, an_error, in_turn, lease_of, new_task
from tests.store.sessions import only_data, statements

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cairnq_django.store.leases import Lease

# In one process, so that the many tasks are made once.
pytestmark = [pytest.mark.django_db, pytest.mark.xdist_group("plans")]

QUEUES = ["mail", *["default"] * 8]


@pytest.fixture(scope="module", autouse=True)
def many_tasks(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock():
        Task.objects.bulk_create(
            [
                *(new_task(queue=QUEUES[n % 9], priority=n % 3, run_at=after(n % 700 - 600)) for n in range(1500)),
                *(new_task(expires_at=after(n - 20), run_at=after(-600)) for n in range(200)),
                *(running(n) for n in range(300)),
                *(ended(n) for n in range(3000)),
            ]
        )
        tasks = list(Task.objects.failed())
        TaskAttempt.objects.bulk_create(
            TaskAttempt(
                task=task,
                number=n,
                worker_id=WORKER,
                started_at=after(-60),
                outcome=AttemptOutcome.RETRIED,
                error=an_error(),
            )
            for task in tasks
            for n in (1, 2)
        )
        TaskKey.objects.bulk_create(TaskKey(key=f"order:{n}", task=task) for n, task in enumerate(tasks))
        now = activity.read_clock(DB)
        Activity.objects.bulk_create(
            Activity(queue="queue 1", seconds=60, begins_at=activity.begin_of_span(now, 60) - timedelta(minutes=n))
            for n in range(1_500)
        )
        tables = [connection.ops.quote_name(model._meta.db_table) for model in (Task, TaskKey, TaskAttempt, Activity)]
        with connection.cursor() as cursor:
            for table in tables:
                if connection.vendor != "sqlite":
                    cursor.execute(f"ANALYZE {'TABLE ' if connection.vendor == 'mysql' else ''}{table}")
    yield
    with django_db_blocker.unblock():
        for model in (TaskKey, TaskAttempt, Task, Activity):
            model.objects.all()._raw_delete(DB)


def running(n: int) -> Task:
    return new_task(
        status=TaskStatus.RUNNING,
        attempt=1,
        worker_id=WORKER,
        started_at=after(-30),
        lease_until=after(-1 if n % 30 == 0 else 30),
    )


def ended(n: int) -> Task:
    status = [TaskStatus.SUCCEEDED, TaskStatus.SUCCEEDED, TaskStatus.FAILED, TaskStatus.CANCELED][n % 4]
    return new_task(queue=QUEUES[n % 9], status=status, completed_at=after(-n))


@dataclass(frozen=True)
class Plan:
    """How the database goes about one statement."""

    text: str

    def uses(self, index: str) -> bool:
        return index in self.text

    def of_one_lane(self) -> Plan:
        """The part of the plan that is gone through for each lane, where one statement looks at several."""
        if connection.vendor == "sqlite":
            return Plan("\n".join(line for line in self.text.splitlines() if "parent=0;" not in line))
        return Plan(self.text[max(0, self.text.find("Nested Loop")) :])

    @property
    def sorts(self) -> bool:
        return any(word in self.text for word in ("Sort", "TEMP B-TREE", "filesort"))

    @property
    def reads_a_whole_table(self) -> bool:
        # Of the queues that are paused it may read all.
        of_tasks = "\n".join(line for line in self.text.splitlines() if "pause" not in line)
        return any(word in of_tasks for word in ("Seq Scan", "SCAN cairnq", "type=ALL"))

    @property
    def reads_an_index_only(self) -> bool:
        return any(word in self.text for word in ("Index Only Scan", "COVERING INDEX", "Using index"))


def plans(work: Callable[[], object]) -> list[Plan]:
    """The plan of each statement that `work()` sends; what it writes is rolled back."""
    with transaction.atomic():
        sent = only_data(statements(work))
        transaction.set_rollback(True)
    return [Plan(explain(sql)) for sql in sent if not sql.startswith("INSERT")]


def explain(sql: str) -> str:
    with connection.cursor() as cursor:
        cursor.execute(("EXPLAIN QUERY PLAN " if connection.vendor == "sqlite" else "EXPLAIN ") + sql)
        columns = [column[0] for column in cursor.description]
        rows = cursor.fetchall()
    said = [dict(zip(columns, row, strict=True)) for row in rows]
    if "pausedqueue` U0" in sql:
        said = [line for line in said if line["table"] != "U0"]
    return "\n".join(
        "; ".join(f"{name}={value}" for name, value in line.items() if name != "possible_keys")
        for line in said
        if line.get("select_type") != "UNION RESULT"
    )


def some_leases(count: int) -> list[Lease]:
    return [lease_of(task) for task in Task.objects.running().filter(lease_until__gt=Now())[:count]]


@pytest.mark.parametrize("queue", ["mail", "default"])
def test_a_claim_of_one_name_reads_its_queue_in_the_order_of_the_index(queue: str) -> None:
    select, *others = plans(lambda: claim(DB, in_turn(Draw((queue,), ("work",), 8)), worker_id="worker-2", lease=30))
    if connection.vendor == "sqlite":
        select = select.of_one_lane()
    assert select.uses("cairnq_task_claim"), select
    assert not select.sorts, select
    for plan in others:
        assert not plan.uses("cairnq_task_claim"), plan
        assert not plan.reads_a_whole_table, plan


def test_a_claim_of_several_names_and_queues_reads_each_in_the_order_of_the_index() -> None:
    lanes = lanes_of(["mail", "default", "empty"], ["work", "other"])
    for plan in map(Plan.of_one_lane, plans(lambda: ahead(DB, lanes, 8))):
        assert plan.uses("cairnq_task_claim"), plan
        assert not plan.sorts, plan
        assert not plan.reads_a_whole_table, plan


@pytest.mark.skipif(connection.vendor == "mysql", reason="It has no claim in one statement")
def test_a_claim_in_one_statement_reads_its_lanes_by_the_index_and_its_rows_by_their_ids() -> None:
    draw = Draw(("mail", "default", "empty"), ("work", "other"), 8)
    for plan in plans(lambda: claim_at_once(DB, draw, worker_id="worker-2", lease=30)):
        assert not plan.reads_a_whole_table, plan


def test_a_look_reads_no_table() -> None:
    for plan in plans(lambda: look(DB, ["mail", "default", "empty"], ["work", "other"])):
        assert not plan.reads_a_whole_table, plan


def test_a_claim_of_several_names_and_queues_locks_no_more_than_its_rows() -> None:
    draw = Draw(("mail", "default", "empty"), ("work", "other"), 8)
    _, *others = plans(lambda: claim(DB, in_turn(draw), worker_id="worker-2", lease=30))
    for plan in others:
        assert not plan.uses("cairnq_task_claim"), plan
        assert not plan.reads_a_whole_table, plan


@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite looks up the status that a partial index implies")
def test_a_look_at_what_is_ahead_reads_no_rows_but_the_index() -> None:
    lanes = lanes_of(["mail", "default"], ["work", "other"])
    (plan,) = plans(lambda: ahead(DB, lanes, 8))
    assert plan.reads_an_index_only, plan


def test_a_recovery_reads_what_has_expired() -> None:
    select, *writes = plans(lambda: maintenance.recover(DB, limit=5))
    assert select.uses("cairnq_task_lease"), select
    assert not select.sorts, select
    assert writes
    assert not any(write.reads_a_whole_table for write in writes), writes


def test_what_has_expired_is_found_by_its_index() -> None:
    select, update = plans(lambda: maintenance.expire(DB, limit=5))
    assert select.uses("cairnq_task_expiry"), select
    assert not select.sorts, select
    assert not update.reads_a_whole_table, update


def test_a_key_leads_to_its_task() -> None:
    (select,) = plans(lambda: list(Task.objects.by_key("order:7")))
    assert not select.reads_a_whole_table, select
    assert not select.sorts, select


@pytest.mark.parametrize("statuses", [TERMINAL, *[(status,) for status in TERMINAL]], ids=str)
def test_a_purge_reads_what_ended_first_in_the_order_of_the_index(statuses: tuple[TaskStatus, ...]) -> None:
    ended = Ended(older_than=2000, statuses=statuses)
    selects = plans(lambda: maintenance.purge(DB, ended, limit=10))[: len(statuses)]
    for select in selects:
        assert select.uses("cairnq_task_completed"), select
        assert not select.sorts, select


def test_a_purge_locks_and_deletes_what_it_found_by_its_ids() -> None:
    *_, tasks, _keys, _attempts, rows = plans(lambda: maintenance.purge(DB, Ended(older_than=2000), limit=100))
    for plan in (tasks, rows):
        assert not plan.reads_a_whole_table, plan
        assert not plan.uses("cairnq_task_completed"), plan


@pytest.mark.parametrize("narrowed", [{"queue": "mail"}, {"name": "work"}, {"queue": "mail", "name": "work"}], ids=str)
def test_a_purge_by_queue_or_name_reads_a_window_of_the_index(
    narrowed: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "WINDOW", 20)
    ended = Ended(older_than=1000, **narrowed)
    found = plans(lambda: next(maintenance.purge_steps(DB, ended, size=10)))
    for select in found[: 2 * len(TERMINAL)]:
        assert select.uses("cairnq_task_completed"), select
    for end_of_window in found[: len(TERMINAL)]:
        assert not end_of_window.sorts, end_of_window


def test_a_count_of_what_would_be_purged_reads_a_window_of_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "WINDOW", 20)
    for select in plans(lambda: next(maintenance.count(DB, Ended(older_than=1000, queue="mail")))):
        assert select.uses("cairnq_task_completed"), select


def test_a_queue_s_depth_is_read_from_the_index() -> None:
    if connection.vendor == "postgresql":
        # Of a table as small as this one, most of it queued, PostgreSQL may as well read the first rows there are.
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL enable_seqscan = off")
    (select,) = plans(lambda: stats.queued_up_to(DB, "mail", 100))
    assert select.uses("cairnq_task_claim"), select


@pytest.mark.parametrize("status", TERMINAL)
def test_what_ended_is_counted_in_its_index_alone(status: TaskStatus) -> None:
    plan = plans(lambda: stats.ended_up_to(DB, 100))[TERMINAL.index(status)]
    assert plan.uses("cairnq_task_completed"), plan
    assert plan.reads_an_index_only, plan
    assert not plan.sorts, plan


def test_the_activity_of_an_hour_is_found_and_added_to_by_its_index() -> None:
    since = activity.read_clock(DB) - timedelta(hours=1)
    found = plans(lambda: activity.by_queue(DB, seconds=activity.MINUTE, since=since))
    found += plans(lambda: activity.by_time(DB, seconds=activity.MINUTE, since=since))
    _clock, *added = plans(lambda: activity.add(DB, {"queue 1": activity.Work(started=1)}))
    assert len(found + added) >= 4
    for plan in found + added:
        assert not plan.reads_a_whole_table, plan


def test_the_figures_of_all_queues_are_read_from_indexes() -> None:
    if connection.vendor == "postgresql":
        # So few tasks it may as well read otherwise, and sort.
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL enable_seqscan = off; SET LOCAL enable_sort = off")
    *waiting, running, _pauses = plans(lambda: stats.queue_figures(DB))
    assert running.uses("cairnq_task_lease"), running
    assert not running.sorts, running
    assert waiting
    for plan in waiting:
        if "cairnq_django_activity" in plan.text:
            continue  # asked for the time alone
        # MySQL and MariaDB have answered some before they would read anything.
        assert plan.uses("cairnq_task_claim") or "table=None" in plan.text, plan
        assert not plan.sorts, plan


def test_the_names_that_wait_are_found_and_counted_by_the_index() -> None:
    if connection.vendor == "postgresql":
        # So few tasks it may as well read otherwise.
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL enable_seqscan = off")
    looks = plans(lambda: stats.queued_names(DB, ["mail", "default"], without=()))
    assert len(looks) == 4, "a name, that there is no other one, and how many wait in each queue"
    for plan in looks:
        assert plan.uses("cairnq_task_claim") or "table=None" in plan.text, plan
        assert not plan.sorts, plan


@pytest.mark.skipif(connection.vendor != "postgresql", reason="others find a minimum by the index whatever they know")
def test_the_next_name_is_looked_for_by_one_entry_of_the_index_also_in_a_table_that_was_just_filled() -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        # As if nothing had been analysed yet.
        cursor.execute("DELETE FROM pg_statistic WHERE starelid = %s::regclass", [Task._meta.db_table])
        look, *_ = plans(lambda: stats.queued_names(DB, ["mail", "default"], without=("work",)))
        transaction.set_rollback(True)
    assert look.uses("cairnq_task_claim"), look
    assert "Limit" in look.text, look


@pytest.mark.parametrize("count", [1, 256])
def test_a_heartbeat_reads_no_more_than_its_rows(count: int) -> None:
    leases = some_leases(count)
    for plan in plans(lambda: control.renew(DB, leases, lease=30)):
        assert not plan.reads_a_whole_table, plan


def test_a_settlement_reads_no_more_than_its_row() -> None:
    (lease,) = some_leases(1)
    for settlement in (
        lambda: settle.complete(DB, lease, "done"),
        lambda: settle.fail(DB, lease, an_error(), retry_delay=1),
        lambda: settle.release(DB, [lease]),
        lambda: control.progress(DB, lease, value=0.5, message="half"),
        lambda: control.cancel(DB, lease.task_id),
    ):
        for plan in plans(settlement):
            assert not plan.reads_a_whole_table, plan


@pytest.fixture
def family() -> list[Task]:
    """A root, its child and that one's fifty."""
    root = new_task()
    child = new_task(root_id=root.pk, parent_id=root.pk)
    members = [root, child, *(new_task(root_id=root.pk, parent_id=child.pk) for _ in range(50))]
    Task.objects.bulk_create(members)
    return members


@pytest.mark.parametrize("whose", [0, 1])
def test_a_family_is_found_by_its_index(family: list[Task], whose: int) -> None:
    first, *others = plans(lambda: control.cancel_family(DB, family[whose].pk))
    assert not any(plan.reads_a_whole_table for plan in [first, *others])
    descents = [plan for plan in others if plan.uses("cairnq_task_family")]
    assert len(descents) == (1 if whose == 0 else 2), others


def test_the_oldest_children_are_found_by_the_index(family: list[Task]) -> None:
    (select,) = plans(lambda: list(Task.objects.children_of(family[1]).order_by("created_at", "pk")[:20]))
    assert select.uses("cairnq_task_family"), select
    assert not select.reads_a_whole_table, select


def test_how_far_a_look_at_failures_reaches_is_read_from_the_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "LOOKED_AT", 100)
    for select in plans(lambda: failures.recent(DB, 3_600)):
        assert select.uses("cairnq_attempt_ended"), select
        assert not select.sorts, select


def test_what_schedules_have_due_is_read_from_the_index() -> None:
    every = {"name": "n", "task_name": "work", "every": 60.0}
    rows = [Schedule(**{**every, "name": str(n)}, next_run_at=after(n) if n % 10 == 0 else None) for n in range(2_000)]
    Schedule.objects.bulk_create(rows)
    (select,) = plans(lambda: schedules.upcoming(DB, limit=10))
    assert select.uses("cairnq_schedule_next"), select


def test_a_task_s_attempts_are_found_by_their_index() -> None:
    task = Task.objects.failed()[0]
    (select,) = plans(lambda: list(task.attempts.all()))
    assert select.uses("cairnq_attempt_task"), select
