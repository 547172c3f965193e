"""What can happen next: one process does one thing, or a tick passes, or the service goes down or up.

Every process calls for ever, as `circuits.merger` does it: load the document, read the clock, let
`machine.step` decide, swap if that changed anything and begin anew if somebody was faster, call if that
gave leave, and report how the call ended in the same three moves. Between any two moves anything else may
happen, also the death of the process; a new one then takes its place and knows nothing.
"""

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

from prefect_resilience.guards.circuits import machine
from tests.guards.model.states import BASE, Doc, Proc, Setup, State, aged, to_doc, to_document

IDLE = Proc()


class Edge(NamedTuple):
    """`well`: it may happen while the service is well and nobody dies. `wrong`: the property it breaks."""

    label: str
    state: State
    well: bool
    wrong: str | None = None


def first(setup: Setup) -> State:
    return State(to_doc(machine.new(), 0.0), True, (IDLE,) * setup.processes)


def edges(state: State, setup: Setup) -> Iterator[Edge]:
    """Everything that can happen in `state`."""
    for place, proc in enumerate(state.procs):
        yield from _moves(state, place, proc, setup)
        if proc.phase != "idle":
            yield Edge(f"process {place} dies", _with(state, place, IDLE), well=False)
    if setup.news:
        yield from _news(state)
    yield Edge("a tick passes", _ticked(state, setup), well=True)
    service = "goes down" if state.up else "comes back"
    yield Edge(f"the service {service}", state._replace(up=not state.up), well=False)


def _news(state: State) -> Iterator[Edge]:
    """A message is sent, or a process without a call gets the last one, however old, and calls by it.

    Only news of a closed circuit lets a process call; a process never gets a lease by a message. Old news is
    a fault: a process ignores what is older than it knows, and looks itself within a bounded time.
    """
    doc = state.doc
    if doc.state in machine.PASSING and state.news != doc.generation:
        yield Edge("news is sent", state._replace(news=doc.generation), well=False)
    if state.news is None:
        return
    for place, proc in enumerate(state.procs):
        if proc.phase == "idle":
            call = Proc("call", generation=state.news, late=state.news != doc.generation)
            yield Edge(f"process {place} calls by the news", _with(state, place, call), well=False)


def unsafe(state: State, setup: Setup) -> str | None:
    """The property that `state` itself breaks.

    A call whose lease is over is none of the fleet's any more: whoever outstays it is given up for dead.
    Clocks that are off by `skew` can shorten a lease by twice that. A probe of an earlier half-open period
    that is still under way counts; what was let in while the circuit was closed had no lease, and does not.
    """
    if state.doc.state != "half_open":
        return None
    if len(state.doc.leases) > setup.probes:
        return "the document holds more leases than probes"
    lasts = setup.probe_lease - 2 * setup.skew
    calls = [proc for proc in state.procs if proc.phase == "call" and proc.owner and proc.age < lasts]
    return "more calls than probes are under way in half-open" if len(calls) > setup.probes else None


def _moves(state: State, place: int, proc: Proc, setup: Setup) -> Iterator[Edge]:
    who = f"process {place}"
    match proc.phase:
        case "idle" | "ended":
            loaded = proc._replace(phase="loaded", seen=state.doc, current=True)
            if setup.coarse:
                yield from _decisions(state, place, loaded, setup)
            else:
                what = "report" if proc.outcome else "ask"
                yield Edge(f"{who} loads, to {what}", _with(state, place, loaded), well=True)
        case "loaded":
            yield from _decisions(state, place, proc, setup)
        case "decided":
            yield _swaps(state, place, proc, setup)
        case _:
            outcome = "s" if state.up else "f"
            ended = proc._replace(phase="ended", outcome=outcome, age=0)
            told = "succeeds" if state.up else "fails"
            yield Edge(f"{who}'s call {told}", _with(state, place, ended), well=state.up)
            if proc.owner:
                given_up = proc._replace(phase="ended", outcome="-", age=0)
                yield Edge(f"{who}'s call is cancelled", _with(state, place, given_up), well=False)


def _decisions(state: State, place: int, proc: Proc, setup: Setup) -> Iterator[Edge]:
    for off in range(-setup.skew, setup.skew + 1):
        yield _decides(state, place, proc, off, setup)


