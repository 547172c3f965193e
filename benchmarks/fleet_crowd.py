"""Fleets of up to a million workers, one by one, through a bad minute of their service; news is pushed.

    python -m benchmarks.fleet_crowd [--sizes 64 1000 ...] [--usual 0.05] [--lost 0.0] [--circuits 1] [--json]

`--circuits 10000`: so many circuits, used by the largest fleet as Zipf's law says: the circuit of rank r has
the fleet's size divided by r workers. Ranks from one power of two to the next are simulated by one of them.

The decisions are those of `circuits.machine` and `circuits.sharing`. A worker is a process that calls once a
second on average (Poisson). A message reaches each worker after ARRIVES seconds, or, with
the probability `--lost`, not at all. The store answers at once; an exchange is a load and a reading of the
clock, and a swap if it changes the document.

All workers are kept in arrays. Between two messages each one acts only when its turn begins or ends, when a
call that it counts fails, when a success ends a row of failures, when it looks, or when it asks for a probe,
and only those moments are simulated one by one.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import math
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from prefect_resilience.guards.circuits import machine, sharing
from prefect_resilience.guards.circuits.machine import Acquire, CircuitDocument, Record
from prefect_resilience.guards.circuits.model import CircuitPolicy
from prefect_resilience.guards.circuits.sharing import FailureBudget, Turn, is_counted, thin, turn_at

SIZES = (10, 64, 1_000, 10_000, 100_000, 1_000_000)
DIES, RETURNS, ENDS = 40.0, 100.0, 160.0
SETTLED = 15.0
"""Seconds after the start from which the usual load is measured."""

TAKES = 0.05
ARRIVES = 0.005
STEP = 0.05
START = 1_000_000.0
POLICY = CircuitPolicy()


class Crowd:
    """All workers: what each knows, and when it acts next."""

    def __init__(self, workers: int, usual: float, lost: float, seed: int) -> None:
        self.workers, self.usual, self.lost = workers, usual, lost
        self.chance = np.random.default_rng(seed)
        random.seed(seed)
        self.document: CircuitDocument = machine.new()
        self.generation = np.zeros(workers, dtype=np.int64)
        self.open = np.zeros(workers, dtype=bool)
        self.share = np.full(workers, math.inf)
        self.begins = np.full(workers, math.inf)
        self.ends = np.full(workers, math.inf)
        self.counts = np.zeros(workers, dtype=bool)
        self.look_at = np.zeros(workers)
        self.ask_at = np.full(workers, math.inf)
        self.acts_at = self.chance.exponential(1.0, workers)
        self.weighed_at = np.full(workers, -math.inf)
        # The beginning of what is not merged, the next failure, and the failures that are not merged
        self.merged_at = np.zeros(workers)
        self.fails_at = np.full(workers, math.inf)
        self.failures: defaultdict[int, list[float]] = defaultdict(list)
        self.budgets: defaultdict[int, FailureBudget] = defaultdict(FailureBudget)
        self.prompt = np.ones(workers, dtype=bool)
        # Whether a call began with the turn
        self.calls_first = np.zeros(workers, dtype=bool)
        self.waiting = np.zeros(workers, dtype=bool)
        self.fleet = 0.0
        self.least_share = 1.0
        # Messages and ends of probes: their times, the order of planning, what happens
        self.planned: list[tuple[float, int, Callable[[float], None]]] = []
        self._order = itertools.count()
        self.operations: Counter[int] = Counter()
        self.messages: Counter[int] = Counter()
        self.probes: Counter[int] = Counter()
        self.opened_at: list[float] = []
        self.closed_at: list[float] = []
        self.leaked = 0.0
        self.bias: list[float] = []
        self.probing = 0
        self.most_probing = 0
        self._now: list[tuple[float, int]] = []

    def run(self) -> None:
        """Until ENDS."""
        at = 0.0
        while at < ENDS:
            end = at + STEP
            self._soon(end)
            while self._now or (self.planned and self.planned[0][0] < end):
                if self.planned and (not self._now or self.planned[0][0] <= self._now[0][0]):
                    when, _, what = heapq.heappop(self.planned)
                    what(when)
                    self._soon(end)
                    continue
                when, one = heapq.heappop(self._now)
                if when == self.acts_at[one]:
                    self._act(one, when)
                    if self.acts_at[one] < end:
                        heapq.heappush(self._now, (float(self.acts_at[one]), one))
            if DIES <= at < RETURNS:
                self.leaked += float(np.count_nonzero(~self.open)) * STEP
            at = end

    def _soon(self, end: float) -> None:
        self._now = [(float(self.acts_at[one]), int(one)) for one in np.flatnonzero(self.acts_at < end)]
        heapq.heapify(self._now)

    def _plan_at(self, at: float, what: Callable[[float], None]) -> None:
        heapq.heappush(self.planned, (at, next(self._order), what))

    # -- one worker

    def _act(self, one: int, at: float) -> None:
        if self.open[one]:
            self._exchange(one, at, asks=bool(at >= self.ask_at[one]))
        elif at >= self.look_at[one]:
            self._merge(one, at) if self.counts[one] else self._exchange(one, at)
            self._call(one, at)
        elif self.counts[one] and at == self.fails_at[one] < self.ends[one]:
            self.failures[one].append(at)
            self.fails_at[one] = self._next_failure(at)
            if self.prompt[one] and self.budgets[one].take(self.fleet, at):
                self._merge(one, at)
            else:
                self._plan(one, at)
        elif self.counts[one]:
            self._merge(one, at)
            self._call(one, at)
        else:
            self._take(one, turn_at(Turn(self.share[one], self.begins[one], self.ends[one], False), at))
            self._plan(one, at)

    def _call(self, one: int, at: float) -> None:
        """The call that has just asked the store; it does not fail if it ends a row of failures."""
        if self.counts[one] and not self.open[one]:
            self.calls_first[one] = True
            if self.waiting[one]:
                self._merge(one, at)

    def _merge(self, one: int, at: float) -> None:
        """A call failed, or this is the first one after the turn: merge the outcomes."""
        began, ended = float(self.merged_at[one]), min(float(self.ends[one]), at)
        works = (1 - self.usual) * max(0.0, ended - began)
        calls = began + self.chance.random(self.chance.poisson(works)) * (ended - began)
        outcomes = [(call, "s") for call in calls if not DIES <= call < RETURNS]
        outcomes += [(call, "f") for call in self.failures.pop(one, ())]
        if self.calls_first[one]:
            fails = DIES <= began < RETURNS or (self.chance.random() < self.usual and not self.waiting[one])
            outcomes.append((began, "f" if fails else "s"))
        self.calls_first[one] = False
        runs: list[tuple[Any, int]] = [(outcome, 1) for _, outcome in sorted(outcomes)]
        self.merged_at[one] = at
        self._exchange(one, at, [Record(int(self.generation[one]), tuple(runs))] if runs else [])

    def _next_failure(self, at: float) -> float:
        """When the next call fails, if none has failed before."""
        if DIES <= at < RETURNS:
            return at + self.chance.exponential(1.0)
        fails = at + self.chance.exponential(1 / self.usual) if self.usual else math.inf
        return DIES + self.chance.exponential(1.0) if at < DIES <= fails else fails

    def _exchange(self, one: int, at: float, batch: list[Any] | None = None, asks: bool = False) -> None:
        """Load, decide, swap; as `Merger._merge` does."""
        before, now, share = self.document, START + at, float(self.share[one])
        weight, since = 0.0, float(self.weighed_at[one])
        events, share = thin(batch or [], share, before, now)
        owner = f"{one}"
        after, changes = before, ()
        for event in [*events, *([Acquire(owner)] if asks else [])]:
            after, brought = machine.step(after, event, now, POLICY)
            changes += brought
        if before["state"] == "closed" and any(map(is_counted, events)):
            since = since if share >= 1 else max(since, float(self.begins[one]))
            weight, self.weighed_at[one] = min(sharing.MEMORY, at - since) / share, at
        self._write(one, at, before, after, changes, weight)
        if asks and owner in after["leases"]:
            self._probe(one, at, owner)

    def _write(
        self,
        one: int,
        at: float,
        before: CircuitDocument,
        after: CircuitDocument,
        changes: tuple[Any, ...],
        weight: float = 0.0,
    ) -> None:
        after, is_published = sharing.announce(before, after, weight, START + at)
        self.operations[int(at)] += 2 + (after != before)
        self.document = after
        for change in changes:
            if change.after == "open":
                self.opened_at.append(at)
            elif change.after == "closed":
                self.closed_at.append(at)
        if after["state"] == "closed" and SETTLED < at < DIES and after["window"]:
            self.least_share = min(self.least_share, sharing.share_of(after, START + at), after["share"])
            self.bias.append(after["window"]["failures"] / max(1, after["window"]["calls"]) - self.usual)
        if is_published:
            self.messages[int(at)] += 1
            self._plan_at(at + ARRIVES, lambda when: self._arrives(when, after))
        self._knows(np.array([one]), at, after, keep=False)

    def _probe(self, one: int, at: float, owner: str) -> None:
        self.probing += 1
        self.most_probing = max(self.most_probing, self.probing)
        self.probes[int(at)] += 1
        generation, end = self.document["generation"], at + TAKES
        dead = DIES <= at < RETURNS
        record = Record(generation, (("f" if dead else "s", 1),), owner=owner)
        # Until then this worker does nothing else.
        self.acts_at[one] = math.inf
        self._plan_at(end, lambda when: self._probed(one, when, record))

    def _probed(self, one: int, at: float, record: Record) -> None:
        self.probing -= 1
        after, changes = machine.step(self.document, record, START + at, POLICY)
        self._write(one, at, self.document, after, changes)

    # -- what workers know

    def _arrives(self, at: float, document: CircuitDocument) -> None:
        hears = np.arange(self.workers)
        if self.lost:
            hears = hears[self.chance.random(self.workers) >= self.lost]
        # A worker that knows better has heard of something later.
        hears = hears[(self.generation[hears] <= document["generation"]) & np.isfinite(self.acts_at[hears])]
        self._knows(hears, at, document, keep=True)

    def _knows(self, who: Any, at: float, document: CircuitDocument, keep: bool) -> None:
        """These workers have this document, from now on; news leaves a turn as it is."""
        share, state = document["share"], document["state"]
        draws = self.chance.random(len(who))
        self.fleet = fleet = sharing.fleet_of(document, START + at)
        looks = np.minimum(
            sharing.LOOK_WITHIN,
            sharing.LOOK_AFTER + np.log2(1 + draws * max(sharing.FEW, fleet) / sharing.LOOKS),
        )
        self.look_at[who] = at + looks
        changed = self.generation[who] != document["generation"]
        self.generation[who] = document["generation"]
        self.open[who] = state != "closed"
        if state != "closed":
            others = max(0.0, fleet - sharing.FEW)
            asks = np.log2(1 + self.chance.random(len(who)) * others / sharing.ASKS)
            ends = [until for _, until in document["leases"].values()]
            free = document["retry_at"] if state == "open" else min(ends, default=document["updated_at"])
            self.ask_at[who] = free - START + asks
            acts = np.minimum(self.ask_at[who], self.look_at[who])
            self.acts_at[who] = np.maximum(acts, at) + self.chance.exponential(1.0, len(who))
            return
        over = (self.ends[who] <= at) | (self.share[who] >= 1) if not keep else np.zeros(len(who), dtype=bool)
        over |= self.chance.random(len(who)) * self.share[who] >= share
        self.prompt[who] &= self.share[who] <= share
        is_drawn = changed | np.where(self.counts[who], over, self.share[who] != share)
        self.share[who] = np.where(is_drawn, self.share[who], np.minimum(self.share[who], share))
        redraw = who[is_drawn]
        self._draw(redraw, at, share)
        due = np.where(self.counts[who], self.ends[who], self.begins[who])
        self.waiting[who] = (
            document["failures_in_row"] > 0 and share >= 1 and (fleet <= sharing.FEW or not keep)
        )
        due = np.where(self.waiting[who], at, np.maximum(np.minimum(due, self.look_at[who]), at))
        self.acts_at[who] = np.minimum(self.fails_at[who], due + self.chance.exponential(1.0, len(who)))

    def _draw(self, who: Any, at: float, share: float) -> None:
        """New turns, as `turn_of` draws them."""
        lasts = np.full(len(who), POLICY.sync_interval)
        if self.fleet > sharing.FEW:
            longest = min(sharing.LONGEST_TURN, self.fleet / sharing.MERGES)
            lasts = np.maximum(lasts, longest * self.chance.uniform(0.75, 1.25, len(who)))
        begins, fails = np.full(len(who), at), np.full(len(who), math.inf)
        if share >= 1:
            fails = np.array([self._next_failure(at) for _ in who])
        else:
            skipped = np.floor(np.log1p(-self.chance.random(len(who))) / math.log1p(-share))
            begins = at + lasts * (skipped + self.chance.random(len(who)))
        self.share[who], self.begins[who], self.ends[who] = share, begins, begins + lasts
        self.prompt[who] = True
        self.counts[who], self.fails_at[who], self.merged_at[who] = share >= 1, fails, at
        for one in [one for one in self.failures if not self.counts[one]]:
            del self.failures[one]

    def _take(self, one: int, turn: Turn) -> None:
        self.begins[one], self.ends[one], self.counts[one] = turn.begins, turn.ends, turn.counts
        self.merged_at[one], self.fails_at[one] = turn.begins, math.inf
        self.calls_first[one] = turn.counts
        if turn.counts:
            self.fails_at[one] = self._next_failure(turn.begins)

    def _plan(self, one: int, at: float) -> None:
        due = min(self.ends[one] if self.counts[one] else self.begins[one], self.look_at[one])
        self.acts_at[one] = min(self.fails_at[one], max(due, at) + self.chance.exponential(1.0))


def numbers(crowd: Crowd, seconds: float) -> dict[str, Any]:
    """One row of the table."""
    usual = [crowd.operations[second] for second in range(int(SETTLED), int(DIES))]
    outage = [crowd.operations[second] for second in range(int(DIES) + 5, int(RETURNS))]
    after = [at for at in crowd.opened_at if at >= DIES]
    closed = [at for at in crowd.closed_at if at >= RETURNS]
    messages = [crowd.messages[second] for second in range(int(SETTLED), int(DIES))]
    return {
        "workers": crowd.workers,
        "usual_failures": crowd.usual,
        "store_per_second_closed": round(sum(usual) / len(usual), 1),
        "store_worst_second_closed": max(usual),
        "store_per_second_open": round(sum(outage) / len(outage), 1),
        "store_worst_second": max(crowd.operations[second] for second in range(int(SETTLED), int(ENDS))),
        "messages_per_second": round(sum(messages) / len(messages), 2),
        "share_counted": round(crowd.least_share, 3),
        "window_off_by": round(max(map(abs, crowd.bias), default=0.0), 4),
        "opened_before": sum(at < DIES for at in crowd.opened_at),
        "opened_after": round(after[0] - DIES, 2) if after else None,
        "leaked_per_worker": round(crowd.leaked / crowd.workers, 3),
        "closed_after": round(closed[-1] - RETURNS, 2) if closed else None,
        "most_probes_at_once": crowd.most_probing,
        "seconds_to_simulate": round(seconds, 1),
    }


def simulate(workers: int, usual: float, lost: float, seed: int) -> dict[str, Any]:
    """One fleet through its service's bad minute."""
    began = time.perf_counter()
    crowd = Crowd(workers, usual, lost, seed)
    crowd.run()
    return numbers(crowd, time.perf_counter() - began)


