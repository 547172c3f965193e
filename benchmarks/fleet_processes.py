"""4 to 64 real processes that share one busy circuit: what it costs the store, and how fast news is.

    python -m benchmarks.fleet_processes [--sizes 4 8 16 32 64] [--ways pushed polled lost] [--json]

Each process calls CALLS_PER_SECOND times a second. When the fleet has settled, the operations of SECONDS are
counted by the servers' own statistics: `INFO commandstats`, in which the commands inside of scripts count
too, and the transactions of `pg_stat_database`, where every statement is one. "counted" is the share of the
calls that the fleet counts: 1 if it does not sample. Then the circuit is forced open and closed OPENINGS
times, and each process notes when its view has changed; the time counts from the moment before the command.

"polled" is the same with a store that has no news: each process asks it twice a second. "lost": the store
publishes, and every message is lost.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from statistics import quantiles
from typing import Any, cast

import psycopg
from rich.console import Console
from rich.table import Table

from prefect_resilience import CircuitBreaker
from prefect_resilience.errors.exceptions import CircuitOpenError
from prefect_resilience.stores import Store, open_store
from tests.stores_servers import PostgresServer, RedisServer, Server

SIZES = (4, 8, 16, 32, 64)
CALLS_PER_SECOND = 20
SETTLES = 12.0
SECONDS = 10.0
WAYS = ("pushed", "polled", "lost")
OPENINGS = {"pushed": 10, "polled": 10, "lost": 3}
PAUSES = {"pushed": 0.6, "polled": 1.2, "lost": 12.0}
"""Seconds between two changes of state: by then every process knows of the first."""

PATIENCE = 120.0
NAME = "busy"


class Polled:
    """A store without news."""

    def __init__(self, store: Store) -> None:
        self.url = store.url
        self.load, self.swap, self.delete = store.load, store.swap, store.delete
        self.scan, self.now, self.close = store.scan, store.now, store.close


class Lost(Polled):
    """A store whose messages are lost."""

    def watch(self, prefix: str) -> Silence:
        """A watch that hears nothing."""
        return Silence()


class Silence:
    """A connection that stays open and silent."""

    def wait(self, seconds: float) -> list[Any]:
        """Nothing, after this time."""
        time.sleep(seconds)
        return []

    def close(self) -> None:
        """Nothing is open."""


def work(line: Connection, url: str, way: str) -> None:
    """Call until the parent says stop; then say when the view opened."""
    store = open_store(url)
    stores = {"pushed": store, "polled": Polled(store), "lost": Lost(store)}
    breaker = CircuitBreaker(NAME, store=stores[way])
    shown = cast("Any", breaker)._shown
    show, opened = shown.show, list[float]()

    def note(view: Any) -> None:
        show(view)
        refused = view.refused
        if refused and not note.refused:  # type: ignore[attr-defined]
            opened.append(time.time())
        note.refused = refused  # type: ignore[attr-defined]

    note.refused = False  # type: ignore[attr-defined]
    shown.show = note
    line.send("ready")
    due = time.monotonic()
    while not line.poll():
        with suppress(CircuitOpenError):
            breaker.call(int)
        due = max(due + 1 / CALLS_PER_SECOND, time.monotonic() - 1)
        time.sleep(max(0.0, due - time.monotonic()))
    line.send(opened)


@contextmanager
def fleet(processes: int, url: str, way: str) -> Generator[list[Connection]]:
    """The lines to so many workers that call."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["prefect_resilience.guards.circuits.breaker", "prefect_resilience.stores.postgres"]
    )
    lines, members = list[Connection](), list[Any]()
    try:
        for _ in range(processes):
            ours, theirs = context.Pipe()
            members.append(context.Process(target=work, args=(theirs, url, way), daemon=True))
            members[-1].start()
            theirs.close()
            lines.append(ours)
        for line in lines:
            _heard(line)
        yield lines
    finally:
        for member in members:
            member.kill()
            member.join()


def _heard(line: Connection) -> Any:
    if not line.poll(PATIENCE):
        raise TimeoutError("a process says nothing")
    return line.recv()


