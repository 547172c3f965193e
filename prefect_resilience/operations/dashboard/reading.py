"""Reads the data of the page: once for all browsers, and only while a page is open."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any

from prefect_resilience.durable.letters.edge.known import ended, queue_of
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.budgets.policy import get_budgets
from prefect_resilience.operations import batch_rows, circuit_rows, letter_rows
from prefect_resilience.operations.cli.options import store_url
from prefect_resilience.operations.dashboard import rows
from prefect_resilience.operations.dashboard.rows import Parts
from prefect_resilience.operations.tuning.weekly import latest_advice

ENDED_COUNTED = 1_000
"""Of so many letters, the newest, those that ended are counted."""
BATCHES_SHOWN = 50


@dataclass
class Fleet:
    """Reads the stores of a fleet. `circuits`, `store`: their URLs; None: the configured ones."""

    circuits: str | None = None
    store: str | None = None

    # Each of these blocks, and raises StoreUnavailable or ReportError.

    def read_circuits(self) -> Parts:
        fleet = circuit_rows.read_circuits(store_url(self.circuits, circuits=True))
        circuits = {circuit.name: circuit_rows.page_row(circuit) for circuit in fleet.circuits}
        return {"circuits": circuits, "summary": {"circuits": circuit_rows.summary(circuits)}}

    def read_letters(self) -> Parts:
        queue = queue_of(self.store)
        letters, summary = letter_rows.page_rows(queue.letters(only_open=True))
        if summary["more"]:
            # The few in doubt have an index of their own.
            doubts = queue.letters(only="in_doubt")
            states = Counter(letter.status for letter in islice(doubts, letter_rows.COUNTED))
            summary |= {"in_doubt": states["in_doubt"], "replaying": states["replaying"]}
            summary["more_doubts"] = next(doubts, None) is not None
        summary["done"], summary["more_done"] = ended(queue, ENDED_COUNTED)
        return {"letters": letters, "summary": {"letters": summary}}

    def read_batches(self) -> Parts:
        listed = batch_rows.find(self.store, only_open=True, limit=BATCHES_SHOWN, hints=0)
        batches, summary = batch_rows.page_rows(listed)
        return {"batches": batches, "summary": {"batches": summary}}

    def read_budgets(self) -> Parts:
        return rows.budgets(get_budgets(self.circuits))

    def read_advice(self) -> Parts:
        return rows.advice(latest_advice(self.store))


REST = 2.0
"""After a reading that took long, a pause of so many times its duration: a large fleet is read less often."""


class Hub:
    """The rows of the page, read when a page asks for them and they are old. Used in one event loop."""

    def __init__(self, fleet: Fleet) -> None:
        self.parts: Parts = {"summary": {}, "trouble": {}}
        self.sources: dict[str, tuple[Callable[[], Parts], float]] = {
            "circuits": (fleet.read_circuits, 0.5),
            "letters": (fleet.read_letters, 2.0),
            "batches": (fleet.read_batches, 5.0),
            "error budgets": (fleet.read_budgets, 5.0),
            "advice": (fleet.read_advice, 30.0),
        }
        self._due = dict.fromkeys(self.sources, 0.0)
        self._readings: dict[str, asyncio.Task[None]] = {}

    def look(self) -> Parts:
        """The rows as they are known. What is due is read for the next look."""
        for name in self.sources:
            reading = self._readings.get(name)
            if time.monotonic() >= self._due[name] and (reading is None or reading.done()):
                self._readings[name] = asyncio.create_task(self._read(name))
        return self.parts

    def refresh(self) -> None:
        """Read everything at the next look, as after an order."""
        self._due = dict.fromkeys(self.sources, 0.0)

    async def _read(self, name: str) -> None:
        read, interval = self.sources[name]
        start, trouble = time.monotonic(), {**self.parts["trouble"]}
        try:
            parts = await asyncio.to_thread(read)
            trouble.pop(name, None)
        except Exception as error:  # noqa: BLE001 - the page shows the error and the other sources
            says, parts = redact(" ".join(str(error).split()))[:300], dict[str, dict[str, Any]]()
            trouble[name] = {"since": time.time(), **trouble.get(name, {}), "says": says}
        summary = {**self.parts["summary"], **parts.get("summary", {})}
        summary["headline"] = rows.headline(summary)
        self.parts = {**self.parts, **parts, "summary": summary, "trouble": trouble}
        self._due[name] = max(start + interval, time.monotonic() + REST * (time.monotonic() - start))
