"""The report of a rollback, and the log of a batch's savepoints and rollbacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

from prefect_resilience.durable.effects.ledger import PREFIX, Ledger, is_open, place_of
from prefect_resilience.durable.effects.model import EffectDocument
from prefect_resilience.durable.sagas import undo
from prefect_resilience.durable.sagas.undo import to_undo, unsettled
from prefect_resilience.errors.exceptions import ConfigurationError
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
        said = ", ".join(f"{count} {_SAID[how]}" for how, count in self.counts.items() if count)
        where = "" if self.to is None else f" to {self.to!r}"
        return f"batch {self.batch_id!r} rolled back{where}: {said or 'nothing to compensate'}"


_SAID = {
    "compensated": "compensated",
    "already": "already compensated",
    "failed": "failed",
    "in_doubt": "in doubt",
    "skipped": "without a compensation",
}


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


@dataclass(frozen=True, slots=True)
class Outline:
    """The effects of a batch that a rollback compensates, in order, and those that it does not."""

    undone: tuple[str, ...] = ()
    not_undone: tuple[NotUndone, ...] = ()

    @property
    def complete(self) -> bool:
        """Whether nothing is left for a person to do. Effects without a compensation do not count."""
        return all(one.how == "skipped" for one in self.not_undone)

    def told(self, *, planned: bool = False) -> str:
        """Both lists as one phrase."""
        yes, no = ("to compensate", "not to compensate") if planned else ("compensated", "not compensated")
        if not self.undone and not self.not_undone:
            return "there is nothing to compensate"
        parts = [f"{yes}: {named_some([*map(repr, self.undone)]) or 'nothing'}"]
        if self.not_undone:
            parts.append(f"{no}: {named_some([f'{one.key!r} ({one.why})' for one in self.not_undone])}")
        return "; ".join(parts)


def outline_of(report: RollbackReport) -> Outline:
    """The outline of a rollback, with the effects that earlier rollbacks had compensated."""
    left = [
        NotUndone(one.key, how, one.why) for how in get_args(NotUndoneHow) for one in getattr(report, how)
    ]
    return Outline(tuple(one.key for one in (*report.already, *report.compensated)), tuple(left))


def planned(documents: Iterable[EffectDocument], since: float | None) -> Outline:
    """What a rollback of these effects would compensate, back to a savepoint's time or to the beginning."""
    effects = list(documents)
    todo = to_undo(effects, since)
    left = [NotUndone(one["key"], "in_doubt", _doubt(one)) for one in unsettled(effects, since)]
    left += [NotUndone(one["key"], "skipped", why_it_stays(one)) for one in todo.skipped]
    return Outline(tuple(one["key"] for one in todo.effects), tuple(left))


def why_it_stays(effect: EffectDocument) -> str:
    """Why no rollback compensates an effect that is done."""
    held: dict[str, Any] | None = effect.get("compensation")
    return "it has no compensation" if held is None else f"its compensation was given up ({held['given_up']})"


def _doubt(effect: EffectDocument) -> str:
    held: dict[str, Any] = effect.get("compensation") or {}
    asked = "verify is asked first" if held.get("verify") else "there is no verify to ask"
    return f"its outcome is unknown: {asked}"


def named_some(items: Sequence[str]) -> str:
    more = len(items) - KEYS_SHOWN
    return ", ".join(items[:KEYS_SHOWN]) + (f" and {more} more" if more > 0 else "")


SAGAS = "effects-saga/"
T = TypeVar("T")


def saga_place(batch_id: str) -> str:
    """The store key of a batch's savepoints and rollbacks."""
    return SAGAS + place_of(batch_id)[len(PREFIX) : -1]


