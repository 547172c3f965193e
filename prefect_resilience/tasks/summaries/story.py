"""A flow run, pass by pass: the notes of this process and the data of the API, combined. Pure.

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
    """A circuit that the run used. `moves` are its changes by any process or person, the first one first.
    `now` is its state in the store; None if the store could not be asked."""

    name: str
    moves: tuple[Happening, ...]
    now: str | None = None

    @property
    def opened(self) -> int:
        """How often it opened."""
        return sum(after_move(move) in OPENED for move in self.moves)


@dataclass(slots=True)
class PassRead:
    """What the API knows about one pass. `states` counts its task runs by the type and the name of their last
    state, `counts` its events by name. `rows` and `happenings` are limited to those that were read."""

    states: Counter[tuple[str, str]] = field(default_factory=Counter[tuple[str, str]])
    retried: int = 0
    retries: int = 0
    rows: list[TaskRunSeen] = field(default_factory=list[TaskRunSeen])
    happenings: list[Happening] = field(default_factory=list[Happening])
    counts: Counter[str] = field(default_factory=Counter[str])


@dataclass(frozen=True, slots=True)
class PassSeen:
    """One pass of the run, and the facts about it."""

    run_pass: RunPass
    seen: PassFacts


@dataclass(frozen=True, slots=True)
class Story:
    """A flow run with at least one pass. `waiting` are the ids of its dead letters that wait, by their store;
    None if the store could not be asked."""

    facts: RunFacts
    passes: tuple[PassSeen, ...]
    circuits: tuple[CircuitSeen, ...] = ()
    waiting: frozenset[str] | None = None
    missing: tuple[str, ...] = ()

    @property
    def last(self) -> PassFacts:
        """The facts about the last pass, which has the final outcomes of the calls."""
        return self.passes[-1].seen

    @property
    def happenings(self) -> list[Happening]:
        """The events of all passes, the first one first."""
        return sorted((one for part in self.passes for one in part.seen.happenings), key=lambda one: one.at)

    @property
    def letters(self) -> frozenset[str]:
        """The dead letters that the run leaves: each call once, without settled ones."""
        if self.waiting is not None:
            return self.waiting
        created = {letter for part in self.passes for letter in part.seen.letters}
        return frozenset(created - {letter for part in self.passes for letter in part.seen.settled})

    @property
    def remarkable(self) -> bool:
        """Whether the run had several passes or any notable event."""
        return len(self.passes) > 1 or any(part.seen.remarkable for part in self.passes)


def one_pass(facts: RunFacts, seen: PassFacts) -> Story:
    """The story of a run with one pass, which is entirely known here."""
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
        noted: The notes of this process on each pass, by its number: on the run itself, and on inner runs.
        read: What the API knows about passes that were not, or not entirely, in this process.
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
    """The circuits of these events, in the order of their first change."""
    found: dict[str, dict[str, Happening]] = {}
    for one in sorted(happenings, key=lambda one: one.at):
        if one.name in CIRCUIT_MOVES:
            found.setdefault(one.subject, {})[one.id] = one
    states = now or {}
    return tuple(CircuitSeen(name, tuple(moves.values()), states.get(name)) for name, moves in found.items())


def circuits_met(happenings: Iterable[Happening]) -> list[str]:
    """The names of circuits that changed in a run, or rejected one of its calls."""
    found: dict[str, None] = {}
    for one in happenings:
        if one.name in CIRCUIT_MOVES:
            found[one.subject] = None
        elif one.payload.get("category") == "circuit_open" and one.payload.get("circuit"):
            found[str(one.payload["circuit"])] = None
    return [*found]


def after_move(move: Happening) -> str:
    """The new state of a circuit after a change."""
    plain = {"circuit.opened": "open", "circuit.half-opened": "half_open", "circuit.closed": "closed"}
    return plain.get(move.name) or str(move.payload.get("after") or "")


def _add(seen: PassFacts, read: PassRead) -> None:
    """Add the API's data to the notes of this process. The API may be late, so the larger count is right."""
    seen.task_runs += [row for row in read.rows if row.id not in seen.noted]
    if read.states.total() >= seen.total:
        seen.states.clear()
        for (kind, name), times in read.states.items():
            seen.count(kind, name, times)
    again = [run.attempts - 1 for run in seen.task_runs if run.attempts > 1]
    seen.retried = max(seen.retried, read.retried, len(again))
    seen.retries = max(seen.retries, read.retries, sum(again))
    here = {one.id for one in seen.happenings} | seen.calls_added
    for one in read.happenings:
        if one.id not in here:
            here.add(one.id)
            seen.happened(one)
    for name, times in read.counts.items():
        seen.counts[name] = max(seen.counts[name], times)


