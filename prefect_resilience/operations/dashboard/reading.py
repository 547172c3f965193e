"""What the page shows is read here: one reader for all browsers, and none while nobody looks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

import anyio
from prefect.settings import PREFECT_API_URL

from prefect_resilience.durable.batches.edge.flow_runs import ApiUnavailable, find_runs, run_id_of
from prefect_resilience.durable.batches.edge.status import list_batches
from prefect_resilience.durable.letters.edge.known import queue_of
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.budgets.policy import get_budgets
from prefect_resilience.guards.circuits.fleet import read_values
from prefect_resilience.guards.circuits.registry import link_to
from prefect_resilience.operations.dashboard import rows
from prefect_resilience.operations.dashboard.board import Board, Row
from prefect_resilience.operations.dashboard.rows import Circuits
from prefect_resilience.operations.reports.api import Period, opened, ours
from prefect_resilience.stores import Store

COUNTED = {"retries": "retry.scheduled", "fallbacks": "fallback.used", "failures": "run.failed"}
NO_API = (
    "Unknown: retries and fallbacks are counted from the events of the Prefect API, and none is configured "
    "(PREFECT_API_URL)."
)
NAMES_KEPT = 1_000


@dataclass
class Fleet:
    """Where the fleet keeps what the page shows, as URLs of stores; None: the configured ones."""

    circuits: str | None = None
    store: str | None = None
    _circuits: Circuits = field(default_factory=Circuits)
    _names: dict[str, str] = field(default_factory=dict[str, str])

    # Each of these blocks, and raises StoreUnavailable or ReportError.

    def read_circuits(self) -> rows.Parts:
        def read(store: Store) -> rows.Parts:
            now = store.now()
            parts = self._circuits.read(read_values(store), now)
            return {**parts, "clock": {"store": {"now": now}}}

        return link_to(self.circuits).exchange(read)

    def read_letters(self) -> rows.Parts:
        return rows.letters(queue_of(self.store).letters())

    def read_batches(self) -> rows.Parts:
        listed = list_batches(store=self.store)
        self._learn_names([one.batch_id for one in listed if one.open][: rows.BATCHES_SHOWN])
        return rows.batches(listed, self._names)

    def read_budgets(self) -> rows.Parts:
        return rows.budgets(get_budgets(self.circuits))

    def read_minutes(self) -> rows.Parts:
        now = datetime.now(timezone.utc)
        if not PREFECT_API_URL.value():
            return {"summary": {"minutes": {"unknown": NO_API}}}
        period = Period(now - timedelta(minutes=rows.MINUTES), now)
        counts: dict[str, list[dict[str, Any]]] = {}
        with opened() as api:
            for thing, event in COUNTED.items():
                filters = {"occurred": period.occurred(), "event": {"name": ours(event)}}
                body = {"filter": filters, "time_unit": "minute", "time_interval": 1}
                counts[thing] = api.post("/events/count-by/time", body)
        return {"summary": {"minutes": rows.minutes(counts, now)}}

    def _learn_names(self, batches: list[str]) -> None:
        """Flow runs do not change their names: each is asked for once."""
        missing = [one for one in batches if one not in self._names and run_id_of(one) is not None]
        if not missing or not PREFECT_API_URL.value():
            return
        with suppress(ApiUnavailable):
            found = find_runs(missing)
            self._names |= {one: found[one].name if one in found else "" for one in missing}
        while len(self._names) > NAMES_KEPT:
            del self._names[next(iter(self._names))]


@dataclass(frozen=True)
class PageSource:
    """One thing to read, and again after `interval` seconds.

    The pause is `rest` times as long as the reading took, if that is longer: a large fleet is read less
    often.
    """

    name: str
    read: Callable[[], rows.Parts]
    interval: float
    rest: float = 4.0


class Hub:
    """The board, who looks at it, and the loops that keep it up to date. Lives in one event loop."""

    def __init__(self, fleet: Fleet) -> None:
        self.board: Board = Board()
        self.closing: bool = False
        self._sources = (
            PageSource("circuits", fleet.read_circuits, 0.5, rest=1.0),
            PageSource("letters", fleet.read_letters, 2.0),
            PageSource("batches", fleet.read_batches, 2.0),
            PageSource("error budgets", fleet.read_budgets, 5.0),
            PageSource("retries and fallbacks", fleet.read_minutes, 10.0),
        )
        self._asked = {source.name: asyncio.Event() for source in self._sources}
        self._watched = asyncio.Event()
        self._changed = asyncio.Event()
        self.watchers: int = 0
        self._summary: dict[str, Row] = {}
        self._trouble: dict[str, Row] = {}
        self._clock = 0.0

    @asynccontextmanager
    async def reading(self) -> AsyncGenerator[None, None]:
        """Read while this is open, whenever somebody looks."""
        tasks = [asyncio.create_task(self._repeat(source)) for source in self._sources]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @asynccontextmanager
    async def watching(self) -> AsyncGenerator[None, None]:
        """Somebody looks while this is open; what they see first is read anew."""
        self.watchers += 1
        self._watched.set()
        try:
            yield
        finally:
            self.watchers -= 1
            if not self.watchers:
                self._watched.clear()

    def refresh(self) -> None:
        """Read everything now: an order has just been carried out."""
        for asked in self._asked.values():
            asked.set()

    def close(self) -> None:
        """End every stream."""
        self.closing = True
        self._changed.set()

    def show(self, name: str, row: Row | None) -> None:
        """Put one row into the summary, or take it out."""
        if row is None:
            self._summary.pop(name, None)
        else:
            self._summary[name] = row
        self._put("summary", dict(self._summary))

    def now(self) -> float:
        """The store's time, as far as it is known."""
        return time.time() + self._clock

    async def change(self, version: int, seconds: float) -> bool:
        """Wait until the board is beyond `version`; False when it is not after so many seconds."""
        while self.board.version <= version and not self.closing:
            with anyio.move_on_after(seconds) as waiting:
                await self._changed.wait()
            if waiting.cancelled_caught:
                return False
        return not self.closing

    async def _repeat(self, source: PageSource) -> None:
        asked = self._asked[source.name]
        while True:
            await self._watched.wait()
            asked.clear()
            begun = time.monotonic()
            try:
                self._take(source, await asyncio.to_thread(source.read))
            except Exception as error:  # noqa: BLE001 - the page goes on, and says what it does not know
                self._failed(source, error)
            rest = max(source.interval, source.rest * (time.monotonic() - begun))
            # Not `asyncio.wait_for`, which loses a cancellation that comes together with what it waits for.
            with anyio.move_on_after(rest):
                await asked.wait()

    def _take(self, source: PageSource, parts: rows.Parts) -> None:
        if clock := parts.pop("clock", None):
            self._clock = clock["store"]["now"] - time.time()
        self._summary |= parts.pop("summary", {})
        if self._trouble.pop(source.name, None):
            self._put("trouble", dict(self._trouble))
        for part, found in {**parts, "summary": dict(self._summary)}.items():
            self._put(part, found)

    def _failed(self, source: PageSource, error: Exception) -> None:
        since = self._trouble.get(source.name, {"since": self.now()})["since"]
        self._trouble[source.name] = {"since": since, "says": redact(" ".join(str(error).split()))[:300]}
        self._put("trouble", dict(self._trouble))

    def _put(self, part: str, found: dict[str, Row]) -> None:
        if self.board.put(part, found):
            changed, self._changed = self._changed, asyncio.Event()
            changed.set()
