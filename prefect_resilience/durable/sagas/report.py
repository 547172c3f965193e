"""The report of a rollback, and the log of a batch's savepoints and rollbacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from prefect_resilience.durable.effects.ledger import PREFIX, Ledger, is_open, place_of
from prefect_resilience.durable.effects.model import EffectDocument
from prefect_resilience.durable.sagas import undo
from prefect_resilience.durable.sagas.compensations import compensation_of
from prefect_resilience.errors.exceptions import ConfigurationError, EffectBusy
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.stores.base import change


@dataclass(frozen=True, slots=True)
class Compensation:
    """One effect of a batch that was rolled back.

    `function` is its compensation, as "module:name"; None if it has none. `why` is an error or a note.
    `generation` is one more than the number of times that it was compensated.
    """

    key: str
    task: str | None
    function: str | None
    external_id: str | None
    generation: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class RollbackReport:
    """The outcome of a rollback; each list is in the order of work.

    compensated: compensated now. already: compensated by an earlier rollback, even an interrupted one.
    failed: the compensation raised, or could not be called: a person must act.
    in_doubt: the outcome of the effect, or of its compensation, is unknown: a person must act.
    skipped: done without a compensation, or with one that a person gave up: it stays done.
    """

    batch_id: str
    to: str | None
    compensated: tuple[Compensation, ...] = ()
    already: tuple[Compensation, ...] = ()
    failed: tuple[Compensation, ...] = ()
    in_doubt: tuple[Compensation, ...] = ()
    skipped: tuple[Compensation, ...] = ()

    @property
    def counts(self) -> dict[str, int]:
        """The number of effects in each list."""
        return {how: len(getattr(self, how)) for how in _SAID}

    @property
    def complete(self) -> bool:
        """Whether nothing is left for a person to do. Skipped effects do not count."""
        return not self.failed and not self.in_doubt

    def __str__(self) -> str:
        counts = ", ".join(f"{count} {_SAID[how]}" for how, count in self.counts.items() if count)
        where = "" if self.to is None else f" to {self.to!r}"
        return f"batch {self.batch_id!r} rolled back{where}: {counts or 'nothing to compensate'}"


_SAID = {
    "compensated": "compensated",
    "already": "already compensated",
    "failed": "failed",
    "in_doubt": "in doubt",
    "skipped": "without a compensation",
}


def compensation_entry(effect: EffectDocument, why: str = "") -> Compensation:
    """An effect as an entry of a report."""
    return Compensation(
        key=effect["key"],
        task=effect.get("task"),
        function=compensation_of(effect),
        external_id=effect["external_id"],
        generation=effect.get("generation", 1),
        why=redact(why),
    )


KEYS_SHOWN = 3
NotUndoneHow = Literal["failed", "in_doubt", "skipped"]


@dataclass(frozen=True, slots=True)
class NotUndone:
    """An effect that a rollback does not compensate.

    how: "skipped" (it stays done), "failed" (its compensation failed) or "in_doubt" (outcome unknown).
    """

    key: str
    how: NotUndoneHow
    why: str


def not_undone(report: RollbackReport) -> tuple[NotUndone, ...]:
    """The effects that the rollback did not compensate, with the reasons."""
    return tuple(
        NotUndone(row.key, how, row.why) for how in get_args(NotUndoneHow) for row in getattr(report, how)
    )


def in_words(report: RollbackReport, *, planned: bool = False) -> str:
    """What a rollback compensated, or would compensate, and what not, as one phrase."""
    yes, no = ("to compensate", "not to compensate") if planned else ("compensated", "not compensated")
    undone = [repr(compensation.key) for compensation in (*report.already, *report.compensated)]
    stays = [f"{effect.key!r} ({effect.why})" for effect in not_undone(report)]
    if not undone and not stays:
        return "there is nothing to compensate"
    rest = f"; {no}: {named_some(stays)}" if stays else ""
    return f"{yes}: {named_some(undone) or 'nothing'}{rest}"


def plan_rollback(batch_id: str, to: str | None, todo: undo.ToUndo) -> RollbackReport:
    """The report of a rollback that has still to be made, if every compensation succeeds."""
    return RollbackReport(
        batch_id,
        to,
        compensated=tuple(compensation_entry(effect) for effect in todo.effects),
        in_doubt=tuple(compensation_entry(effect, _doubt(effect)) for effect in todo.unsettled),
        skipped=tuple(compensation_entry(effect, why_it_stays(effect)) for effect in todo.skipped),
    )


def why_it_stays(effect: EffectDocument) -> str:
    """Why no rollback compensates an effect that is done."""
    held: dict[str, Any] | None = effect.get("compensation")
    return "it has no compensation" if held is None else f"its compensation was given up ({held['given_up']})"


def _doubt(effect: EffectDocument) -> str:
    held: dict[str, Any] = effect.get("compensation") or {}
    question = "verify is asked first" if held.get("verify") else "there is no verify to ask"
    return f"its outcome is unknown: {question}"


def named_some(items: Sequence[str]) -> str:
    more = len(items) - KEYS_SHOWN
    return ", ".join(items[:KEYS_SHOWN]) + (f" and {more} more" if more > 0 else "")


SAGAS = "effects-saga/"
SAGA_SECONDS = 365 * 86_400.0


def saga_place(batch_id: str) -> str:
    """The store key of a batch's savepoints and rollbacks."""
    return SAGAS + place_of(batch_id)[len(PREFIX) : -1]


