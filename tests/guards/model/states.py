"""The states of the model and their canonical form: two that nothing can tell apart are one.

A document is kept as a tuple, with times relative to the present tick and generations relative to the
lowest that is still known to anybody. What the machine never decides by (texts, `updated_at`) is left out.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from prefect_resilience.guards.circuits import machine, window
from prefect_resilience.guards.circuits.model import CircuitPolicy

BASE = 1000.0
"""The store's clock at the tick that a canonical document calls 0; far from 0: nothing gets negative."""


class Lease(NamedTuple):
    owner: str
    since: int
    until: int


class Doc(NamedTuple):
    """`machine.CircuitDocument` without what decides nothing. Times are ticks from the present one."""

    state: str
    generation: int
    failures: int
    successes: int
    recent: str
    opened_at: int | None
    retry_at: int | None
    leases: tuple[Lease, ...]
    probe_failures: int = 0
    unanswered: int = 0
    openings: int = 0


class Proc(NamedTuple):
    """One process. `phase` is where it stands in: load, decide, swap, call, load, decide, swap.

    `seen` is the document it loaded, `current` says whether the store still holds that version, `after`
    what it wants to swap in. `generation`, `owner` and `age` (ticks) are its permit's. `late` is known to
    the model only: the circuit has changed its state since the call began.
    """

    phase: str = "idle"
    seen: Doc | None = None
    current: bool = False
    after: Doc | None = None
    generation: int | None = None
    owner: str | None = None
    age: int = 0
    outcome: str | None = None
    late: bool = False


class State(NamedTuple):
    """`news` is the generation of a closed document of which a message is under way: it may arrive at any
    later time, at any number of processes, or at none."""

    doc: Doc
    up: bool
    procs: tuple[Proc, ...]
    news: int | None = None


@dataclass(frozen=True)
class Setup:
    """The size of one exploration. Times are ticks; `skew` is how far a host's clock may be off, either way.

    `coarse` makes one move of loading and deciding, so that three processes can be explored. Nothing is
    lost by that: what is decided later on what was loaded earlier is either swapped in, then nobody wrote
    in between, and it might as well have been loaded later; or it fails, as it does here; or there is
    nothing to write, which is so whatever the clock says, and the call that follows may begin late here, too.
    """

    processes: int = 2
    probes: int = 1
    failure_threshold: int = 1
    success_threshold: int = 1
    probe_calls: int | None = None
    # Two ticks, so that the first re-opening, which is half as long, lasts one.
    open_for: int = 2
    probe_lease: int = 2
    skew: int = 0
    coarse: bool = False
    # Messages are pushed, and are late, doubled and lost.
    news: bool = False
    broken: str | None = None

    @property
    def policy(self) -> CircuitPolicy:
        return CircuitPolicy(
            failure_threshold=self.failure_threshold,
            success_threshold=self.success_threshold,
            probe_calls=self.probe_calls,
            probes=self.probes,
            open_for=self.open_for,
            # Every opening as long as the first, but for the second: only whether there were two counts.
            open_backoff=1.0,
            probe_lease=self.probe_lease,
            window=self.failure_threshold,
            # As many as the window has: so many successes make a full recovery.
            minimum_calls=self.failure_threshold,
            failure_rate=1.0,
        )


def to_doc(document: machine.CircuitDocument, now: float) -> Doc:
    """The canonical form of a document, before generations and owners are renamed."""
    ticks = lambda time: None if time is None else round(time - now)  # noqa: E731
    state = document["state"]
    return Doc(
        state=state,
        generation=document["generation"],
        # Outside closed the row is only told, never compared.
        failures=document["failures_in_row"] if state == "closed" else 0,
        successes=document["successes"] if state in {"half_open", "closed"} else 0,
        recent=document["window"]["recent"] if state == "closed" and document["window"] else "",
        opened_at=ticks(document["opened_at"]) if state == "open" else None,
        retry_at=ticks(document["retry_at"]) if state == "open" else None,
        leases=tuple(
            sorted(
                Lease(owner, round(since - now), round(until - now))
                for owner, (since, until) in document["leases"].items()
            )
        ),
        probe_failures=document["probe_failures"],
        unanswered=document["unanswered"],
        openings=min(document["openings"], 2),
    )


