"""What happened in a flow run, pass by pass: what this process noted and what the API knows, as one. Pure.

Times are seconds since the epoch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from prefect_resilience.durable.batches.run_passes import RunPass, Start
from prefect_resilience.telemetry.model import Happening, RunFacts, Seen, TaskRunSeen

CIRCUIT_MOVES = frozenset({"circuit.opened", "circuit.half-opened", "circuit.closed", "circuit.forced"})
OPENED = frozenset({"open", "forced_open"})


@dataclass(frozen=True, slots=True)
class CircuitSeen:
    """A circuit that the run met. `moves` are its changes, whoever brought them about, the first one first;
    `now` is the state that its store has, None where that could not be asked."""

    name: str
    moves: tuple[Happening, ...]
    now: str | None = None

    @property
    def opened(self) -> int:
        """How often it opened."""
        return sum(after_move(move) in OPENED for move in self.moves)


@dataclass(slots=True)
class PassRead:
    """What the API knows of one pass. `states` counts its task runs by the type and the name of their last
    state, `counts` its events by name; `rows` and `happenings` are as many of them as were looked at."""

    states: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    retried: int = 0
    retries: int = 0
    rows: list[TaskRunSeen] = field(default_factory=list[TaskRunSeen])
    happenings: list[Happening] = field(default_factory=list[Happening])
    counts: Counter[str] = field(default_factory=Counter[str])


@dataclass(frozen=True, slots=True)
class PassSeen:
    """One pass of the run, and what is known of it."""

    run_pass: RunPass
    seen: Seen


@dataclass(frozen=True, slots=True)
class Story:
    """A flow run with its passes, of which there is at least one. `waiting` are its dead letters that wait,
    as their store knows them; None where that could not be asked."""

    facts: RunFacts
    passes: tuple[PassSeen, ...]
    circuits: tuple[CircuitSeen, ...] = ()
    waiting: frozenset[str] | None = None
    missing: tuple[str, ...] = ()

    @property
    def last(self) -> Seen:
        """What the calls of the run came to in the end: what is known of its last pass."""
        return self.passes[-1].seen

    @property
    def happenings(self) -> list[Happening]:
        """The events of all passes, the first one first."""
        return sorted((one for part in self.passes for one in part.seen.happenings), key=lambda one: one.at)

    @property
    def letters(self) -> frozenset[str]:
        """The dead letters that the run leaves behind: each call once, and none that was settled."""
        if self.waiting is not None:
            return self.waiting
        created = {letter for part in self.passes for letter in part.seen.letters}
        return frozenset(created - {letter for part in self.passes for letter in part.seen.settled})

    @property
    def remarkable(self) -> bool:
        """Whether there is anything to tell."""
        return len(self.passes) > 1 or any(part.seen.remarkable for part in self.passes)


def one_pass(facts: RunFacts, seen: Seen) -> Story:
    """The story of a run that had one pass, of which all is known here."""
    began = facts.began if facts.began is not None else (facts.ended or 0.0)
    ended = facts.ended
    only = RunPass(1, began, Start("unknown"), ended, facts.state, facts.state_type, facts.message, over=True)
    return Story(facts, (PassSeen(only, seen),), circuits_of(seen.happenings))


def story_of(
    facts: RunFacts,
    passes: Sequence[RunPass],
    noted: Mapping[int, Iterable[Seen]],
    read: Mapping[int, PassRead] | None = None,
) -> Story:
    """The story of a run.

    Args:
        facts: The run.
        passes: Its passes, at least one.
        noted: What this process noted of each pass, by its number: of the run itself, and of those inside.
        read: What the API knows of passes that were not, or not wholly, here.
    """
    known = read or {}
    made: list[PassSeen] = []
    for one in passes:
        seen = merged(noted.get(one.number, ()))
        if one.number in known:
            _add(seen, known[one.number])
        made.append(PassSeen(one, seen))
    return Story(facts, tuple(made), circuits_of(one for part in made for one in part.seen.happenings))


def circuits_of(
    happenings: Iterable[Happening], now: Mapping[str, str] | None = None
) -> tuple[CircuitSeen, ...]:
    """The circuits that these events are about, in the order in which they moved first."""
    found: dict[str, dict[str, Happening]] = {}
    for one in sorted(happenings, key=lambda one: one.at):
        if one.name in CIRCUIT_MOVES:
            found.setdefault(one.subject, {})[one.id] = one
    states = now or {}
    return tuple(CircuitSeen(name, tuple(moves.values()), states.get(name)) for name, moves in found.items())


def circuits_met(happenings: Iterable[Happening]) -> list[str]:
    """The names of circuits that moved in a run, or refused one of its calls."""
    found: dict[str, None] = {}
    for one in happenings:
        if one.name in CIRCUIT_MOVES:
            found[one.subject] = None
        elif one.payload.get("category") == "circuit_open" and one.payload.get("circuit"):
            found[str(one.payload["circuit"])] = None
    return [*found]


def after_move(move: Happening) -> str:
    """The state that a circuit came to."""
    plain = {"circuit.opened": "open", "circuit.half-opened": "half_open", "circuit.closed": "closed"}
    return plain.get(move.name) or str(move.payload.get("after") or "")


def merged(noted: Iterable[Seen]) -> Seen:
    """What was noted of a run and of those inside it, as one."""
    whole = Seen()
    for one in noted:
        whole.task_runs += one.task_runs
        whole.happenings += one.happenings
        whole.states += one.states
        whole.types |= one.types
        whole.counts += one.counts
        whole.retried += one.retried
        whole.retries += one.retries
        whole.outputs |= one.outputs
        whole.outputs_left_out += one.outputs_left_out
        whole.noted |= one.noted
        whole.letters |= one.letters
        whole.settled |= one.settled
    return whole


def _add(seen: Seen, read: PassRead) -> None:
    """Add what the API knows to what was noted here. It hears of things later: the larger count is right."""
    seen.task_runs += [row for row in read.rows if row.id not in seen.noted]
    if read.states.total() >= seen.total:
        seen.states.clear()
        for (kind, name), times in read.states.items():
            seen.count(kind, name, times)
    seen.retried = max(seen.retried, read.retried)
    seen.retries = max(seen.retries, read.retries)
    here = {one.id for one in seen.happenings}
    for one in read.happenings:
        if one.id not in here:
            here.add(one.id)
            seen.happened(one)
    for name, times in read.counts.items():
        seen.counts[name] = max(seen.counts[name], times)