def measure(server: Server, processes: int, way: str) -> dict[str, Any]:
    """One fleet on one server, which is empty before."""
    circuit = CircuitBreaker(NAME, store=server.url())
    circuit.reset()
    with fleet(processes, server.url(), way) as lines:
        time.sleep(SETTLES)
        before, begun = statistics_of(server), time.monotonic()
        time.sleep(SECONDS)
        after, took = statistics_of(server), time.monotonic() - begun
        seen = circuit.snapshot()
        told: list[float] = []
        for _ in range(OPENINGS[way]):
            told.append(time.time())
            circuit.force_open("benchmark")
            time.sleep(PAUSES[way])
            circuit.force_closed()
            time.sleep(PAUSES[way])
        for line in lines:
            line.send("stop")
        late = [min(at - since for since in told if since <= at) for line in lines for at in _heard(line)]
    found = quantiles(late, n=100) if len(late) > 1 else [0.0] * 99
    return {
        "store": type(server).__name__.removesuffix("Server"),
        "processes": processes,
        "way": way,
        "operations_per_second": (sum(after.values()) - sum(before.values())) / took,
        "sent_per_second": (after["sent"] - before["sent"]) / took,
        "share_counted": seen.share_counted,
        "heard": len(late) / (processes * OPENINGS[way]),
        "news_p50_ms": 1000 * found[49],
        "news_p99_ms": 1000 * found[98],
        "news_max_ms": 1000 * max(late, default=0.0),
    }


def statistics_of(server: Server) -> dict[str, float]:
    """Operations so far by the server's own count: those that clients sent, and those inside of scripts."""
    if isinstance(server, RedisServer):
        stats = cast("dict[str, dict[str, float]]", server.client().info("commandstats"))
        calls = {name.removeprefix("cmdstat_"): float(row["calls"]) for name, row in stats.items()}
        calls.pop("info", None)
        sent = sum(calls.get(name, 0.0) for name in ("evalsha", "time"))
        scripts = calls.get("evalsha", 0.0)
        # Each script reads the clock and the version once; what remains was sent by clients.
        sent += calls.get("get", 0.0) - 2 * scripts
        return {"sent": sent, "inside": sum(calls.values()) - sent}
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("SELECT pg_stat_force_next_flush()")
        row = connection.execute(
            "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
        ).fetchone()
    assert row is not None
    return {"sent": float(row[0]), "inside": 0.0}


def show(rows: list[dict[str, Any]]) -> None:
    """The rows as a table."""
    table = Table(title=f"One closed circuit, {CALLS_PER_SECOND} calls a second in each process")
    for title in (
        "store",
        "processes",
        "way",
        "operations/s",
        "sent/s",
        "counted",
        "p50 ms",
        "p99 ms",
        "max ms",
        "heard",
    ):
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(
            row["store"],
            str(row["processes"]),
            row["way"],
            *(
                f"{row[name]:,.2f}" if name == "share_counted" else f"{row[name]:,.1f}"
                for name in (
                    "operations_per_second",
                    "sent_per_second",
                    "share_counted",
                    "news_p50_ms",
                    "news_p99_ms",
                    "news_max_ms",
                )
            ),
            f"{row['heard']:.0%}",
        )
    Console(width=120).print(table)


def measure_all(sizes: list[int], ways: Sequence[str] = ("pushed", "polled")) -> list[dict[str, Any]]:
    """Every size, in these ways, on both stores."""
    rows: list[dict[str, Any]] = []
    for make in (RedisServer, PostgresServer) if sizes else ():
        server = make()
        server.options = ["-c", "max_connections=300"] if isinstance(server, PostgresServer) else []
        try:
            server.start()
            for processes in sizes:
                rows += [measure(server, processes, way) for way in ways]
        finally:
            server.remove()
    return rows


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    logging.getLogger("prefect_resilience").setLevel(logging.ERROR)
    rows = measure_all(options.sizes, options.ways)
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        show(rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
