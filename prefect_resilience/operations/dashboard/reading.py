"""Reads the data of the page: once for all browsers, and only while a page is open."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from prefect_resilience.durable.letters.edge.known import ended, queue_of
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.budgets.model import BudgetStatus
from prefect_resilience.guards.budgets.policy import get_budgets
from prefect_resilience.operations import batch_rows, circuit_rows, letter_rows
from prefect_resilience.operations.cli.options import store_url
from prefect_resilience.operations.tuning.report import LatestAdvice, value_text
from prefect_resilience.operations.tuning.tuning import latest_advice

Parts = dict[str, dict[str, Any]]
"""The rows of the page by part and id."""

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
        summary["done"], summary["more_done"] = ended(queue, ENDED_COUNTED)
        return {"letters": letters, "summary": {"letters": summary}}

    def read_batches(self) -> Parts:
        listed = batch_rows.find(self.store, only_open=True, limit=BATCHES_SHOWN, hints=0)
        batches, summary = batch_rows.page_rows(listed)
        return {"batches": batches, "summary": {"batches": summary}}

    def read_budgets(self) -> Parts:
        return budgets(get_budgets(self.circuits))

    def read_advice(self) -> Parts:
        return advice(latest_advice(self.store))


REST, ROWS_A_SECOND, PATIENCE = 2.0, 400, 0.3
"""A large fleet is read less often: after a pause of so many times the duration of a reading, and so that not
more rows a second are sent. A page waits so many seconds for what is being read."""


class Hub:
    """The rows of the page, read when a page asks for them and they are old. Used in one event loop.

    `first`, `version`: those of the first rows and of the latest; `changed`: that of each row's last change.
    """

    def __init__(self, fleet: Fleet) -> None:
        self.parts: Parts = {"summary": {}, "trouble": {}}
        self.sources: dict[str, tuple[Callable[[], Parts], float]] = {
            "circuits": (fleet.read_circuits, 0.5),
            "letters": (fleet.read_letters, 2.0),
            "batches": (fleet.read_batches, 5.0),
            "error budgets": (fleet.read_budgets, 5.0),
            "advice": (fleet.read_advice, 30.0),
        }
        # Later than those of an earlier start, so that its pages get every row.
        self.first: int = time.time_ns() // 1_000_000
        self.version: int = self.first
        self.changed: dict[tuple[str, str], int] = {}
        self._due = dict.fromkeys(self.sources, 0.0)
        self._readings: dict[str, asyncio.Task[None]] = {}

    async def changes(self, since: int) -> dict[str, Any]:
        """The rows that changed since a version; None for one that is gone. What is due is read before."""
        for name in self.sources:
            reading = self._readings.get(name)
            if time.monotonic() >= self._due[name] and (reading is None or reading.done()):
                self._readings[name] = asyncio.create_task(self._read(name))
        await asyncio.wait(self._readings.values(), timeout=PATIENCE)
        fresh: Parts = {}
        for (part, name), version in self.changed.items():
            if version > since:
                fresh.setdefault(part, {})[name] = self.parts[part].get(name)
        return {"version": self.version, "all": since < self.first, "set": fresh}

    def refresh(self) -> None:
        """Read everything at the next question, as after an order."""
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
        self._store({**parts, "summary": {**summary, "headline": headline(summary)}, "trouble": trouble})
        now, number = time.monotonic(), sum(map(len, parts.values()))
        self._due[name] = max(start + interval, start + number / ROWS_A_SECOND, now + REST * (now - start))

    def _store(self, parts: Parts) -> None:
        self.version += 1
        for part, fresh in parts.items():
            before = self.parts.get(part, {})
            for name in before.keys() | fresh.keys():
                if before.get(name) != fresh.get(name):
                    self.changed[part, name] = self.version
        self.parts = {**self.parts, **parts}


# -- rows that only the page shows

BUDGETS_SHOWN = 100


def budgets(listed: Iterable[BudgetStatus]) -> Parts:
    """Every error budget; burning ones and those with the least left come first."""
    ordered = sorted(listed, key=lambda budget: (not budget.burned, budget.remaining, budget.name))
    rows = {
        budget.name: {
            **budget.model_dump(include={"objective", "window", "bad", "burned"}),
            **{"place": place, "runs": budget.runs, "remaining": round(budget.remaining, 3)},
            "why": redact(budget.why or ""),
        }
        for place, budget in enumerate(ordered[:BUDGETS_SHOWN])
    }
    burning = sum(budget.burned for budget in ordered)
    return {"budgets": rows, "summary": {"budgets": {"total": len(ordered), "burning": burning}}}


def advice(latest: LatestAdvice | None) -> Parts:
    """What the weekly flow `tune` advised last."""
    if latest is None:
        return {"advice": {}, "summary": {"advice": {}}}
    rows = {
        f"{change.task}, {change.option}": {
            **{"place": place, "why": redact(change.why)},
            **{"now": redact(value_text(change.now)), "better": redact(value_text(change.better))},
        }
        for place, change in enumerate(latest.lines)
    }
    return {"advice": rows, "summary": {"advice": {"at": latest.at, "headline": latest.headline}}}


NEEDS: tuple[tuple[str, str, str, str, Literal["open", "probing"]], ...] = (
    ("batches", "effects", "effect in doubt to settle", "effects in doubt to settle", "open"),
    ("letters", "in_doubt", "interrupted replay to check", "interrupted replays to check", "open"),
    ("batches", "failed", "failed batch to recover", "failed batches to recover", "probing"),
    ("letters", "waiting", "dead letter to replay", "dead letters to replay", "probing"),
    ("budgets", "burning", "error budget burning", "error budgets burning", "open"),
)
"""What needs a person: the part of the summary, its count, one of it, several of it, and the level."""


def headline(summary: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """The headline of the page: first what needs a person, then the circuits.

    Example:
        >>> headline({"letters": {"waiting": 6}})["text"]
        '6 dead letters to replay'
    """
    circuits = summary.get("circuits", {})
    needs = [circuits["headline"]] if circuits.get("open") else []
    levels = {circuits.get("level", "good")}
    for part, count, singular, several, level in NEEDS:
        counts = summary.get(part, {})
        if number := counts.get(count, 0):
            least = "+" if counts.get("more") else ""
            needs.append(f"{number:,}{least} {several if least or number > 1 else singular}")
            levels.add(level)
    return {
        "text": ", ".join(needs) or "Nothing needs a person",
        "level": next(level for level in ("open", "probing", "good") if level in levels),
    }
