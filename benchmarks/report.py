"""What was measured, as a Markdown table and a plot."""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.contenders import CONTENDERS, load, version_of
from benchmarks.subjects import connect, maintenance

try:
    from matplotlib.figure import Figure
except ImportError:
    Figure = None

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from matplotlib.axes import Axes

    from benchmarks.catalogue import Measure
    from benchmarks.suite import Results

OURS, LIMIT = "cairnq-django", "limit"
AGAINST_EACH_OTHER = [
    ("Drain, 2 processes ÷ 1", ("drain-2", ""), ("drain", "")),
    ("Drain, batches of 100, 2 processes ÷ 1", ("drain-batch-2", ""), ("drain-batch", "")),
    (
        "8 producers and a busy worker, announcements on ÷ off",
        ("submit-8-busy", "announcements on"),
        ("submit-8-busy", "announcements off"),
    ),
    ("SQLite: drain, 2 processes ÷ 1", ("sqlite-drain-2", ""), ("sqlite-drain", "")),
]
FEWEST = 4  # bars that a panel has room for
COLOURS = {name: f"C{n}" for n, name in enumerate(CONTENDERS)}
SERVER_SETTINGS = ["fsync", "synchronous_commit", "full_page_writes", "shared_buffers", "max_wal_size"]


def write(results: Results, measures: Sequence[Measure], options: argparse.Namespace, server: str) -> list[Path]:
    """Write both into the folder of results; return what was written."""
    options.results.mkdir(parents=True, exist_ok=True)
    name = "quick" if options.quick else "full"
    table = options.results / f"{name}.md"
    plot = options.results / f"{name}.png"
    plotted = draw(results, measures, plot)
    table.write_text("\n".join(lines(results, measures, options, server, plot.name if plotted else None)) + "\n")
    return [table, plot] if plotted else [table]


def lines(
    results: Results, measures: Sequence[Measure], options: argparse.Namespace, server: str, plot: str | None
) -> Iterator[str]:
    yield "# Benchmarks"
    yield ""
    command = f"python -m benchmarks{' --quick' if options.quick else ''}"
    of = "one round" if options.rounds == 1 else f"medians, least and most of {options.rounds} interleaved rounds"
    yield f"`{command}`, {time.strftime('%Y-%m-%d')}: {of}. Compare figures of one run only."
    yield ""
    yield from table(results, measures)
    if plot:
        yield ""
        yield f"![The same as bars]({plot})"
    comparison = list(compare(results, measures))
    if comparison:
        yield ""
        yield "## Ratios"
        yield ""
        yield "Medians of what each round says."
        yield ""
        yield from comparison
    yield ""
    yield "## Where"
    yield ""
    yield from (f"* {line}" for line in where(results, server))
    yield ""
    yield "## How"
    yield ""
    yield from (f"* {line}" for line in how(results, measures, options))
    if results.failures or results.missing:
        yield ""
        yield "## What did not run"
        yield ""
        yield from (f"* {name}: {reason}" for name, reason in results.missing.items())
        yield from (f"* {measure}, {name}: {reason}" for (measure, name), reason in results.failures.items())


def table(results: Results, measures: Sequence[Measure]) -> Iterator[str]:
    names = contenders_of(results)
    yield f"| measure | unit | {' | '.join(names)} |"
    yield f"| --- | --- |{' ---: |' * len(names)}"
    for measure in measures:
        labels = [label for name, label in results.figures if name == measure.name] or [""]
        for label in labels:
            title = f"{measure.title}: {label}" if label else measure.title
            cells = [cell(results, measure, label, name) for name in names]
            yield f"| {title} | {unit_of(measure, label)} | {' | '.join(cells)} |"


def compare(results: Results, measures: Sequence[Measure]) -> Iterator[str]:
    """This project against the limit, the best peer and the best one of Django's; measures against each other."""
    rows = []
    for measure in measures:
        for (name, label), figures in results.figures.items():
            if name == measure.name and label in ("", "p50", "p99") and OURS in figures:
                peers = [peer for peer in figures if peer not in (OURS, LIMIT)]
                more_is_better = measure.unit == "tasks/s"
                peers.sort(key=lambda peer: statistics.median(figures[peer]), reverse=more_is_better)
                of_django = [peer for peer in peers if "Django" in load(peer).packages]
                for other in dict.fromkeys([LIMIT] * (LIMIT in figures) + peers[:1] + of_django[:1]):
                    ratio = ratio_of(figures[OURS], figures[other])
                    rows.append((f"{measure.title} {label}".strip(), f"{OURS} ÷ {other}", ratio))
    for title, above, below in AGAINST_EACH_OTHER:
        for name, figures in results.figures.get(above, {}).items():
            if others := results.figures.get(below, {}).get(name):
                rows.append((title, name, ratio_of(figures, others)))
    if rows:
        yield "| measure | of | ratio |"
        yield "| --- | --- | ---: |"
        yield from (f"| {title} | {of} | {ratio} |" for title, of, ratio in rows)


def ratio_of(figures: Sequence[float], others: Sequence[float]) -> str:
    # A contender that failed in some round has fewer.
    ratios = [figure / other for figure, other in zip(figures, others, strict=False) if other]
    return f"{statistics.median(ratios):.2f}" if ratios else ""


