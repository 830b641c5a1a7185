"""The benchmark suite runs and reports; what it finds is no business of a test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.db import connection

from benchmarks import suite
from benchmarks.catalogue import MEASURES
from benchmarks.measures import Sizes
from benchmarks.report import write
from benchmarks.suite import parse, run

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("matplotlib", reason="the extra 'bench' is not installed")

pytestmark = [
    pytest.mark.skipif(connection.vendor != "postgresql", reason="what the suite needs is tested once"),
    pytest.mark.django_db(transaction=True),
]

TINY = Sizes(submit=10, drain=200, drain_for=1, pick_ups=5)


def test_a_tiny_run_ends_in_a_table_and_a_plot(database_url: str, tmp_path: Path) -> None:
    options = parse(["--rounds", "1", "--results", str(tmp_path), "--contenders", "cairnq-django", "limit"])
    measures = [measure for measure in MEASURES if measure.name in ("submit", "drain", "pickup")]

    results = run(measures, options.contenders, database_url, TINY, rounds=1)
    table, plot = write(results, measures, options, database_url)

    assert (results.failures, results.missing) == ({}, {})
    rows = rows_of(table)
    assert rows["measure"] == ["unit", "cairnq-django", "limit"]
    assert all(float(rate.replace(",", "")) > 0 for rate in rows["Submit one by one, one producer"][1:])
    assert all(float(rate.replace(",", "")) > 0 for rate in rows["Drain, synchronous handlers"][1:])
    assert rows["Commit to start, idle worker, synchronous handlers: p50"][2] == ""
    assert plot.stat().st_size > 1000


def test_a_contender_that_fails_is_reported_and_the_others_are_measured(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(suite.CONTENDERS, "absent", "no_such_module:Nothing")
    options = parse(["--rounds", "1", "--results", str(tmp_path), "--contenders", "absent", "limit"])
    measures = [measure for measure in MEASURES if measure.name == "submit"]

    results = run(measures, options.contenders, database_url, TINY, rounds=1)
    table = write(results, measures, options, database_url)[0]

    rows = rows_of(table)
    absent = rows["measure"].index("absent")
    assert rows["Submit one by one, one producer"][absent] == "does not run"
    assert "No module named 'benchmarks.contenders.no_such_module'" in table.read_text()


def rows_of(table: Path) -> dict[str, list[str]]:
    """The first table's rows by their first cell."""
    lines = [line for line in table.read_text().split("## ")[0].splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row[1:] for row in cells}
