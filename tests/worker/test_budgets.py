"""How much a worker may claim now."""

from __future__ import annotations

from typing import Any

import pytest

from cairnq_django.store.claim import Draw
from cairnq_django.worker.budgets import plan_draws


def plan(**changes: Any) -> list[Draw]:
    given: dict[str, Any] = {
        "queues": ["a", "b"],
        "names": ["x", "y"],
        "concurrency": 8,
        "occupied": 0,
        "claim_batch": 8,
    }
    return plan_draws(**{**given, **changes})


def test_all_names_share_one_draw_from_all_queues() -> None:
    assert plan() == [Draw(queues=("a", "b"), names=("x", "y"), limit=8)]


@pytest.mark.parametrize(
    ("occupied", "claim_batch", "limit"), [(0, 100, 8), (5, 8, 3), (0, 3, 3), (7, 3, 1), (0, 1, 1)]
)
def test_it_is_for_no_more_than_the_free_slots_and_one_batch(occupied: int, claim_batch: int, limit: int) -> None:
    assert [draw.limit for draw in plan(occupied=occupied, claim_batch=claim_batch)] == [limit]


@pytest.mark.parametrize("occupied", [8, 9])
def test_without_a_free_slot_there_is_nothing_to_draw(occupied: int) -> None:
    assert plan(occupied=occupied) == []
