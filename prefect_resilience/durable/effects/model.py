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

A call whose attempt is over while the call itself still runs stays `intended`, with `overdue_at`: its owner
lives until the call has ended. `asked` names the run that asked for the effect last, and its pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from prefect_resilience.durable.effects.policy import Done, EffectKind, NotDone
from prefect_resilience.durable.effects.recipes import Recipe, difference

# Passes: one way of the code through its flow, from its beginning to its end or to its crash.
#
# A pass is a list of (run id, how often that run was begun), the outermost first: the flow runs around a
# task run and the task runs that it is nested in. A flow that is retried, a run that is recovered, the
# Retry button: each begins a run once more, and so a new pass. A loop over the same call does not.

Pass = tuple[tuple[str, int], ...]


def same_pass(earlier: Iterable[Any], now: Iterable[Any]) -> bool:
    """Whether both belong to one pass: they share a run, and none of those that they share was begun anew.

    `earlier` may have come back from JSON, as lists.

    Example:
        >>> same_pass([["f", 1]], (("f", 1),)), same_pass([["f", 1]], (("f", 2),)), same_pass([], ())
        (True, False, False)
    """
    before = {str(run): count for run, count in earlier}
    shared = [(before[run], count) for run, count in now if run in before]
    return bool(shared) and all(was == count for was, count in shared)


EffectState = Literal["intended", "done", "failed", "unknown", "compensating", "compensated"]
EffectDocument = dict[str, Any]
MOST_RUNS = 20
"""So many task runs at most that had intended an effect before are remembered."""


@dataclass(frozen=True, slots=True)
class Asker:
    """The run that asks for an effect.

    `run` is its task run, `passed` the pass of the code that it belongs to (see `passes.py`), `recipe` what
    its key was made of. `names`: the names of the task that the recorded effect may bear. `replays`: whether
    the same key may be asked for again in one pass, and is then replayed.
    """

    run: str | None = None
    passed: Pass = ()
    recipe: Recipe | None = None
    names: tuple[str, ...] = ()
    replays: bool = False


@dataclass(frozen=True, slots=True)
class LookUp:
    """How does it stand? `alive`: whether the owner of the intention, if there is one, is still busy."""

    alive: bool
    asker: Asker | None = None


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
    asker: Asker | None = None


@dataclass(frozen=True, slots=True)
class Overdue:
    """The attempt is over, and its call still runs."""

    claim: str


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The call came back. `result` is packed JSON (see `results.py`)."""

    claim: str
    result: Any
    external_id: str | None = None


@dataclass(frozen=True, slots=True)
class FailedCall:
    """The call did not take effect, which is certain."""

    claim: str
    error: dict[str, Any] | None = None


def not_sent(claim: str, why: str) -> FailedCall:
    """The call was never made."""
    return FailedCall(claim, {"code": "NOT_SENT", "message": why})


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
    asker: Asker | None = None


Event = LookUp | Intend | Overdue | Succeeded | FailedCall | Doubted | Verified


@dataclass(frozen=True, slots=True)
class Send:
    """Nothing stands in the way; after an `Intend`: the call is the asker's to make.

    `generation`: how often the effect is begun from nothing, since what was done before was compensated.
    """

    generation: int = 1
    known: bool = True
    """Whether the ledger had heard of the effect before."""


@dataclass(frozen=True, slots=True)
class AlreadyDone:
    """It is done: this is what came of it."""

    result: Any
    external_id: str | None


@dataclass(frozen=True, slots=True)
class InProgress:
    """Another run is doing it. `overdue_at`: since when its attempt is over, in the store's seconds."""

    overdue_at: float | None = None


@dataclass(frozen=True, slots=True)
class Repeated:
    """The same pass of the code has asked for it before, in the task run `by`."""

    by: str | None


@dataclass(frozen=True, slots=True)
class Reused:
    """The key is that of another effect: `recipe` is what that was made of. `why`: "task" or "values"."""

    recipe: Recipe
    why: str
    same_pass: bool


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


LedgerDecision = Send | AlreadyDone | InProgress | Ask | Undoing | Repeated | Reused | Recorded


def decide(
    document: EffectDocument | None, event: Event, now: float
) -> tuple[EffectDocument | None, LedgerDecision]:
    """The document after `event`, and what whoever brought it is to do. No argument is changed."""
    match event:
        case LookUp():
            return _stand(document, event.alive, event.asker, now)
        case Intend():
            return _intend(document, event, now)
        case Verified():
            return _verified(document, event, now)
        case _:
            return _report(document, event, now)


