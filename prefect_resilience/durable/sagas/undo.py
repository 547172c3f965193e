"""A rollback: the effects to compensate, their order and each step of one effect as pure functions; its log.

    done ── fenced ──> compensating ── ended ──> compensated ── intended again ──> (the next generation)
      ^                     │  └─ outcome unknown: stays, until a person answers `undone` or `kept`
      └── failed, or kept ──┘

All effects are fenced before the first is compensated: if a rollback dies half-way, no later run treats
one of them as done. The compensation of an effect is an effect of its own in the ledger. `now` is the store's
clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from prefect_resilience.base.policy import nearest
from prefect_resilience.durable.effects.current import sent_key
from prefect_resilience.durable.effects.ledger import BatchLog, is_open, place_of
from prefect_resilience.durable.effects.model import EffectDocument, generation_of
from prefect_resilience.durable.sagas.compensations import (
    RollbackReport,
    compensation_entry,
    why_in_doubt,
    why_it_stays,
)
from prefect_resilience.errors.exceptions import ConfigurationError, EffectBusy, InDoubt
from prefect_resilience.stores.base import change

SagaDocument = dict[str, Any]
"""One per batch: {"batch", "savepoints": [{"name", "at"}], "rollback": {"claim", "owner", "to", "since",
"at"} | None, "last": the counts of the last rollback | None}."""


# -- one effect


def fence_effect(document: EffectDocument, claim: str, owner: str) -> EffectDocument:
    """The effect, claimed by this rollback, even if an interrupted rollback had claimed it."""
    held = {**document["compensation"], "claim": claim, "owner": owner}
    if document["state"] == "done":
        held["error"] = None
    return {**document, "state": "compensating", "compensation": held}


def end_compensation(
    document: EffectDocument,
    now: float,
    state: str,
    error: dict[str, Any] | None = None,
    by: str | None = None,
) -> EffectDocument:
    """The effect after its compensation.

    `state`: "compensated"; "done" if the compensation certainly took no effect, or was given up;
    "compensating" if its outcome is unknown: then a person must settle it. `by`: the person who decided it.
    """
    held = {**document["compensation"], "owner": None, "error": error, "at": now}
    if by is None:
        return {**document, "state": state, "compensation": held}
    # No rollback compensates an effect that a person keeps.
    held |= {"given_up": by} if state == "done" else {}
    return {**document, "state": state, "compensation": held, "verified_by": by}


def can_be_undone(document: EffectDocument) -> bool:
    """Whether it has a compensation that was not given up."""
    held = document.get("compensation")
    return held is not None and not held.get("given_up")


def compensation_key(document: EffectDocument) -> str:
    """The key of the effect that compensates this one; each generation has its own."""
    return f"compensate:{sent_key(document['key'], generation_of(document))}"


# -- what to undo


@dataclass(frozen=True, slots=True)
class ToUndo:
    """The work of a rollback. `effects` are in the order in which they are compensated.

    `unsettled`: their outcome is unknown.
    """

    effects: tuple[EffectDocument, ...]
    already: tuple[EffectDocument, ...]
    skipped: tuple[EffectDocument, ...]
    unsettled: tuple[EffectDocument, ...]


def to_undo(documents: Iterable[EffectDocument], since: float | None) -> ToUndo:
    """The effects of a batch to compensate, in reverse order of completion.

    `since`: the savepoint's time; effects completed up to it stay. Effects that an earlier rollback had
    fenced are always compensated.
    """
    effects = [document for document in documents if "compensates" not in document]
    after = [document for document in effects if since is None or _completion(document)[0] > since]
    done = [document for document in after if document["state"] == "done"]
    begun = [document for document in effects if document["state"] == "compensating"]
    return ToUndo(
        _last_first([*begun, *filter(can_be_undone, done)]),
        _last_first(document for document in after if document["state"] == "compensated"),
        _last_first(document for document in done if not can_be_undone(document)),
        tuple(document for document in after if document["state"] in ("intended", "unknown")),
    )


def _last_first(documents: Iterable[EffectDocument]) -> tuple[EffectDocument, ...]:
    return tuple(sorted(documents, key=_completion, reverse=True))


def _completion(document: EffectDocument) -> tuple[float, float, str]:
    settled = document["settled_at"]
    at = document["intended_at"] if settled is None else settled
    return at, document["intended_at"], document["key"]


# -- a batch's savepoints, and its rollback


def begin(
    saga: SagaDocument,
    claim: str,
    owner: str,
    alive: bool,
    to: str | None,
    now: float,
    earlier_ended: float | None = None,
) -> SagaDocument:
    """Claim the rollback of a batch. Its `since` is the time to go back to; None: the beginning.

    `to` is one of its savepoints, or else another batch that ended at `earlier_ended`. This rollback also
    finishes an interrupted one, and goes back to the earlier target of the two. `alive`: whether an earlier
    rollback still runs; then it raises EffectBusy. Raises ConfigurationError for an unknown savepoint.
    """
    earlier = saga["rollback"]
    if earlier is not None and alive:
        raise EffectBusy("rollback", saga["batch"], 0.0)
    marks = savepoints_of(saga)
    since = None if to is None else marks.get(to, earlier_ended)
    if to is not None and since is None:
        hint = nearest(to, marks) if marks else "; it has no savepoints"
        raise ConfigurationError(
            f"batch {saga['batch']!r} has no savepoint {to!r}{hint}, and no other batch has that id"
        )
    if earlier is not None and since is not None and (earlier["since"] is None or earlier["since"] < since):
        to, since = earlier["to"], earlier["since"]
    return {**saga, "rollback": {"claim": claim, "owner": owner, "to": to, "since": since, "at": now}}


def end(saga: SagaDocument, claim: str, outcome: dict[str, Any]) -> SagaDocument:
    """End the rollback; later savepoints are removed, as in SQL."""
    if saga["rollback"] is None or saga["rollback"]["claim"] != claim:
        return saga
    since = saga["rollback"]["since"]
    savepoints = [mark for mark in saga["savepoints"] if since is not None and mark["at"] <= since]
    return {**saga, "savepoints": savepoints, "rollback": None, "last": outcome}


def mark(saga: SagaDocument, name: str, alive: bool, now: float) -> SagaDocument:
    """Set a savepoint, unless there is one of that name.

    Raises EffectBusy while a rollback runs, and InDoubt if one was interrupted.
    """
    if saga["rollback"] is not None and alive:
        raise EffectBusy(f"savepoint:{name}", saga["batch"], 0.0)
    if saga["rollback"] is not None:
        raise InDoubt(
            f"savepoint:{name}", saga["batch"], "a rollback was interrupted: rollback() finishes it"
        )
    if name in savepoints_of(saga):
        return saga
    return {**saga, "savepoints": [*saga["savepoints"], {"name": name, "at": now}]}


def savepoints_of(saga: SagaDocument) -> dict[str, float]:
    """The times of its savepoints."""
    return {savepoint["name"]: savepoint["at"] for savepoint in saga["savepoints"]}


# -- the log of a batch's savepoints and rollbacks in the store

SAGAS = "effects-saga/"


class SagaLog(BatchLog):
    """The savepoints and rollbacks of one batch."""

    prefix: ClassVar[str] = SAGAS
    new: ClassVar[dict[str, Any]] = {"savepoints": [], "rollback": None, "last": None}

    def begin(self, claim: str, to: str | None) -> float | None:
        """Claim the batch's rollback, until `end` or `give_up`. Returns the time to go back to; None: its
        beginning.

        Raises EffectBusy while another rollback runs, and ConfigurationError if `to` is unknown, or a batch
        with effects in progress.
        """
        ended = self._end_of(to)
        owner = self.ledger.owner.hold(claim)
        try:
            saga = self.change(
                lambda saga, now: begin(saga, claim, owner, self._is_busy(saga), to, now, ended)
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
        saga = begin(self.document(), "", "", False, to, now, ended)
        effects = (document for document, _ in self.ledger.effects(self.batch_id))
        return plan_rollback(self.batch_id, to, to_undo(effects, saga["rollback"]["since"]))

    def _end_of(self, to: str | None) -> float | None:
        """When the other batch `to` ended; None if there is none, or `to` is a savepoint."""
        if to is None or to == self.batch_id or to in savepoints_of(self.document()):
            return None
        effects = self.ledger.effects(to)
        if any(alive for _, alive in effects):
            raise ConfigurationError(f"batch {to!r} is still in progress: it has no end to roll back to")
        return max((_completion(document)[0] for document, _ in effects), default=None)

    def end(self, claim: str, report: RollbackReport) -> None:
        self.change(lambda saga, now: end(saga, claim, {"at": now, "to": report.to, **report.counts}))
        self.ledger.owner.drop(claim)

    def give_up(self, claim: str) -> None:
        """The rollback was interrupted: another one may finish it. Does not block."""
        self.ledger.owner.give_up(claim)

    def mark(self, name: str) -> float:
        """Set a savepoint, or find an existing one. Returns its time."""
        saga = self.change(lambda saga, now: mark(saga, name, self._is_busy(saga), now))
        return savepoints_of(saga)[name]

    def effect(self, key: str) -> EffectDocument | None:
        document = self.ledger.store.load(place_of(self.batch_id, key))
        return None if document is None else document.value

    def place_of(self, effect: EffectDocument) -> str:
        return place_of(self.batch_id, effect["key"])

    def fence(self, effect: EffectDocument, claim: str) -> EffectDocument | None:
        """Fence the effect for this rollback; None if it has changed since it was listed."""
        owner = self.ledger.owner.hold(claim)
        return self.change_effect(effect, lambda document, _: fence_effect(document, claim, owner))

    def change_effect(
        self, effect: EffectDocument, step: Callable[[EffectDocument, float], EffectDocument]
    ) -> EffectDocument | None:
        """The effect after `step`; None if it has changed since it was read."""

        def change_same(document: EffectDocument | None) -> EffectDocument | None:
            is_same = document and all(document[name] == effect[name] for name in ("claim", "state"))
            return step(document, self.ledger.store.now()) if document and is_same else None

        return change(self.ledger.store, self.place_of(effect), change_same, is_open=is_open)

    def _is_busy(self, saga: SagaDocument) -> bool:
        rollback = saga["rollback"]
        return rollback is not None and self.ledger.owner.lives(rollback["owner"], rollback["claim"])


def plan_rollback(batch_id: str, to: str | None, todo: ToUndo) -> RollbackReport:
    """The report of a rollback that has still to be made, if every compensation succeeds."""
    return RollbackReport(
        batch_id,
        to,
        compensated=tuple(compensation_entry(effect) for effect in todo.effects),
        in_doubt=tuple(compensation_entry(effect, why_in_doubt(effect)) for effect in todo.unsettled),
        skipped=tuple(compensation_entry(effect, why_it_stays(effect)) for effect in todo.skipped),
    )
