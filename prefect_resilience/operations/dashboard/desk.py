"""What the page reads and what its buttons do, in the stores of a fleet.

The buttons call the same functions as the command line, so that the audit log and the events are the same.
The page's data is read once for all browsers, and only while a page is open.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import Field, validate_call

from prefect_resilience.durable.batches.edge.recovery import recover
from prefect_resilience.durable.batches.edge.settling import Answer, settle
from prefect_resilience.durable.batches.edge.status import batch_status
from prefect_resilience.durable.letters.edge import operations as dead_letters
from prefect_resilience.durable.letters.edge.known import queue_of
from prefect_resilience.durable.letters.model import LetterOutcome
from prefect_resilience.errors.exceptions import ConfigurationError, ResilienceError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.budgets.model import BudgetStatus
from prefect_resilience.guards.budgets.policy import get_budgets
from prefect_resilience.guards.circuits.breaker import get_circuits
from prefect_resilience.operations import batch_rows, fleet_circuits, letter_rows
from prefect_resilience.operations.cli import limits, parked_runs
from prefect_resilience.operations.cli.options import store_url

Parts = dict[str, dict[str, Any]]
"""The rows of the page by part and id."""

BATCHES_SHOWN = 50


EFFECTS_SHOWN = 100
LONGEST = 500
ANSWERS = {"unknown": ["done", "not_done"], "compensating": ["undone", "kept"]}
"""The possible answers for an effect in doubt, by its state."""

PageAnswer = dict[str, Any]
"""The answer to an order: `said`, a sentence, and perhaps more."""

Name = Annotated[str, Field(min_length=1, max_length=2_000)]
Reason = Annotated[str, Field(max_length=LONGEST)]
Minutes = Annotated[float, Field(gt=0, le=60 * 24 * 365)]


@dataclass(frozen=True)
class Desk:
    """Reads the stores of a fleet and carries out orders on them. `circuits`, `store`: their URLs; None: the
    configured ones. Every method blocks.

    An order raises ResilienceError with a sentence for the person at the page, and ValidationError if it has
    not its form.
    """

    circuits: str | None = None
    store: str | None = None
    replaying: threading.Lock = field(default_factory=threading.Lock)
    closing: threading.Event = field(default_factory=threading.Event)

    def read_circuits(self) -> Parts:
        read = fleet_circuits.read_circuits(store_url(self.circuits, circuits=True))
        circuits = {circuit.name: fleet_circuits.page_row(circuit) for circuit in read}
        return {"circuits": circuits, "summary": {"circuits": fleet_circuits.summary(circuits)}}

    def read_letters(self) -> Parts:
        queue = queue_of(self.store)
        letters, summary = letter_rows.page_rows(queue.letters(letter_rows.OPEN))
        return {"letters": letters, "summary": {"letters": summary}}

    def read_batches(self) -> Parts:
        listed, every = batch_rows.find(self.store, only_open=True, limit=BATCHES_SHOWN, hints=0)
        batches, summary = batch_rows.page_rows(listed, every.counts)
        return {"batches": batches, "summary": {"batches": summary}}

    def read_budgets(self) -> Parts:
        return budgets(get_budgets(self.circuits))

    def read_limits(self) -> Parts:
        read = limits.read_limits(self.circuits)[:ROWS_SHOWN]
        return {"limits": add_places({f"{row.name} {row.per}": row.model_dump() for row in read})}

    def read_parked(self) -> Parts:
        read = map(parked_runs.row_of, parked_runs.read_parked(self.store)[:ROWS_SHOWN])
        return {"parked": add_places({row.flow_run_id: row.model_dump() for row in read})}

    # -- orders

    @validate_call
    def set_circuit(
        self,
        name: Name,
        action: Literal["open", "close", "reset"],
        reason: Reason = "",
        minutes: Minutes | None = None,
    ) -> PageAnswer:
        """Set one circuit for the whole fleet. `minutes`: only with "open"; after them a probe decides."""
        if action == "open" and not reason.strip():
            raise ConfigurationError("Write a reason, for the next person who looks at the circuit")
        if minutes is not None and action != "open":
            raise ConfigurationError("The option minutes is only for opening a circuit")
        fleet_circuits.find_circuit(name, get_circuits(self.circuits))
        until = None if minutes is None else timedelta(minutes=minutes)
        after = fleet_circuits.change_circuit(name, action, reason, until, self.circuits)
        return {"said": f"{name}: {fleet_circuits.DONE[action]} for the whole fleet", "state": after.state}

    @validate_call
    def settle(
        self, batch: Name, key: Name, answer: Answer, external_id: Reason | None = None, reason: Reason = ""
    ) -> PageAnswer:
        """Settle an effect in doubt."""
        ids, why = external_id or None, reason or None
        after = settle(batch, key, answer, external_id=ids, reason=why, store=self.store)
        return {"said": f"{key}: settled as {answer.replace('_', ' ')}", "state": after.state}

    @validate_call
    def recover(self, batch: Name, reason: Reason = "", dry_run: bool = False) -> PageAnswer:
        """Recover a batch as its hint says. `dry_run`: only report what would be done."""
        report = recover(batch, reason=reason or None, dry_run=dry_run, store=self.store)
        return {"said": f"The batch {batch_rows.report_line(report)}", "action": report.action}

    @validate_call
    def doubts(self, batch: Name) -> PageAnswer:
        """The effects of a batch that a person can settle, with the possible answers for each."""
        effects = [
            {
                "key": effect.key,
                "answers": ANSWERS[effect.state],
                "error": redact(effect.error or "")[:LONGEST],
            }
            for effect in batch_status(batch, store=self.store).effects
            if effect.state in ANSWERS
        ]
        return {"effects": effects[:EFFECTS_SHOWN], "more": len(effects[EFFECTS_SHOWN:])}

    @validate_call
    def replay(
        self, letter: Name | None = None, task: Name | None = None, error: Name | None = None
    ) -> PageAnswer:
        """Replay one letter by its id, or the waiting letters of one task, perhaps of one kind of error."""
        if (letter is None) == (task is None):
            raise ConfigurationError("Choose the letters: either one by its id, or those of a task")
        chosen: dict[str, Any] = {"letters": letter} if letter else {"task": task}
        if error is not None:
            letters = queue_of(self.store).letters(letter_rows.OPEN)
            members = (item for item in letters if (item.status, item.name) == ("waiting", task))
            chosen = {"letters": [item.id for item in members if letter_rows.error_kind(item) == error]}
        if not self.replaying.acquire(blocking=False):
            raise ConfigurationError("A replay is already running: wait for its end")
        try:
            report = dead_letters.replay(**chosen, progress=self._check_open, store=self.store)
        finally:
            self.replaying.release()
        messages = [item.message for item in report.outcomes if item.result != "replayed" and item.message]
        why = f"; {redact(messages[0])[:LONGEST]}" if messages else ""
        return {"said": report.summary() + why, "well": report.well}

    def _check_open(self, done: int, total: int, _: LetterOutcome) -> None:
        """End a replay between two letters when the dashboard closes; the other letters stay waiting."""
        if self.closing.is_set():
            raise ResilienceError(f"Stopped after {done} of {total} letters")


REST, ROWS_A_SECOND, PATIENCE = 2.0, 400, 0.3
"""A large fleet is read less often: after a pause of so many times the duration of a reading, and so that not
more rows a second are sent. A page waits so many seconds for what is being read."""


class Hub:
    """The rows of the page, read when a page asks for them and they are old. Used in one event loop.

    `first`, `version`: those of the first rows and of the latest; `changed`: that of each row's last change.
    """

    def __init__(self, desk: Desk) -> None:
        self.parts: Parts = {"summary": {}, "trouble": {}}
        self.sources: dict[str, tuple[Callable[[], Parts], float]] = {
            "circuits": (desk.read_circuits, 0.5),
            "letters": (desk.read_letters, 2.0),
            "batches": (desk.read_batches, 5.0),
            "error budgets": (desk.read_budgets, 5.0),
            "limits": (desk.read_limits, 2.0),
            "parked runs": (desk.read_parked, 5.0),
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

ROWS_SHOWN = 100


def add_places(rows: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Each row with its place on the page."""
    return {name: {"place": place, **row} for place, (name, row) in enumerate(rows.items())}


def budgets(listed: Iterable[BudgetStatus]) -> Parts:
    """Every error budget; burning ones and those with the least left come first."""
    ordered = sorted(listed, key=lambda budget: (not budget.burned, budget.remaining, budget.name))
    rows = {
        budget.name: {
            **budget.model_dump(include={"objective", "window", "bad", "burned"}),
            **{"runs": budget.runs, "remaining": round(budget.remaining, 3)},
            "why": redact(budget.why or ""),
        }
        for budget in ordered[:ROWS_SHOWN]
    }
    burning = sum(budget.burned for budget in ordered)
    return {"budgets": add_places(rows), "summary": {"budgets": {"total": len(ordered), "burning": burning}}}


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
