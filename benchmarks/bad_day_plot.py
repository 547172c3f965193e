"""The pictures of `benchmarks.bad_day`, in colours that everybody can tell apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from benchmarks.bad_day_figures import Figures, Round
from benchmarks.bad_day_script import RIVALS, SERVICES, TROUBLES, Form

# Okabe and Ito's palette.
COLORS = dict(zip(RIVALS, ("#999999", "#E69F00", "#009E73", "#0072B2"), strict=True))
WELL, ILL, TROUBLE = "#56B4E9", "#D55E00", "#F0E442"
BARS = (
    ("success", "success, %"),
    ("recovered", "transient failures recovered, %"),
    ("dead", "requests to dead services, %"),
    ("wasted", "time wasted, seconds"),
    ("recovery_p95", "p95 recovery time, seconds"),
    ("load_at_return", "load after recovery, times the usual"),
)
BINS = 60


def draw_columns(rows: Sequence[Figures], path: Path) -> None:
    """One small picture for each column, one bar for each rival."""
    figure, grid = plt.subplots(2, 3, figsize=(13, 6.4), layout="constrained")
    for axes, (name, title) in zip(grid.flat, BARS, strict=True):
        _draw_bars(axes, rows, name, title)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_bars(axes: Axes, rows: Sequence[Figures], name: str, title: str) -> None:
    values: list[float | None] = [getattr(row, name) for row in rows]
    places = range(len(rows))
    bars = axes.bar(places, [value or 0 for value in values], color=[COLORS[row.rival] for row in rows])
    axes.bar_label(bars, ["none" if value is None else f"{value:.3g}" for value in values], padding=2)
    axes.set_xticks(places, [row.rival.replace(" + ", " +\n") for row in rows], fontsize=8)
    axes.set_title(title, fontsize=11)
    axes.margins(y=0.15)
    axes.spines[["top", "right"]].set_visible(False)


def draw_courses(rounds: Sequence[Round], form: Form, path: Path) -> None:
    """What arrived at each service through the day, for each rival: answered, and not."""
    figure, grid = plt.subplots(
        len(rounds),
        len(SERVICES),
        figsize=(16, 2.4 * len(rounds)),
        sharex=True,
        sharey="col",
        squeeze=False,
        layout="constrained",
    )
    for day, line in zip(rounds, grid, strict=True):
        for service, axes in zip(SERVICES, line, strict=True):
            _draw_course(axes, day, service, form)
        line[0].set_ylabel(f"{day.rival}\nrequests/s", fontsize=9)
    for service, axes in zip(SERVICES, grid[0], strict=True):
        axes.set_title(service, fontsize=11)
    for axes in grid[-1]:
        axes.set_xlabel("seconds", fontsize=9)
    handles = [plt.Rectangle((0, 0), 1, 1, color=color) for color in (WELL, ILL, TROUBLE)]
    figure.legend(handles, ["answered", "failed", "scripted failure"], loc="outside upper right", ncols=3)
    figure.savefig(path, dpi=100)
    plt.close(figure)


def _draw_course(axes: Axes, day: Round, service: str, form: Form) -> None:
    width = form.seconds / BINS
    for trouble in TROUBLES:
        if trouble.service == service:
            begins, ends = trouble.begins * form.stretch, trouble.ends * form.stretch
            axes.axvspan(begins, ends, color=TROUBLE, alpha=0.35, linewidth=0)
    own = [request for request in day.requests if request.service == service]
    well = Counter(int(request.at // width) for request in own if request.met == "ok")
    ill = Counter(int(request.at // width) for request in own if request.met != "ok")
    last = max([BINS, *well, *ill])
    places = [(number + 0.5) * width for number in range(last + 1)]
    good = [well[number] / width for number in range(last + 1)]
    axes.bar(places, good, width, color=WELL)
    axes.bar(places, [ill[number] / width for number in range(last + 1)], width, bottom=good, color=ILL)
    axes.axhline(form.usual_rate, color="black", linewidth=0.6, linestyle=":")
    axes.spines[["top", "right"]].set_visible(False)
