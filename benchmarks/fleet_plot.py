"""The picture of `benchmarks.fleet_simulation`: three panels, in colours that everybody can tell apart."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt
from matplotlib.axes import Axes

# Okabe and Ito's palette; marks and dashes say it once more.
LOOKS: dict[str, dict[str, Any]] = {
    "shared": {"color": "#0072B2", "marker": "o", "linestyle": "-", "label": "one shared circuit"},
    "one each": {"color": "#D55E00", "marker": "s", "linestyle": "--", "label": "one circuit in each worker"},
}


def draw(
    rows: list[dict[str, Any]],
    courses: Mapping[str, Mapping[int, float]],
    times: tuple[float, float, float],
    path: Path,
) -> None:
    """Write the picture of these rows to `path`.

    `courses` are the calls that reached the service in each second, by kind of circuit; `times` is when
    the service died, when it came back and where the simulation ends.
    """
    figure, (course, leaked, store) = plt.subplots(1, 3, figsize=(15, 4.8), layout="constrained")
    _draw_course(course, courses, times)
    _draw_leaked(leaked, rows)
    _draw_store(store, rows)
    figure.suptitle(
        "A service is dead for one minute: what reaches it, and what the store is asked", fontsize=14
    )
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_course(
    axes: Axes, courses: Mapping[str, Mapping[int, float]], times: tuple[float, float, float]
) -> None:
    dies, returns, ends = times
    axes.axvspan(dies, returns, color="#999999", alpha=0.25, linewidth=0)
    axes.text((dies + returns) / 2, 30_000, "the service is dead", ha="center", fontsize=11)
    axes.text(
        (dies + returns) / 2 + 2, 1, "one probe", va="center", fontsize=9, color=LOOKS["shared"]["color"]
    )
    seconds = range(int(ends))
    for name, reached in courses.items():
        looks = {key: value for key, value in LOOKS[name].items() if key != "marker"}
        # A logarithmic scale has no zero: nothing is drawn where nothing arrives.
        calls = [reached.get(second, 0) or float("nan") for second in seconds]
        axes.plot(seconds, calls, linewidth=2, marker=LOOKS[name]["marker"], markersize=3, **looks)
    axes.set_yscale("log")
    axes.set_ylim(0.5, 1_500_000)
    axes.set_xlim(0, ends)
    _say(axes, "10,000 workers, second by second", "seconds", "calls that reach the service, per second")
    axes.legend(loc="upper left", fontsize=9)


def _draw_leaked(axes: Axes, rows: list[dict[str, Any]]) -> None:
    for name, looks in LOOKS.items():
        own = [row for row in rows if row["circuit"] == name]
        axes.loglog([row["workers"] for row in own], [row["leaked"] for row in own], linewidth=2, **looks)
    _say(axes, "Calls wasted on the dead service", "workers", "calls in the whole minute")
    axes.legend(loc="upper left", fontsize=9)


def _draw_store(axes: Axes, rows: list[dict[str, Any]]) -> None:
    own = [row for row in rows if row["circuit"] == "shared"]
    workers = [row["workers"] for row in own]
    usual = [row["store_per_second_closed"] for row in own]
    worst = [row["store_worst_second"] for row in own]
    axes.loglog(workers, usual, linewidth=2, **{**LOOKS["shared"], "label": "usually, closed"})
    looks = {"color": "#009E73", "marker": "^", "linestyle": ":", "label": "in its worst second"}
    axes.loglog(workers, worst, linewidth=2, **looks)
    _say(axes, "What the shared circuit asks of its store", "workers", "operations per second, whole fleet")
    axes.legend(loc="upper left", fontsize=9)


def _say(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize=12)
    axes.set_xlabel(x, fontsize=11)
    axes.set_ylabel(y, fontsize=11)
    axes.grid(visible=True, which="major", alpha=0.3)


def draw_store_load(simulated: list[dict[str, Any]], measured: list[dict[str, Any]], path: Path) -> None:
    """Write the picture of `benchmarks.fleet_store`: operations a second by the number of workers."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 4.8), layout="constrained", sharey=True)
    ways = {"pushed": ("#0072B2", "o", "-"), "polled": ("#D55E00", "s", "--")}
    for way, (color, marker, line) in ways.items():
        at = [row["workers"] for row in simulated]
        left.loglog(
            at, [row[way] for row in simulated], color=color, marker=marker, linestyle=line, label=way
        )
    _say(left, "Simulated, 1 call/s in each worker", "workers", "operations per second, whole fleet")
    for store, mark in (("Redis", "o"), ("Postgres", "^")):
        for way, (color, _, line) in ways.items():
            rows = [row for row in measured if (row["store"], row["way"]) == (store, way)]
            found = [row["sent_per_second"] for row in rows]
            looks = {"color": color, "marker": mark, "linestyle": line, "label": f"{store}, {way}"}
            right.loglog([row["processes"] for row in rows], found, **looks)
    _say(right, "Real processes, 20 calls/s in each", "processes", "")
    processes = sorted({row["processes"] for row in measured})
    right.set_xticks(processes, [str(number) for number in processes])
    right.minorticks_off()
    for axes in (left, right):
        axes.axhline(200, color="#999999", linewidth=1, label="limit: 200")
        axes.legend()
    figure.suptitle("What one closed, busy circuit asks of its store", fontsize=14)
    figure.savefig(path, dpi=110)
    plt.close(figure)
