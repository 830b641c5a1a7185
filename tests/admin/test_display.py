"""How values are put into words."""

from __future__ import annotations

from typing import Any

import pytest

from cairnq_django.admin.display import duration, lay_out, rough_duration


@pytest.mark.parametrize(
    ("seconds", "full", "rough"),
    [
        (-5, "0 ms", "0 s"),
        (0, "0 ms", "0 s"),
        (0.3509, "350 ms", "0 s"),
        (4.29, "4.2 s", "4 s"),
        (9.999, "9.9 s", "9 s"),
        (10, "10 s", "10 s"),
        (59.9, "59 s", "59 s"),
        (60, "1 min", "1 min"),
        (200, "3 min 20 s", "3 min"),
        (7_200, "2 h", "2 h"),
        (7_500, "2 h 5 min", "2 h"),
        (86_399, "23 h 59 min", "23 h"),
        (86_400 + 59, "1 d", "1 d"),
        (3 * 86_400 + 4 * 3_600 + 5, "3 d 4 h", "3 d"),
    ],
)
def test_a_length_of_time_is_told_in_its_largest_units(seconds: float, full: str, rough: str) -> None:
    assert (duration(seconds), rough_duration(seconds)) == (full, rough)


def test_json_nested_beyond_all_measure_is_cut() -> None:
    value: Any = []
    for _ in range(100_000):
        value = [value]

    laid = lay_out(value)

    assert laid.text.startswith("[\n  [\n")
    assert laid.cut == "Cut here: what follows is nested too deep to be shown."


def test_unprintable_characters_are_made_visible() -> None:
    assert lay_out({"\ud800": "\x7f"}).text == '{\n  "\\ud800": "\\x7f"\n}'
