"""What the ledger and the dead letters cost as a store fills: `python -m benchmarks.store_scale [--write]`.

SQLite in a file, PostgreSQL and Redis in servers of their own are filled with documents of the true form, in
bulk. At each size the functions that people and workers use are run, each in a process of its own: seconds,
and the memory by which that process grew. The exponent is that of the power law through the last two
decades of sizes: 0 is independent of the size, 1 is linear. An operation is no longer tried when it would
take more than --patience seconds. `--write` writes docs/store_scale.md and docs/store_scale.png.
"""

from __future__ import annotations

import os

if __name__ == "__main__":  # before Prefect is imported: the names of flow runs are not looked up
    os.environ["PREFECT_SERVER_ALLOW_EPHEMERAL_MODE"] = "false"

import argparse
import contextlib
import gc
import io
import json
import math
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from statistics import linear_regression
from typing import Any

from benchmarks import store_scale_fill as filling
from benchmarks.store_scale_places import place_of_store, server_of
from prefect_resilience import batch_status, dead_letters, open_store
from prefect_resilience.durable.batches.decisions import RecoveryRequest, hint_for
from prefect_resilience.durable.batches.edge.known import prune
from prefect_resilience.durable.batches.edge.listing import list_batches
from prefect_resilience.durable.batches.edge.status import snapshot_of
from prefect_resilience.durable.effects.ledger import open_ledger, place_of
from prefect_resilience.durable.effects.model import Succeeded
from prefect_resilience.durable.effects.opening import open_batch
from prefect_resilience.durable.letters.queue import DeadLetterQueue
from prefect_resilience.operations import reports as reading
from prefect_resilience.operations.cli import batches as batches_commands
from prefect_resilience.operations.cli import letters as letters_commands
from prefect_resilience.operations.cli.options import Answering
from prefect_resilience.operations.dashboard.desk import Desk
from prefect_resilience.operations.reports.api import Period

ROOT = Path(__file__).parents[1]
CONSTANT = 0.2
"""Between the smallest and the largest size, work of others on the machine makes times differ by half."""
LINEAR = 1.2
"""A process that keeps 600 MB of objects needs more for each of them than one that keeps 60 MB."""
STORES = ("sqlite", "postgresql", "redis")
PATIENCE = 60.0
SHORT = 0.5
"""An operation that takes less than this is repeated, so many times."""
REPEATED = 4
ONCE = ("letters: purged, a thousandth",)
BIG = "the-big-batch"
DAY = timedelta(days=1)
Operation = Callable[[str, int], object]
Log = Callable[[str], None]


@dataclass
class Line:
    """One operation in one store. `most` is the greatest exponent that is right for it."""

    store: str
    world: str
    operation: str
    most: float
    sizes: list[int] = field(default_factory=list[int])
    seconds: list[float] = field(default_factory=list[float])
    megabytes: list[float] = field(default_factory=list[float])
    failed: str = ""

    def _slope(self, values: list[float], least: float) -> float:
        points = [
            (math.log(size), math.log(max(value, least)))
            for size, value in zip(self.sizes, values, strict=True)
            if size * 100 >= self.sizes[-1]
        ]
        if len(points) < 2:
            return math.nan
        return linear_regression([x for x, _ in points], [y for _, y in points]).slope

    @property
    def exponent(self) -> float:
        """Of the seconds; what takes less than a few milliseconds counts as constant."""
        return self._slope(self.seconds, 0.005)

    @property
    def exponent_of_memory(self) -> float:
        """Of the memory; a few megabytes count as constant."""
        return self._slope(self.megabytes, 8.0)


def _queue(url: str) -> DeadLetterQueue:
    return DeadLetterQueue(open_store(url))


def _command(run: Callable[[], object]) -> None:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        run()


def _day() -> Period:
    return Period(datetime.now(UTC) - DAY, datetime.now(UTC))


def _claim(url: str, batch: str) -> None:
    ledger = open_ledger(url)
    for number in range(20):
        key, claim = f"new-{time.time_ns()}-{number}", f"claim-{number}"
        ledger.intend(place_of(batch, key), claim, "external", {"batch": batch, "key": key, "task": "a.b"})
        ledger.report(place_of(batch, key), Succeeded(claim, {"json": 1}))


def _hint(url: str) -> object:
    ledger = open_ledger(url)
    return hint_for(snapshot_of(ledger, BIG), RecoveryRequest(), 0.5)


def _glance(url: str) -> None:
    counted = Desk(store=url).read_batches()["summary"]["batches"]
    assert counted["effects"] == filling.DOUBTS


def _later_pass(url: str) -> None:
    open_batch(open_ledger(url), BIG, (("run", 2),), (None, "orders"), lambda: None)


