"""One effect as a pure function: `decide(document, event, now) -> (document, decision)`.

`document` is JSON, the whole truth about one effect of one batch; `now` is the store's clock in seconds.

                   ┌────── never arrived ──────> failed ─────┐
    (none) ──> intended ────── succeeded ──────> done        │
                   ^  └─ cannot tell, owner died ─> unknown  │
                   │                 verified: done, failed  │
                   └─────────────────────────────────────────┘

Whoever intends an effect gets a claim of its own; what it reports later counts only while nobody else has
claimed the effect since. `done` is final, but for a rollback (`undo.py`): by way of `compensating` it becomes
`compensated`, from where the effect may be intended anew, as its next generation. Nobody sends an external
effect from `unknown`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from prefect_resilience.effects.policy import Done, EffectKind, NotDone

EffectState = Literal["intended", "done", "failed", "unknown", "compensating", "compensated"]
EffectDocument = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Look:
    """Somebody wants to know how things stand. `alive`: whoever intended it, if anybody, is still busy."""

    alive: bool


@dataclass(frozen=True, slots=True)
class Intend:
    """`owner` is about to make the call, under the name `claim`.

    `about` is what an operator reads: key, batch, task and runs. `despite_doubt`: the effect may be done
    again though its outcome is unknown.
    """

    owner: str
    claim: str
    alive: bool
    kind: EffectKind = "external"
    about: dict[str, Any] = field(default_factory=dict[str, Any])
    despite_doubt: bool = False


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The call came back. `result` is packed JSON (see `results.py`)."""

    claim: str
    result: Any
    external_id: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The call did not take effect, which is certain."""

    claim: str
    error: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Doubted:
    """The call went wrong in a way that proves nothing."""

    claim: str
    error: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Verified:
    """What the receiver, or a person, says about the call of that claim. A `Done` carries a packed result."""

    claim: str
    answer: Done | NotDone
    by: str = "verify"


Event = Look | Intend | Succeeded | Failed | Doubted | Verified


@dataclass(frozen=True, slots=True)
class Send:
    """Nothing stands in the way; after an `Intend`: the call is the asker's to make.

    `generation`: how often the effect is begun from nothing, since what was done before was compensated.
    """

    generation: int = 1


@dataclass(frozen=True, slots=True)
class Replay:
    """It is done: this is what came of it."""

    result: Any
    external_id: str | None


@dataclass(frozen=True, slots=True)
class Wait:
    """Somebody else is doing it."""


@dataclass(frozen=True, slots=True)
class Ask:
    """The outcome of that claim's call is unknown: only the receiver or a person can tell."""

    claim: str
    error: dict[str, Any] | None
    generation: int = 1


@dataclass(frozen=True, slots=True)
class Undoing:
    """It was done, and whether its compensation has undone it is open, with nobody at it."""

    why: str


@dataclass(frozen=True, slots=True)
class Recorded:
    """A report was taken, or came too late: then somebody else's word stands."""

    taken: bool


Decision = Send | Replay | Wait | Ask | Undoing | Recorded


def decide(
    document: EffectDocument | None, event: Event, now: float
) -> tuple[EffectDocument | None, Decision]:
    """The document after `event`, and what whoever brought it is to do. No argument is changed."""
    match event:
        case Look():
            return _stand(document, event.alive, now)
        case Intend():
            return _intend(document, event, now)
        case Verified():
            return _verified(document, event, now)
        case _:
            return _report(document, event, now)


def _stand(
    document: EffectDocument | None, alive: bool, now: float
) -> tuple[EffectDocument | None, Decision]:
    """How things stand; an intention whose owner died becomes a doubt."""
    generation = generation_of(document)
    if document is None or document["state"] in ("failed", "compensated"):
        return document, Send(generation)
    if document["state"] == "done":
        return document, Replay(document["result"], document["external_id"])
    if document["state"] == "compensating":
        return document, Wait() if alive else Undoing(_undoing(document))
    if document["state"] == "intended":
        if alive:
            return document, Wait()
        document = {**document, "state": "unknown", "settled_at": now, "error": _OWNER_DIED}
    return document, Ask(document["claim"], document["error"], generation)


def generation_of(document: EffectDocument | None) -> int:
    """How often the effect was begun from nothing, or will have been with the next call: 1, 2, ..."""
    if document is None:
        return 1
    return document.get("generation", 1) + (document["state"] == "compensated")


def _undoing(document: EffectDocument) -> str:
    error = document["compensation"].get("error")
    if error is None:
        return "a rollback that was to undo it was interrupted: rollback() finishes it"
    return f"its compensation ended in {error['code']}: {error['message']}"


_OWNER_DIED = {"code": "OWNER_DIED", "message": "whoever made the call ended before it said what came of it"}


def _intend(
    document: EffectDocument | None, event: Intend, now: float
) -> tuple[EffectDocument | None, Decision]:
    document, decision = _stand(document, event.alive, now)
    if not isinstance(decision, Send) and not (isinstance(decision, Ask) and event.despite_doubt):
        return document, decision
    return {
        **event.about,
        "kind": event.kind,
        "state": "intended",
        "generation": generation_of(document),
        "owner": event.owner,
        "claim": event.claim,
        "attempts": 1 if document is None else document["attempts"] + 1,
        "result": None,
        "external_id": None,
        "error": None,
        "verified_by": None,
        "first_at": now if document is None else document["first_at"],
        "intended_at": now,
        "settled_at": None,
    }, Send(generation_of(document))


def _report(
    document: EffectDocument | None, event: Succeeded | Failed | Doubted, now: float
) -> tuple[EffectDocument | None, Decision]:
    """What an owner says of its own call. A late word counts as long as the claim is still the last one.

    That a call succeeded is true whatever was believed meanwhile; the other two only end an open question.
    """
    if document is None or document["claim"] != event.claim:
        return document, Recorded(False)
    if document["state"] in ("done", "compensating", "compensated"):
        return document, Recorded(isinstance(event, Succeeded))
    settled = {**document, "settled_at": now}
    if isinstance(event, Succeeded):
        more = {"state": "done", "result": event.result, "external_id": event.external_id, "error": None}
    elif document["state"] == "failed":
        return document, Recorded(isinstance(event, Failed))
    else:
        more = {"state": "failed" if isinstance(event, Failed) else "unknown", "error": event.error}
    return {**settled, **more}, Recorded(True)


def _verified(
    document: EffectDocument | None, event: Verified, now: float
) -> tuple[EffectDocument | None, Decision]:
    """An answer to `Ask`. It counts for the call that was asked about, while that is still in doubt."""
    if document is None or document["claim"] != event.claim or document["state"] != "unknown":
        return _stand(document, True, now)
    if isinstance(event.answer, Done):
        document = {
            **document,
            "state": "done",
            "result": event.answer.result,
            "external_id": event.answer.external_id,
            "error": None,
        }
    else:
        document = {**document, "state": "failed"}
    return _stand({**document, "verified_by": event.by, "settled_at": now}, True, now)
