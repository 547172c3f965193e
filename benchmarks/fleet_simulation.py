"""Fleets of 10 to 1,000,000 workers whose service dies for a minute: one shared circuit beside one in each.

    python -m benchmarks.fleet_simulation [--seed 1] [--plot docs/fleet_simulation.png] [--json]

Discrete events on the real `machine.step` with the default policy. A worker is a process that calls once a
second on average (Poisson); what is refused is not called again. The service is dead from DIES to RETURNS;
then a call fails after FAILS_AFTER seconds. Workers know and do what `circuits.merger` and
`circuits.view` make them: a view holds for `sync_interval`, successes are merged when it has run out,
failures at once.

What is simplified:
- Up to MOST_SIMULATED workers are simulated one by one. Of larger fleets each of them stands for as many
  workers as it takes, who share the age of their view and call at the same moments; only one of them can
  get the lease of a probe. The fleet's numbers are then known to about one part in the square root of
  MOST_SIMULATED, and the leak of a large fleet is no finer than such a group.
- Circuits of their own do not influence each other: a sample of them is simulated and multiplied.
- The store answers at once and nobody loses a swap. What the largest fleets ask of one document is therefore
  a demand; no database serves a million compare-and-swaps a second on one row.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.circuit_recovery import lets_in
from prefect_resilience.guards.circuits import machine
from prefect_resilience.guards.circuits.machine import Acquire, CircuitDocument, Record
from prefect_resilience.guards.circuits.model import CircuitPolicy

SIZES = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
MOST_SIMULATED = 1500
DIES, RETURNS, ENDS = 10.0, 70.0, 130.0
FAILS_AFTER = 0.1
SUCCEEDS_AFTER = 0.05
SETTLED = 20.0
"""Seconds after its death at which every circuit has opened; what still knocks then are probes."""

PASSING_AGAIN = 0.9
START = 1_000_000.0
POLICY = CircuitPolicy()


@dataclass
class Fleet:
    """What happened, by whole seconds of the simulation; `weight` workers stand behind each simulated one."""

    workers: int
    weight: float
    seed: int
    reached: Counter[int] = field(default_factory=Counter[int])
    asked_store: Counter[int] = field(default_factory=Counter[int])
    leaked: float = 0.0
    leaked_after_opening: float = 0.0
    opened_at: float | None = None

    def reaches(self, at: float, calls: float) -> None:
        """So many calls arrive at the service."""
        self.reached[int(at)] += calls  # type: ignore[assignment]
        if DIES <= at < RETURNS:
            self.leaked += calls
            if self.opened_at is not None and at > self.opened_at:
                self.leaked_after_opening += calls

    def asks(self, at: float, operations: float) -> None:
        """So many operations on the store."""
        self.asked_store[int(at)] += operations  # type: ignore[assignment]


class Events:
    """What is still to happen, by time, and by the order of planning for the same time."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[float], None]]] = []
        self._planned = 0

    def plan(self, at: float, what: Callable[[float], None]) -> None:
        self._planned += 1
        heapq.heappush(self._heap, (at, self._planned, what))

    def run(self) -> None:
        """Until ENDS."""
        while self._heap and self._heap[0][0] < ENDS:
            at, _, what = heapq.heappop(self._heap)
            what(at)


