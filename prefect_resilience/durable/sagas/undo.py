"""A rollback as pure functions: what is to be undone and in which order, and each step of one effect.

    done ── fenced ──> compensating ── undone ──> compensated ── intended anew ──> (the next generation)
      ^                     │  └─ nothing can tell: stays, until a person says "undone" or "kept"
      └── failed, or kept ──┘

Every effect that is to be undone is fenced first, so that a rollback which dies half-way leaves nothing
behind that a later run would take for done. `now` is the store's clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from prefect_resilience.durable.effects.current import sent_key
from prefect_resilience.durable.effects.model import EffectDocument, generation_of

SagaDocument = dict[str, Any]
"""Of a batch: {"batch", "savepoints": [{"name", "at"}], "rollback": {"claim", "owner", "to", "since", "at"} |
None, "last": what came of the last one | None}."""


# -- one effect


def fenced(document: EffectDocument, claim: str, owner: str) -> EffectDocument:
    """The effect as one that this rollback undoes; one that a rollback left behind changes hands."""
    held = {**document["compensation"], "claim": claim, "owner": owner}
    if document["state"] == "done":
        held["error"] = None
    return {**document, "state": "compensating", "compensation": held}


def undone(document: EffectDocument, now: float) -> EffectDocument:
    return {**_released(document, now, None), "state": "compensated"}


def still_done(document: EffectDocument, now: float, error: dict[str, Any]) -> EffectDocument:
    """Its compensation certainly did nothing."""
    return {**_released(document, now, error), "state": "done"}


def doubted(document: EffectDocument, now: float, error: dict[str, Any]) -> EffectDocument:
    """Whether its compensation did anything, only a person can say."""
    return _released(document, now, error)


def kept(document: EffectDocument, now: float, by: str) -> EffectDocument:
    """A person gives its compensation up: it stays done, and no rollback undoes it any more."""
    released = _released(document, now, document["compensation"].get("error"))
    held = {**released["compensation"], "given_up": by}
    return {**released, "state": "done", "compensation": held, "verified_by": by}


def undone_by(document: EffectDocument, now: float, by: str) -> EffectDocument:
    """A person knows that it is undone, or has done so by hand."""
    return {**undone(document, now), "verified_by": by}


def can_be_undone(document: EffectDocument) -> bool:
    """Whether there is a compensation of it that nobody has given up."""
    held = document.get("compensation")
    return held is not None and not held.get("given_up")


def _released(document: EffectDocument, now: float, error: dict[str, Any] | None) -> EffectDocument:
    return {
        **document,
        "compensation": {**document["compensation"], "owner": None, "error": error, "at": now},
    }


def compensation_key(document: EffectDocument) -> str:
    """The key of the effect that undoes this one, each generation of it its own."""
    return f"compensate:{sent_key(document['key'], generation_of(document))}"


# -- what is to be done


@dataclass(frozen=True, slots=True)
class ToUndo:
    """What a rollback has before it. `effects` in the order in which they are undone."""

    effects: tuple[EffectDocument, ...]
    already: tuple[EffectDocument, ...]
    skipped: tuple[EffectDocument, ...]


def to_undo(documents: Iterable[EffectDocument], since: float | None) -> ToUndo:
    """What is undone of a batch, the last one that was completed first.

    `since`: the savepoint's time; what was completed up to it stays. What an earlier rollback had fenced is
    finished wherever it stands.
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
    return tuple(sorted(documents, key=_completed, reverse=True))


def unsettled(documents: Iterable[EffectDocument], since: float | None) -> list[EffectDocument]:
    """Effects of which it is not known yet whether there is anything to undo."""
    return [
        one
        for one in documents
        if "compensates" not in one and one["state"] in ("intended", "unknown") and _is_after(one, since)
    ]


def _is_after(document: EffectDocument, since: float | None) -> bool:
    return since is None or _completed(document)[0] > since


def _completed(document: EffectDocument) -> tuple[float, float, str]:
    settled = document["settled_at"]
    at = document["intended_at"] if settled is None else settled
    return at, document["intended_at"], document["key"]


# -- a batch's savepoints, and who rolls it back


@dataclass(frozen=True, slots=True)
class Begun:
    """The rollback is the asker's; `since` is None for the beginning of the batch."""

    since: float | None


@dataclass(frozen=True, slots=True)
class Busy:
    """Somebody else is rolling back."""


@dataclass(frozen=True, slots=True)
class Interrupted:
    """A rollback of the batch was cut off, and is to be finished first."""


@dataclass(frozen=True, slots=True)
class NoSavepoint:
    """There is none of that name; these there are."""

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
    """Take the rollback of a batch. `alive`: whether whoever took it before is still at it.

    `to` is one of its savepoints, or else another batch, which ended at `earlier_ended`. A rollback that was
    cut off is finished with this one: the farther back of the two counts.
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
    """When a batch did the last of its effects; None if it has none."""
    return max((_completed(one)[0] for one in documents), default=None)


def end(document: SagaDocument | None, claim: str, outcome: dict[str, Any]) -> SagaDocument | None:
    """The rollback is over: the savepoints behind it are gone, as in SQL."""
    if document is None or document["rollback"] is None or document["rollback"]["claim"] != claim:
        return document
    since = document["rollback"]["since"]
    kept = [mark for mark in document["savepoints"] if since is not None and mark["at"] <= since]
    return {**document, "savepoints": kept, "rollback": None, "last": outcome}


def mark(
    document: SagaDocument | None, batch_id: str, name: str, alive: bool, now: float
) -> tuple[SagaDocument | None, float | Busy | Interrupted]:
    """Set a savepoint, or find it where it was set before; its time."""
    saga = document or {"batch": batch_id, "savepoints": [], "rollback": None, "last": None}
    if saga["rollback"] is not None:
        return document, Busy() if alive else Interrupted()
    for known in saga["savepoints"]:
        if known["name"] == name:
            return document, known["at"]
    return {**saga, "savepoints": [*saga["savepoints"], {"name": name, "at": now}]}, now
