"""What surrounds submits and calls sees them end, and can neither stop them nor swallow what they raise."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from cairnq_django import Registry, TaskContext, get, submit
from cairnq_django.instrumentation import surround
from tests.workers import run, runs_workers

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = runs_workers


@pytest.fixture
def registry() -> Registry:
    registry = Registry()

    @registry.task
    def work(ctx: TaskContext, payload: Any) -> Any:
        if payload == "raise":
            raise ValueError("boom")
        return payload

    return registry


@contextmanager
def surrounded(**managers: Any) -> Iterator[None]:
    undo = surround(**managers)
    try:
        yield
    finally:
        undo()


@pytest.mark.parametrize("when", ["made", "entered", "left", "swallowing"])
def test_what_surrounds_and_raises_or_swallows_changes_nothing(
    registry: Registry, caplog: pytest.LogCaptureFixture, when: str
) -> None:
    seen: list[BaseException | None] = []

    @contextmanager
    def spoiling(*arguments: Any) -> Iterator[None]:
        if when == "entered":
            raise RuntimeError("spoilt")
        try:
            yield
        except Exception as error:
            seen.append(error)
            if when != "swallowing":
                raise
        if when == "left":
            raise RuntimeError("spoilt")

    def manager(*arguments: Any) -> Any:
        if when == "made":
            raise RuntimeError("spoilt")
        return spoiling(*arguments)

    with surrounded(submits=manager, calls=manager):
        good, bad = submit("work", 7), submit("work", "raise", max_attempts=1)
        run(registry)
    assert get(good.pk).result == 7
    assert get(bad.pk).error["message"] == "boom"
    assert ("spoilt" in caplog.text) == (when != "swallowing")
    assert [type(error) for error in seen] == ([] if when in ("made", "entered") else [ValueError])


def test_the_same_manager_surrounds_once_and_each_surrounds_those_that_came_later(registry: Registry) -> None:
    told: list[str] = []

    def telling(name: str) -> Any:
        @contextmanager
        def manager(tasks: Any, in_batch: bool) -> Iterator[None]:
            told.append(f"into {name}")
            yield
            told.append(f"out of {name}")

        return manager

    outer, inner = telling("outer"), telling("inner")
    with surrounded(calls=outer), surrounded(calls=inner), surrounded(calls=inner):
        submit("work")
        run(registry)
    assert told == ["into outer", "into inner", "out of inner", "out of outer"]
