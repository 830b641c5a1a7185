"""A duty is one worker's at a time, for as long as it says so, on every database."""

from __future__ import annotations

import pytest
from django.db import DEFAULT_DB_ALIAS as DB

from cairnq_django.clock import Now, after
from cairnq_django.models import Duty
from cairnq_django.store.duties import give_back, hold
from tests.helpers import in_threads

pytestmark = pytest.mark.django_db


def take(worker_id: str, name: str = "sweep", seconds: float = 60) -> bool:
    return hold(DB, name, worker_id=worker_id, seconds=seconds)


def test_the_first_to_ask_has_the_duty_and_nobody_else() -> None:
    assert take("a")
    assert not take("b")
    assert Duty.objects.get().worker_id == "a"


def test_its_holder_renews_it() -> None:
    assert take("a", seconds=5)
    assert take("a", seconds=60)
    assert Duty.objects.filter(worker_id="a", held_until__gt=after(30)).exists()


def test_one_duty_says_nothing_of_another() -> None:
    assert take("a", "sweep")
    assert take("b", "Sweep")
    assert take("b", "calendar")


def test_that_of_a_worker_that_died_is_taken_over_when_its_time_is_up() -> None:
    assert take("dead")
    Duty.objects.update(held_until=after(-0.001))
    assert take("b")
    assert not take("dead")


def test_a_holder_that_is_late_keeps_what_nobody_took() -> None:
    assert take("a")
    Duty.objects.update(held_until=after(-5))
    assert take("a")
    assert not take("b")


def test_given_back_it_is_free_at_once() -> None:
    assert take("a")
    give_back(DB, "sweep", worker_id="a")
    assert take("b")


def test_who_does_not_have_it_cannot_give_it_back() -> None:
    give_back(DB, "sweep", worker_id="b")
    assert take("a")
    give_back(DB, "sweep", worker_id="b")
    assert not take("c")


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("there_before", [False, True], ids=["never held", "held before"])
def test_of_many_who_ask_at_once_one_has_it(there_before: bool) -> None:
    for round_ in range(10):
        name = f"duty {round_}"
        if there_before:
            Duty.objects.create(name=name, worker_id="dead", held_until=Now())
        assert sum(in_threads(4, lambda n, name=name: take(f"worker {n}", name))) == 1
