"""`make soak`: half an hour of mixed load, after which nothing has grown.

    python -m tests.soak [--minutes 30] [--json FILE]

Memory, threads, open files and the store of one process are sampled while flows run. Prefect's server is a
process of its own and is not measured. The exit code is 1 when something is not flat after the warm-up.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from time import monotonic

from prefect.testing.utilities import prefect_test_harness

from prefect_resilience import open_store
from prefect_resilience.stores import Store
from prefect_resilience.testing import no_wait
from tests.soak.load import Load
from tests.soak.measuring import Sample, sample, trends

EVERY = 60
"""Samples are taken so many times over the run."""


def documents_in(store: Store) -> int:
    count, after = 0, None
    while page := store.scan("", after, 1000):
        count, after = count + len(page), page[-1][0]
    return count


def soak(seconds: float, told: Callable[[Sample], None] = lambda _: None) -> list[Sample]:
    """Run the load for so long against the Prefect API at hand; what was measured on the way."""
    with tempfile.TemporaryDirectory() as folder:
        database = Path(folder) / "soak.db"
        os.environ["PREFECT_RESILIENCE_STORE_URL"] = f"sqlite:///{database}"
        load, store, samples = Load(), open_store(f"sqlite:///{database}"), list[Sample]()
        began = monotonic()
        try:
            with no_wait():
                while (now := monotonic() - began) < seconds:
                    load.lap()
                    if now >= len(samples) * seconds / EVERY:
                        samples.append(sample(began, load.laps, database, documents_in(store)))
                        told(samples[-1])
        finally:
            load.close()
    return samples


def main() -> None:
    words = argparse.ArgumentParser(description="Half an hour of mixed load, after which nothing has grown.")
    words.add_argument("--minutes", type=float, default=30.0)
    words.add_argument("--json", type=Path, help="write the samples to a file")
    asked = words.parse_args()
    for name in ("prefect", "prefect_resilience"):
        logging.getLogger(name).setLevel("CRITICAL")
    with prefect_test_harness(server_startup_timeout=120):
        samples = soak(
            asked.minutes * 60,
            lambda one: print(
                f"{one.at:7.0f} s {one.laps:6} laps {one.memory:8.1f} MiB {one.threads:4} threads "
                f"{one.files:4} files {one.store:7.2f} MiB of store {one.documents:5} documents",
                flush=True,
            ),
        )
    if asked.json:
        asked.json.write_text(json.dumps([asdict(one) for one in samples]))
    found = trends(samples)
    for trend in found:
        verdict = "flat" if trend.flat else "GROWS"
        grown = f"{trend.first:>10.2f} -> {trend.last:<10.2f}{trend.an_hour:>+10.2f} an hour"
        print(f"{trend.name:<10}{grown}  {verdict}")
    raise SystemExit(0 if all(trend.flat for trend in found) else 1)


if __name__ == "__main__":
    main()