def unit_of(measure: Measure, label: str) -> str:
    # What is looked at in passing has a unit of its own.
    return {"open transactions": "", "memory, MiB": ""}.get(label, measure.unit)


def cell(results: Results, measure: Measure, label: str, name: str) -> str:
    figures = results.figures.get((measure.name, label), {}).get(name)
    if name in results.missing:
        return "does not run"
    if figures is None:
        return "failed" if (measure.name, name) in results.failures else ""
    middle = rounded(statistics.median(figures))
    return middle if len(figures) == 1 else f"{middle} ({rounded(min(figures))} to {rounded(max(figures))})"


def rounded(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"


def contenders_of(results: Results) -> list[str]:
    seen = {name for figures in results.figures.values() for name in figures}
    seen |= {name for _, name in results.failures} | set(results.missing)
    return [name for name in CONTENDERS if name in seen]


def where(results: Results, server: str) -> Iterator[str]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    yield f"{os.cpu_count()} cores, {memory:.0f} GiB of memory, {platform.system()} {platform.machine()}"
    yield f"A load of {results.load:.1f} when it began: what others did beside it"
    yield f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version} (WAL, synchronous=NORMAL)"
    if server:
        connection = connect(maintenance(server))
        version = connection.execute("SHOW server_version").fetchone()[0]
        settings = [f"{name} = {connection.execute(f'SHOW {name}').fetchone()[0]}" for name in SERVER_SETTINGS]
        connection.close()
        yield f"PostgreSQL {version}, {', '.join(settings)}"


def how(results: Results, measures: Sequence[Measure], options: argparse.Namespace) -> Iterator[str]:
    sizes = options.sizes
    yield (
        f"Submit: {sizes.submit:,} tasks, each committed by itself, {sizes.submit_beside:,} of 8 producers, "
        f"beside a worker {sizes.turns} turns of {sizes.turn:g} seconds; {sizes.submit_many:,} at once in thousands. "
        f"Drain: {sizes.drain:,} tasks (five times as many for the limit), for up to {sizes.drain_for:g} seconds."
    )
    yield (
        "Every worker and every producer is a process of its own, ready before the clock starts; what has been done is "
        "read from the database. Handlers do nothing; the payload is a number."
    )
    if any(measure.name.startswith("pickup") for measure in measures):
        yield (
            f"Commit to start: {sizes.pick_ups} tasks, {sizes.pause:g} seconds between two; a commit counts from when "
            "the submitting call has returned, a start from when the handler's own code runs."
        )
    if any(measure.name.startswith("growth") for measure in measures):
        yield (
            f"Growth: k and M stand for {sizes.few:,}, {sizes.many:,} and {sizes.masses:,} rows in this run; "
            f"drained for up to {sizes.grown_for:g} seconds."
        )
    for name in contenders_of(results):
        if name not in results.missing:
            contender = load(name)
            versions = ", ".join(f"{package} {version_of(package)}" for package in contender.packages)
            settings = "; ".join(f"{kind}: {text}" for kind, text in contender.settings.items())
            yield f"{name} ({versions}): {settings}"
    yield from sorted(results.notes)


def draw(results: Results, measures: Sequence[Measure], path: Path) -> bool:
    """A panel for each measure. False where the plotting library is not installed, or nothing was measured."""
    measured = {name for name, _ in results.figures}
    panels = [measure for measure in measures if measure.name in measured]
    if Figure is None or not panels:
        return False
    columns = 3
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(5.2 * columns, 2.6 * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel, measure in zip(axes, panels, strict=False):
        labels = {
            label: found
            for (name, label), found in results.figures.items()
            if name == measure.name and unit_of(measure, label) == measure.unit
        }
        if list(labels) == [""]:
            bars(panel, labels[""])
        else:
            dots(panel, labels)
        panel.set_title(measure.title, fontsize=9)
        panel.set_xlabel(measure.unit, fontsize=8)
        panel.tick_params(labelsize=8)
    for panel in axes[len(panels) :]:
        panel.set_visible(False)
    figure.savefig(path, dpi=90)
    return True


def bars(panel: Axes, found: dict[str, list[float]]) -> None:
    names = list(found)[::-1]
    middles = [statistics.median(found[name]) for name in names]
    spread = [
        [middle - min(found[name]) for name, middle in zip(names, middles, strict=True)],
        [max(found[name]) - middle for name, middle in zip(names, middles, strict=True)],
    ]
    panel.barh(names, middles, xerr=spread, color=[COLOURS[name] for name in names], ecolor="grey")
    # A bar that is alone is as thick as the others.
    panel.set_ylim(-0.5, max(len(names), FEWEST) - 0.5)


def dots(panel: Axes, labels: dict[str, dict[str, list[float]]]) -> None:
    """A line for each label, a dot on it for each contender."""
    for name in dict.fromkeys(name for found in labels.values() for name in found):
        with_it = [label for label in list(labels)[::-1] if name in labels[label]]
        middles = [statistics.median(labels[label][name]) for label in with_it]
        panel.plot(middles, with_it, "o", color=COLOURS[name], label=name)
    least, most = panel.get_xlim()
    if least > 0 and most > 5 * least:
        panel.set_xscale("log")
    else:
        panel.set_xlim(0, most)
    panel.grid(axis="y", alpha=0.3)
    panel.legend(fontsize=6)
