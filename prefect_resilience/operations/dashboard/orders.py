"""The actions of the page's buttons. The methods of `Desk` block.

They call the same functions as the command line, so that the audit log and the events are the same.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from prefect_resilience.durable.batches.edge.recovery import recover
from prefect_resilience.durable.batches.edge.settling import Answer, settle
from prefect_resilience.durable.batches.edge.status import batch_status
from prefect_resilience.durable.letters.edge import operations as dead_letters
from prefect_resilience.durable.letters.edge.known import queue_of
from prefect_resilience.durable.letters.report import LetterOutcome
from prefect_resilience.errors.exceptions import ConfigurationError, ResilienceError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.circuits.fleet import get_circuits
from prefect_resilience.operations.batch_rows import report_line
from prefect_resilience.operations.circuit_changes import DONE, change_circuit, find_circuit
from prefect_resilience.operations.dashboard.reading import Hub
from prefect_resilience.operations.letter_rows import error_kind

EFFECTS_SHOWN = 100
LONGEST = 500
ANSWERS = {"unknown": ["done", "not_done"], "compensating": ["undone", "kept"]}
"""The possible answers for an effect in doubt, by its state."""

PageAnswer = dict[str, Any]
"""The answer to an order: `said`, a sentence, and perhaps more."""

Name = Annotated[str, Field(min_length=1, max_length=2_000)]
Reason = Annotated[str, Field(max_length=LONGEST)]


class PageOrder(BaseModel):
    """The request of a button. Unknown fields are errors."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True)


class CircuitOrder(PageOrder):
    """Set one circuit for the whole fleet. `minutes`: only with "open"; after them a probe decides."""

    name: Name
    action: Literal["open", "close", "reset"]
    reason: Reason = ""
    minutes: Annotated[float, Field(gt=0, le=60 * 24 * 365)] | None = None


class DoubtsOrder(PageOrder):
    """List the effects of a batch that a person can settle."""

    batch: str = ""


class SettleOrder(PageOrder):
    """Settle an effect in doubt."""

    batch: Name
    key: Name
    answer: Answer
    external_id: Annotated[str, Field(max_length=LONGEST)] | None = None
    reason: Reason = ""


class RecoverOrder(PageOrder):
    """Recover a batch as its hint says. `dry_run`: only report what would be done."""

    batch: Name
    reason: Reason = ""
    dry_run: bool = False


class ReplayOrder(PageOrder):
    """Replay one letter by its id, or the waiting letters of one task: all, or those of one kind of error."""

    letter: Name | None = None
    task: Name | None = None
    error: Name | None = None


@dataclass(frozen=True)
class Desk:
    """Carries out orders on the stores of a fleet (None: the configured ones).

    Every method raises ResilienceError with a sentence for the person at the page.
    """

    circuits: str | None = None
    store: str | None = None

    def set_circuit(self, order: CircuitOrder) -> PageAnswer:
        if order.action == "open" and not order.reason.strip():
            raise ConfigurationError("Write a reason, for the next person who looks at the circuit")
        if order.minutes is not None and order.action != "open":
            raise ConfigurationError("The option minutes is only for opening a circuit")
        find_circuit(order.name, get_circuits(self.circuits), order.action)
        until = None if order.minutes is None else timedelta(minutes=order.minutes)
        after = change_circuit(order.name, order.action, order.reason, until, self.circuits)
        return {"said": f"{order.name}: {DONE[order.action]} for the whole fleet", "state": after.state}

    def settle(self, order: SettleOrder) -> PageAnswer:
        after = settle(
            order.batch,
            order.key,
            order.answer,
            external_id=order.external_id or None,
            reason=order.reason or None,
            store=self.store,
        )
        return {"said": f"{order.key}: settled as {order.answer.replace('_', ' ')}", "state": after.state}

    def recover(self, order: RecoverOrder) -> PageAnswer:
        report = recover(order.batch, reason=order.reason or None, dry_run=order.dry_run, store=self.store)
        return {"said": f"The batch {report_line(report)}", "action": report.action}

    def doubts(self, order: DoubtsOrder) -> PageAnswer:
        """The effects of a batch that a person can settle, with the possible answers for each."""
        effects = [one for one in batch_status(order.batch, store=self.store).effects if one.state in ANSWERS]
        listed = [
            {
                **{"key": effect.key, "answers": ANSWERS[effect.state]},
                "error": redact(effect.error or "")[:LONGEST],
            }
            for effect in effects[:EFFECTS_SHOWN]
        ]
        return {"effects": listed, "more": len(effects) - len(listed)}

    def replay(self, order: ReplayOrder, progress: Callable[[int, int, LetterOutcome], None]) -> PageAnswer:
        """Replay and call `progress` after each letter. If it raises, the replay ends there."""
        if (order.letter is None) == (order.task is None):
            raise ConfigurationError("Choose the letters: either one by its id, or those of a task")
        chosen: dict[str, Any] = {"letters": order.letter} if order.letter else {"task": order.task}
        if order.error is not None:
            group = ("waiting", order.task, order.error)
            letters = queue_of(self.store).letters(only_open=True)
            members = [one.id for one in letters if (one.status, one.name, error_kind(one)) == group]
            chosen = {"letters": members}
        report = dead_letters.replay(**chosen, progress=progress, store=self.store)
        messages = [one.message for one in report.outcomes if one.result != "replayed" and one.message]
        why = f"; {redact(messages[0])[:LONGEST]}" if messages else ""
        return {"said": report.summary() + why, "well": report.well}


class ReplayStopped(ResilienceError):
    """A replay was stopped between two letters; the remaining letters stay waiting."""


class Replays:
    """Starts replays in a thread and shows their progress in the hub, as `replay` in the summary."""

    def __init__(self, desk: Desk, hub: Hub) -> None:
        self._desk = desk
        self._hub = hub
        self._task: asyncio.Task[None] | None = None
        self._stopping = threading.Event()

    async def start(self, order: ReplayOrder) -> PageAnswer:
        """Start a replay. Raises ConfigurationError while another one is running."""
        if self._task is not None and not self._task.done():
            raise ConfigurationError("A replay is already running: wait for its end, or stop it")
        self._stopping.clear()
        self._show(order, done=0, total=None)
        self._task = asyncio.create_task(self._run(order))
        return {"said": "The replay has started"}

    async def stop(self, _: PageOrder) -> PageAnswer:
        """Stop the running replay after its current letter."""
        if self._task is None or self._task.done():
            raise ConfigurationError("No replay is running")
        self.end()
        return {"said": "The replay stops after this letter"}

    def end(self) -> None:
        """Stop a running replay after its current letter."""
        self._stopping.set()

    async def _run(self, order: ReplayOrder) -> None:
        loop = asyncio.get_running_loop()

        def progress(done: int, total: int, outcome: LetterOutcome) -> None:
            loop.call_soon_threadsafe(lambda: self._show(order, done=done, total=total))
            if self._stopping.is_set():
                raise ReplayStopped(f"Stopped after {done} of {total} letters")

        try:
            answer = await asyncio.to_thread(self._desk.replay, order, progress)
        except Exception as error:  # noqa: BLE001 - every error is shown on the page
            answer = {"said": redact(str(error) or type(error).__name__)[:1_000], "well": False}
        self._show(order, ended=True, **answer)
        self._hub.refresh()

    def _show(self, order: ReplayOrder, **how: Any) -> None:
        row = {"letter": order.letter, "task": order.task, "ended": False, **how}
        self._hub.put({"summary": {"replay": row}})