def _stand(
    document: EffectDocument | None, alive: bool, asker: Asker | None, now: float
) -> tuple[EffectDocument | None, LedgerDecision]:
    """How things stand; an intention whose owner died becomes a doubt, and a replay is noted."""
    generation = generation_of(document)
    if document is None:
        return None, Send(generation, known=False)
    if asker is not None and (other := _another(document, asker)) is not None:
        return document, other
    if document["state"] in ("failed", "compensated"):
        return document, Send(generation)
    if asker is not None and (alive or document["state"] == "done") and _repeats(document, asker):
        return document, Repeated(document["asked"]["run"])
    if document["state"] == "done":
        return _asked_by(document, asker), AlreadyDone(document["result"], document["external_id"])
    if document["state"] == "compensating":
        return document, InProgress() if alive else Undoing(_undoing(document))
    if document["state"] == "intended":
        if alive:
            return document, InProgress(document.get("overdue_at"))
        document = {**document, "state": "unknown", "settled_at": now, "error": _OWNER_DIED}
    return document, Ask(document["claim"], document["error"], generation)


def _another(document: EffectDocument, asker: Asker) -> Reused | None:
    """Whether the document is that of another effect, whose key happens to be the same."""
    recorded: Recipe | None = document.get("recipe")
    if recorded is None or asker.recipe is None:
        return None
    why = difference(recorded, asker.recipe, asker.names)
    return None if why is None else Reused(recorded, why, _in_one_pass(document, asker))


def _repeats(document: EffectDocument, asker: Asker) -> bool:
    """Whether another run of the same pass has asked before."""
    if asker.replays or document["state"] == "compensating":
        return False
    asked = document.get("asked")
    return asked is not None and asked["run"] != asker.run and _in_one_pass(document, asker)


def _in_one_pass(document: EffectDocument, asker: Asker) -> bool:
    asked = document.get("asked")
    return asked is not None and same_pass(asked["pass"], asker.passed)


def _asked_by(document: EffectDocument, asker: Asker | None) -> EffectDocument:
    """The document, in which stands who asked last: so the next pass knows what this one asked for."""
    if asker is None:
        return document
    asked = {"run": asker.run, "pass": [list(one) for one in asker.passed]}
    return document if document.get("asked") == asked else {**document, "asked": asked}


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
) -> tuple[EffectDocument | None, LedgerDecision]:
    document, decision = _stand(document, event.alive, event.asker, now)
    if not isinstance(decision, Send) and not (isinstance(decision, Ask) and event.despite_doubt):
        return document, decision
    known: EffectDocument = document or {}
    runs: list[str | None] = [one for one in known.get("runs", ()) if one != event.about.get("task_run_id")]
    intended: EffectDocument = {
        **event.about,
        "kind": event.kind,
        "state": "intended",
        "generation": generation_of(document),
        "owner": event.owner,
        "claim": event.claim,
        "attempts": known.get("attempts", 0) + 1,
        "counted": known.get("counted") or (event.kind == "external" and "compensates" not in event.about),
        "runs": [*runs[-MOST_RUNS:], event.about.get("task_run_id")],
        "result": None,
        "external_id": None,
        "error": None,
        "verified_by": None,
        "first_at": known.get("first_at", now),
        "intended_at": now,
        "overdue_at": None,
        "settled_at": None,
    }
    return _asked_by(intended, event.asker), Send(generation_of(document), known=document is not None)


def _report(
    document: EffectDocument | None, event: Overdue | Succeeded | FailedCall | Doubted, now: float
) -> tuple[EffectDocument | None, LedgerDecision]:
    """What an owner says of its own call. A late word counts as long as the claim is still the last one.

    That a call succeeded is true whatever was believed meanwhile; the other two only end an open question.
    """
    if document is None or document["claim"] != event.claim:
        return document, Recorded(False)
    if isinstance(event, Overdue):
        intended = document["state"] == "intended"
        return ({**document, "overdue_at": now} if intended else document), Recorded(intended)
    if document["state"] in ("done", "compensating", "compensated"):
        return document, Recorded(isinstance(event, Succeeded))
    settled = {**document, "settled_at": now}
    if isinstance(event, Succeeded):
        more = _done(event)
    elif document["state"] == "failed":
        return document, Recorded(isinstance(event, FailedCall))
    else:
        more = {"state": "failed" if isinstance(event, FailedCall) else "unknown", "error": event.error}
    return {**settled, **more}, Recorded(True)


def _verified(
    document: EffectDocument | None, event: Verified, now: float
) -> tuple[EffectDocument | None, LedgerDecision]:
    """An answer to `Ask`. It counts for the call that was asked about, while that is still in doubt."""
    if document is None or document["claim"] != event.claim or document["state"] != "unknown":
        return _stand(document, True, event.asker, now)
    more = _done(event.answer) if isinstance(event.answer, Done) else {"state": "failed"}
    settled = {**document, **more, "verified_by": event.by, "settled_at": now}
    return _stand(settled, True, event.asker, now)


def _done(by: Succeeded | Done) -> dict[str, Any]:
    return {"state": "done", "result": by.result, "external_id": by.external_id, "error": None}
