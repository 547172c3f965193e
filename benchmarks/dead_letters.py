"""How long it takes to list 10,000 dead letters: `python -m benchmarks.dead_letters [--letters N] [--json]`.

The letters are those of a task with ordinary parameters, in a SQLite file of its own (and in the store of
--store, if one is named). Each listing is a new one of all letters; `cpu` is the time of the processor alone,
which does not hang on what else the machine is doing.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

from rich.console import Console
from rich.table import Table

from prefect_resilience import dead_letters
from prefect_resilience.durable.letters.claims import entry_key
from prefect_resilience.durable.letters.model import Source, as_stored, letter_of
from prefect_resilience.durable.letters.queue import DeadLetterQueue, new_id
from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.stores import open_store

ROUNDS = 7
BURIED = 500
"""So many are buried in full, to time it. Of the others there is the entry alone: a listing reads no more."""


@dataclass(frozen=True)
class Figures:
    """Seconds; `bury` is for one letter, in milliseconds."""

    store: str
    letters: int
    list_all: float
    list_all_cpu: float
    newest_20: float
    bury: float


def fill(queue: DeadLetterQueue, letters: int) -> float:
    now = datetime.now(UTC)
    error = ErrorContext.from_exception(ConnectionError("connection refused"), timestamp=now)
    began, spent = perf_counter(), 0.0
    for number in range(letters):
        parameters = {
            "order": number,
            "placed": now,
            "items": ("a", "b"),
            "note": "x" * 200,
            "api_key": "k-123456",
        }
        run = f"00000000-0000-4000-8000-{number:012}"
        letter, contents = letter_of(
            parameters,
            error,
            now=now,
            kind="task",
            name="send-invoice",
            key="send_invoice-1a2b3c4d",
            source=Source(module="shop.invoices", qualname="send_invoice", file="/srv/shop/invoices.py"),
            batch_id=run,
            flow_run_id=run,
            task_run_id=run,
        )
        if number < BURIED:
            queue.put(letter, contents)
            spent = perf_counter() - began
        else:
            letter_id = new_id(now.timestamp() - number, number)
            queue.store.swap(entry_key(letter_id), 0, as_stored(letter.model_copy(update={"id": letter_id})))
    return spent / min(BURIED, letters) * 1000


def measure(url: str, letters: int) -> Figures:
    queue = DeadLetterQueue(open_store(url))
    bury = fill(queue, letters)
    walls: list[float] = []
    cpus: list[float] = []
    newest: list[float] = []
    for _ in range(ROUNDS):
        wall, cpu = perf_counter(), process_time()
        assert len(dead_letters.list(store=queue.store)) == letters
        walls.append(perf_counter() - wall)
        cpus.append(process_time() - cpu)
        wall = perf_counter()
        dead_letters.list(limit=20, store=queue.store)
        newest.append(perf_counter() - wall)
    kind = url.partition(":")[0]
    return Figures(kind, letters, median(walls), median(cpus), median(newest), bury)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--letters", type=int, default=10_000)
    parser.add_argument("--store", action="append", default=[], help="another one, any number; it keeps them")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        urls = [f"sqlite:///{Path(folder) / 'letters.db'}", *asked.store]
        figures = [measure(url, asked.letters) for url in urls]
    if asked.json:
        print(json.dumps([asdict(one) for one in figures], indent=2))
        return
    table = Table(title=f"{asked.letters:,} dead letters")
    for heading in ("store", "list all, s", "of it cpu, s", "newest 20, s", "bury one, ms"):
        table.add_column(heading, justify="right")
    for one in figures:
        numbers = (one.list_all, one.list_all_cpu, one.newest_20, one.bury)
        table.add_row(one.store, *(f"{number:.3f}" for number in numbers))
    Console().print(table)


if __name__ == "__main__":
    main()
