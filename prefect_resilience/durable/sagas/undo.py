"""A rollback as pure functions: the effects to compensate, their order, and each step of one effect.

    done ── fenced ──> compensating ── `undone` ──> compensated ── intended again ──> (the next generation)
      ^                     │  └─ outcome unknown: stays, until a person answers `undone` or `kept`
      └── failed, or kept ──┘

All effects are fenced before the first is compensated: if a rollback dies half-way, no later run treats
one of them as done. `now` is the store's clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from prefect_resilience.durable.effects.current import sent_key
from prefect_resilience.durable.effects.model import EffectDocument, generation_of

SagaDocument = dict[str, Any]
"""One per batch: {"batch", "savepoints": [{"name", "at"}], "rollback": {"claim", "owner", "to", "since",
"at"} | None, "last": the counts of the last rollback | None}."""


# -- one effect


def fenced(document: EffectDocument, claim: str, owner: str) -> EffectDocument:
    """The effect, claimed by this rollback, even if an interrupted rollback had claimed it."""
    held = {**document["compensation"], "claim": claim, "owner": owner}
    if document["state"] == "done":
        held["error"] = None
    return {**document, "state": "compensating", "compensation": held}


def undone(document: EffectDocument, now: float) -> EffectDocument:
    return {**_release(document, now, None), "state": "compensated"}


def still_done(document: EffectDocument, now: float, error: dict[str, Any]) -> EffectDocument:
    """The effect after a compensation that certainly took no effect."""
    return {**_release(document, now, error), "state": "done"}


def doubted(document: EffectDocument, now: float, error: dict[str, Any]) -> EffectDocument:
    """The effect after a compensation with an unknown outcome: a person must settle it."""
    return _release(document, now, error)


def kept(document: EffectDocument, now: float, by: str) -> EffectDocument:
    """A person gives up the compensation: the effect stays done, and no rollback compensates it."""
    released = _release(document, now, document["compensation"].get("error"))
    held = {**released["compensation"], "given_up": by}
    return {**released, "state": "done", "compensation": held, "verified_by": by}


def undone_by(document: EffectDocument, now: float, by: str) -> EffectDocument:
    """A person confirms that the effect is compensated."""
    return {**undone(document, now), "verified_by": by}


def can_be_undone(document: EffectDocument) -> bool:
    """Whether it has a compensation that was not given up."""
    held = document.get("compensation")
    return held is not None and not held.get("given_up")


def _release(document: EffectDocument, now: float, error: dict[str, Any] | None) -> EffectDocument:
    return {
        **document,
        "compensation": {**document["compensation"], "owner": None, "error": error, "at": now},
    }


def compensation_key(document: EffectDocument) -> str:
    """The key of the effect that compensates this one; each generation has its own."""
    return f"compensate:{sent_key(document['key'], generation_of(document))}"


# -- what to undo


@dataclass(frozen=True, slots=True)
class ToUndo:
    """The work of a rollback. `effects` are in the order in which they are compensated."""

    effects: tuple[EffectDocument, ...]
    already: tuple[EffectDocument, ...]
    skipped: tuple[EffectDocument, ...]


def to_undo(documents: Iterable[EffectDocument], since: float | None) -> ToUndo:
    """The effects of a batch to compensate, in reverse order of completion.

    `since`: the savepoint's time; effects completed up to it stay. Effects that an earlier rollback had
    fenced are always compensated.
    """
    effects = [one for one in documents if "compensates" not in one]
    after = [one for one in effects if _is_after(one, since)]
    done = [one for one in after if one["state"] == "done"]
    begun = [one for one in effects if one["state"] == "compensating"]
    return ToUndo(
        _last_first([*begun, *(one for one in done if can_be_undone(one))]),
        _last_first(one for one in after if one["state"] == "compensated"),
        _last_first(one for one in done if not can_be_undone(one)),
    )


def _last_first(documents: Iterable[EffectDocument]) -> tuple[EffectDocument, ...]:
    return tuple(sorted(documents, key=_completion, reverse=True))


def unsettled(documents: Iterable[EffectDocument], since: float | None) -> list[EffectDocument]:
    """Effects with an unknown outcome."""
    return [
        one
        for one in documents
        if "compensates" not in one and one["state"] in ("intended", "unknown") and _is_after(one, since)
    ]


def _is_after(document: EffectDocument, since: float | None) -> bool:
    return since is None or _completion(document)[0] > since


def _completion(document: EffectDocument) -> tuple[float, float, str]:
    settled = document["settled_at"]
    at = document["intended_at"] if settled is None else settled
    return at, document["intended_at"], document["key"]


# -- a batch's savepoints, and its rollback


@dataclass(frozen=True, slots=True)
class Begun:
    """The caller holds the rollback; `since` is None for the beginning of the batch."""

    since: float | None


@dataclass(frozen=True, slots=True)
class Busy:
    """Another rollback of the batch is running."""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A rollback of the batch was interrupted and must be finished first."""


@dataclass(frozen=True, slots=True)
class NoSavepoint:
    """There is no savepoint of that name; `names` are the existing ones."""

    names: tuple[str, ...]


def begin(
    document: SagaDocument | None,
    batch_id: str,
    claim: str,
    owner: str,
    alive: bool,
    to: str | None,
    now: float,
    earlier_ended: float | None = None,
) -> tuple[SagaDocument | None, Begun | Busy | NoSavepoint]:
    """Claim the rollback of a batch. `alive`: whether an earlier rollback still runs.

    `to` is one of its savepoints, or else another batch that ended at `earlier_ended`. This rollback also
    finishes an interrupted one, and goes back to the earlier target of the two.
    """
    saga = document or {"batch": batch_id, "savepoints": [], "rollback": None, "last": None}
    earlier = saga["rollback"]
    if earlier is not None and alive:
        return document, Busy()
    marks = {mark["name"]: mark["at"] for mark in saga["savepoints"]}
    since = None if to is None else marks.get(to, earlier_ended)
    if to is not None and since is None:
        return document, NoSavepoint(tuple(marks))
    if earlier is not None and since is not None and (earlier["since"] is None or earlier["since"] < since):
        to, since = earlier["to"], earlier["since"]
    rollback = {"claim": claim, "owner": owner, "to": to, "since": since, "at": now}
    return {**saga, "rollback": rollback}, Begun(since)


def ended_at(documents: Iterable[EffectDocument]) -> float | None:
    """When the last effect of a batch was completed; None if it has none."""
    return max((_completion(one)[0] for one in documents), default=None)


def end(document: SagaDocument | None, claim: str, outcome: dict[str, Any]) -> SagaDocument | None:
    """End the rollback; later savepoints are removed, as in SQL."""
    if document is None or document["rollback"] is None or document["rollback"]["claim"] != claim:
        return document
    since = document["rollback"]["since"]
    kept = [mark for mark in document["savepoints"] if since is not None and mark["at"] <= since]
    return {**document, "savepoints": kept, "rollback": None, "last": outcome}


def mark(
    document: SagaDocument | None, batch_id: str, name: str, alive: bool, now: float
) -> tuple[SagaDocument | None, float | Busy | Interrupted]:
    """Set a savepoint, or find an existing one; the result has its time."""
    saga = document or {"batch": batch_id, "savepoints": [], "rollback": None, "last": None}
    if saga["rollback"] is not None:
        return document, Busy() if alive else Interrupted()
    for known in saga["savepoints"]:
        if known["name"] == name:
            return document, known["at"]
    return {**saga, "savepoints": [*saga["savepoints"], {"name": name, "at": now}]}, now
