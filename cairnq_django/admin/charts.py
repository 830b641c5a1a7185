"""Charts as shapes and words for a template to draw: no database, no markup, no colours.

The drawing is stretched to the room there is, so that no text may be in it, and lines must keep their width.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

HEIGHT: Final = 100  # units of the drawing
SLOT: Final = 10  # units of the drawing that each span of time takes
_GAP: Final = 1  # on each side of a bar
_WIDE: Final = SLOT - 2 * _GAP
_LEAST: Final = 2  # of a bar that is not nothing

_STEPS_OF_TIME: Final = (
    *(0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 4, 10, 20, 30, 60),
    *(120, 240, 600, 1_200, 1_800, 3_600, 7_200, 14_400, 43_200, 86_400),
)  # seconds whose halves are round as well


@dataclass(frozen=True)
class Series:
    """What one kind of shape shows: a value for each span of time, None where there is none."""

    label: Any
    kind: str  # how it is drawn, for the style sheet
    values: Sequence[float | None]


@dataclass(frozen=True)
class Shape:
    label: Any
    kind: str
    path: str
    sample: str  # on a square of 16 by 10, for a legend


@dataclass(frozen=True)
class Slot:
    """A span of time, to point at."""

    x: int
    note: str


@dataclass(frozen=True)
class Row:
    """A span of time in which there is something, in words."""

    time: str
    cells: list[str]


@dataclass(frozen=True)
class Chart:
    key: str
    title: Any
    per: Any
    summary: str
    width: int  # units of the drawing
    height: int
    slot: int
    scale: list[str]  # from the top
    times: list[str]  # from the beginning, at equal distances
    shapes: list[Shape]
    slots: list[Slot]
    labels: list[Any]
    rows: list[Row]  # the latest first

    @property
    def middle(self) -> int:
        return self.height // 2


def bars(key: str, title: Any, series: Sequence[Series], **words: Any) -> Chart:
    """Numbers, stacked upon each other. The words are those of `lines()`."""
    sums = [sum(value or 0 for value in values) for values in _at_once(series)]
    top = round_number(max(sums, default=0))
    below = [0.0] * len(sums)
    shapes = []
    for each in series:
        parts = []
        for index, value in enumerate(each.values):
            if value:
                height = max(_LEAST, value / top * HEIGHT)
                y = max(0.0, HEIGHT - below[index] - height)
                parts.append(f"M{index * SLOT + _GAP} {y:.4g}h{_WIDE}v{HEIGHT - below[index] - y:.4g}h-{_WIDE}z")
                below[index] = HEIGHT - y
        shapes.append(Shape(each.label, each.kind, "".join(parts), "M3 1h10v8h-10z"))
    return _chart(key, title, series, shapes, top, told=[value > 0 for value in sums], **words)


def lines(key: str, title: Any, series: Sequence[Series], **words: Any) -> Chart:
    """Lengths of time, as lines that break where there is none.

    The words: `per` and `summary`; `spoken`, which puts a value into words; `moments`, the name of each span of time;
    `times`, what to write below, at equal distances.
    """
    top = round_time(max((value for each in series for value in each.values if value is not None), default=0))
    shapes = [Shape(each.label, each.kind, _line(each.values, top), "M0 5h16") for each in series]
    told = [any(value is not None for value in values) for values in _at_once(series)]
    return _chart(key, title, series, shapes, top, told=told, **words)


def round_number(value: float) -> int:
    """The least number of this size or more that is round, and whose half is whole."""
    size = 10 ** math.floor(math.log10(value)) if value >= 1 else 1
    steps = (2, 4, 6, 8, 10) if size == 1 else (1, 2, 4, 6, 8, 10)
    return next(step * size for step in steps if step * size >= value)


def round_time(seconds: float) -> float:
    """The least length of time of this size or more that people call round, in seconds."""
    for step in _STEPS_OF_TIME:
        if step >= seconds:
            return step
    return float(round_number(seconds / 86_400) * 86_400)


def _at_once(series: Sequence[Series]) -> list[tuple[float | None, ...]]:
    """For each span of time, what each of the series has."""
    return list(zip(*(each.values for each in series), strict=True))


def _line(values: Sequence[float | None], top: float) -> str:
    parts = []
    for index, (before, value) in enumerate(pairwise([None, *values])):
        if value is not None:
            y = HEIGHT - value / top * HEIGHT
            # The tail of no length makes a dot of a value that stands alone.
            parts.append(f"{'M' if before is None else 'L'}{index * SLOT + SLOT // 2} {y:.4g}h0")
    return "".join(parts)


def _chart(
    key: str,
    title: Any,
    series: Sequence[Series],
    shapes: list[Shape],
    top: float,
    *,
    told: Sequence[bool],
    per: Any,
    summary: str,
    spoken: Callable[[float], str],
    moments: Sequence[str],
    times: list[str],
) -> Chart:
    slots, rows = [], []
    for index, (moment, values) in enumerate(zip(moments, _at_once(series), strict=True)):
        if told[index]:
            cells = ["" if value is None else spoken(value) for value in values]
            said = ", ".join(f"{each.label} {cell}" for each, cell in zip(series, cells, strict=True) if cell)
            slots.append(Slot(index * SLOT, f"{moment}: {said}"))
            rows.append(Row(moment, cells))
    return Chart(
        key=key,
        title=title,
        per=per,
        summary=summary,
        width=len(moments) * SLOT,
        height=HEIGHT,
        slot=SLOT,
        scale=[spoken(top), spoken(top / 2), "0"],
        times=times,
        shapes=shapes,
        slots=slots,
        labels=[each.label for each in series],
        rows=rows[::-1],
    )
