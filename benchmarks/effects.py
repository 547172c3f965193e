"""What it costs to record an effect, beside a step of DBOS, on SQLite and on PostgreSQL.

    python -m benchmarks.effects [--rounds 25] [--calls 40] [--runs 150] [--json]

All record what the same function returns, which does nothing else. What is compared is what recording adds.

- "alone": DBOS, a workflow of so many steps, less as many bare calls; we, the way of as many effects through
  the ledger (keys, intention, call, result), in one batch and without Prefect, less as many bare calls.
- "in a task run": three resilient tasks of one flow in turn: a bare one, one with effect="external", and one
  whose function is a DBOS step of the workflow around it; both less the bare one. The clock runs while the
  engine calls the task's function, and each waits SETTLE seconds first: Prefect's threads still have to do
  something for the run that just began, and whoever waits for a disk first, DBOS or we, would wait for them.

Rounds are interleaved in one process, in a changing order; the medians count, and the interval is a bootstrap
over the rounds. The first rounds do not count: a new SQLite file's log grows until it is first written back.

Each is as durable as the other. On SQLite both commit with synchronous=FULL, DBOS in SQLite's default journal
and we in a write-ahead log. On PostgreSQL both use one server of the benchmark's own, with fsync and
synchronous_commit on. DBOS commits once, after the step; we commit twice, before the call and after it.
The exit code is 1 when a ratio is over TARGET.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import wraps
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, sleep
from typing import Any, NamedTuple
from uuid import uuid4

if __name__ == "__main__":
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "120")

from dbos import DBOS, DBOSConfig
from prefect import flow
from rich.console import Console
from rich.table import Table

from prefect_resilience import ResilientTask, classify, resilient_task
from prefect_resilience.base.drive import Invoke, drive
from prefect_resilience.durable.effects.claim import EffectClaim
from prefect_resilience.durable.effects.current import CallStart, RunningCall
from prefect_resilience.durable.effects.ledger import Ledger, open_ledger
from prefect_resilience.durable.effects.recipes import source_of
from prefect_resilience.effects import Effect
from prefect_resilience.telemetry.payloads import CallReport
from tests.stores_servers import PostgresServer

TARGET = 0.5
"""Of a DBOS step's cost: what one of ours may cost, at most."""

SETTLE = 0.005
WARM_UP_EFFECTS = 400
WARM_UP_RUNS = 20
RESAMPLES = 2000
STORE_URL = "PREFECT_RESILIENCE_STORE_URL"

# What a DBOS step and a recorded effect added to a call, in milliseconds
Round = tuple[float, float]


def work(order: int) -> dict[str, Any]:
    """The function that is recorded."""
    return {"id": f"m-{order}", "order": order}


step = DBOS.step(name="benchmark-step")(work)


def timed(call: Callable[[int], object], calls: int) -> float:
    """Milliseconds for each of so many calls."""
    began = perf_counter()
    for order in range(calls):
        call(order)
    return (perf_counter() - began) * 1000 / calls


def made_a_step(order: int) -> dict[str, Any]:
    return step(order)


# -- alone


@dataclass
class Alone:
    """A place without Prefect (see `claim.EffectSurroundings`)."""

    batch: str
    url: str
    parameters: Mapping[str, Any]
    identity: dict[str, Any]

    def batch_id(self) -> str:
        return self.batch

    def ledger(self) -> Ledger:
        return open_ledger(self.url)

    def passed(self) -> tuple[tuple[str, int], ...]:
        return ((self.batch, 1),)

    def start(self) -> CallStart:
        return CallStart()

    def marks(self) -> None:
        return None

    def flow(self) -> tuple[str | None, str | None]:
        return self.batch, "benchmark"

    def note_external_begun(self, store_url: str) -> None:
        return

    def keep(self, reference: str, value: Any) -> str | None:
        raise AssertionError("the result is JSON")

    def kept(self, reference: str) -> Any:
        raise AssertionError("nothing was kept")

    def report(self, report: CallReport) -> None:
        raise AssertionError(report.line)  # every effect is a new one, and is recorded


def effects_of(batch_id: str, url: str) -> Callable[[int], object]:
    """Calls of `work`, each recorded as an effect of the batch."""
    effect, source = Effect(), source_of(work)

    def recorded(order: int) -> object:
        run = {"node_id": "work", "task_run_id": str(uuid4()), "flow_run_id": batch_id}
        claim = EffectClaim(
            effect, work, False, source, Alone(batch_id, url, {"order": order}, run), direct=True
        )
        return drive(claim.once(lambda: claim.called(lambda running: made(running, order), classified)))

    return recorded


def made(running: RunningCall, order: int) -> Invoke:
    return Invoke(running.watched(work, isasync=False), (order,))


def classified(error: BaseException) -> Any:
    return classify(error)


@DBOS.workflow(name="benchmark-steps")
def steps(calls: int) -> float:
    return timed(step, calls)


