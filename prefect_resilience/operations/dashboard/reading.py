"""Reads the data of the page: once for all browsers, and only while a page is open."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
from prefect.settings import PREFECT_API_URL

from prefect_resilience.durable.letters.edge.known import ended, queue_of
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.budgets.policy import get_budgets
from prefect_resilience.operations import batch_rows, circuit_rows, letter_rows
from prefect_resilience.operations.cli.options import store_url
from prefect_resilience.operations.dashboard import rows
from prefect_resilience.operations.dashboard.rows import Parts
from prefect_resilience.operations.reports.api import Period, opened, ours
from prefect_resilience.operations.tuning.weekly import latest_advice

EVENTS = {"retries": "retry.scheduled", "fallbacks": "fallback.used"}
NO_API = (
    "Unknown: retries and fallbacks are counted from the events of the Prefect API, and no API is configured "
    "(PREFECT_API_URL)."
)
ENDED_COUNTED = 1_000
"""Of so many letters, the newest, those that ended are counted."""
BATCHES_SHOWN = 50


@dataclass
class Fleet:
    """Reads the stores of a fleet. `circuits`, `store`: their URLs; None: the configured ones."""

    circuits: str | None = None
    store: str | None = None
    _circuits: circuit_rows.CircuitRows = field(default_factory=circuit_rows.CircuitRows)

    # Each of these blocks, and raises StoreUnavailable or ReportError.

    def read_circuits(self) -> Parts:
        fleet = circuit_rows.read_circuits(store_url(self.circuits, circuits=True))
        found = self._circuits.read(fleet.circuits, fleet.now)
        clock = {"now": fleet.now}
        return {"circuits": found, "summary": {"circuits": circuit_rows.summary(found), "clock": clock}}

    def read_letters(self) -> Parts:
        queue = queue_of(self.store)
        found, summary = letter_rows.page_rows(queue.letters(only_open=True))
        summary["more_doubts"] = summary["more"]
        summary["done"], summary["more_done"] = ended(queue, ENDED_COUNTED)
        return {"letters": found, "summary": {"letters": summary}}

    def read_batches(self) -> Parts:
        found = batch_rows.find(self.store, only_open=True, limit=BATCHES_SHOWN, hints=0)
        listed, summary = batch_rows.page_rows(found)
        return {"batches": listed, "summary": {"batches": summary}}

    def read_budgets(self) -> Parts:
        return rows.budgets(get_budgets(self.circuits))

    def read_advice(self) -> Parts:
        return rows.advice(latest_advice(self.store))

    def read_minutes(self) -> Parts:
        now = datetime.now(UTC)
        if not PREFECT_API_URL.value():
            return {"summary": {"minutes": {"unknown": NO_API}}}
        occurred = Period(now - timedelta(minutes=rows.MINUTES), now).occurred()
        counts: dict[str, list[dict[str, Any]]] = {}
        with opened() as api:
            for name, event in EVENTS.items():
                wanted = {"occurred": occurred, "event": {"name": ours(event)}}
                body = {"filter": wanted, "time_unit": "minute", "time_interval": 1}
                counts[name] = api.post("/events/count-by/time", body)
        return {"summary": {"minutes": rows.minutes(counts, now)}}


def changes(before: Parts, after: Parts) -> dict[str, Any]:
    """What a page with the rows `before` needs to know: `set` has the new and changed rows by part and id,
    `gone` the ids of removed ones. `all`: it had none."""
    changed = {
        part: fresh
        for part, rows in after.items()
        if (fresh := {name: row for name, row in rows.items() if before.get(part, {}).get(name) != row})
    }
    gone = {
        part: lost
        for part, rows in before.items()
        if (lost := [name for name in rows if name not in after.get(part, {})])
    }
    return {"set": changed, **({"gone": gone} if gone else {}), **({} if before else {"all": True})}


@dataclass(frozen=True)
class PageSource:
    """A source that is read every `interval` seconds.

    The pause is `rest` times the duration of the last reading, if that is longer: a large fleet is read less
    often.
    """

    name: str
    read: Callable[[], Parts]
    interval: float
    rest: float = 4.0


class Hub:
    """The rows of the page, its number of watchers, and the loops that read. Used in one event loop."""

    def __init__(self, fleet: Fleet) -> None:
        self.parts: Parts = {"summary": {}, "trouble": {}}
        self.watchers: int = 0
        self.closing: bool = False
        self._sources = (
            PageSource("circuits", fleet.read_circuits, 0.5, rest=1.0),
            PageSource("letters", fleet.read_letters, 2.0),
            PageSource("batches", fleet.read_batches, 5.0),
            PageSource("error budgets", fleet.read_budgets, 5.0),
            PageSource("advice", fleet.read_advice, 30.0),
            PageSource("retries and fallbacks", fleet.read_minutes, 10.0),
        )
        self._asked = {source.name: asyncio.Event() for source in self._sources}
        self._watched = asyncio.Event()
        self._changed = asyncio.Event()
        self._clock = 0.0

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[None, None]:
        """Run the loops inside this block. They read only while there is a watcher."""
        tasks = [asyncio.create_task(self._repeat(source)) for source in self._sources]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @asynccontextmanager
    async def watching(self) -> AsyncGenerator[None, None]:
        """Count a watcher inside this block. The first one wakes the loops."""
        self.watchers += 1
        self._watched.set()
        try:
            yield
        finally:
            self.watchers -= 1
            if not self.watchers:
                self._watched.clear()

    def refresh(self) -> None:
        """Read everything now, as after an order."""
        for asked in self._asked.values():
            asked.set()

    def close(self) -> None:
        """End every stream."""
        self.closing = True
        self._changed.set()

    def put(self, parts: Parts) -> None:
        """Replace these parts, or single rows of the summary. Rows are never changed in place."""
        summary = {**self.parts["summary"], **parts.get("summary", {})}
        self.parts = {**self.parts, **parts, "summary": {**summary, "headline": rows.headline(summary)}}
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def now(self) -> float:
        """The store's time, estimated from its last answer."""
        return time.time() + self._clock

    async def change(self, known: Parts, seconds: float) -> None:
        """Wait until there are other rows than these, but not longer than so many seconds."""
        with anyio.move_on_after(seconds):
            while self.parts == known and not self.closing:
                await self._changed.wait()

    async def _repeat(self, source: PageSource) -> None:
        asked = self._asked[source.name]
        while True:
            await self._watched.wait()
            asked.clear()
            begun = time.monotonic()
            try:
                parts = await asyncio.to_thread(source.read)
                trouble = {name: row for name, row in self.parts["trouble"].items() if name != source.name}
                if clock := parts["summary"].pop("clock", None):
                    self._clock = clock["now"] - time.time()
            except Exception as error:  # noqa: BLE001 - the page shows the error and the other sources
                since = self.parts["trouble"].get(source.name, {"since": self.now()})["since"]
                says = redact(" ".join(str(error).split()))[:300]
                trouble, parts = {**self.parts["trouble"], source.name: {"since": since, "says": says}}, {}
            self.put({**parts, "trouble": trouble})
            rest = max(source.interval, source.rest * (time.monotonic() - begun))
            # Not `asyncio.wait_for`: it can lose a cancellation that arrives together with the event.
            with anyio.move_on_after(rest):
                await asked.wait()
