"""What a guarded call costs while the circuit is closed: ours beside five other libraries.

    python benchmarks/circuit_call.py [--rounds 25] [--calls 20000] [--json]

Every contender calls the same empty function in one process. Rounds are interleaved, so that a busy
moment of the machine falls on all of them, and the median round counts. Ours are
measured while their snapshot is fresh; what an exchange with the store costs, at most every
`sync_interval`, is told apart.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import aiobreaker
import circuitbreaker
import interlock
import purgatory
import pybreaker
from rich.console import Console
from rich.table import Table

from prefect_resilience import CircuitBreaker

PEERS = ("pybreaker", "circuitbreaker", "purgatory", "aiobreaker", "interlock-cb")
TARGET = 0.6


def work() -> None:
    """The call that is guarded."""


def contenders(folder: str) -> dict[str, Callable[[], object]]:
    """One guarded call of `work` for every library, each in its cheapest spelling."""
    in_memory = CircuitBreaker("benchmark", store="memory://", sync_interval=3600).call
    in_sqlite = CircuitBreaker("benchmark", store=f"sqlite:///{folder}/circuits.db", sync_interval=3600).call
    with_pybreaker = pybreaker.CircuitBreaker().call
    # Its `call` does not look whether the circuit is open: only the decorator guards.
    with_circuitbreaker = circuitbreaker.CircuitBreaker(name="benchmark")(work)
    with_aiobreaker = aiobreaker.CircuitBreaker().call
    with_interlock = interlock.CircuitBreaker(name="benchmark").call
    with_purgatory = purgatory.SyncCircuitBreakerFactory().get_breaker("benchmark")

    def purgatory_block() -> None:
        with with_purgatory:
            work()

    return {
        "no breaker": lambda: work(),
        "prefect-resilience, memory": lambda: in_memory(work),
        "prefect-resilience, SQLite": lambda: in_sqlite(work),
        "pybreaker": lambda: with_pybreaker(work),
        "circuitbreaker": lambda: with_circuitbreaker(),
        "purgatory": purgatory_block,
        "aiobreaker": lambda: with_aiobreaker(work),
        "interlock-cb": lambda: with_interlock(work),
    }


def time_round(call: Callable[[], object], calls: int) -> float:
    """Nanoseconds per call over `calls` of them."""
    began = perf_counter_ns()
    for _ in range(calls):
        call()
    return (perf_counter_ns() - began) / calls


def measure(rounds: int, calls: int) -> list[dict[str, Any]]:
    """The median of `rounds` interleaved rounds for each contender, and what its guard adds."""
    with tempfile.TemporaryDirectory() as folder:
        calls_of = contenders(folder)
        times: dict[str, list[float]] = {name: [] for name in calls_of}
        for call in calls_of.values():
            time_round(call, calls // 10)
        for _ in range(rounds):
            for name, call in calls_of.items():
                times[name].append(time_round(call, calls))
    medians = {name: statistics.median(rounds_of) for name, rounds_of in times.items()}
    bare = medians["no breaker"]
    fastest = min(medians[name] - bare for name in PEERS)
    return [
        {
            "name": name,
            "ns_per_call": round(median, 1),
            "guard_ns": round(median - bare, 1),
            "ratio_to_fastest_peer": round((median - bare) / fastest, 3),
        }
        for name, median in sorted(medians.items(), key=lambda item: item[1])
    ]


def time_exchange(url: str, exchanges: int = 200) -> float:
    """The median of one exchange with the store that has a success to merge, in milliseconds."""
    breaker = CircuitBreaker("exchange", store=url, sync_interval=1e-9)
    times: list[float] = []
    for _ in range(exchanges):
        permit = breaker._current().ask()
        began = perf_counter_ns()
        breaker._current().settle(permit)
        breaker.flush()
        times.append((perf_counter_ns() - began) / 1e6)
    return round(statistics.median(times), 3)


def main() -> int:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--calls", type=int, default=20_000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = measure(options.rounds, options.calls)
    ours = [row for row in rows if row["name"].startswith("prefect-resilience")]
    worst = max(row["ratio_to_fastest_peer"] for row in ours)
    with tempfile.TemporaryDirectory() as folder:
        exchanges = {
            "memory": time_exchange("memory://exchange"),
            "SQLite": time_exchange(f"sqlite:///{folder}/circuits.db"),
        }
    if options.json:
        found = {"target": TARGET, "worst_ratio": worst, "exchange_ms": exchanges, "rows": rows}
        print(json.dumps(found, indent=2))
    else:
        show(rows, worst, exchanges)
    return 0


def show(rows: list[dict[str, Any]], worst: float, exchanges: dict[str, float]) -> None:
    """The rows as a table, and the exchanges below it."""
    table = Table(
        title=f"One call through a closed circuit, {Path(sys.executable).name} {sys.version.split()[0]}"
    )
    table.add_column("library", no_wrap=True)
    table.add_column("ns per call", justify="right")
    table.add_column("guard adds", justify="right")
    table.add_column("of fastest peer", justify="right")
    for row in rows:
        ratio = "" if row["name"] == "no breaker" else f"{row['ratio_to_fastest_peer']:.2f}"
        table.add_row(row["name"], f"{row['ns_per_call']:.0f}", f"{row['guard_ns']:.0f}", ratio)
    console = Console()
    console.print(table)
    for store, milliseconds in exchanges.items():
        console.print(f"one exchange with the {store} store: {milliseconds} ms")
    console.print(f"ours, at worst: {worst:.2f} of the fastest peer (target: at most {TARGET})")


if __name__ == "__main__":
    raise SystemExit(main())