def _decides(state: State, place: int, proc: Proc, off: int, setup: Setup) -> Edge:
    assert proc.seen is not None
    event = _event(place, proc)
    after = stepped(proc.seen, event, off, setup)
    clock = f", its clock off by {off:+}" if off else ""
    label = f"process {place} decides{clock}"
    if after == proc.seen:
        # Nothing to write: whatever the store holds by now, this process goes by what it saw.
        return Edge(f"{label}: no change", _with(state, place, _outcome(place, proc, after)), well=True)
    owner = event.owner if isinstance(event, machine.Acquire) else proc.owner
    # What will not be swapped in need not be told apart.
    kept = after if proc.current or setup.broken == "no version check" else None
    decided = proc._replace(phase="decided", seen=None, after=kept, owner=owner)
    return Edge(f"{label} on {after.state}", _with(state, place, decided), well=True)


def _swaps(state: State, place: int, proc: Proc, setup: Setup) -> Edge:
    who, after = f"process {place}", proc.after
    if after is None or not (proc.current or setup.broken == "no version check"):
        if proc.outcome is None:
            retrying = IDLE
        else:
            retrying = proc._replace(phase="ended", seen=None, after=None, current=False)
        return Edge(f"{who} is too late to swap", _with(state, place, retrying), well=True)
    before = state.doc
    wrong = None
    if proc.outcome and proc.late and _counted(after) != _counted(before):
        wrong = "a result from before the last change of state was counted"
    moved = after.state != before.state
    procs = tuple(
        other._replace(current=False, late=other.late or moved, after=_lost(other, setup))
        if other.phase != "idle"
        else other
        for other in state.procs
    )
    swapped = _with(state._replace(doc=after, procs=procs), place, _outcome(place, proc, after))
    return Edge(f"{who} swaps", swapped, well=True, wrong=wrong)


def _lost(proc: Proc, setup: Setup) -> Doc | None:
    return proc.after if setup.broken == "no version check" else None


def _counted(doc: Doc) -> tuple[str, int, int, int, str]:
    return doc.state, doc.failures, doc.successes, doc.probe_failures, doc.recent


def _event(place: int, proc: Proc) -> machine.Event:
    if proc.outcome is None:
        return machine.Acquire(f"new{place}")
    if proc.outcome == "-":
        assert proc.owner is not None
        return machine.Release(proc.owner)
    assert proc.generation is not None
    return machine.Record(proc.generation, ((proc.outcome, 1),), owner=proc.owner)  # type: ignore[arg-type]


def _outcome(place: int, proc: Proc, doc: Doc) -> Proc:
    """The process once it knows `doc`: resting after a report; calling or refused after a question."""
    if proc.outcome is not None:
        return IDLE
    owner = proc.owner or f"new{place}"
    if doc.state in machine.PASSING:
        return Proc("call", generation=doc.generation, late=proc.late)
    if any(lease.owner == owner for lease in doc.leases):
        return Proc("call", generation=doc.generation, owner=owner, age=proc.age, late=proc.late)
    return IDLE


@cache
def stepped(doc: Doc, event: machine.Event, off: int, setup: Setup) -> Doc:
    """The real `machine.step` by a clock that is `off` ticks off, and whatever fault `setup` puts into it."""
    now = BASE + off
    document = to_document(doc, setup.failure_threshold)
    if setup.broken == "no lease expiry":
        document["leases"] = {
            owner: [since, max(until, now + 1)] for owner, (since, until) in document["leases"].items()
        }
    if setup.broken == "no generation fence" and isinstance(event, machine.Record):
        event = machine.Record(doc.generation, event.runs, owner=event.owner)
    after, _ = machine.step(document, event, now, _policy(setup))
    if after == document:
        return doc
    return to_doc(after, BASE)


@cache
def _policy(setup: Setup):
    return setup.policy


@cache
def _older(proc: Proc, setup: Setup) -> Proc:
    # Only a permit that is still wanted or in use has an age.
    aging = (proc.phase == "call" and proc.owner) or (proc.phase == "decided" and proc.outcome is None)
    return proc._replace(
        seen=aged(proc.seen, setup.skew) if proc.seen else None,
        after=aged(proc.after, setup.skew) if proc.after else None,
        age=min(proc.age + 1, setup.probe_lease) if aging else 0,
    )


def _ticked(state: State, setup: Setup) -> State:
    procs = tuple(_older(proc, setup) for proc in state.procs)
    return State(aged(state.doc, setup.skew), state.up, procs, state.news)


def _with(state: State, place: int, proc: Proc) -> State:
    return state._replace(procs=(*state.procs[:place], proc, *state.procs[place + 1 :]))
