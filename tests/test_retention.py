"""What a sweep deletes, how little it does at a time, and that one worker does it for all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from django.db import DEFAULT_DB_ALIAS as DB
from django.db import connection

from cairnq_django import retention
from cairnq_django.clock import after
from cairnq_django.conf import get_settings
from cairnq_django.models import Duty, Task, TaskAttempt, TaskKey
from cairnq_django.retention import Sweeps
from cairnq_django.store import maintenance
from tests.factories import TaskFactory
from tests.store.sessions import another_transaction, locks_rows
from tests.workers import sweeps_in_batches_of

if TYPE_CHECKING:
    from pytest_django.fixtures import SettingsWrapper

pytestmark = pytest.mark.django_db


class Pauses(list[float]):
    """Pauses that take no time; the one of the number `last` ends the sweep."""

    def __init__(self, last: int | None = None) -> None:
        super().__init__()
        self._last = last

    def __call__(self, seconds: float) -> bool:
        self.append(seconds)
        return len(self) == self._last


@pytest.fixture
def sweeps(settings: SettingsWrapper) -> Any:
    """Make the sweeps of a worker under some `CAIRNQ["RETENTION"]`."""

    def make(rules: Any, worker_id: str = "a", pause: Pauses | None = None) -> Sweeps:
        settings.CAIRNQ = {"RETENTION": rules}
        return Sweeps(DB, get_settings().retention, worker_id=worker_id, pause=Pauses() if pause is None else pause)

    return make


def ended(seconds_ago: float, state: str = "succeeded", **fields: Any) -> Task:
    return TaskFactory(**{state: True}, completed_at=after(-seconds_ago), **fields)


def names_left() -> set[str]:
    return set(Task.objects.values_list("name", flat=True))


@pytest.mark.parametrize(
    ("rules", "deleted"),
    [
        (None, []),
        ([], []),
        (3600, ["old success", "old failure", "old cancel", "old rpc", "old mail"]),
        ({"succeeded": 3600}, ["old success", "old rpc"]),
        ({"succeeded": 3600, "failed": 60}, ["old success", "old rpc", "old failure", "old mail", "young failure"]),
        ([{"queue": "rpc", "older_than": 60}], ["old rpc", "young rpc"]),
        ([{"name": "old failure", "older_than": 0}], ["old failure"]),
        ([{"queue": "mail", "status": "failed", "older_than": 3600}], ["old mail"]),
        ([{"queue": "mail", "status": "succeeded", "older_than": 3600}], []),
        ([{"queue": "rpc", "older_than": 60}, {"status": "failed", "older_than": 7000}], ["old rpc", "young rpc"]),
        ([{"status": "canceled", "older_than": 3600}, {"queue": "mail", "older_than": 60}], ["old cancel", "old mail"]),
    ],
    ids=str,
)
def test_what_a_rule_matches_is_deleted_and_the_rest_stays(sweeps: Any, rules: Any, deleted: list[str]) -> None:
    for state, name in (("succeeded", "success"), ("failed", "failure"), ("canceled", "cancel")):
        ended(4000, state, name=f"old {name}")
        ended(3000, state, name=f"young {name}")
    ended(4000, name="old rpc", queue="rpc")
    ended(3000, name="young rpc", queue="rpc")
    ended(4000, "failed", name="old mail", queue="mail")
    for n, live in enumerate([{}, {"running": True}, {"delayed": True}, {"expired": True}]):
        TaskFactory(name=f"live {n}", queue="rpc", **live)
    before = names_left()
    assert sweeps(rules).run() == len(deleted)
    assert before - names_left() == set(deleted)


def test_of_several_ages_that_match_the_shortest_counts(sweeps: Any) -> None:
    ended(100, queue="rpc")
    assert sweeps([{"older_than": 3600}, {"queue": "rpc", "older_than": 60}, {"older_than": 7200}]).run() == 1


def test_keys_and_attempts_go_with_their_task(sweeps: Any) -> None:
    ended(100, "failed", key="order:7")
    kept = ended(50, "failed", key="order:8")
    sweeps(60).run()
    assert list(TaskKey.objects.values_list("task", flat=True)) == [kept.pk]
    assert set(TaskAttempt.objects.values_list("task", flat=True)) == {kept.pk}


def test_a_sweep_pauses_after_each_batch_and_ends_there_when_told_to(
    sweeps: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeps_in_batches_of(3, monkeypatch)
    for _ in range(8):
        ended(100)
    pauses = Pauses(last=2)
    assert sweeps(60, pause=pauses).run() == 6
    assert Task.objects.count() == 2
    assert len(pauses) == 2
    assert all(seconds > 0 for seconds in pauses)


def test_while_one_worker_has_the_duty_the_others_leave_it_to_it(sweeps: Any) -> None:
    first, second = sweeps(60, "a"), sweeps(60, "b")
    assert first.run() == 0
    ended(100)
    assert second.run() == 0
    assert first.run() == 1


def test_the_duty_of_a_worker_that_died_is_taken_over(sweeps: Any) -> None:
    sweeps(60, "dead").run()
    ended(100)
    Duty.objects.update(held_until=after(-0.001))
    assert sweeps(60, "b").run() == 1


def test_a_worker_that_stops_gives_the_duty_back(sweeps: Any) -> None:
    first, second = sweeps(60, "a"), sweeps(60, "b")
    first.run()
    second.give_back()
    ended(100)
    assert second.run() == 0, "it was not its own to give back"
    first.give_back()
    assert second.run() == 1


def test_a_worker_that_lost_the_duty_meanwhile_sweeps_no_further(sweeps: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sweeps_in_batches_of(1, monkeypatch)
    monkeypatch.setattr(retention, "DUTY_LEASE", 0)  # to be renewed after each batch
    for _ in range(5):
        ended(100)

    class TakenOver(Pauses):
        def __call__(self, seconds: float) -> bool:
            Duty.objects.update(worker_id="b", held_until=after(60))
            return super().__call__(seconds)

    assert sweeps(60, pause=TakenOver()).run() == 1
    assert Duty.objects.get().worker_id == "b"


@pytest.fixture
def _small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "WINDOW", 4)
    monkeypatch.setattr(retention, "MAX_PASSED", 8)


@pytest.mark.usefixtures("_small_steps")
def test_a_rule_that_matches_few_among_many_reads_a_bounded_part_in_each_sweep(sweeps: Any) -> None:
    for n in range(30):
        ended(200 - n)
    ended(100, queue="rpc")
    rare = sweeps([{"queue": "rpc", "older_than": 60}])
    assert [rare.run() for _ in range(4)] == [0, 0, 0, 1], "eight tasks of 30 each, then the one behind them"
    assert Task.objects.count() == 30


@pytest.mark.usefixtures("_small_steps")
def test_what_was_gone_through_is_not_read_again_by_the_next_sweep(sweeps: Any) -> None:
    for n in range(7):
        ended(200 - n)
    rare = sweeps([{"queue": "rpc", "older_than": 60}])
    rare.run()
    ended(150, queue="rpc")
    ended(300, queue="rpc", name="too late")
    assert rare.run() == 1
    assert "too late" in names_left()


@locks_rows
@pytest.mark.usefixtures("_small_steps")
@pytest.mark.django_db(transaction=True)
def test_what_was_locked_is_deleted_when_a_new_pass_begins(sweeps: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    locked = ended(300, queue="rpc")
    for n in range(10):
        ended(200 - n)
    rare = sweeps([{"queue": "rpc", "older_than": 60}])
    with another_transaction(lambda: Task.objects.select_for_update().get(pk=locked.pk)):
        assert rare.run() == 0
        assert rare.run() == 0
    assert rare.run() == 0
    monkeypatch.setattr(retention, "NEW_PASS_INTERVAL", 0)
    assert [rare.run(), rare.run()] == [0, 1]


def test_a_sweep_with_nothing_to_delete_asks_little(sweeps: Any, django_assert_max_num_queries: Any) -> None:
    ended(50)
    idle = sweeps({"succeeded": 60, "failed": 60})
    idle.run()
    # The duty, before and after, each in a transaction or a savepoint; one look for each status.
    with django_assert_max_num_queries(8, connection=connection):
        idle.run()
