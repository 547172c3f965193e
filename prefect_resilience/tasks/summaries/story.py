"""A flow run, pass by pass: the notes of this process and the data of the API, combined. Pure.

Times are seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from prefect_resilience.durable.batches.run_passes import RunPass, Start
from prefect_resilience.errors.taxonomy import bounded
from prefect_resilience.telemetry.model import (
    Happening,
    PassFacts,
    RunFacts,
    TaskRunSeen,
    outcome_of,
    together,
)

CIRCUIT_MOVES = frozenset({"circuit.opened", "circuit.half-opened", "circuit.closed", "circuit.forced"})
OPENED = frozenset({"open", "forced_open"})
AFTER_MOVE = {"circuit.opened": "open", "circuit.half-opened": "half_open", "circuit.closed": "closed"}
LATE = 5.0
"""The most seconds by which a task run may end after its pass: the clocks differ."""


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
        return sum(state_after(move) in OPENED for move in self.moves)


@dataclass(frozen=True, slots=True)
class PassSeen:
    """One pass of the run, and the facts about it. `beat` is the last heartbeat that the API has of it."""

    run_pass: RunPass
    seen: PassFacts
    beat: float = 0.0

    @property
    def ended(self) -> float:
        """When it ended. The end of a process that died is its last sign of life: its crash is reported
        later, and its task runs are closed later still."""
        ended = self.run_pass.ended
        if ended is not None and not self.run_pass.crashed:
            return ended
        latest = float("inf") if ended is None else ended
        states = [state for run in self.seen.task_runs for state in run.states if state.type != "CRASHED"]
        signs = [self.beat, *(state.at for state in states), *(one.at for one in self.seen.happenings)]
        return max([self.run_pass.began, *(at for at in signs if at <= latest)])


@dataclass(frozen=True, slots=True)
class Story:
    """A flow run with at least one pass. `waiting` are the ids of its dead letters that wait, by their store;
    None if the store could not be asked. `inner_runs`: the number of flow runs inside it."""

    facts: RunFacts
    passes: tuple[PassSeen, ...]
    circuits: tuple[CircuitSeen, ...] = ()
    waiting: frozenset[str] | None = None
    missing: tuple[str, ...] = ()
    inner_runs: int = 0

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
    only = RunPass(
        1, began, Start("unknown"), facts.ended, facts.state, facts.state_type, facts.message, over=True
    )
    return Story(facts, (PassSeen(only, seen),), circuits_of(seen.happenings))


def add_read(seen: PassFacts, runs: Iterable[TaskRunSeen], happenings: Iterable[Happening]) -> PassFacts:
    """Add what the API has of a pass to the notes of this process: the task runs and events of others."""
    for run in runs:
        if run.id in seen.noted:
            continue
        seen.noted.add(run.id)
        seen.task_runs.append(run)
        if run.last is not None:
            seen.count(run.last.type, run.last.name)
        seen.retried += run.starts > 1
        seen.retries += max(run.starts - 1, 0)
    noted = {one.id for one in seen.happenings} | seen.calls_added
    by_id = {run.id: run for run in seen.task_runs}
    for one in happenings:
        if one.id not in noted:
            noted.add(one.id)
            seen.happened(one)
            run = by_id.get(str(one.payload.get("task_run_id")))
            if run is not None and one.name == "attempt.refused":
                run.rejected += 1
    return seen


def story_of(
    facts: RunFacts,
    passes: Sequence[RunPass],
    parts: Mapping[int, Iterable[PassFacts]],
    beats: Sequence[float] = (),
) -> Story:
    """The story of a run with these passes; `parts` are the facts about each, by its number."""
    found: list[PassSeen] = []
    for one in passes:
        until = one.ended if one.ended is not None else float("inf")
        beat = max((at for at in beats if one.began <= at <= until), default=0.0)
        found.append(PassSeen(one, together(parts.get(one.number, ())), beat))
    return Story(facts, tuple(found), circuits_of(one for part in found for one in part.seen.happenings))


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


def state_after(move: Happening) -> str:
    """The new state of a circuit after a change."""
    return AFTER_MOVE.get(move.name) or str(move.payload.get("after") or "")


def is_cut_off(run: TaskRunSeen) -> bool:
    """Whether the call began, and its own process reported no end of it."""
    return run.last is not None and outcome_of(run.last.type, run.last.name) in ("running", "crashed")


# The passes as a table: when each began and ended, and who started it.

COLUMNS = ("pass", "began", "started by", "ended", "took", "task runs", "retries", "outcomes")
SHORT_END = 200
STATES_SHOWN = 8
SILENT = 2.0
"""Seconds from the last sign of life to the report of a crash, from which on both are shown."""

STARTED = {
    "schedule": "a schedule",
    "automation": "an automation",
    "recovery": "a recovery",
    "flow retry": "Prefect's own retry of the flow",
    "retry button": "the Retry button of Prefect's UI",
    "retry command": "the command prefect flow-run retry",
    "worker": "its worker, which rescheduled it for another process",
    "resumed": "a person who resumed it after it was suspended",
    "person": "a person",
    "program": "a Python program that called the flow",
    "parent": "its parent flow run",
    "unknown": "unknown",
}


def pass_rows(story: Story) -> list[tuple[str, ...]]:
    """A row for each pass; none for a run with a single pass."""
    if len(story.passes) < 2:
        return []
    before = (None, *story.passes)
    return [_row(part, earlier) for part, earlier in zip(story.passes, before, strict=False)]


def _row(part: PassSeen, before: PassSeen | None) -> tuple[str, ...]:
    one, seen = part.run_pass, part.seen
    began = f"{clock(one.began)} UTC"
    if before is not None and before.run_pass.ended is not None:
        began += f", {span_text(max(one.began - before.ended, 0.0))} later"
    took = span_text(part.ended - one.began) if one.over else ""
    return (
        str(one.number),
        began,
        bounded(describe_start(one.start), SHORT_END),
        bounded(describe_end(part), SHORT_END),
        took,
        f"{seen.total:,}",
        f"{seen.retries:,}",
        ", ".join(_outcomes(part)),
    )


def describe_start(start: Start) -> str:
    """The cause of a pass, with the person and the reason, if known."""
    who = STARTED[start.cause]
    if start.cause == "recovery" and start.who:
        who = f"a recovery by {start.who}"
    elif start.who:
        who = start.who if start.cause == "person" else f"{who}, {start.who}"
    return f"{who}: {' '.join(start.why.split())}" if start.why else who


def describe_end(part: PassSeen) -> str:
    """The end of a pass, with its message; of a process that died, also its last sign of life."""
    one = part.run_pass
    if one.ended is None:
        sign = f"last sign of life {clock(part.ended)} UTC"
        return f"unknown: its end was not reported, {sign}" if one.over else "still running"
    message = " ".join(one.message.split())
    said = f"{one.end}: {message}" if message else one.end
    if one.ended - part.ended < SILENT:
        return said
    return f"{said} (last sign of life {clock(part.ended)} UTC, reported {clock(one.ended)} UTC)"


def _outcomes(part: PassSeen) -> Iterable[str]:
    """The number of task runs of a pass in each state."""
    ordered = sorted((+part.seen.states).items(), key=lambda it: (-it[1], it[0]))
    yield from (f"{count:,} {name}" for name, count in ordered[:STATES_SHOWN])
    if rest := sum(count for _, count in ordered[STATES_SHOWN:]):
        yield f"{rest:,} others"


def clock(at: float) -> str:
    """The time of day in UTC."""
    return f"{datetime.fromtimestamp(at, UTC):%H:%M:%S}"


def span_text(seconds: float) -> str:
    """A time span for people."""
    if seconds < 90:
        return f"{seconds:.1f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