def many(circuits: int, workers: int, usual: float, seed: int) -> dict[str, Any]:
    """The load of `circuits` circuits on one store, while all are closed."""
    operations = busiest = messages = 0.0
    rank, uses = 1, 0
    while rank <= circuits:
        number = min(rank, circuits - rank + 1)
        size = max(1, round(workers / math.sqrt(rank * (rank + number - 1))))
        row = simulate(size, usual, 0.0, seed)
        operations += number * row["store_per_second_closed"]
        busiest = max(busiest, row["store_per_second_closed"])
        messages += number * size * row["messages_per_second"]
        uses += number * size
        rank += number
    return {
        "circuits": circuits,
        "workers": workers,
        "circuits_per_worker": round(uses / workers, 1),
        "store_per_second_closed": round(operations),
        "per_circuit": round(operations / circuits, 1),
        "busiest_circuit": busiest,
        "messages_per_second_in_a_worker": round(messages / workers, 1),
    }


def main() -> int:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--usual", type=float, default=0.05, help="the failure rate of the working service")
    parser.add_argument("--lost", type=float, default=0.0, help="the probability that a message is lost")
    parser.add_argument("--circuits", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.circuits > 1:
        rows = [many(options.circuits, max(options.sizes), options.usual, options.seed)]
    else:
        rows = [simulate(size, options.usual, options.lost, options.seed) for size in options.sizes]
    if options.json:
        print(json.dumps(rows, indent=2))
        return 0
    what = f"{options.circuits:,} circuits" if options.circuits > 1 else "One circuit"
    table = Table(title=f"{what}, news pushed; the service is dead for a minute")
    for name in rows[0]:
        table.add_column(name.replace("_", " "), justify="right")
    for row in rows:
        table.add_row(
            *(f"{value:,}" if isinstance(value, int | float) else str(value) for value in row.values())
        )
    Console(width=180).print(table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
