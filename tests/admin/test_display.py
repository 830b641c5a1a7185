"""How values are put into words."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cairnq_django.admin.display import duration, percent, rough_duration
from cairnq_django.admin.documents import lay_out, lay_out_text


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


@pytest.mark.parametrize(("share", "text"), [(0, "0"), (2 / 7, "29"), (0.42, "42"), (0.999, "99"), (1, "100")])
def test_a_share_is_rounded_and_is_all_only_at_the_end(share: float, text: str) -> None:
    assert percent(share) == f"{text}\u00a0%"


@pytest.mark.parametrize(
    "value",
    [None, True, 1.5, "", "a: [b], {c}", {}, [], [[], {}], {"a": {"b": [1, "ü", {"c": None}]}, "d": '\\"\n'}],
)
def test_json_is_laid_out_as_python_does(value: Any) -> None:
    assert lay_out(value).text == json.dumps(value, indent=2, ensure_ascii=False)


@pytest.mark.parametrize("ascii", [True, False])
def test_text_is_readable_however_it_is_stored(ascii: bool) -> None:
    assert lay_out_text(json.dumps(["Jürgen"], ensure_ascii=ascii), 10).text == '[\n  "Jürgen"\n]'


def test_json_nested_beyond_all_measure_is_shown_as_far_as_it_goes() -> None:
    depth = 100_000

    laid = lay_out_text("[" * depth + "]" * depth, 2 * depth)

    assert laid.text.startswith("[\n  [\n")
    assert laid.cut.startswith("Cut after 50,000 characters")
    assert 40_000 < len(laid.text) <= 50_000


def test_a_value_that_was_cut_is_laid_out_up_to_there() -> None:
    assert lay_out_text('{"a": ["b", "c', 9).text == '{\n  "a": [\n    "b",\n    "c'


def test_what_is_no_json_is_shown_as_it_is() -> None:
    assert lay_out_text("]]}, oops", 9).text.split() == ["]", "]", "},", "oops"]


def test_unprintable_characters_are_made_visible() -> None:
    assert lay_out({"\ud800": "\x7f"}).text == '{\n  "\\ud800": "\\x7f"\n}'
