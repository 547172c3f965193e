"""The actions of the page's buttons, as methods of `Desk`. They block.

They call the same functions as the command line, so that the audit log and the events are the same.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import Field, validate_call

from prefect_resilience.durable.batches.edge.recovery import recover
from prefect_resilience.durable.batches.edge.settling import Answer, settle
from prefect_resilience.durable.batches.edge.status import batch_status
from prefect_resilience.durable.letters.edge import operations as dead_letters
from prefect_resilience.durable.letters.edge.known import queue_of
from prefect_resilience.durable.letters.report import LetterOutcome
from prefect_resilience.errors.exceptions import ConfigurationError, ResilienceError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.circuits.breaker import get_circuits
from prefect_resilience.operations.batch_rows import report_line
from prefect_resilience.operations.circuit_changes import DONE, change_circuit, find_circuit
from prefect_resilience.operations.letter_rows import error_kind

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
    """Carries out orders on the stores of a fleet (None: the configured ones).

    Every method raises ResilienceError with a sentence for the person at the page, and ValidationError for an
    order that has not its form.
    """

    circuits: str | None = None
    store: str | None = None
    replaying: threading.Lock = field(default_factory=threading.Lock)
    closing: threading.Event = field(default_factory=threading.Event)

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
        find_circuit(name, get_circuits(self.circuits), action)
        until = None if minutes is None else timedelta(minutes=minutes)
        after = change_circuit(name, action, reason, until, self.circuits)
        return {"said": f"{name}: {DONE[action]} for the whole fleet", "state": after.state}

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
        return {"said": f"The batch {report_line(report)}", "action": report.action}

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
            group, letters = ("waiting", task, error), queue_of(self.store).letters(only_open=True)
            members = (item for item in letters if (item.status, item.name, error_kind(item)) == group)
            chosen = {"letters": [item.id for item in members]}
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
