"""How much a worker may claim now."""

from __future__ import annotations

from typing import Any

import pytest

from cairnq_django import TaskDef
from cairnq_django.limits import MAX_BATCH
from cairnq_django.store.claim import Claim, Draw, Drawn
from cairnq_django.worker.budgets import Budget, Group, Plan, grouped

X = Group(("x",))
BATCH = Group(("embed",), batch=256)
ALONE = Group(("alone",), concurrency=1)
GPU = Group(("gpu",), resource="gpu")
GPU_BATCH = Group(("gpu_batch",), batch=10, resource="gpu")

PLENTY = 10**6


class Drawing:
    """A plan that is drawn where there are so many due tasks of each name, each with a payload of so many bytes."""

    def __init__(self, *groups: Group, due: int | dict[str, int] = PLENTY, size: int = 0, **budget: Any) -> None:
        given: dict[str, Any] = {"calls": 8, "resources": {"gpu": 2}, "running": []}
        self.plan = Plan(Budget(**{**given, **budget}), groups, ["a", "b"])
        self._due = due
        self._size = size
        self.draws: list[Draw] = []

    def taken(self) -> dict[tuple[str, ...], int]:
        """How many tasks each draw claimed."""
        taken: dict[tuple[str, ...], int] = {}
        draws = self.plan.draws()
        draw = next(draws, None)
        while draw is not None:
            self.draws.append(draw)
            drawn = self._drawn(draw)
            taken[draw.names] = len(drawn.claims)
            try:
                draw = draws.send(drawn)
            except StopIteration:
                break
        return taken

    def _drawn(self, draw: Draw) -> Drawn:
        due = self._due if isinstance(self._due, int) else self._due[draw.names[0]]
        wanted = min(due, draw.limit)
        count = wanted if draw.max_bytes is None else min(wanted, max(0, draw.max_bytes // self._size))
        if not count and wanted and draw.at_least_one:
            count = 1
        return Drawn([a_claim(draw.names[0], self._size) for _ in range(count)], cut_by_bytes=count < wanted)


def a_claim(name: str, size: int) -> Claim:
    empty: dict[str, Any] = dict.fromkeys(Claim._fields)
    return Claim(**{**empty, "name": name, "payload_bytes": size})


def test_names_without_limits_share_a_draw_and_the_others_draw_alone() -> None:
    definitions = [
        TaskDef("y"),
        TaskDef("x", queue="other", priority=3, max_run=5),
        TaskDef("embed", batch=256),
        TaskDef("alone", concurrency=1),
        TaskDef("gpu", resource="gpu"),
    ]

    assert grouped(definitions, {"gpu": 2}) == [Group(("x", "y")), ALONE, BATCH, GPU]


def test_a_definition_s_names_are_drawn_for_together_and_share_its_ceilings() -> None:
    plain = TaskDef("x", aliases=["old.x"])
    alone = TaskDef("z", concurrency=2, aliases=["a", "b"])
    groups = grouped([alone, plain, TaskDef("y")], {})

    assert groups == [Group(("x", "old.x", "y")), Group(("z", "a", "b"), concurrency=2)]
    assert Drawing(*groups, running=[alone], due=8).taken() == {("x", "old.x", "y"): 8}
    assert Drawing(groups[1], running=[alone]).taken() == {("z", "a", "b"): 1}


def test_a_resource_of_which_a_worker_has_none_is_never_drawn_for() -> None:
    assert grouped([TaskDef("gpu", resource="gpu")], {"gpu": 0}) == []


def test_one_draw_is_from_all_queues() -> None:
    drawing = Drawing(X)

    assert drawing.taken() == {("x",): 8}
    assert drawing.draws == [Draw(queues=("a", "b"), names=("x",), limit=8)]


@pytest.mark.parametrize("calls", [0, -1])
def test_without_a_free_slot_there_is_nothing_to_draw(calls: int) -> None:
    drawing = Drawing(X, BATCH, calls=calls)

    assert not drawing.plan
    assert drawing.taken() == {}
    assert drawing.plan.unfinished == [X, BATCH]


def test_a_slot_takes_a_batch_as_it_takes_one_task() -> None:
    assert Drawing(BATCH, calls=2).taken() == {("embed",): 512}


def test_a_draw_is_for_what_the_ones_before_it_left() -> None:
    due = {"embed": 257, "x": PLENTY, "alone": PLENTY}

    assert Drawing(BATCH, X, ALONE, due=due).taken() == {("embed",): 257, ("x",): 6}
    assert Drawing(ALONE, BATCH, X, due=due).taken() == {("alone",): 1, ("embed",): 257, ("x",): 5}


def test_what_a_draw_did_not_find_is_left_for_the_next() -> None:
    assert Drawing(X, BATCH, due={"x": 3, "embed": PLENTY}).taken() == {("x",): 3, ("embed",): 5 * 256}


def test_a_name_has_no_more_calls_than_its_concurrency() -> None:
    running = [TaskDef("alone"), TaskDef("x")]

    assert Drawing(ALONE).taken() == {("alone",): 1}
    assert Drawing(ALONE, running=running).taken() == {}
    assert Drawing(Group(("x",), concurrency=3), running=running).taken() == {("x",): 2}
    assert Drawing(Group(("x",), concurrency=3), calls=1).taken() == {("x",): 1}


def test_names_that_share_a_resource_share_its_calls() -> None:
    assert Drawing(GPU, GPU_BATCH).taken() == {("gpu",): 2}
    assert Drawing(GPU, GPU_BATCH, due={"gpu": 1, "gpu_batch": PLENTY}).taken() == {("gpu",): 1, ("gpu_batch",): 10}
    assert Drawing(GPU_BATCH, GPU, due={"gpu": 5, "gpu_batch": 11}).taken() == {("gpu_batch",): 11}


def test_running_calls_of_any_of_its_names_count_against_a_resource() -> None:
    running = [TaskDef("another", resource="gpu"), TaskDef("x")]

    assert Drawing(GPU_BATCH, running=running).taken() == {("gpu_batch",): 10}
    assert Drawing(GPU, running=[*running, TaskDef("gpu", resource="gpu")]).taken() == {}


def test_the_tightest_limit_binds() -> None:
    def taken(**limits: Any) -> int:
        group = Group(("t",), **{"batch": 10, "concurrency": 5, "resource": "gpu", **limits})
        return Drawing(group, resources={"gpu": 4}, calls=3).taken()[("t",)]

    assert taken() == 30
    assert taken(concurrency=2) == 20
    assert taken(concurrency=1, batch=1) == 1


def test_a_plan_says_which_groups_may_have_more() -> None:
    drawing = Drawing(X, ALONE, GPU, due={"x": 8, "alone": 0, "gpu": 1}, calls=11)

    drawing.taken()
    assert drawing.plan.unfinished == []

    drawing = Drawing(X, ALONE, GPU, due={"x": 8, "alone": 1, "gpu": 1}, calls=11)
    drawing.taken()
    assert drawing.plan.unfinished == [ALONE]

    drawing = Drawing(X, ALONE, GPU, due={"x": 8, "alone": 1, "gpu": 1}, calls=8)
    drawing.taken()
    assert drawing.plan.unfinished == [X, ALONE, GPU]


def test_a_plan_can_be_drawn_anew_as_if_it_had_not_been() -> None:
    drawing = Drawing(X, ALONE)

    first, second = drawing.taken(), drawing.taken()

    assert first == second == {("x",): 8}


def test_bytes_are_measured_only_if_they_are_limited() -> None:
    unlimited, limited = Drawing(X), Drawing(X, max_bytes=100, size=10)
    unlimited.taken()
    limited.taken()

    assert unlimited.draws[0].max_bytes is None
    assert limited.draws[0].max_bytes == 100


def test_draws_share_the_bytes_that_running_calls_leave() -> None:
    drawing = Drawing(X, BATCH, due={"x": 3, "embed": 4}, size=10, max_bytes=100, bytes_in_flight=25, is_idle=False)

    assert drawing.taken() == {("x",): 3, ("embed",): 4}
    assert [draw.max_bytes for draw in drawing.draws] == [75, 45]
    assert drawing.plan.held_up is None


def test_no_draw_follows_one_whose_payload_did_not_fit() -> None:
    drawing = Drawing(
        X, BATCH, GPU, due={"x": 3, "embed": 9, "gpu": 1}, size=10, max_bytes=100, bytes_in_flight=25, is_idle=False
    )

    assert drawing.taken() == {("x",): 3, ("embed",): 4}
    assert drawing.plan.unfinished == [BATCH, GPU]
    assert drawing.plan.held_up == BATCH


def test_a_payload_above_the_whole_budget_runs_alone() -> None:
    assert Drawing(X, BATCH, size=1000, max_bytes=100).taken() == {("x",): 1}
    assert Drawing(X, BATCH, size=1000, max_bytes=100, is_idle=False).taken() == {("x",): 0}


def test_without_bytes_left_there_is_nothing_to_draw() -> None:
    drawing = Drawing(X, size=10, max_bytes=100, bytes_in_flight=1000, is_idle=False)

    assert not drawing.plan
    assert drawing.taken() == {}


def test_bytes_that_abandoned_handlers_hold_leave_room_for_one_at_a_time() -> None:
    assert Drawing(X, size=10, max_bytes=100, bytes_in_flight=1000).taken() == {("x",): 1}


def test_a_draw_is_no_larger_than_a_statement_takes() -> None:
    assert Drawing(Group(("large",), batch=4000), calls=8).taken() == {("large",): 8000}
    assert Drawing(Group(("largest",), batch=MAX_BATCH), calls=8).taken() == {("largest",): MAX_BATCH}
    assert Drawing(X, calls=2 * MAX_BATCH).taken() == {("x",): MAX_BATCH}


def test_a_plan_for_one_group_with_room_is_a_single_draw() -> None:
    plan = Drawing(X, ALONE, calls=3, running=[TaskDef("alone", concurrency=1)]).plan
    assert plan.drawing == [X]
    assert plan.only_draw == Draw(("a", "b"), ("x",), 3)
    plan.drawn_at_once([a_claim("x", 0) for _ in range(2)])
    assert plan.unfinished == [ALONE], "it found less than there was room for"
    plan.drawn_at_once([a_claim("x", 0) for _ in range(3)])
    assert plan.unfinished == [X, ALONE]


def test_a_plan_for_several_groups_is_no_single_draw() -> None:
    assert Drawing(X, ALONE).plan.only_draw is None
    assert Drawing(X, calls=0).plan.only_draw is None
