"""How long a circuit keeps out a service that is back, and how often it asks one that is not.

    python -m benchmarks.circuit_recovery [--runs 300] [--json]

The pure machine, simulated: a fleet makes 10 calls a second, which take 0.2 s on average. A service of which
a few calls always fail breaks down, and comes back after `--outage` seconds. *Kept out* is the time from its
return until the circuit closes. *Asked* counts the calls of an hour that reach a service which stays down.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from statistics import mean, quantiles
from typing import Any

from rich.console import Console
from rich.table import Table

from prefect_resilience.guards.circuits import machine
from prefect_resilience.guards.circuits.model import CircuitPolicy

CALLS_PER_SECOND = 10.0
CALL_TAKES = 0.2
LEARNT_CALLS = 6000
"""What went before: an adaptive circuit has to know the usual."""

EPOCH = 1_000_000.0
"""The store's clock when the service breaks down."""

HOUR = 3600.0
LONGEST = 4 * HOUR


def lets_in(document: machine.CircuitDocument, owner: str) -> bool:
    """Whether `owner` may call, as the document stands after its Acquire."""
    probing = document["state"] == "half_open" and owner in document["leases"]
    return probing or document["state"] in machine.PASSING


@dataclass(frozen=True)
class Service:
    """Fails `usually` of its calls, and `down` of them while it is down: `outage` seconds from 0 on."""

    usually: float
    down: float
    outage: float

    def fails(self, at: float, chance: random.Random) -> bool:
        return chance.random() < (self.down if 0 <= at < self.outage else self.usually)


@dataclass
class Told:
    """What one run showed; `closed_at` is None when the circuit was still open at the end."""

    closed_at: float | None = None
    asked: int = 0


class Fleet:
    """Calls of a fleet to one service through one circuit."""

    def __init__(
        self, policy: CircuitPolicy, service: Service, seed: int, document: machine.CircuitDocument
    ) -> None:
        self.policy, self.service = policy, service
        self.chance = random.Random(seed)
        self.document = document
        self.told = Told()

    def run(self, until: float) -> Told:
        """From the outage's beginning to the recovery, or to `until`."""
        names = itertools.count()
        ends: list[tuple[float, int, int, str | None, bool]] = []
        for begins in self._arrivals(until):
            while ends and ends[0][0] <= begins:
                self._ended(*heapq.heappop(ends))
            if self.told.closed_at is not None:
                break
            permit = self._permit(begins, f"call-{next(names)}")
            if permit is not None:
                takes = self.chance.expovariate(1 / CALL_TAKES)
                failed = self.service.fails(begins, self.chance)
                self.told.asked += 0 <= begins < self.service.outage
                heapq.heappush(ends, (begins + takes, next(names), *permit, failed))
        return self.told

    def _arrivals(self, until: float) -> Iterator[float]:
        at = 0.0
        while (at := at + self.chance.expovariate(CALLS_PER_SECOND)) < until:
            if self.document["state"] == "open":
                # What is refused in the meantime changes nothing.
                at = max(at, self.document["retry_at"] - EPOCH)
            yield at

    def _permit(self, now: float, owner: str) -> tuple[int, str | None] | None:
        if self.document["state"] == "closed":
            return self.document["generation"], None
        self._step(machine.Acquire(owner), now)
        if not lets_in(self.document, owner):
            return None
        return self.document["generation"], owner

    def _ended(self, now: float, _: int, generation: int, owner: str | None, failed: bool) -> None:
        self._step(machine.Record(generation, (("f" if failed else "s", 1),), owner=owner), now)
        recovered = now >= self.service.outage and self.document["state"] == "closed"
        if recovered and self.told.closed_at is None:
            self.told.closed_at = now

    def _step(self, event: machine.Event, now: float) -> None:
        self.document, _ = machine.step(self.document, event, EPOCH + now, self.policy)


@lru_cache
def usual_day(policy: CircuitPolicy, usually: float, seed: int) -> machine.CircuitDocument:
    """A closed circuit that has seen the usual for a while, so that an adaptive one knows it."""
    document, chance = machine.new(), random.Random(seed)
    for number in range(-LEARNT_CALLS, 0):
        failed = chance.random() < usually
        event = machine.Record(document["generation"], (("f" if failed else "s", 1),))
        document, _ = machine.step(document, event, EPOCH + number / CALLS_PER_SECOND, policy)
        if document["state"] != "closed":
            document, _ = machine.step(document, machine.Force("closed", "go on"), EPOCH, policy)
    return {**document, "openings": 0}


def kept_out(policy: CircuitPolicy, usually: float, outage: float, runs: int) -> list[float]:
    """For each run, the seconds from the service's return to a closed circuit."""
    times: list[float] = []
    before = usual_day(policy, usually, seed=15)
    for seed in range(runs):
        told = Fleet(policy, Service(usually, 1.0, outage), seed, before).run(LONGEST)
        times.append((LONGEST if told.closed_at is None else told.closed_at) - outage)
    return times


def asked(policy: CircuitPolicy, down: float, outage: float, runs: int) -> float:
    """How many calls reach a service that stays down, on average; those that open the circuit among them."""
    service, before = Service(0.0, down, outage), usual_day(policy, 0.0, seed=15)
    return mean(Fleet(policy, service, seed, before).run(outage).asked for seed in range(runs))


def measured(runs: int, outages: tuple[float, ...]) -> dict[str, Any]:
    circuits = {"default": CircuitPolicy(), "adaptive": CircuitPolicy(adaptive=True)}
    found: dict[str, Any] = {"kept_out": [], "asked": []}
    for name, policy in circuits.items():
        for outage, usually in itertools.product(outages, (0.0, 0.1, 0.2, 0.3)):
            times = quantiles(kept_out(policy, usually, outage, runs), n=10)
            found["kept_out"].append(
                {"circuit": name, "outage": outage, "usually": usually, "p50": times[4], "p90": times[8]}
            )
        for down, outage in itertools.product((1.0, 0.9), (600.0, HOUR)):
            calls = asked(policy, down, outage, max(2, runs // 5))
            found["asked"].append({"circuit": name, "down": down, "outage": outage, "calls": calls})
    return found


def tables(found: dict[str, Any]) -> Iterator[Table]:
    kept = Table(title="Seconds that a service which is back is kept out")
    for column in ("circuit", "down for", "usually fails", "p50", "p90"):
        kept.add_column(column, justify="right")
    for row in found["kept_out"]:
        sizes = f"{row['outage']:g} s", f"{row['usually']:.0%}", f"{row['p50']:.0f}", f"{row['p90']:.0f}"
        kept.add_row(row["circuit"], *sizes)
    yield kept
    calls = Table(title="Calls that reach a service which stays down")
    for column in ("circuit", "of which fail", "in", "calls"):
        calls.add_column(column, justify="right")
    for row in found["asked"]:
        calls.add_row(
            row["circuit"], f"{row['down']:.0%}", f"{row['outage'] / 60:g} min", f"{row['calls']:.1f}"
        )
    yield calls


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--outage", type=float, nargs="*", default=[20.0, 60.0, 300.0, 1800.0])
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measured(options.runs, tuple(options.outage))
    if options.json:
        print(json.dumps(found, indent=2))
        return
    for table in tables(found):
        Console(width=110).print(table)


if __name__ == "__main__":
    main()
