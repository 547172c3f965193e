"""How long the advice for large records takes, and how much memory, for records of many shapes.

    python -m benchmarks.tuning_advice_speed [--runs 100000] [--shape TEXT] [--reading 15]

Each record is written to a file. A process of its own reads the file and calls `advise`. `seconds` and `CPU`
(the time of the processor alone, which other programs change less) include neither the reading of the file
nor the imports; `MB` is the most memory that the process ever had, all included. The exit code is 1 if one
of them, together with the seconds that the reading from Prefect takes (`benchmarks.tuning_read`), takes more
than 60 s of CPU or more than 300 MB.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.tuning_shapes import SHAPES, Shape, read, written
from prefect_resilience.operations.tuning.advising import advise

SECONDS_AT_MOST, MEGABYTES_AT_MOST = 60.0, 300.0


@dataclass(frozen=True)
class AdviceFigures:
    """What the advice for one record took; `record` is the memory of the record and the imports alone."""

    seconds: float
    cpu: float
    record: float
    megabytes: float
    advice: int


def megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measured(path: Path) -> AdviceFigures:
    period = read(path)
    before, began, used = megabytes(), time.perf_counter(), time.process_time()
    report = advise(period)
    seconds, cpu = time.perf_counter() - began, time.process_time() - used
    return AdviceFigures(seconds, cpu, before, megabytes(), len(report.advice))


def figures_of_shape(shape: Shape, runs: int) -> AdviceFigures:
    """Each of writing and advising has a process of its own: the memory of one is not the other's."""
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "record"
        with spawn.Pool(1) as pool:
            pool.apply(written, (shape, runs, path))
        with spawn.Pool(1) as pool:
            return pool.apply(measured, (path,))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--shape", default="", help="only the shapes with this text in their name")
    parser.add_argument("--reading", type=float, default=15.0, help="the seconds that the reading takes")
    options = parser.parse_args(arguments)
    table = Table("record", "seconds", "CPU", "record MB", "MB", "advice", "within")
    all_within = True
    for shape in SHAPES:
        if options.shape not in shape.name:
            continue
        found = figures_of_shape(shape, options.runs)
        within = options.reading + found.cpu <= SECONDS_AT_MOST and found.megabytes <= MEGABYTES_AT_MOST
        all_within = all_within and within
        numbers = (found.seconds, found.cpu, found.record, found.megabytes)
        texts = (f"{one:.1f}" if place < 2 else f"{one:.0f}" for place, one in enumerate(numbers))
        table.add_row(shape.name, *texts, str(found.advice), "yes" if within else "NO")
        print(
            f"{shape.name}: {found.seconds:.1f} s ({found.cpu:.1f} s CPU), {found.megabytes:.0f} MB",
            flush=True,
        )
    Console(width=None if sys.stdout.isatty() else 110).print(table)
    sys.exit(0 if all_within else 1)


if __name__ == "__main__":
    main()
