"""How long the advice for a large record takes, and how much memory.

    python -m benchmarks.tuning_advice_speed [--runs 100000]

The record of a week with ten outages is written to a file. Another process reads it and calls `advise`; its
time includes neither the reading nor the imports, its memory is the most that the process ever had. `CPU` is
the time of the processor alone, which other programs on the machine do not change.
"""

from __future__ import annotations

import argparse
import multiprocessing
import pickle
import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from prefect_resilience.operations.tuning.advising import advise
from tests.operations.tuning.worlds import GOOD_RETRY, TrueService, World, live, outages

SERVICE = TrueService(
    hang=0.002,
    blip=0.01,
    stuck=0.005,
    troubles=outages([9, 21, 40, 55, 70, 90, 101, 118, 130, 150], 900.0, "half-hang"),
)
OPTIONS = {"retry": GOOD_RETRY, "timeout": 30.0, "circuit": {"name": "service"}}


def measured(path: str) -> tuple[float, float, float, float, list[str]]:
    """MB with the record alone, seconds, seconds of CPU, most MB, and the advice."""
    with Path(path).open("rb") as file:
        period = pickle.load(file)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    began, used = time.perf_counter(), time.process_time()
    report = advise(period)
    seconds, cpu = time.perf_counter() - began, time.process_time() - used
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return before, seconds, cpu, most, [one.why for one in report.advice]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=100_000)
    options = parser.parse_args(arguments)
    world = World("speed", SERVICE, OPTIONS, runs=options.runs)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "period"
        with path.open("wb") as file:
            pickle.dump(live(world, 1)[0], file)
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            before, seconds, cpu, most, advice = pool.apply(measured, (str(path),))
    print(f"{options.runs:,} runs: {seconds:.1f} s ({cpu:.1f} s CPU), {most:.0f} MB.")
    print(f"The record and the imports alone: {before:.0f} MB.")
    print(*advice, sep="\n")


if __name__ == "__main__":
    main()