class Shared:
    """The one document of a fleet, and how its store is asked."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.document = machine.new()

    def exchange(self, at: float, events: list[machine.Event], swaps: float) -> CircuitDocument:
        """Load, read the clock, step; and swap, by `swaps` workers, if that changed anything."""
        after = self.document
        for event in events:
            after, changes = machine.step(after, event, START + at, POLICY)
            if self.fleet.opened_at is None and any(change.after == "open" for change in changes):
                self.fleet.opened_at = at
        self.fleet.asks(at, 2 * self.fleet.weight + (swaps if after != self.document else 0))
        self.document = after
        return after


class Worker:
    """`weight` workers of one mind: their view, until when it holds, and what they have not merged yet."""

    def __init__(self, number: int, shared: Shared, events: Events, random_: random.Random) -> None:
        self.number = number
        self.shared = shared
        self.events = events
        self.random = random_
        self.weight = shared.fleet.weight
        self.until = -1.0
        self.open = False
        self.waiting = False
        self.generation = 1
        self.successes = 0.0
        self.asked = 0
        self._next(0.0)

    def _next(self, at: float) -> None:
        self.events.plan(at + self.random.expovariate(1.0), self.call)

    def call(self, at: float) -> None:
        """One call of each."""
        self._next(at)
        lease = None
        if at >= self.until:
            lease = self._ask(at)
        if lease is not None:
            # Of all who share this view one got the lease.
            self._begin(at, 1, lease)
        elif not self.open:
            self._begin(at, self.weight, None)

    def _ask(self, at: float) -> str | None:
        self.asked += 1
        owner = f"{self.number}-{self.asked}"
        self._merge(at, [Acquire(owner)], 1.0)
        return owner if owner in self.shared.document["leases"] else None

    def _merge(self, at: float, events: list[machine.Event], swaps: float) -> None:
        counted = round(self.successes)
        if counted:
            events = [Record(self.generation, (("s", counted),)), *events]
            swaps = self.weight
        self.successes = 0.0
        document = self.shared.exchange(at, events, swaps)
        state = document["state"]
        self.generation = document["generation"]
        self.open = state != "closed"
        self.waiting = state == "closed" and document["failures_in_row"] > 0
        self.until = at + POLICY.sync_interval
        if self.open:
            ends = [until for _, until in document["leases"].values()]
            retry = document["retry_at"] if state == "open" else min(ends, default=START + at)
            self.until = min(self.until, retry - START)

    def _begin(self, at: float, calls: float, lease: str | None) -> None:
        self.shared.fleet.reaches(at, calls)
        generation = self.generation
        if DIES <= at < RETURNS:
            self.events.plan(at + FAILS_AFTER, lambda end: self._failed(end, calls, generation, lease))
        else:
            self.events.plan(at + SUCCEEDS_AFTER, lambda end: self._succeeded(end, calls, generation, lease))

    def _failed(self, at: float, calls: float, generation: int, lease: str | None) -> None:
        record = Record(generation, (("f", max(1, round(calls))),), owner=lease)
        # When the first few have opened it, the others find nothing left to write.
        self._merge(at, [record], min(calls, POLICY.failure_threshold))

    def _succeeded(self, at: float, calls: float, generation: int, lease: str | None) -> None:
        if lease is not None:
            self._merge(at, [Record(generation, (("s", 1),), owner=lease)], 1.0)
        elif generation == self.generation:
            self.successes += calls
            if self.waiting:
                self._merge(at, [], self.weight)


class Alone:
    """A worker with a circuit of its own, which stands for `weight` of them."""

    def __init__(self, fleet: Fleet, events: Events, random_: random.Random) -> None:
        self.fleet = fleet
        self.events = events
        self.random = random_
        self.document = machine.new()
        self._next(0.0)

    def _next(self, at: float) -> None:
        self.events.plan(at + self.random.expovariate(1.0), self.call)

    def call(self, at: float) -> None:
        """One call, if the circuit lets it through."""
        self._next(at)
        self._step(Acquire("me"), at)
        if not lets_in(self.document, "me"):
            return
        self.fleet.reaches(at, self.fleet.weight)
        dead = DIES <= at < RETURNS
        record = Record(self.document["generation"], (("f" if dead else "s", 1),), owner="me")
        self.events.plan(at + (FAILS_AFTER if dead else SUCCEEDS_AFTER), lambda end: self._step(record, end))

    def _step(self, event: machine.Event, at: float) -> None:
        self.document, changes = machine.step(self.document, event, START + at, POLICY)
        if self.fleet.opened_at is None and any(change.after == "open" for change in changes):
            self.fleet.opened_at = at


def simulate(workers: int, shared: bool, seed: int) -> Fleet:
    """One fleet through its service's bad minute."""
    simulated = min(workers, MOST_SIMULATED)
    fleet = Fleet(workers, workers / simulated, seed)
    events = Events()
    chance = random.Random(f"{seed}-{workers}-{shared}")
    document = Shared(fleet)
    for number in range(simulated):
        if shared:
            Worker(number, document, events, chance)
        else:
            Alone(fleet, events, chance)
    events.run()
    return fleet