def measure_alone(url: str, rounds: int, calls: int) -> list[Round]:
    results: list[Round] = []
    for number in range(rounds + -(-WARM_UP_EFFECTS // calls)):
        ours = effects_of(str(uuid4()), url)
        if number % 2:
            with_dbos, with_ours = steps(calls), timed(ours, calls)
        else:
            with_ours, with_dbos = timed(ours, calls), steps(calls)
        bare = timed(work, calls)
        results.append((with_dbos - bare, with_ours - bare))
    return results[-rounds:]


# -- in a task run


def clocked(task: ResilientTask[..., Any], clock: list[float]) -> ResilientTask[..., Any]:
    """The task, with the milliseconds of its function, as the engine calls it, put into `clock`."""
    fn = task.fn

    @wraps(fn)
    def settled(order: int) -> Any:
        sleep(SETTLE)
        began = perf_counter()
        try:
            return fn(order)
        finally:
            clock.append((perf_counter() - began) * 1000)

    task.fn = settled
    return task


def in_turn(runs: int) -> list[Round]:
    clock: list[float] = []
    bare = clocked(resilient_task(name="bare")(work), clock)
    stepped = clocked(resilient_task(name="step")(made_a_step), clock)
    effect = clocked(resilient_task(name="effect", effect="external")(work), clock)
    tasks = [bare, stepped, effect]
    results: list[Round] = []
    for order in range(runs):
        took = [0.0, 0.0, 0.0]
        for turn in range(3):
            which = (order + turn) % 3
            tasks[which](order)
            took[which] = clock[-1]
        results.append((took[1] - took[0], took[2] - took[0]))
    return results


in_workflow = DBOS.workflow(name="benchmark-in-turn")(in_turn)


@flow
def measure_in_runs(runs: int) -> list[Round]:
    return in_workflow(runs + WARM_UP_RUNS)[WARM_UP_RUNS:]


# -- both


class Store(NamedTuple):
    """A database, for us and for DBOS."""

    name: str
    url: str
    dbos_url: str


@dataclass(frozen=True)
class Cost:
    """Milliseconds that recording adds, and how many times a DBOS step's an effect's are."""

    store: str
    where: str
    rounds: int
    dbos: float
    ours: float
    ratio: float
    ratio_low: float
    ratio_high: float


def cost_of(store: str, where: str, rounds: Sequence[Round]) -> Cost:
    dbos, ours = (median(column) for column in zip(*rounds, strict=True))
    chance = random.Random(0)
    resampled = [ratio_of(chance.choices(rounds, k=len(rounds))) for _ in range(RESAMPLES)]
    bounds = quantiles(resampled, n=40)
    return Cost(store, where, len(rounds), dbos, ours, ours / dbos, bounds[0], bounds[-1])


def ratio_of(rounds: Sequence[Round]) -> float:
    dbos, ours = (median(column) for column in zip(*rounds, strict=True))
    return ours / dbos


@contextmanager
def both_in(store: Store) -> Generator[None]:
    """DBOS is launched on the store, and it is the one in which runs record their effects."""
    configured = os.environ.get(STORE_URL)
    os.environ[STORE_URL] = store.url
    config: DBOSConfig = {
        "name": "benchmark-effects",
        "system_database_url": store.dbos_url,
        "log_level": "ERROR",
    }
    DBOS(config=config)
    try:
        DBOS.launch()
        yield
    finally:
        DBOS.destroy()
        del os.environ[STORE_URL]
        if configured is not None:
            os.environ[STORE_URL] = configured


def measure(stores: Sequence[Store], rounds: int, calls: int, runs: int) -> list[Cost]:
    """Every store alone first: Prefect's server and threads, once they are there, stay."""
    costs: list[Cost] = []
    for store in stores:
        with both_in(store):
            costs.append(cost_of(store.name, "alone", measure_alone(store.url, rounds, calls)))
    for store in stores:
        with both_in(store):
            costs.append(cost_of(store.name, "in a task run", measure_in_runs(runs)))
    return costs


class DurableServer(PostgresServer):
    """The server of the tests, but with fsync."""

    def command(self, *options: str) -> list[str]:
        return [word for word in super().command(*options) if word != "-F"]


@contextmanager
def postgres() -> Generator[str]:
    """The URL of a server that lives as long as the block."""
    server = DurableServer()
    try:
        server.start()
        yield server.url()
    finally:
        server.remove()


def table_of(costs: Sequence[Cost]) -> Table:
    table = Table(title="what recording adds to a call, in milliseconds (medians)", title_justify="left")
    for heading in ("store", "where", "DBOS step", "recorded effect", "ratio", "95 % interval"):
        table.add_column(heading, justify="left" if heading in ("store", "where") else "right")
    for cost in costs:
        interval = f"{cost.ratio_low:.2f} to {cost.ratio_high:.2f}"
        figures = (f"{cost.dbos:.3f}", f"{cost.ours:.3f}", f"{cost.ratio:.2f}", interval)
        table.add_row(cost.store, cost.where, *figures)
    return table


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, or JSON; 1 when a ratio is over the target."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=25, help="of calls alone")
    parser.add_argument("--calls", type=int, default=40, help="in each of these rounds")
    parser.add_argument("--runs", type=int, default=150, help="of each task")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    if min(options.rounds, options.runs) < 2 or options.calls < 1:
        parser.error("--rounds and --runs must be at least 2, and --calls at least 1")
    with tempfile.TemporaryDirectory() as folder, postgres() as server:
        file = Path(folder)
        stores = [
            Store("SQLite", f"sqlite:///{file / 'effects.db'}", f"sqlite:///{file / 'dbos.db'}"),
            Store("PostgreSQL", server, server),
        ]
        costs = measure(stores, options.rounds, options.calls, options.runs)
    worst = max(cost.ratio for cost in costs)
    if options.json:
        print(
            json.dumps({"target": TARGET, "worst": worst, "costs": [asdict(one) for one in costs]}, indent=2)
        )
    else:
        console = Console(width=None if sys.stdout.isatty() else 110)
        console.print(table_of(costs))
        console.print(f"at worst, an effect costs {worst:.2f} of a DBOS step (target: at most {TARGET})")
    return 0 if worst <= TARGET else 1


if __name__ == "__main__":
    raise SystemExit(main())