class SagaLog:
    """The savepoints and rollbacks of one batch. Every method may block and raise StoreUnavailable."""

    def __init__(self, ledger: Ledger, batch_id: str) -> None:
        self.ledger = ledger
        self.batch_id = batch_id
        self.place: str = saga_place(batch_id)

    def begin(self, claim: str, to: str | None) -> float | None:
        """Claim the batch's rollback, until `end` or `give_up`. Returns the time to go back to; None: its
        beginning.

        Raises EffectBusy while another rollback runs, and ConfigurationError if `to` is unknown, or a batch
        with effects in progress.
        """
        ended = self._end_of(to)
        owner = self.ledger.owner.hold(claim)
        try:
            saga = self._change(
                lambda saga, now: undo.begin(
                    saga, self.batch_id, claim, owner, self._is_busy(saga), to, now, ended
                )
            )
        except (EffectBusy, ConfigurationError):
            self.ledger.owner.drop(claim)
            raise
        except BaseException:
            self.give_up(claim)
            raise
        return saga["rollback"]["since"]

    def plan(self, to: str | None) -> RollbackReport:
        """What a rollback would compensate, if no other rollback ran; nothing is changed."""
        now, ended = self.ledger.store.now(), self._end_of(to)
        saga = undo.begin(self.saga(), self.batch_id, "", "", False, to, now, ended)
        todo = undo.to_undo(
            (document for document, _ in self.ledger.effects(self.batch_id)), saga["rollback"]["since"]
        )
        return plan_rollback(self.batch_id, to, todo)

    def _end_of(self, to: str | None) -> float | None:
        """When the other batch `to` ended; None if there is none, or `to` is a savepoint."""
        if to is None or to == self.batch_id or to in undo.savepoints_of(self.saga() or undo.new_saga(to)):
            return None
        effects = self.ledger.effects(to)
        if any(alive for _, alive in effects):
            raise ConfigurationError(f"batch {to!r} is still in progress: it has no end to roll back to")
        return undo.last_completion(document for document, _ in effects)

    def end(self, claim: str, report: RollbackReport) -> None:
        self._change(lambda saga, now: undo.end(saga, claim, {"at": now, "to": report.to, **report.counts}))
        self.ledger.owner.drop(claim)

    def give_up(self, claim: str) -> None:
        """The rollback was interrupted: another one may finish it. Does not block."""
        self.ledger.owner.give_up(claim)

    def mark(self, name: str) -> float:
        """Set a savepoint, or find an existing one. Returns its time."""
        saga = self._change(lambda saga, now: undo.mark(saga, self.batch_id, name, self._is_busy(saga), now))
        return undo.savepoints_of(saga)[name]

    def saga(self) -> Any:
        """The document of the batch's savepoints and rollbacks, or None."""
        document = self.ledger.store.load(self.place)
        return None if document is None else document.value

    def effect(self, key: str) -> EffectDocument | None:
        document = self.ledger.store.load(place_of(self.batch_id, key))
        return None if document is None else document.value

    def place_of(self, effect: EffectDocument) -> str:
        return place_of(self.batch_id, effect["key"])

    def fence(self, effect: EffectDocument, claim: str) -> EffectDocument | None:
        """Fence the effect for this rollback; None if it has changed since it was listed."""
        owner = self.ledger.owner.hold(claim)
        return self.change_effect(effect, lambda document, _: undo.fenced(document, claim, owner))

    def change_effect(
        self, effect: EffectDocument, step: Callable[[EffectDocument, float], EffectDocument]
    ) -> EffectDocument | None:
        """The effect after `step`; None if it has changed since it was read."""
        after: EffectDocument | None = None

        def change_same(document: EffectDocument | None) -> EffectDocument | None:
            nonlocal after
            after = None
            if document is not None and all(document[name] == effect[name] for name in ("claim", "state")):
                after = step(document, self.ledger.store.now())
            return after or document

        change(self.ledger.store, self.place_of(effect), change_same, is_open=is_open)
        return after

    def _is_busy(self, saga: Any) -> bool:
        rollback = None if saga is None else saga["rollback"]
        return rollback is not None and self.ledger.owner.lives(rollback["owner"], rollback["claim"])

    def _change(self, step: Callable[[Any, float], Any]) -> Any:
        """The saga's document after a step. It expires a year after the last one."""
        return change(
            self.ledger.store, self.place, lambda saga: step(saga, self.ledger.store.now()), SAGA_SECONDS
        )
