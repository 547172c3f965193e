"""docs/growth.md and its picture, from what `benchmarks.growth` measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot as plt

if TYPE_CHECKING:
    from benchmarks.growth import Curve

PALETTE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#777777", "#999933"]
MARKS = "osD^v<>Px"


def write(curves: list[Curve], docs: Path, target: float) -> None:
    draw(curves, docs / "growth.png")
    rows = "\n".join(
        f"| {one.work} | {one.sizes[-1]:,} | {one.seconds[-1]:.3f} | "
        f"{one.seconds[-1] / one.sizes[-1] * 1e6:.2f} | {one.exponent:.2f} |"
        for one in curves
    )
    (docs / "growth.md").write_text(f"""# Cost as the work grows

How the cost of the package grows with the work. `make growth` measures it on your machine and writes this
page. Seconds are processor seconds. An exponent of 1 is linear growth: ten times the work takes ten times as
long. An exponent of 0 is constant cost. The limit is
{target:g}; the largest here is {max(one.exponent for one in curves):.2f}.

| work | largest size | seconds | microseconds each | exponent |
|---|---|---|---|---|
{rows}

![Processor seconds over the size of the work, both on logarithmic scales: straight lines that rise as the
dotted linear one does, or stay flat](growth.png)
""")


def draw(curves: list[Curve], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(10, 6.5), layout="constrained")
    for number, one in enumerate(curves):
        label = f"{one.work} ({one.exponent:.2f})"
        color = PALETTE[number % len(PALETTE)]
        axes.plot(one.sizes, one.seconds, color=color, marker=MARKS[number % len(MARKS)], label=label)
    axes.plot([10, 1e6], [1e-4, 10], color="#BBBBBB", linestyle=":", label="linear (1.00)")
    axes.set(xscale="log", yscale="log", xlabel="size", ylabel="processor seconds")
    axes.set_title("Cost as the work grows (exponent of the fitted power law)")
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)
    plt.close(figure)
