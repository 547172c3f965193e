"""One effect as a pure function: `decide(document, event, now) -> (document, decision)`.

`document` is JSON: the state of one effect of one batch. `now` is the store's clock in seconds.

                   ┌────── never arrived ──────> failed ─────┐
    (none) ──> intended ────── succeeded ──────> done        │
                   ^  └─ cannot tell, owner died ─> unknown  │
                   │                 verified: done, failed  │
                   └─────────────────────────────────────────┘

Each intent has its own claim. A later report counts only while its claim is still the last one. `done` is
final except for a rollback (`undo.py`): the effect becomes `compensating` and then `compensated`. After that
it may be intended again, as its next generation. An external effect is never sent while it is `unknown`.

A call that outlives its attempt stays `intended`, with `overdue_at`: its owner lives until the call has
ended. `asked` has the last run that requested the effect, and its pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from prefect_resilience.durable.effects.policy import Done, EffectKind, NotDone
from prefect_resilience.durable.effects.recipes import Recipe, difference

# A pass is one execution of a flow's code, from its beginning to its end or crash: a list of (run id, how
# often that run began), the outermost run first. It has the flow runs around a task run, and the task runs in
# which it is nested. A flow retry, a recovery and the Retry button begin a new pass; a loop over a call does
# not.

Pass = tuple[tuple[str, int], ...]


def same_pass(earlier: Iterable[Any], now: Iterable[Any]) -> bool:
    """Whether both are one pass: they share a run, and no shared run has begun again in between.

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
OWNER_DIED: dict[str, Any] = {
    "code": "OWNER_DIED",
    "message": "the process that made the call ended, or fell silent, before it recorded the outcome",
}
MOST_RUNS = 20
"""The most task runs in an effect's document."""


@dataclass(frozen=True, slots=True)
class Asker:
    """The run that requests an effect.

    `run` is its task run, `passed` its pass, `recipe` the recipe of its key. `names`: the task names that the
    recorded effect may have. `replays`: a key that is requested again in one pass is replayed.
    """

    run: str | None = None
    passed: Pass = ()
    recipe: Recipe | None = None
    names: tuple[str, ...] = ()
    replays: bool = False
    alias: str | None = None
    """The key by which it asks, if the effect has another one."""
    conversation: frozenset[str] = frozenset()
    """The earlier runs whose outcome it knows: what they requested, it repeats."""


@dataclass(frozen=True, slots=True)
class LookUp:
    """Look up the state of the effect. `alive`: whether the owner of its claim is still busy."""

    alive: bool
    asker: Asker | None = None


@dataclass(frozen=True, slots=True)
class Intend:
    """`owner` is about to make the call, with the claim `claim`.

    `about` is for operators: key, batch, task and runs. `despite_doubt`: make the call even if the outcome of
    the earlier call is unknown.
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
    """The call returned. `result` is packed JSON (see `policy.pack`)."""

    claim: str
    result: Any
    external_id: str | None = None


@dataclass(frozen=True, slots=True)
class FailedCall:
    """The call certainly took no effect."""

    claim: str
    error: dict[str, Any] | None = None


def not_sent(claim: str, why: str) -> FailedCall:
    """The call was never made."""
    return FailedCall(claim, {"code": "NOT_SENT", "message": why})


@dataclass(frozen=True, slots=True)
class Doubted:
    """The call failed, and whether it took effect is unknown."""

    claim: str
    error: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Verified:
    """The answer of the receiver, or of a person, about the call of that claim. A `Done` has a packed
    result. `forced`: even if the call seems to be in progress."""

    claim: str
    answer: Done | NotDone
    by: str = "verify"
    asker: Asker | None = None
    forced: bool = False


Event = LookUp | Intend | Overdue | Succeeded | FailedCall | Doubted | Verified


@dataclass(frozen=True, slots=True)
class Send:
    """The call may be made; after an `Intend`, the asker makes it.

    `generation`: 1, plus the number of times that the effect was compensated.
    """

    generation: int = 1
    known: bool = True
    """Whether the ledger has a document of the effect."""


@dataclass(frozen=True, slots=True)
class AlreadyDone:
    """The effect is done; its recorded outcome."""

    result: Any
    external_id: str | None


@dataclass(frozen=True, slots=True)
class InProgress:
    """Another run makes the call now. `overdue_at`: when its attempt ended, by the store's clock in
    seconds."""

    overdue_at: float | None = None


@dataclass(frozen=True, slots=True)
class Repeated:
    """The task run `by` of the same pass has requested the effect before. `renamed`: by another key."""

    by: str | None
    renamed: bool = False


@dataclass(frozen=True, slots=True)
class Reused:
    """The key belongs to another effect, with the recipe `recipe`. `why`: "task" or "values"."""

    recipe: Recipe
    why: str
    same_pass: bool


@dataclass(frozen=True, slots=True)
class Ask:
    """The outcome of that claim's call is unknown: ask the receiver or a person."""

    claim: str
    error: dict[str, Any] | None
    generation: int = 1


