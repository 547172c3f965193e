"""A flow run, pass by pass: the notes of this process, or what the API knows. Pure.

Times are seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf

from prefect_resilience.durable.batches.run_passes import RunPass, pass_of_task_run
from prefect_resilience.telemetry.model import Happening, PassFacts, TaskRunSeen, together

OPENED = frozenset({"open", "forced_open"})
MOVES = "circuit."
"""With this begin the events of a circuit's change."""


@dataclass(frozen=True, slots=True)
class PassSeen:
    """One pass of the run, and the facts about it."""

    run_pass: RunPass
    facts: PassFacts

    @property
    def ended(self) -> float:
        """When it ended. The end of a process that died is its last sign of life: its crash is reported
        later, and its task runs are closed later still."""
        ended = self.run_pass.ended
        if ended is not None and not self.run_pass.crashed:
            return ended
        latest = inf if ended is None else ended
        states = [state for run in self.facts.task_runs.values() for state in run.states]
        signs = [state.at for state in states if state.type != "CRASHED"]
        signs += [event.at for event in self.facts.events]
        return max([self.run_pass.began, *(at for at in signs if at <= latest)])


@dataclass(frozen=True, slots=True)
class Story:
    """A flow run with at least one pass, and `inner_runs` flow runs inside it.

    `letters` are the dead letters that it leaves: for each its id, its task and its error. `missing` names
    what could not be read.
    """

    name: str
    flow: str
    passes: tuple[PassSeen, ...]
    inner_runs: int = 0
    letters: tuple[tuple[str, str, str], ...] = ()
    missing: tuple[str, ...] = ()

    @property
    def last(self) -> PassFacts:
        """The facts about the last pass, which has the final outcomes of the calls."""
        return self.passes[-1].facts

    @property
    def happenings(self) -> list[Happening]:
        """The events of all passes, the first one first."""
        events = [event for part in self.passes for event in part.facts.events]
        return sorted(events, key=lambda event: event.at)

    @property
    def moves(self) -> list[Happening]:
        """The changes of circuits by calls of the run, the first one first."""
        return [event for event in self.happenings if event.name.startswith(MOVES)]

    @property
    def remarkable(self) -> bool:
        """Whether the run had several passes or any notable event."""
        return len(self.passes) > 1 or any(part.facts.remarkable for part in self.passes)


def divide(
    passes: Sequence[RunPass],
    flow_run_id: str,
    noted: Mapping[tuple[str, int], PassFacts],
    runs: Iterable[tuple[TaskRunSeen, int]] = (),
    events: Iterable[Happening] = (),
) -> tuple[PassSeen, ...]:
    """The facts about each pass of a flow run: the notes of this process, or what the API has if it knows
    more task runs. `runs` have the run count of their flow run."""
    notes: dict[int, list[PassFacts]] = {part.number: [] for part in passes}
    read = {part.number: PassFacts() for part in passes}

    def number_of(run_id: str, count: int, moments: Iterable[float]) -> int:
        at = min(moments, default=passes[-1].began)
        part = pass_of_task_run(passes, count if run_id == flow_run_id else 0, at)
        return passes[-1].number if part is None else part.number

    for (run_id, count), facts in noted.items():
        moments = [state.at for run in facts.task_runs.values() for state in run.states]
        notes[number_of(run_id, count, [*moments, *(event.at for event in facts.events)])].append(facts)
    for run, count in {run.id: (run, count) for run, count in runs}.values():
        read[number_of(run.flow_run_id, count, [state.at for state in run.states])].add(run)
    for event in {event.id: event for event in events}.values():
        read[number_of("", 0, [event.at])].add_event(event)
    parts: list[PassSeen] = []
    for part in passes:
        mine, theirs = together(notes[part.number]), read[part.number]
        knows_less = theirs.total > mine.total or not notes[part.number]
        parts.append(PassSeen(part, theirs if knows_less else mine))
    return tuple(parts)


def clock(at: float) -> str:
    """The time of day in UTC."""
    return f"{datetime.fromtimestamp(at, UTC):%H:%M:%S}"