# The lanes in the picture of a run, and the bars in each lane: one band for each pass. Pure.
#
# Times are seconds since the epoch.

MOST_LANES = 30
MOST_BANDS = 6
"""The most passes with a band of their own: the first one, and the last ones."""

LANES_OF_THE_LAST, LANES_OF_OTHERS, FEWEST_LANES = 16, 24, 4
"""With several bands: the lanes of the last one, the lanes that the others share, and the minimum."""

MOST_CIRCUITS = 6
MOST_BARS = 60
MOST_BARS_OF_ALL = 600
"""The most bars in all lanes together. A lane with more than its share keeps the last ones."""

LATE = 5.0
"""The most seconds by which a task run may end after its pass: the clocks differ."""

BarKind = Literal[
    "ok", "failed", "crashed", "replaced", "replayed", "wait", "running", "open", "half-open", "unknown"
]
_CIRCUIT_LOOKS: dict[str, BarKind] = {"open": "open", "forced_open": "open", "half_open": "half-open"}


@dataclass(frozen=True, slots=True)
class Bar:
    """A time span in a lane; `tip` is its tooltip."""

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
    """One pass. `more` is the number of its task runs without a lane. `pause` is the time since the previous
    pass in seconds; None for the first pass. `left_out` is the number of passes before it without a band."""

    part: PassSeen
    start: float
    end: float
    lanes: tuple[Lane, ...]
    outcomes: Counter[Outcome]
    more: int = 0
    pause: float | None = None
    left_out: int = 0


def bands_of(story: Story) -> tuple[Band, ...]:
    """The bands of a run; empty if there is nothing to draw."""
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
    """The end of a pass. Later states, of task runs that were closed afterwards, do not count."""
    ended = part.run_pass.ended
    moments = [state.at for run in begun for state in run.states]
    if ended is None:
        return max([part.run_pass.began, *moments, *(one.at for one in part.seen.happenings)])
    return max([ended, *(at for at in moments if at <= ended + LATE)])


def _chosen(begun: Sequence[TaskRunSeen], most: int) -> list[TaskRunSeen]:
    """The task runs with the most trouble, and some of the successful ones."""
    ordered = sorted(begun, key=_weight)
    well = [run for run in ordered if _weight(run)[0] == _WELL]
    trouble = ordered[: len(ordered) - len(well)]
    kept = trouble[: max(most - min(len(well), most // 4), 0)]
    return [*kept, *well[: most - len(kept)]]


_WELL = 3


def _weight(run: TaskRunSeen) -> tuple[int, float]:
    """The sort key: the most trouble first."""
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
    """The lane of a task run. Each attempt is a bar; the state after it is its outcome."""
    bars: list[Bar] = []
    for place, state in enumerate(run.states):
        after = run.states[place + 1] if place + 1 < len(run.states) else None
        until = end if after is None else min(after.at, max(end, state.at))
        if state.type == "RUNNING":
            look: BarKind = "running" if after is None else _outcome(after.type, after.name)
            tip = f"attempt {sum(bar.look != 'wait' for bar in bars) + 1}: {until - state.at:.1f} s"
            bars.append(Bar(look, state.at, until, f"{tip}, {after.name if after else 'running'}"))
        elif state.name == "AwaitingRetry":
            bars.append(Bar("wait", state.at, until, f"waiting {until - state.at:.1f} s"))
    return Lane(run.name, tuple(bars[-MOST_BARS:]))


def _outcome(kind: str, name: str) -> BarKind:
    """The outcome of an attempt, from the state after it."""
    outcome = outcome_of(kind, name)
    return "failed" if outcome == "running" else outcome


def _circuits(circuits: Iterable[CircuitSeen], start: float, end: float) -> list[Lane]:
    lanes = [Lane(one.name, _openings(one, start, end), circuit=True) for one in circuits]
    return [lane for lane in lanes if lane.bars][:MOST_CIRCUITS]


def _openings(circuit: CircuitSeen, start: float, end: float) -> tuple[Bar, ...]:
    """The time spans in which a circuit was open or half-open, within a band."""
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
            look, tip = "unknown", f"{look} at first; when it changed is unknown: {_now(circuit.now)}"
        bars.append(Bar(look, begins, until, tip))
    return tuple(bars[-MOST_BARS:])


def _still(look: BarKind, now: str | None) -> bool:
    """Whether the circuit's state in the store agrees with its last known change."""
    if look == "open":
        return now in OPENED or now == "half_open"
    return now == "half_open"


def _now(state: str | None) -> str:
    return "its store is unavailable" if state is None else f"its store reports {state.replace('_', ' ')}"