class SagaLog:
    """The savepoints and rollbacks of one batch. Every method may block and raise StoreUnavailable."""

    def __init__(self, ledger: Ledger, batch_id: str) -> None:
        self.ledger = ledger
        self.batch_id = batch_id
        self.place: str = saga_place(batch_id)

    def begin(self, claim: str, to: str | None) -> undo.Begun | undo.Busy | undo.NoSavepoint:
        """Claim the batch's rollback; after `Begun` the caller holds it, until `end` or `drop`.

        Raises ConfigurationError if `to` is a batch with effects in progress.
        """
        ended = self._end_of(to)
        owner = self.ledger.owner.hold(claim)
        try:
            decision = self._change(
                self.place,
                lambda saga, now: undo.begin(
                    saga, self.batch_id, claim, owner, self._busy(saga), to, now, ended
                ),
            )
        except BaseException:
            self.give_up(claim)
            raise
        if not isinstance(decision, undo.Begun):
            self.ledger.owner.drop(claim)
        return decision

    def planned(self, to: str | None) -> undo.Begun | undo.Busy | undo.NoSavepoint:
        """What `begin` would return if no other rollback ran; nothing is changed."""
        now, ended = self.ledger.store.now(), self._end_of(to)
        return undo.begin(self.saga(), self.batch_id, "", "", False, to, now, ended)[1]

    def _end_of(self, to: str | None) -> float | None:
        """When the other batch `to` ended; None if there is none, or `to` is a savepoint."""
        saga = self.saga()
        if (
            to is None
            or to == self.batch_id
            or (saga and any(one["name"] == to for one in saga["savepoints"]))
        ):
            return None
        effects = self.ledger.effects(to)
        if any(alive for _, alive in effects):
            raise ConfigurationError(f"batch {to!r} is still in progress: it has no end to roll back to")
        return undo.ended_at(document for document, _ in effects)

    def end(self, claim: str, report: RollbackReport) -> None:
        def end_rollback(saga: Any, now: float) -> tuple[Any, None]:
            return undo.end(saga, claim, {"at": now, "to": report.to, **report.counts}), None

        self._change(self.place, end_rollback)
        self.ledger.owner.drop(claim)

    def give_up(self, claim: str) -> None:
        """The rollback was interrupted: another one may finish it. Does not block."""
        self.ledger.owner.give_up(claim)

    def mark(self, name: str) -> float | undo.Busy | undo.Interrupted:
        return self._change(
            self.place, lambda saga, now: undo.mark(saga, self.batch_id, name, self._busy(saga), now)
        )

    def saga(self) -> Any:
        """The document of the batch's savepoints and rollbacks, or None."""
        found = self.ledger.store.load(self.place)
        return None if found is None else found.value

    def effects(self) -> list[tuple[EffectDocument, bool]]:
        return self.ledger.effects(self.batch_id)

    def effect(self, key: str) -> EffectDocument | None:
        found = self.ledger.store.load(place_of(self.batch_id, key))
        return None if found is None else found.value

    def place_of(self, effect: EffectDocument) -> str:
        return place_of(self.batch_id, effect["key"])

    def fence(self, effect: EffectDocument, claim: str) -> EffectDocument | None:
        """Fence the effect for this rollback; None if it has changed since it was listed."""
        owner = self.ledger.owner.hold(claim)

        def fence_effect(found: Any, now: float) -> tuple[Any, EffectDocument | None]:
            if not _same(found, effect):
                return found, None
            after = undo.fenced(found, claim, owner)
            return after, after

        return self._change(place_of(self.batch_id, effect["key"]), fence_effect)

    def decide(
        self, effect: EffectDocument, change: Callable[[EffectDocument, float], EffectDocument]
    ) -> bool:
        """Record the outcome of a fenced effect, or a person's answer; False if it has changed meanwhile."""

        def decide_effect(found: Any, now: float) -> tuple[Any, bool]:
            ours = _same(found, effect)
            return (change(found, now) if ours else found), ours

        return self._change(place_of(self.batch_id, effect["key"]), decide_effect)

    def _busy(self, saga: Any) -> bool:
        rollback = None if saga is None else saga["rollback"]
        return rollback is not None and self.ledger.owner.lives(rollback["owner"], rollback["claim"])

    def _change(self, place: str, step: Callable[[Any, float], tuple[Any, T]]) -> T:
        decisions: list[T] = []

        def decide(before: Any) -> Any:
            after, decision = step(before, self.ledger.store.now())
            decisions.append(decision)
            return after

        change(self.ledger.store, place, decide, is_open=is_open)
        return decisions[-1]


def _same(found: EffectDocument | None, effect: EffectDocument) -> bool:
    return found is not None and (found["claim"], found["state"]) == (effect["claim"], effect["state"])
