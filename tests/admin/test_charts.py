"""Charts are shapes and words: nothing of a database, a language or a theme is needed to draw them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from cairnq_django.admin.charts import HEIGHT, SLOT, Chart, Series, bars, lines, round_number, round_time

MOMENTS = ["10:00", "10:01", "10:02", "10:03"]


def words() -> dict[str, Any]:
    return {
        "per": "per minute",
        "summary": "some",
        "spoken": lambda value: f"{value:g}",
        "moments": MOMENTS,
        "times": ["10:00", "now"],
    }


def drawn(*values: list[float | None]) -> Chart:
    return bars("key", "Title", [Series(f"series {n}", "good", each) for n, each in enumerate(values)], **words())


def rectangles(path: str) -> list[tuple[float, ...]]:
    """Left, top, width and height of each bar."""
    found = re.findall(r"M([\d.e+-]+) ([\d.e+-]+)h([\d.e+-]+)v([\d.e+-]+)h-[\d.e+-]+z", path)
    return [tuple(map(float, each)) for each in found]


@pytest.mark.parametrize(
    ("value", "rounded"),
    [
        (0, 2),
        (1, 2),
        (2, 2),
        (3, 4),
        (7, 8),
        (9, 10),
        (10, 10),
        (11, 20),
        (21, 40),
        (99, 100),
        (100, 100),
        (3_001, 4_000),
    ],
)
def test_a_scale_ends_with_a_round_number_whose_half_is_whole(value: float, rounded: int) -> None:
    assert round_number(value) == rounded


@pytest.mark.parametrize(
    ("seconds", "rounded"),
    [(0, 0.01), (0.3, 0.5), (3, 4), (45, 60), (61, 120), (3_599, 3_600), (90_000, 172_800), (950_400, 1_728_000)],
)
def test_a_scale_of_time_ends_with_what_people_call_round(seconds: float, rounded: float) -> None:
    assert round_time(seconds) == rounded


def test_bars_are_as_high_as_their_numbers_and_nothing_has_none() -> None:
    chart = drawn([0, 4, 2, 0])
    (shape,) = chart.shapes
    assert rectangles(shape.path) == [
        (SLOT + 1, 0, SLOT - 2, HEIGHT),
        (2 * SLOT + 1, HEIGHT / 2, SLOT - 2, HEIGHT / 2),
    ]
    assert chart.scale == ["4", "2", "0"]


def test_the_second_series_stands_on_the_first() -> None:
    below, above = drawn([1, 0, 0, 2], [1, 2, 0, 0]).shapes
    assert [(top, height) for _, top, _, height in rectangles(below.path)] == [(50, 50), (0, 100)]
    assert [(top, height) for _, top, _, height in rectangles(above.path)] == [(0, 50), (0, 100)]


def test_one_among_a_million_can_be_seen() -> None:
    (shape,) = drawn([1, 1_000_000, 0, 0]).shapes
    assert rectangles(shape.path)[0][3] == 2


def test_lines_break_where_there_is_nothing_and_a_value_alone_is_a_dot() -> None:
    chart = lines("key", "Title", [Series("wait", "mean", [1, None, 4, 2])], **words())
    (shape,) = chart.shapes
    assert shape.path == "M5 75h0M25 0h0L35 50h0"


def test_only_times_in_which_there_was_something_are_told_the_latest_first() -> None:
    chart = drawn([0, 4, 2, 0], [0, 1, 0, 0])
    assert [(row.time, row.cells) for row in chart.rows] == [("10:02", ["2", "0"]), ("10:01", ["4", "1"])]
    assert [slot.note for slot in chart.slots] == ["10:01: series 0 4, series 1 1", "10:02: series 0 2, series 1 0"]


def test_a_wait_of_no_time_is_told() -> None:
    chart = lines("key", "Title", [Series("wait", "mean", [None, 0.0, None, None])], **words())
    assert [(row.time, row.cells) for row in chart.rows] == [("10:01", ["0"])]


def test_nothing_at_all_is_an_empty_chart_with_a_scale() -> None:
    for chart in (drawn([0, 0, 0, 0]), lines("key", "Title", [Series("wait", "mean", [None] * 4)], **words())):
        assert chart.rows == chart.slots == []
        assert [shape.path for shape in chart.shapes] == [""]
        assert len(chart.scale) == 3


def test_everything_is_inside_the_drawing() -> None:
    series = [Series(f"{n}", "good", [value, 3 * value, 0, 7]) for n, value in enumerate((0.001, 5, 123_456))]
    for shape in bars("key", "Title", series, **words()).shapes:
        for left, top, width, height in rectangles(shape.path):
            assert left >= 0
            assert left + width <= len(MOMENTS) * SLOT
            assert top >= 0
            assert top + height <= HEIGHT + 0.1
