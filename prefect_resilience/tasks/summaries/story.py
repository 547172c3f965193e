"""A flow run, pass by pass: the notes of this process, or what the API knows. Pure.

Times are seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from prefect_resilience.base.text import lasting
from prefect_resilience.durable.batches.run_passes import RunPass, Start, pass_of_task_run
from prefect_resilience.errors.taxonomy import bounded
from prefect_resilience.telemetry.model import Happening, PassFacts, TaskRunSeen, together

OPENED = frozenset({"open", "forced_open"})
AFTER_MOVE = {"circuit.opened": "open", "circuit.half-opened": "half_open", "circuit.closed": "closed"}
CIRCUIT_MOVES = frozenset({*AFTER_MOVE, "circuit.forced"})


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
        states = [state for run in self.seen.task_runs.values() for state in run.states]
        signs = [self.beat, *(state.at for state in states if state.type != "CRASHED")]
        signs += [event.at for event in self.seen.events]
        return max([self.run_pass.began, *(at for at in signs if at <= latest)])


@dataclass(frozen=True, slots=True)
class Story:
    """A flow run with at least one pass, and `inner_runs` flow runs inside it.

    `moves` are the changes of its circuits by any process or person, the first one first. `letters` are the
    dead letters that it leaves: for each its id, its task and its error. `missing` names what could not be
    read.
    """

    name: str
    flow: str
    passes: tuple[PassSeen, ...]
    inner_runs: int = 0
    moves: tuple[Happening, ...] = ()
    letters: tuple[tuple[str, str, str], ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def last(self) -> PassFacts:
        """The facts about the last pass, which has the final outcomes of the calls."""
        return self.passes[-1].seen

    @property
    def happenings(self) -> list[Happening]:
        """The events of all passes, the first one first."""
        events = [event for part in self.passes for event in part.seen.events]
        return sorted(events, key=lambda event: event.at)

    @property
    def remarkable(self) -> bool:
        """Whether the run had several passes or any notable event."""
        return len(self.passes) > 1 or any(part.seen.remarkable for part in self.passes)


def divide(
    passes: Sequence[RunPass],
    flow_run_id: str,
    noted: Mapping[tuple[str, int], PassFacts],
    runs: Iterable[tuple[TaskRunSeen, int]] = (),
    events: Iterable[Happening] = (),
    beats: Sequence[float] = (),
) -> tuple[PassSeen, ...]:
    """The facts about each pass of a flow run: the notes of this process, with what the API has beside them
    if it knows more task runs. `runs` have the run count of their flow run."""
    notes: dict[int, list[PassFacts]] = {one.number: [] for one in passes}
    read = {one.number: PassFacts() for one in passes}

    def number_of(run_id: str, count: int, at: float) -> int:
        of = pass_of_task_run(passes, count if run_id == flow_run_id else 0, at)
        return passes[-1].number if of is None else of.number

    for (run_id, count), facts in noted.items():
        moments = [state.at for run in facts.task_runs.values() for state in run.states]
        moments += [event.at for event in facts.events]
        number = number_of(run_id, count, min(moments, default=passes[-1].began))
        notes[number].append(facts)
        for run in facts.task_runs.values():
            read[number].add(replace(run, events=[], rejected=0))
    rows = {run_id for facts in noted.values() for run_id in facts.task_runs}
    for run, count in {run.id: (run, count) for run, count in runs if run.id not in rows}.values():
        at = min((state.at for state in run.states), default=passes[-1].began)
        read[number_of(run.flow_run_id, count, at)].add(run)
    every = [*(event for facts in noted.values() for event in facts.events), *events]
    for event in {event.id: event for event in every}.values():
        read[number_of("", 0, event.at)].add_event(event)
    parts: list[PassSeen] = []
    for one in passes:
        mine, theirs = together(notes[one.number]), read[one.number]
        if theirs.total > mine.total or not notes[one.number]:
            theirs.outputs, theirs.outputs_left_out = mine.outputs, mine.outputs_left_out
            theirs.counts |= mine.counts  # the larger ones: notes leave events out, and the API has them late
            theirs.calls |= mine.calls
            theirs.call_errors |= mine.call_errors
            mine = theirs
        until = float("inf") if one.ended is None else one.ended
        parts.append(PassSeen(one, mine, max((at for at in beats if one.began <= at <= until), default=0.0)))
    return tuple(parts)


def moves_of(events: Iterable[Happening]) -> tuple[Happening, ...]:
    """The changes of circuits among these events, each once, the first one first."""
    moves = {event.id: event for event in events if event.name in CIRCUIT_MOVES}
    return tuple(sorted(moves.values(), key=lambda move: move.at))


def circuits_met(events: Iterable[Happening]) -> list[str]:
    """The names of circuits that changed in a run, or stood around one of its calls that went wrong."""
    names = (
        event.subject if event.name in CIRCUIT_MOVES else event.payload.get("circuit") for event in events
    )
    return sorted({str(name) for name in names if name})


def state_after(move: Happening) -> str:
    """The new state of a circuit after a change."""
    return AFTER_MOVE.get(move.name) or str(move.payload.get("after") or "")


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
    before = (None, *story.passes)
    rows = [_row(part, earlier) for part, earlier in zip(story.passes, before, strict=False)]
    return rows if len(rows) > 1 else []


def _row(part: PassSeen, before: PassSeen | None) -> tuple[str, ...]:
    one, seen = part.run_pass, part.seen
    began = f"{clock(one.began)} UTC"
    if before is not None and before.run_pass.ended is not None:
        began += f", {lasting(one.began - before.ended)} later"
    ordered = seen.states.most_common()
    outcomes = [f"{count:,} {name}" for name, count in ordered[:STATES_SHOWN] if count]
    if rest := sum(count for _, count in ordered[STATES_SHOWN:]):
        outcomes.append(f"{rest:,} others")
    return (
        str(one.number),
        began,
        bounded(describe_start(one.start), SHORT_END),
        bounded(describe_end(part), SHORT_END),
        lasting(part.ended - one.began) if one.over else "",
        f"{seen.total:,}",
        f"{seen.retries:,}",
        ", ".join(outcomes),
    )


def describe_start(start: Start) -> str:
    """The cause of a pass, with the person and the reason, if known."""
    cause = STARTED[start.cause]
    if start.cause == "recovery" and start.who:
        cause = f"a recovery by {start.who}"
    elif start.who:
        cause = start.who if start.cause == "person" else f"{cause}, {start.who}"
    return f"{cause}: {' '.join(start.why.split())}" if start.why else cause


def describe_end(part: PassSeen) -> str:
    """The end of a pass, with its message; of a process that died, also its last sign of life."""
    one, sign = part.run_pass, f"last sign of life {clock(part.ended)} UTC"
    if one.ended is None:
        return f"unknown: its end was not reported, {sign}" if one.over else "still running"
    message = " ".join(one.message.split())
    end = f"{one.end}: {message}" if message else one.end
    late = one.ended - part.ended >= SILENT
    return f"{end} ({sign}, reported {clock(one.ended)} UTC)" if late else end


def clock(at: float) -> str:
    """The time of day in UTC."""
    return f"{datetime.fromtimestamp(at, UTC):%H:%M:%S}"
