"""The ledger's protocol as states and moves: askers in processes, ledger, Prefect's mark, and receiver.

Every state follows from the real `model.decide` and from the real decisions of `opening.py`. Askers open
the batch, look, ask the receiver, intend, call, and report. A call may arrive or not, be cut off, be
refused, or go on after its attempt is over. Processes die, leases lapse, ledgers forget: these are faults,
as many as a `Setup` says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from prefect_resilience.durable.effects import opening
from prefect_resilience.durable.effects.model import (
    AlreadyDone,
    Ask,
    Asker,
    Doubted,
    Event,
    FailedCall,
    InProgress,
    Intend,
    LedgerDecision,
    LookUp,
    Overdue,
    Repeated,
    Send,
    Succeeded,
    Verified,
    decide,
)
from prefect_resilience.durable.effects.opening import is_counted, lost, missing, new_batch
from prefect_resilience.durable.effects.policy import Done, NotDone

ENDS = frozenset(
    ["sent", "replayed", "failed", "InDoubt", "NotRecorded", "RepeatedEffect", "EffectBusy", "killed"]
)
SUCCESSES = frozenset({"sent", "replayed"})
MOST_RECEIVED = 2
_COUNT = opening.BatchCount(None, "b")  # pyright: ignore[reportArgumentType]


class Place(NamedTuple):
    """One asker of a setup: its process, its pass, and its task run."""

    process: int
    passed: int
    run: str


@dataclass(frozen=True)
class Setup:
    """What there is. `loss`: "no", or what is forgotten, "effect" or "all"; `kills`, `lapses`: how many.

    `lost_while_open`: also while a pass goes on that has opened the batch; `late_counts`: also before the
    batch has counted the effect. `waits`: the waiting rule, without which an overdue call is taken for one
    whose owner has died.
    """

    askers: tuple[Place, ...]
    kind: str = "external"
    verify: bool = False
    attempts: int = 2
    kills: int = 1
    lapses: int = 0
    loss: str = "no"
    lost_while_open: bool = False
    late_counts: bool = False
    waits: bool = True


class One(NamedTuple):
    """Where an asker is. `claim` is what it asks the receiver about."""

    phase: str = "new"
    attempt: int = 0
    claim: str = ""


class Call(NamedTuple):
    """A call whose attempt is over: "runs", "arrived" or "broke"."""

    claim: str
    asker: int
    phase: str


class State(NamedTuple):
    askers: tuple[One, ...]
    effect: str = "null"
    batch: str = "null"
    mark: str | None = None
    tokens: int = 0
    counts: tuple[int, ...] = (0, 0)
    counted: tuple[bool, ...] = (True, True)
    """Whether the batch's document has a process's count."""
    opened: frozenset[tuple[int, int]] = frozenset()
    overdue: tuple[Call, ...] = ()
    alive: tuple[bool, ...] = (True, True)
    lapsed: tuple[bool, ...] = (False, False)
    received: int = 0
    kills: int = 0
    lapses: int = 0
    losses: int = 0


class Move(NamedTuple):
    label: str
    state: State
    fault: bool = False


def first(setup: Setup) -> State:
    return State(tuple(One() for _ in setup.askers))


def moves(state: State, setup: Setup) -> Iterator[Move]:
    """Every state that may come next."""
    yield from _faults(state, setup)
    for number, one in enumerate(state.askers):
        for label, after in _progress(state, setup, number, one):
            yield Move(f"{setup.askers[number].run} {label}", after)
    for call in state.overdue:
        for label, after in _late(state, call):
            yield Move(f"the overdue {call.claim} {label}", after)
    for process, there in enumerate(state.counted):
        if not there and state.alive[process]:
            yield Move(f"process {process} counts", _flushed(state, process))


def _faults(state: State, setup: Setup) -> Iterator[Move]:
    for process in (0, 1):
        if state.alive[process] and state.kills < setup.kills:
            yield Move(f"process {process} is killed", _killed(state, setup, process), True)
        if state.alive[process] and not state.lapsed[process] and state.lapses < setup.lapses:
            lapsed = _with(state.lapsed, process, True)
            yield Move(
                f"the lease of {process} lapses", state._replace(lapsed=lapsed, lapses=state.lapses + 1), True
            )
    under_way = any(one.phase not in ENDS and one.phase != "new" for one in state.askers) or state.overdue
    seen = (setup.late_counts or all(state.counted)) and (setup.lost_while_open or not under_way)
    if setup.loss == "no" or state.losses or not seen:
        return
    batch = "null" if setup.loss == "all" else state.batch
    yield Move("the ledger forgets", state._replace(effect="null", batch=batch, losses=1), True)


def _killed(state: State, setup: Setup, process: int) -> State:
    askers = tuple(
        one if setup.askers[n].process != process or one.phase in ENDS else One("killed")
        for n, one in enumerate(state.askers)
    )
    return state._replace(
        askers=askers,
        alive=_with(state.alive, process, False),
        counted=_with(state.counted, process, setup.late_counts or state.counted[process]),
        opened=frozenset(one for one in state.opened if one[0] != process),
        overdue=tuple(call for call in state.overdue if setup.askers[call.asker].process != process),
        kills=state.kills + 1,
    )


def _progress(state: State, setup: Setup, number: int, one: One) -> Iterator[tuple[str, State]]:
    match one.phase:
        case "new":
            if _earlier_is_new(state, setup, number):
                return
            yield "opens the batch", _opening(state, setup, number)
        case "mark":
            batch = json.loads(state.batch)
            mark = state.mark if batch is None else batch["token"]
            place = setup.askers[number]
            opened = state.opened | {(place.process, place.passed)}
            yield "leaves the mark", _at(state, number, One("look"))._replace(mark=mark, opened=opened)
        case "look":
            look = LookUp(_is_alive(state, setup), _asker(setup, number))
            yield from _decided(state, setup, number, one, look)
        case "intend":
            place = setup.askers[number]
            event = Intend(
                str(place.process),
                _claim(setup, number, one),
                _is_alive(state, setup),
                setup.kind,  # pyright: ignore[reportArgumentType]
                {"task_run_id": place.run},
                despite_doubt=setup.kind != "external",
                asker=_asker(setup, number),
            )
            yield from _decided(state, setup, number, one, event)
        case "ask":
            yield from _answered(state, setup, number, one)
        case "call":
            arrived = min(state.received + 1, MOST_RECEIVED)
            yield "'s call returns", _at(state, number, one._replace(phase="back"))._replace(received=arrived)
            yield (
                "'s call is cut off",
                _at(state, number, one._replace(phase="cut"))._replace(received=arrived),
            )
            yield "'s call gets lost", _at(state, number, one._replace(phase="cut"))
            yield "'s call is refused", _at(state, number, one._replace(phase="refused"))
            claim = _claim(setup, number, one)
            after, _ = _told(state, Overdue(claim))
            call = Call(claim, number, "runs")
            yield (
                "'s attempt is over",
                _retried(after, setup, number, one)._replace(overdue=(*state.overdue, call)),
            )
        case "back":
            after, _ = _told(state, Succeeded(_claim(setup, number, one), 1))
            yield "reports success", _at(after, number, One("sent"))
        case "cut":
            after, _ = _told(state, Doubted(_claim(setup, number, one)))
            alone = setup.kind == "external" and not setup.verify
            told = _at(after, number, One("InDoubt"))
            yield "reports a doubt", told if alone else _retried(after, setup, number, one)
        case "refused":
            after, _ = _told(state, FailedCall(_claim(setup, number, one)))
            yield "reports a failure", _retried(after, setup, number, one, "failed")
        case _:
            return


def _retried(state: State, setup: Setup, number: int, one: One, end: str = "") -> State:
    """The next attempt; after the last one an effect in doubt is still asked about, and then not sent."""
    if one.attempt + 1 < setup.attempts:
        return _at(state, number, One("look", one.attempt + 1))
    return _at(state, number, One(end or "look", setup.attempts))


def _earlier_is_new(state: State, setup: Setup, number: int) -> bool:
    """A pass begins when those before it have opened the batch."""
    passed = setup.askers[number].passed
    return any(setup.askers[n].passed < passed and one.phase == "new" for n, one in enumerate(state.askers))


def _opening(state: State, setup: Setup, number: int) -> State:
    place = setup.askers[number]
    if setup.kind != "external" or (place.process, place.passed) in state.opened:
        return _at(state, number, One("look"))
    document: dict[str, Any] | None = json.loads(state.batch)
    begins = place.passed == 1
    token = None if begins else state.mark
    why = lost(document, token)
    if why is None and not begins:
        runs = {setup.askers[n].run: 1.0 for n, one in enumerate(state.askers) if one.phase == "sent"}
        effect = json.loads(state.effect)
        own = {str(place.process): state.counts[place.process]}
        if document is not None:
            effects = [] if effect is None or not is_counted(effect) else [effect]
            why = missing(document, effects, own, runs)
        elif runs:
            why = "runs that the ledger does not know"
    if why is not None:
        return _at(state, number, One("NotRecorded"))
    if document is None:
        tokens = state.tokens + 1
        state = state._replace(batch=_text({**new_batch("b"), "token": f"t{tokens}"}), tokens=tokens)
    if token is None:
        return _at(state, number, One("mark"))
    opened = state.opened | {(place.process, place.passed)}
    return _at(state, number, One("look"))._replace(opened=opened)


def _decided(state: State, setup: Setup, number: int, one: One, event: Event) -> Iterator[tuple[str, State]]:
    after, decision = _told(state, event)
    last = one.attempt >= setup.attempts
    match decision:
        case Send() if one.phase == "look":
            yield "may send", _at(after, number, one._replace(phase="failed" if last else "intend"))
        case Send():
            if not decision.known and setup.kind == "external":
                process = setup.askers[number].process
                after = after._replace(
                    counts=_with(after.counts, process, after.counts[process] + 1),
                    counted=_with(after.counted, process, False),
                )
            yield "intends", _at(after, number, one._replace(phase="call"))
        case AlreadyDone():
            yield "replays", _at(after, number, One("replayed"))
        case Repeated():
            yield "has asked twice", _at(after, number, One("RepeatedEffect"))
        case Ask() if setup.verify:
            yield "is in doubt", _at(after, number, one._replace(phase="ask", claim=decision.claim))
        case Ask():
            phase = "InDoubt" if setup.kind == "external" else "failed" if last else "intend"
            yield "is in doubt", _at(after, number, one._replace(phase=phase))
        case InProgress():
            overdue = decision.overdue_at is not None and setup.kind == "external"
            yield "waits too long", _at(after, number, One("InDoubt" if overdue else "EffectBusy"))
            if one.phase == "intend":
                yield "looks again", _at(after, number, one._replace(phase="look"))
        case _:
            raise AssertionError(decision)


def _answered(state: State, setup: Setup, number: int, one: One) -> Iterator[tuple[str, State]]:
    """The receiver tells the truth of this moment. A call of a process whose lease lapsed is one that the
    receiver has to know of, since `NotDone` says that none will still arrive."""
    claim = _asked_about(state, setup)
    if claim is not None and state.lapsed[claim]:
        yield "gets no answer", _at(state, number, One("InDoubt"))
        return
    answer = Verified(one.claim, Done(1) if state.received else NotDone(), asker=_asker(setup, number))
    after, _ = _told(state, answer)
    yield "is answered", _at(after, number, one._replace(phase="look", claim=""))


def _asked_about(state: State, setup: Setup) -> int | None:
    """The process that lives and makes a call of the effect right now."""
    for number, one in enumerate(state.askers):
        if one.phase in ("call", "back", "cut", "refused"):
            return setup.askers[number].process
    return next((setup.askers[call.asker].process for call in state.overdue), None)


def _late(state: State, call: Call) -> Iterator[tuple[str, State]]:
    others = tuple(one for one in state.overdue if one != call)
    if call.phase == "runs":
        received = min(state.received + 1, MOST_RECEIVED)
        yield "arrives", state._replace(overdue=(*others, call._replace(phase="arrived")), received=received)
        yield "breaks", state._replace(overdue=(*others, call._replace(phase="broke")))
        return
    after, _ = _told(state, Succeeded(call.claim, 1) if call.phase == "arrived" else Doubted(call.claim))
    yield "is reported", after._replace(overdue=others)


def _flushed(state: State, process: int) -> State:
    batch = json.loads(state.batch)
    opening.batches.process = str(process)
    after = _COUNT._count(batch, state.counts[process])
    return state._replace(batch=_text(after), counted=_with(state.counted, process, True))


# -- the ledger


def _told(state: State, event: Event) -> tuple[State, LedgerDecision]:
    effect, decision = _decide_once(state.effect, _ByText(event))
    return state._replace(effect=effect), decision


class _ByText:
    """An event as a key of the cache."""

    def __init__(self, event: Event) -> None:
        self.event, self.text = event, repr(event)

    def __hash__(self) -> int:
        return hash(self.text)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByText) and self.text == other.text


@lru_cache(maxsize=200_000)
def _decide_once(effect: str, event: _ByText) -> tuple[str, LedgerDecision]:
    after, decision = decide(json.loads(effect), event.event, 1.0)
    return _text(after), decision


def _is_alive(state: State, setup: Setup) -> bool:
    effect = json.loads(state.effect)
    if effect is None or effect["state"] != "intended":
        return False
    process = int(effect["owner"])
    if not state.alive[process] or state.lapsed[process]:
        return False
    for number, one in enumerate(state.askers):
        if one.phase in ("call", "back", "cut", "refused") and _claim(setup, number, one) == effect["claim"]:
            return True
    return setup.waits and any(call.claim == effect["claim"] for call in state.overdue)


def _asker(setup: Setup, number: int) -> Asker:
    place = setup.askers[number]
    return Asker(place.run, (("f", place.passed),))


def _claim(setup: Setup, number: int, one: One) -> str:
    return f"{setup.askers[number].run}.{one.attempt}"


def _at(state: State, number: int, one: One) -> State:
    return state._replace(askers=_with(state.askers, number, one))


def _with(items: tuple[Any, ...], at: int, item: Any) -> tuple[Any, ...]:
    return (*items[:at], item, *items[at + 1 :])


_text = json.JSONEncoder(sort_keys=True).encode