@dataclass(frozen=True, slots=True)
class Undoing:
    """A compensation of the effect has begun, its outcome is unknown, and no rollback is running."""

    why: str


@dataclass(frozen=True, slots=True)
class Recorded:
    """Whether a report was recorded. It is ignored if another claim or a final state came first."""

    taken: bool


LedgerDecision = Send | AlreadyDone | InProgress | Ask | Undoing | Repeated | Reused | Recorded


def decide(
    document: EffectDocument | None, event: Event, now: float
) -> tuple[EffectDocument | None, LedgerDecision]:
    """The document after `event`, and the decision for the sender. No argument is changed."""
    match event:
        case LookUp():
            return _stand(document, event.alive, event.asker, now)
        case Intend():
            return _intend(document, event, now)
        case Verified():
            return _verify(document, event, now)
        case _:
            return _report(document, event, now)


def _stand(
    document: EffectDocument | None, alive: bool, asker: Asker | None, now: float
) -> tuple[EffectDocument | None, LedgerDecision]:
    """The current state. If the owner of an intent died, the effect becomes `unknown`. A replay records the
    asker."""
    generation = generation_of(document)
    if document is None:
        return None, Send(generation, known=False)
    if asker is not None and (other := _another(document, asker)) is not None:
        return document, other
    if document["state"] in ("failed", "compensated"):
        return document, Send(generation)
    if asker is not None and (alive or document["state"] == "done") and _repeats(document, asker):
        return document, Repeated(document["asked"]["run"], _has_other_alias(document, asker))
    if document["state"] == "done":
        return _with_asker(document, asker), AlreadyDone(document["result"], document["external_id"])
    if document["state"] == "compensating":
        return document, InProgress() if alive else Undoing(_undoing(document))
    if document["state"] == "intended":
        if alive:
            return document, InProgress(document.get("overdue_at"))
        document = {**document, "state": "unknown", "settled_at": now, "error": OWNER_DIED}
    return document, Ask(document["claim"], document["error"], generation)


def _another(document: EffectDocument, asker: Asker) -> Reused | None:
    """`Reused` if the document belongs to another effect with the same key, else None."""
    recorded: Recipe | None = document.get("recipe")
    if recorded is None or asker.recipe is None:
        return None
    why = difference(recorded, asker.recipe, asker.names)
    return None if why is None else Reused(recorded, why, _in_one_pass(document, asker))


def _repeats(document: EffectDocument, asker: Asker) -> bool:
    """Whether another run of the same pass has requested the effect before."""
    if (asker.replays and not _has_other_alias(document, asker)) or document["state"] == "compensating":
        return False
    last = document.get("asked")
    if last is None or last["run"] == asker.run:
        return False
    return last["run"] in asker.conversation or _in_one_pass(document, asker)