def to_document(doc: Doc, size: int) -> machine.CircuitDocument:
    """The machine's document for a canonical one, at the time BASE; `size` is the window's, in calls."""
    runs: list[window.Run] = [(letter, 1) for letter in doc.recent]  # type: ignore[misc]
    at = lambda ticks: None if ticks is None else BASE + ticks  # noqa: E731
    return {
        **machine.new(),
        "state": doc.state,
        "generation": doc.generation,
        "failures_in_row": doc.failures,
        "successes": doc.successes,
        "window": window.record(None, size, runs, BASE) if runs else None,
        "opened_at": at(doc.opened_at),
        "retry_at": at(doc.retry_at),
        "probe_failures": doc.probe_failures,
        "unanswered": doc.unanswered,
        "openings": doc.openings,
        "leases": {owner: [BASE + since, BASE + until] for owner, since, until in doc.leases},
    }


@cache
def aged(doc: Doc, skew: int) -> Doc:
    """`doc` one tick later. What lies further back than any clock can show is all the same."""

    def older(ticks: int | None) -> int | None:
        return None if ticks is None else max(ticks - 1, -skew - 1)

    leases = (Lease(o, older(since), older(until)) for o, since, until in doc.leases)  # type: ignore[arg-type]
    return doc._replace(
        opened_at=older(doc.opened_at), retry_at=older(doc.retry_at), leases=tuple(sorted(leases))
    )


def canonical(state: State, symmetric: bool = True) -> State:
    """One state for all that differ by the names of generations, owners and, if `symmetric`, processes."""
    procs = state.procs
    if symmetric:
        procs = tuple(sorted(procs, key=_shape))
    numbers = _generations(state.doc, procs, state.news)
    names = _owners(state.doc, procs)
    doc = _renamed(state.doc, numbers, names)
    news = None if state.news is None else dict(numbers)[state.news]
    return State(doc, state.up, tuple(_renamed_proc(proc, numbers, names) for proc in procs), news)


def _generations(doc: Doc, procs: tuple[Proc, ...], news: int | None) -> tuple[tuple[int, int], ...]:
    """Order and "next to each other" are all that can matter of generations."""
    known = {doc.generation} if news is None else {doc.generation, news}
    for proc in procs:
        known.update(d.generation for d in (proc.seen, proc.after) if d is not None)
        if proc.generation is not None:
            known.add(proc.generation)
    renamed: dict[int, int] = {}
    before = at = 0
    for number in sorted(known):
        at += min(number - before, 2) if renamed else 1
        renamed[number] = at
        before = number
    return tuple(renamed.items())


def _owners(doc: Doc, procs: tuple[Proc, ...]) -> tuple[tuple[str, str], ...]:
    """A process's own lease is named after its place, one whose process died after its times."""
    names = {proc.owner: f"p{place}" for place, proc in enumerate(procs) if proc.owner}
    leases = {lease.owner: lease for lease in doc.leases}
    for proc in procs:
        for known in (proc.seen, proc.after):
            for lease in known.leases if known else ():
                leases.setdefault(lease.owner, lease)
    lost = sorted((lease for o, lease in leases.items() if o not in names), key=lambda x: (x[1:], x.owner))
    names.update((lease.owner, f"x{place}") for place, lease in enumerate(lost))
    return tuple(names.items())


@cache
def _renamed(doc: Doc, numbers: tuple[tuple[int, int], ...], names: tuple[tuple[str, str], ...]) -> Doc:
    owner = dict(names)
    leases = tuple(sorted(Lease(owner[o], since, until) for o, since, until in doc.leases))
    return doc._replace(generation=dict(numbers)[doc.generation], leases=leases)


@cache
def _renamed_proc(
    proc: Proc, numbers: tuple[tuple[int, int], ...], names: tuple[tuple[str, str], ...]
) -> Proc:
    if proc.phase == "idle":
        return proc
    return proc._replace(
        seen=_renamed(proc.seen, numbers, names) if proc.seen else None,
        after=_renamed(proc.after, numbers, names) if proc.after else None,
        generation=None if proc.generation is None else dict(numbers)[proc.generation],
        owner=dict(names)[proc.owner] if proc.owner else None,
    )


def _shape(proc: Proc) -> Any:
    def of(doc: Doc | None) -> Any:
        if doc is None:
            return ()
        return (doc[:5], doc[5] or 0, doc[6] or 0, doc[8:], [lease[1:] for lease in doc.leases])

    return (
        proc.phase,
        proc.outcome or "",
        proc.late,
        proc.current,
        proc.age,
        proc.generation or 0,
        bool(proc.owner),
        of(proc.seen),
        of(proc.after),
        proc.owner or "",
    )