def numbers(fleet: Fleet, shared: bool, seconds: float) -> dict[str, Any]:
    """One row of the table; rates are per second of the whole fleet."""
    outage = range(int(DIES + SETTLED), int(RETURNS))
    closed = range(2, int(DIES))
    usual = sum(fleet.reached[second] for second in closed) / len(closed)
    back = next((second for second in range(int(RETURNS), int(ENDS)) if _passes(fleet, second)), None)
    return {
        "workers": fleet.workers,
        "circuit": "shared" if shared else "one each",
        "leaked": round(fleet.leaked),
        "leaked_per_worker": round(fleet.leaked / fleet.workers, 4),
        "leaked_after_opening": round(fleet.leaked_after_opening),
        "worst_second_of_knocking": round(max(fleet.reached[second] for second in outage)),
        "herd_worst_second": round(max(fleet.reached[s] for s in range(int(RETURNS), int(ENDS)))),
        "usual_calls_per_second": round(usual, 1),
        "recovered_after": None if back is None else back - int(RETURNS),
        "store_per_second_closed": round(sum(fleet.asked_store[s] for s in closed) / len(closed), 1),
        "store_worst_second": round(max(fleet.asked_store.values(), default=0)),
        "seconds_to_simulate": round(seconds, 1),
    }


def _passes(fleet: Fleet, second: int) -> bool:
    """Whether calls pass as usual again, in three seconds: those of few workers vary much."""
    return sum(fleet.reached[second + more] for more in range(3)) >= PASSING_AGAIN * 3 * fleet.workers


def measure(seed: int, sizes: tuple[int, ...] = SIZES) -> tuple[list[dict[str, Any]], dict[str, Fleet]]:
    """Every size, shared and alone; and the two fleets of 10,000 whose course is drawn."""
    rows: list[dict[str, Any]] = []
    drawn: dict[str, Fleet] = {}
    for workers in sizes:
        for shared in (True, False):
            began = time.perf_counter()
            fleet = simulate(workers, shared, seed)
            rows.append(numbers(fleet, shared, time.perf_counter() - began))
            if workers == 10_000:
                drawn[rows[-1]["circuit"]] = fleet
    return rows, drawn


def show(rows: list[dict[str, Any]]) -> None:
    """The rows as a table."""
    names = {
        "workers": "workers",
        "circuit": "circuit",
        "leaked": "leaked",
        "leaked_per_worker": "each",
        "worst_second_of_knocking": "knocks/s, worst",
        "herd_worst_second": "herd/s, worst",
        "usual_calls_per_second": "usual/s",
        "recovered_after": "back after s",
        "store_per_second_closed": "store/s",
        "store_worst_second": "store/s, worst",
    }
    table = Table(title="A service is dead for a minute")
    for title in names.values():
        table.add_column(title, justify="right")
    for row in rows:
        table.add_row(
            *(f"{row[name]:,}" if isinstance(row[name], int | float) else str(row[name]) for name in names)
        )
    Console(width=130).print(table)


def main() -> int:
    """Simulate, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plot", type=Path, help="draw it into this file")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rows, drawn = measure(options.seed)
    if options.plot:
        from benchmarks.fleet_plot import draw

        courses = {name: fleet.reached for name, fleet in drawn.items()}
        draw(rows, courses, (DIES, RETURNS, ENDS), options.plot)
    if options.json:
        print(json.dumps({"seed": options.seed, "rows": rows}, indent=2))
    else:
        show(rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