def _has_other_alias(document: EffectDocument, asker: Asker) -> bool:
    last: dict[str, Any] = document.get("asked") or {}
    return last.get("alias") != asker.alias


def _in_one_pass(document: EffectDocument, asker: Asker) -> bool:
    last = document.get("asked")
    return last is not None and same_pass(last["pass"], asker.passed)


def _with_asker(document: EffectDocument, asker: Asker | None) -> EffectDocument:
    """The document with its last asker, so that the next pass knows which effects this one requested."""
    if asker is None:
        return document
    request = {"run": asker.run, "pass": [list(entry) for entry in asker.passed]}
    if asker.alias is not None:
        request["alias"] = asker.alias
    return document if document.get("asked") == request else {**document, "asked": request}


def generation_of(document: EffectDocument | None) -> int:
    """The generation of the effect; after a compensation, the generation of its next call: 1, 2, ..."""
    if document is None:
        return 1
    return document.get("generation", 1) + (document["state"] == "compensated")


def _undoing(document: EffectDocument) -> str:
    error = document["compensation"].get("error")
    if error is None:
        return "its rollback was interrupted: rollback() finishes it"
    return f"its compensation failed with {error['code']}: {error['message']}"


def _intend(
    document: EffectDocument | None, event: Intend, now: float
) -> tuple[EffectDocument | None, LedgerDecision]:
    document, decision = _stand(document, event.alive, event.asker, now)
    if not isinstance(decision, Send) and not (isinstance(decision, Ask) and event.despite_doubt):
        return document, decision
    earlier: EffectDocument = document or {}
    runs: list[str | None] = [run for run in earlier.get("runs", ()) if run != event.about.get("task_run_id")]
    intended: EffectDocument = {
        **event.about,
        "kind": event.kind,
        "state": "intended",
        "generation": generation_of(document),
        "owner": event.owner,
        "claim": event.claim,
        "attempts": earlier.get("attempts", 0) + 1,
        "counted": earlier.get("counted") or (event.kind == "external" and "compensates" not in event.about),
        "runs": [*runs[-MOST_RUNS:], event.about.get("task_run_id")],
        "result": None,
        "external_id": None,
        "error": None,
        "verified_by": None,
        "first_at": earlier.get("first_at", now),
        "intended_at": now,
        "overdue_at": None,
        "settled_at": None,
    }
    return _with_asker(intended, event.asker), Send(generation_of(document), known=document is not None)


def _report(
    document: EffectDocument | None, event: Overdue | Succeeded | FailedCall | Doubted, now: float
) -> tuple[EffectDocument | None, LedgerDecision]:
    """An owner's report on its own call. A late report counts while its claim is still the last one.

    A success then counts even after another outcome was recorded. A failure or a doubt only settles an open
    outcome.
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
        more = _outcome_of(event)
    elif document["state"] == "failed":
        return document, Recorded(isinstance(event, FailedCall))
    else:
        more = {"state": "failed" if isinstance(event, FailedCall) else "unknown", "error": event.error}
    return {**settled, **more}, Recorded(True)


def _verify(
    document: EffectDocument | None, event: Verified, now: float
) -> tuple[EffectDocument | None, LedgerDecision]:
    """An answer to `Ask`. It counts while the call in question is still in doubt."""
    open_states = ("unknown", "intended") if event.forced else ("unknown",)
    if document is None or document["claim"] != event.claim or document["state"] not in open_states:
        return _stand(document, True, event.asker, now)
    more = _outcome_of(event.answer) if isinstance(event.answer, Done) else {"state": "failed"}
    settled = {**document, **more, "verified_by": event.by, "settled_at": now}
    return _stand(settled, True, event.asker, now)


def _outcome_of(by: Succeeded | Done) -> dict[str, Any]:
    return {"state": "done", "result": by.result, "external_id": by.external_id, "error": None}
