"""Reads the data of the page: once for all browsers, and only while a page is open."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import anyio
from prefect.settings import PREFECT_API_URL

from prefect_resilience.durable.batches.edge.flow_runs import ApiUnavailable, find_runs
from prefect_resilience.durable.batches.edge.known import find_batches
from prefect_resilience.durable.batches.edge.marks import run_id_of
from prefect_resilience.durable.letters.edge.known import ended, queue_of
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.budgets.policy import get_budgets
from prefect_resilience.guards.circuits.fleet import read_values
from prefect_resilience.guards.circuits.registry import link_to
from prefect_resilience.operations.dashboard import rows
from prefect_resilience.operations.dashboard.rows import Circuits, Row, Rows
from prefect_resilience.operations.reports.api import Period, opened, ours
from prefect_resilience.operations.tuning.weekly import latest_advice
from prefect_resilience.stores import Store

COUNTED = {"retries": "retry.scheduled", "fallbacks": "fallback.used", "failures": "run.failed"}
NO_API = (
    "Unknown: retries and fallbacks are counted from the events of the Prefect API, and no API is configured "
    "(PREFECT_API_URL)."
)
LOOK_BACK = timedelta(days=30)
"""Flow runs that failed or crashed since then are known, as in `batches list`."""
ENDED_COUNTED = 1_000
"""Of so many letters, the newest, those that ended are counted."""
NAMES_KEPT = 1_000
GONE_KEPT = 5_000
"""The number of removed rows that are remembered; a browser that missed more gets all rows."""


@dataclass
class Fleet:
    """Reads the stores of a fleet. `circuits`, `store`: their URLs; None: the configured ones."""

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
        queue = queue_of(self.store)
        parts = rows.letters(queue.letters(only="open"))
        told = parts["summary"]["letters"]
        if told["more"]:
            # The few in doubt have an index of their own.
            doubts = queue.letters(only="in_doubt")
            states = Counter(one.status for one in islice(doubts, rows.COUNTED))
            told |= {"in_doubt": states["in_doubt"], "replaying": states["replaying"]}
            told["more_doubts"] = next(doubts, None) is not None
        done, more = ended(queue, ENDED_COUNTED)
        parts["summary"]["letters"] = {**told, "done": done, "more_done": more}
        return parts

    def read_batches(self) -> rows.Parts:
        since = datetime.now(UTC) - LOOK_BACK if PREFECT_API_URL.value() else None
        seen = find_batches(self.store, since, limit=rows.BATCHES_SHOWN, only_open=True, every=False)
        self._learn_names([one.batch_id for one in seen.batches])
        return rows.batches(seen.batches, seen.counts, self._names)

    def read_budgets(self) -> rows.Parts:
        return rows.budgets(get_budgets(self.circuits))

    def read_advice(self) -> rows.Parts:
        return rows.advice(latest_advice(self.store))

    def read_minutes(self) -> rows.Parts:
        now = datetime.now(UTC)
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
        """Ask for the names of flow runs. Names do not change, so each is requested once."""
        missing = [one for one in batches if one not in self._names and run_id_of(one) is not None]
        if not missing or not PREFECT_API_URL.value():
            return
        with suppress(ApiUnavailable):
            found = find_runs(missing)
            self._names |= {one: found[one].name if one in found else "" for one in missing}
        while len(self._names) > NAMES_KEPT:
            del self._names[next(iter(self._names))]


class Board:
    """The rows of all parts, by part and id. Each change has a version; a browser knows its last version.

    A slow or disconnected browser costs nothing: it gets the current rows with its next request.
    """

    def __init__(self) -> None:
        self.version: int = 0
        self._rows: dict[str, dict[str, tuple[Row, int]]] = {}
        self._gone: dict[tuple[str, str], int] = {}
        self._forgotten = 0

    def put(self, part: str, rows: Rows) -> bool:
        """Replace a part by these rows. Returns whether anything changed."""
        known = self._rows.setdefault(part, {})
        changed = {name: row for name, row in rows.items() if name not in known or known[name][0] != row}
        gone = [name for name in known if name not in rows]
        if not changed and not gone:
            return False
        self.version += 1
        for name, row in changed.items():
            known[name] = (row, self.version)
            self._gone.pop((part, name), None)
        for name in gone:
            del known[name]
            self._gone[part, name] = self.version
        while len(self._gone) > GONE_KEPT:
            self._forgotten = max(self._forgotten, self._gone.pop(next(iter(self._gone))))
        return True

    def since(self, version: int) -> dict[str, Any] | None:
        """The changes after `version` (0: all rows), or None if there are none.

        `set` has new and changed rows by part and id, `gone` the ids of removed ones. With `all`, every row
        that is not in `set` was removed.
        """
        if version >= self.version:
            return None
        told: dict[str, Any] = {}
        if version < max(1, self._forgotten):
            told["all"], version = True, 0
        told["set"] = {
            part: fresh
            for part, rows in self._rows.items()
            if (fresh := {name: row for name, (row, changed) in rows.items() if changed > version})
        }
        gone: dict[str, list[str]] = {}
        for (part, name), changed in self._gone.items():
            if changed > version and "all" not in told:
                gone.setdefault(part, []).append(name)
        return {**told, "gone": gone} if gone else told


@dataclass(frozen=True)
class PageSource:
    """A source that is read every `interval` seconds.

    The pause is `rest` times the duration of the last reading, if that is longer: a large fleet is read less
    often.
    """

    name: str
    read: Callable[[], rows.Parts]
    interval: float
    rest: float = 4.0


class Hub:
    """The board, its number of watchers, and the loops that update it. Used in one event loop."""

    def __init__(self, fleet: Fleet) -> None:
        self.board: Board = Board()
        self.closing: bool = False
        self._sources = (
            PageSource("circuits", fleet.read_circuits, 0.5, rest=1.0),
            PageSource("letters", fleet.read_letters, 2.0),
            PageSource("batches", fleet.read_batches, 2.0),
            PageSource("error budgets", fleet.read_budgets, 5.0),
            PageSource("advice", fleet.read_advice, 30.0),
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

    def show(self, name: str, row: Row | None) -> None:
        """Put one row into the summary, or remove it."""
        if row is None:
            self._summary.pop(name, None)
        else:
            self._summary[name] = row
        self._put("summary", dict(self._summary))

    def now(self) -> float:
        """The store's time, estimated from its last answer."""
        return time.time() + self._clock

    async def change(self, version: int, seconds: float) -> bool:
        """Wait until the board is newer than `version`. Returns False if this takes too long."""
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
            except Exception as error:  # noqa: BLE001 - the page shows the error and the other sources
                self._failed(source, error)
            rest = max(source.interval, source.rest * (time.monotonic() - begun))
            # Not `asyncio.wait_for`: it can lose a cancellation that arrives together with the event.
            with anyio.move_on_after(rest):
                await asked.wait()

    def _take(self, source: PageSource, parts: rows.Parts) -> None:
        if clock := parts.pop("clock", None):
            self._clock = clock["store"]["now"] - time.time()
        self._summary |= parts.pop("summary", {})
        self._summary["headline"] = rows.headline(self._summary)
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