def _purge(url: str, number: int) -> None:
    """The oldest thousandth of the letters, at least 10 and at most 1,000 of them."""
    some = max(10, min(1_000, number // 1_000))
    oldest = timedelta(seconds=filling.YEAR * (1 - some / number))
    assert len([*_queue(url).purge(oldest)]) >= some * 0.8


def _sweep(url: str) -> None:
    store = open_store(url)
    for number in range(20):
        assert store.swap(f"new/{time.time_ns()}/{number}", 0, {}, store.now() + 60)


LETTERS: dict[str, tuple[float, Operation]] = {
    "letters: the newest 20": (CONSTANT, lambda url, _: dead_letters.list(limit=20, store=url)),
    "letters: one, by its id": (CONSTANT, lambda url, _: _queue(url).get(next(_queue(url).letters()).id)),
    "letters: those of a day": (LINEAR, lambda url, _: dead_letters.list(since=DAY, store=url)),
    "letters: `dead-letters list`": (
        CONSTANT,
        lambda url, _: _command(lambda: letters_commands.list_letters(how=Answering(url))),
    ),
    "letters: counted for the dashboard": (CONSTANT, lambda url, _: Desk(store=url).read_letters()),
    "letters: counted for the report of a day": (LINEAR, lambda url, _: reading._letters(_day(), [])),
    "letters: purged, a thousandth": (LINEAR, lambda url, number: _purge(url, number)),
}
ONE_BATCH: dict[str, tuple[float, Operation]] = {
    "one batch: 20 effects begun and done": (CONSTANT, lambda url, _: _claim(url, BIG)),
    "one batch: its status": (LINEAR, lambda url, _: batch_status(BIG, store=url)),
    "one batch: how to recover it": (LINEAR, lambda url, _: _hint(url)),
    "one batch: `batches list`": (
        CONSTANT,
        lambda url, _: _command(lambda: batches_commands.list_all(how=Answering(url))),
    ),
    "one batch: counted for the dashboard": (CONSTANT, lambda url, _: _glance(url)),
    "one batch: opened by a later pass": (LINEAR, lambda url, _: _later_pass(url)),
}
MANY: dict[str, tuple[float, Operation]] = {
    "batches: 20 effects begun and done": (CONSTANT, lambda url, _: _claim(url, filling.batch_at(7))),
    "batches: status of one": (
        CONSTANT,
        lambda url, number: batch_status(filling.batch_at(number // 2), store=url),
    ),
    "batches: `batches list`": (
        CONSTANT,
        lambda url, _: _command(lambda: batches_commands.list_all(how=Answering(url))),
    ),
    "batches: `batches list --all`": (
        LINEAR,
        lambda url, _: _command(lambda: batches_commands.list_all(all=True, how=Answering(url))),
    ),
    "batches: counted for the dashboard": (CONSTANT, lambda url, _: _glance(url)),
    "batches: in doubt": (
        CONSTANT,
        lambda url, _: [batch for batch in list_batches(only_open=True, store=url) if batch.unknown],
    ),
    "batches: what `prune` would remove, a tenth": (
        LINEAR,
        lambda url, _: prune(timedelta(seconds=0.9 * filling.YEAR), dry_run=True, store=url),
    ),
}
EXPIRED: dict[str, tuple[float, Operation]] = {
    "expiry: the page after all that is expired": (
        LINEAR,
        lambda url, _: open_store(url).scan("leases/", limit=1),
    ),
    "expiry: 20 documents written": (CONSTANT, lambda url, _: _sweep(url)),
}
WORLDS: dict[str, tuple[dict[str, tuple[float, Operation]], Callable[[int], Any]]] = {
    "letters": (LETTERS, lambda size: filling.letters(size)),
    "one batch": (ONE_BATCH, lambda size: filling.effects_of(BIG, size)),
    "batches": (MANY, lambda size: filling.batches(size)),
    "expired": (EXPIRED, lambda size: filling.expired(size)),
}


# -- one operation in a process of its own


def measured(operation: Operation, url: str, size: int, patience: float) -> tuple[float, float] | str:
    """Seconds and megabytes of one operation; a sentence if it failed."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(theirs, operation, url, size))
    child.start()
    theirs.close()
    answer: tuple[float, float] | str = "it did not answer in time"
    with contextlib.suppress(EOFError):
        if ours.poll(3 * patience):
            answer = ours.recv()
    child.kill()
    child.join()
    return answer


def _child(pipe: Any, operation: Operation, url: str, size: int) -> None:
    os.environ["PREFECT_RESILIENCE_STORE_URL"] = url
    gc.collect()
    gc.freeze()
    with contextlib.suppress(Exception):
        open_store(url).now()
    before = _resident()
    began = time.perf_counter()
    try:
        operation(url, size)
        took = time.perf_counter() - began
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        pipe.send((took, max(0.0, most - before)))
    except Exception as error:  # noqa: BLE001 - any failure is a figure of the table
        pipe.send(f"{type(error).__name__}: {error}"[:200])
    os._exit(0)


def _resident() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


# -- the stores


@dataclass(frozen=True)
class Plan:
    """The operations to measure. `most`: the greatest size by kind of document, `only`: a part of an
    operation's name, `patience`: the most seconds that one may need, `kept`: where filled stores stay."""

    schemes: list[str]
    worlds: list[str]
    most: dict[str, int]
    only: str = ""
    patience: float = PATIENCE
    kept: Path | None = None


def measure(plan: Plan, log: Log) -> Iterator[list[Line]]:
    """The lines of each store and each kind of document."""
    for scheme in plan.schemes:
        with server_of(scheme, plan.kept) as server:
            for world in plan.worlds:
                yield _world(scheme, server, world, plan, log)


def _world(scheme: str, server: Any, world: str, plan: Plan, log: Log) -> list[Line]:
    operations, rows = WORLDS[world]
    lines = {name: Line(scheme, world, name, right) for name, (right, _) in operations.items()}
    lines = {name: line for name, line in lines.items() if plan.only in name}
    for size in sizes(plan.most[world]):
        with place_of_store(scheme, server, f"{world}_{size}".replace(" ", "_"), plan.kept) as (url, full):
            began = time.perf_counter()
            if not full:
                store = open_store(url)
                filling.fill(store, rows(size))
                store.close()
            log(f"{scheme} {world} {size:,}: filled in {time.perf_counter() - began:.0f} s")
            for name, line in lines.items():
                _run(line, operations[name][1], url, size, plan.patience, log)
    return list(lines.values())


def sizes(most: int) -> list[int]:
    """Powers of ten, and the greatest size."""
    return sorted({10**power for power in range(3, 9) if 10**power <= most} | {most})


def _run(line: Line, operation: Operation, url: str, size: int, patience: float, log: Log) -> None:
    steep = 1.0 if math.isnan(line.exponent) else max(0.0, line.exponent)
    if line.failed or (line.seconds and line.seconds[-1] * (size / line.sizes[-1]) ** steep > patience):
        return
    answer = measured(operation, url, size, patience)
    if not isinstance(answer, str) and answer[0] < SHORT and line.operation not in ONCE:
        # On a machine that other work shares, the fastest of a few tells most about the operation.
        again = [measured(operation, url, size, patience) for _ in range(REPEATED)]
        answer = min([answer, *(one for one in again if not isinstance(one, str))])
    if isinstance(answer, str):
        line.failed = f"at {size:,}: {answer}"
    else:
        line.sizes.append(size)
        line.seconds.append(answer[0])
        line.megabytes.append(answer[1])
    log(f"    {line.operation}: {answer}")


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--stores", nargs="+", choices=STORES, default=STORES)
    words.add_argument("--worlds", nargs="+", choices=WORLDS, default=list(WORLDS))
    words.add_argument("--most", type=int, default=1_000_000, help="the greatest number of documents")
    words.add_argument("--letters", type=int, help="the greatest number of letters, if it is another")
    words.add_argument("--only", default="", help="only operations with this text in their names")
    words.add_argument("--patience", type=float, default=PATIENCE, help="the most seconds of an operation")
    words.add_argument("--keep", type=Path, help="a folder: filled SQLite and PostgreSQL stores stay there")
    words.add_argument("--write", action="store_true", help="write docs/store_scale.md and its picture")
    words.add_argument("--json", type=Path, help="a file for what was measured")
    words.add_argument("--read", type=Path, nargs="+", help="files of --json; the last counts")
    asked = words.parse_args()
    if asked.read:
        right = {name: most for one, _ in WORLDS.values() for name, (most, _) in one.items()}
        read = [one for path in asked.read for one in json.loads(path.read_text())]
        found = [Line(**{**one, "most": right[one["operation"]]}) for one in read]
        lines = list({(one.store, one.operation): one for one in found}.values())
    else:
        most = dict.fromkeys(WORLDS, asked.most) | {"letters": asked.letters or asked.most}
        lines = list[Line]()
        plan = Plan(asked.stores, asked.worlds, most, asked.only, asked.patience, asked.keep)
        for some in measure(plan, partial(print, file=sys.stderr, flush=True)):
            lines += some
            if asked.json:
                asked.json.write_text(json.dumps([asdict(one) for one in lines], indent=1))
    if asked.write:
        from benchmarks.store_scale_page import write

        write(lines, ROOT / "docs")
    steeper = [one for one in lines if one.failed or one.exponent > one.most]
    for one in steeper:
        print(f"{one.store}, {one.operation}: exponent {one.exponent:.2f} of {one.most:g}. {one.failed}")
    raise SystemExit(bool(steeper))


if __name__ == "__main__":
    main()
