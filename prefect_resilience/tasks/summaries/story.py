"""What happened in a flow run, pass by pass: what this process noted and what the API knows, as one. Pure.

Times are seconds since the epoch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from prefect_resilience.durable.batches.run_passes import RunPass, Start
from prefect_resilience.telemetry.model import (
    Happening,
    Outcome,
    PassFacts,
    RunFacts,
    TaskRunSeen,
    outcome_of,
    together,
)

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
    seen: PassFacts


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
    def last(self) -> PassFacts:
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


def one_pass(facts: RunFacts, seen: PassFacts) -> Story:
    """The story of a run that had one pass, of which all is known here."""
    began = facts.began if facts.began is not None else (facts.ended or 0.0)
    ended = facts.ended
    only = RunPass(1, began, Start("unknown"), ended, facts.state, facts.state_type, facts.message, over=True)
    return Story(facts, (PassSeen(only, seen),), circuits_of(seen.happenings))


def story_of(
    facts: RunFacts,
    passes: Sequence[RunPass],
    noted: Mapping[int, Iterable[PassFacts]],
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
        seen = together(noted.get(one.number, ()))
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


def _add(seen: PassFacts, read: PassRead) -> None:
    """Add what the API knows to what was noted here. It hears of things later: the larger count is right."""
    seen.task_runs += [row for row in read.rows if row.id not in seen.noted]
    if read.states.total() >= seen.total:
        seen.states.clear()
        for (kind, name), times in read.states.items():
            seen.count(kind, name, times)
    again = [run.attempts - 1 for run in seen.task_runs if run.attempts > 1]
    seen.retried = max(seen.retried, read.retried, len(again))
    seen.retries = max(seen.retries, read.retries, sum(again))
    here = {one.id for one in seen.happenings}
    for one in read.happenings:
        if one.id not in here:
            here.add(one.id)
            seen.happened(one)
    for name, times in read.counts.items():
        seen.counts[name] = max(seen.counts[name], times)


# Who gets a lane in the picture of a run, and what is drawn in it: one band for each pass. Pure.
#
# Times are seconds since the epoch.

MOST_LANES = 30
MOST_BANDS = 6
"""Passes with a band of their own: the first, and the last ones."""

LANES_OF_THE_LAST, LANES_OF_OTHERS, FEWEST_LANES = 16, 24, 4
"""Where there are several bands: lanes of the last one, those that the others share, and what each has."""

MOST_CIRCUITS = 6
MOST_BARS = 60
MOST_BARS_OF_ALL = 600
"""Bars in all lanes together; of a lane that has more than its share, those at its end."""

LATE = 5.0
"""Seconds after the end of a pass in which a task run may still have come to its own end: clocks differ."""

BarKind = Literal[
    "ok", "failed", "crashed", "replaced", "replayed", "wait", "running", "open", "half-open", "unknown"
]
_CIRCUIT_LOOKS: dict[str, BarKind] = {"open": "open", "forced_open": "open", "half_open": "half-open"}


@dataclass(frozen=True, slots=True)
class Bar:
    """From one moment to another; `tip` is what a pointer over it shows."""

    look: BarKind
    start: float
    end: float
    tip: str = ""


@dataclass(frozen=True, slots=True)
class Lane:
    """One line of the picture."""

    label: str
    bars: tuple[Bar, ...]
    circuit: bool = False


@dataclass(frozen=True, slots=True)
class Band:
    """One pass. `more` of its task runs have no lane; `pause` are the seconds since the pass before, None for
    the first; `left_out` passes in between have no band."""

    part: PassSeen
    start: float
    end: float
    lanes: tuple[Lane, ...]
    outcomes: Counter[Outcome]
    more: int = 0
    pause: float | None = None
    left_out: int = 0


def bands_of(story: Story) -> tuple[Band, ...]:
    """The bands of a run; none when there is nothing to draw."""
    parts = [*story.passes]
    if len(parts) > MOST_BANDS:
        parts = [parts[0], *parts[-(MOST_BANDS - 1) :]]
    left_out = len(story.passes) - len(parts)
    bands: list[Band] = []
    for part in parts:
        band = _band(part, story.circuits, _lanes_for(len(parts), last=part is parts[-1]))
        pause = _pause(bands[-1].part, part) if bands else None
        bands.append(replace(band, pause=pause, left_out=left_out if len(bands) == 1 else 0))
    if not any(band.lanes for band in bands):
        return ()
    share = MOST_BARS_OF_ALL // max(sum(len(band.lanes) for band in bands), 1)
    return tuple(
        replace(band, lanes=tuple(replace(lane, bars=lane.bars[-share:]) for lane in band.lanes))
        for band in bands
    )


def _lanes_for(bands: int, *, last: bool) -> int:
    if bands == 1:
        return MOST_LANES
    return LANES_OF_THE_LAST if last else max(LANES_OF_OTHERS // (bands - 1), FEWEST_LANES)


def _pause(before: PassSeen, part: PassSeen) -> float:
    ended = before.run_pass.ended
    return max(part.run_pass.began - (before.run_pass.began if ended is None else ended), 0.0)


def _band(part: PassSeen, circuits: Sequence[CircuitSeen], most: int) -> Band:
    seen, one = part.seen, part.run_pass
    begun = [run for run in seen.task_runs if any(state.type == "RUNNING" for state in run.states)]
    end = _end(part, begun)
    chosen = sorted(_chosen(begun, most), key=_began)
    task_lanes = [_lane(run, end) for run in chosen]
    starts = [bar.start for lane in task_lanes for bar in lane.bars]
    start = min([one.began, *starts])
    lanes = [*_circuits(circuits, start, end), *task_lanes]
    more = max(seen.total, len(begun)) - len(chosen)
    return Band(part, start, max(end, start), tuple(lanes), seen.outcomes, more)


def _end(part: PassSeen, begun: Iterable[TaskRunSeen]) -> float:
    """The end of a pass: nothing of it is later, however late a task run was closed that it left behind."""
    ended = part.run_pass.ended
    moments = [state.at for run in begun for state in run.states]
    if ended is None:
        return max([part.run_pass.began, *moments, *(one.at for one in part.seen.happenings)])
    return max([ended, *(at for at in moments if at <= ended + LATE)])


def _chosen(begun: Sequence[TaskRunSeen], most: int) -> list[TaskRunSeen]:
    """What went wrong most, and beside it some of what went well."""
    ordered = sorted(begun, key=_weight)
    well = [run for run in ordered if _weight(run)[0] == _WELL]
    trouble = ordered[: len(ordered) - len(well)]
    kept = trouble[: max(most - min(len(well), most // 4), 0)]
    return [*kept, *well[: most - len(kept)]]


_WELL = 3


def _weight(run: TaskRunSeen) -> tuple[int, float]:
    """What went wrong most comes first."""
    last = run.last
    outcome = "running" if last is None else outcome_of(last.type, last.name)
    if outcome in ("failed", "crashed"):
        rank = 0
    elif run.attempts > 1:
        rank = 1
    else:
        rank = 2 if run.remarkable else _WELL
    return rank, _began(run)


def _began(run: TaskRunSeen) -> float:
    return next((state.at for state in run.states if state.type == "RUNNING"), 0.0)


def _lane(run: TaskRunSeen, end: float) -> Lane:
    """Attempts are the spans in which it ran; the state after each says how it went."""
    bars: list[Bar] = []
    for place, state in enumerate(run.states):
        after = run.states[place + 1] if place + 1 < len(run.states) else None
        until = end if after is None else min(after.at, max(end, state.at))
        if state.type == "RUNNING":
            look: BarKind = "running" if after is None else _outcome(after.type, after.name)
            tip = f"attempt {sum(bar.look != 'wait' for bar in bars) + 1}: {until - state.at:.1f} s"
            bars.append(Bar(look, state.at, until, f"{tip}, {after.name if after else 'running'}"))
        elif state.name == "AwaitingRetry":
            bars.append(Bar("wait", state.at, until, f"waits {until - state.at:.1f} s"))
    return Lane(run.name, tuple(bars[-MOST_BARS:]))


def _outcome(kind: str, name: str) -> BarKind:
    """How an attempt went, by the state after it."""
    outcome = outcome_of(kind, name)
    return "failed" if outcome == "running" else outcome


def _circuits(circuits: Iterable[CircuitSeen], start: float, end: float) -> list[Lane]:
    lanes = [Lane(one.name, _openings(one, start, end), circuit=True) for one in circuits]
    return [lane for lane in lanes if lane.bars][:MOST_CIRCUITS]


def _openings(circuit: CircuitSeen, start: float, end: float) -> tuple[Bar, ...]:
    """The spans in which a circuit was open or half-open, as far as they lie in a band."""
    bars: list[Bar] = []
    for place, move in enumerate(circuit.moves):
        look = _CIRCUIT_LOOKS.get(after_move(move))
        after = circuit.moves[place + 1].at if place + 1 < len(circuit.moves) else None
        until = end if after is None else min(after, end)
        begins = max(move.at, start)
        if look is None or until <= begins:
            continue
        tip = f"{look}: {until - begins:.1f} s"
        if after is None and not _still(look, circuit.now):
            look, tip = "unknown", f"{look} at first; when it moved on is unknown: {_now(circuit.now)}"
        bars.append(Bar(look, begins, until, tip))
    return tuple(bars[-MOST_BARS:])


def _still(look: BarKind, now: str | None) -> bool:
    """Whether what the store says of a circuit agrees with its last change that was told of."""
    if look == "open":
        return now in OPENED or now == "half_open"
    return now == "half_open"


def _now(state: str | None) -> str:
    return "its store could not be asked" if state is None else f"its store says {state.replace('_', ' ')}"
