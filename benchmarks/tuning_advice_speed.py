"""How long the advice for a large record takes, and how much memory.

    python -m benchmarks.tuning_advice_speed [--runs 100000]

The record of a week with ten outages is written to a file. Another process reads it and calls `advise`;
its time includes neither the reading nor the imports, its memory is the most that the process ever had.
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


def measured(path: str) -> tuple[float, float, float, list[str]]:
    """MB with the record alone, seconds, most MB, and the advice."""
    period = pickle.loads(Path(path).read_bytes())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    began = time.perf_counter()
    report = advise(period)
    seconds = time.perf_counter() - began
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return before, seconds, most, [one.why for one in report.advice]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--runs", type=int, default=100_000)
    options = parser.parse_args(arguments)
    world = World("speed", SERVICE, OPTIONS, runs=options.runs)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "period"
        path.write_bytes(pickle.dumps(live(world, 1)[0]))
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            before, seconds, most, advice = pool.apply(measured, (str(path),))
    print(f"{options.runs:,} runs: {seconds:.1f} s, {most:.0f} MB; record and imports {before:.0f} MB.")
    print(*advice, sep="\n")


if __name__ == "__main__":
    main()
