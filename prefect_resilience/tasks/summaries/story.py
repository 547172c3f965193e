"""A flow run, pass by pass, as this process or the API knows it; and its calls as one list. Pure.

Times are seconds since the epoch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise, zip_longest
from math import inf
from typing import Any

from prefect_resilience.durable.batches.run_passes import RunPass, pass_of_task_run
from prefect_resilience.errors.taxonomy import bounded
from prefect_resilience.telemetry.model import (
    ENDED_BADLY,
    Happening,
    Outcome,
    PassFacts,
    TaskRunSeen,
    outcome_of,
    together,
)

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
    def seconds_parked(self) -> float:
        """How long the run was parked between its passes."""
        parts = [part.run_pass for part in self.passes]
        gaps = [after.began - before.began - (before.seconds or 0.0) for before, after in pairwise(parts)]
        return sum(gap for gap, after in zip(gaps, parts[1:], strict=True) if after.start.cause == "parked")

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


# -- the calls as one list: first those that did not end, then those that went wrong

SHORT = 160
NOT_ENDED, WELL = 0, 7
RANKS = {"failed": 1, "in doubt": 2, "pending": 3, "replaced": 4, "replayed": 5}
"""The order of outcomes in the list. A call that was retried and then succeeded comes after them."""
EFFECTS = {"effect.replayed": "replayed", "effect.in-doubt": "in doubt"}
ERRORS = ("retry.scheduled", "run.failed", "fallback.used")


@dataclass(frozen=True, slots=True)
class Span:
    """A time in which a call was tried, or waited for its next attempt."""

    look: Outcome | str
    start: float
    end: float


@dataclass(frozen=True, slots=True)
class CallRow:
    """One call: a task run, or an effect outside of one. `number` is that of its pass."""

    name: str
    number: int
    rank: int
    ended: str
    attempts: int = 0
    rejected: int = 0
    description: str = ""
    spans: tuple[Span, ...] = ()


def list_calls(story: Story) -> list[CallRow]:
    """The calls of all passes that are known one by one. A later pass comes first."""
    calls = [_call(run, part) for part in story.passes for run in part.facts.task_runs.values()]
    # Effects of calls whose task run is not known, or that had none.
    for part in story.passes:
        for event in part.facts.happenings:
            if ended := EFFECTS.get(event.name):
                words = _describe_effect(event)
                calls.append(
                    CallRow(event.subject, part.run_pass.number, RANKS[ended], ended, description=words)
                )
    return sorted(calls, key=lambda call: (call.rank, -call.number))


def _call(run: TaskRunSeen, part: PassSeen) -> CallRow:
    last, names = run.last, {event.name for event in run.events}
    outcome = "running" if last is None else outcome_of(last.type, last.name)
    cut_off = outcome in ("running", "crashed")
    retried = WELL - 1 if run.remarkable or run.starts > 1 else WELL
    rank = NOT_ENDED if cut_off else RANKS.get(outcome, retried)
    ended = last.name if last else ""
    return CallRow(
        name=run.name,
        number=part.run_pass.number,
        rank=RANKS["in doubt"] if rank and "effect.in-doubt" in names else rank,
        ended=f"did not end ({ended})" if ended and cut_off and part.run_pass.over else ended,
        attempts=run.attempts,
        rejected=run.rejected,
        description="; ".join(_describe(run)),
        spans=tuple(_spans(run, part.ended)),
    )


def _describe(run: TaskRunSeen) -> Iterable[str]:
    """What happened in a call: its errors, its rejections, the fallback, the effect."""
    errors = [describe_error(event) for event in run.events if event.name in ERRORS]
    if not errors:
        states = [state for state in run.states if state.name == "AwaitingRetry" or state.type in ENDED_BADLY]
        errors = [bounded(state.message, SHORT) for state in states if state.message]
    for error, count in Counter(errors).items():
        yield f"{error} (x{count})" if count > 1 else error
    for event in run.events:
        if event.name == "fallback.used":
            degraded = " (degraded)" if event.payload.get("degraded") else ""
            yield f"fallback {text_in(event.payload, 'to')}{degraded}"
    yield from (_describe_effect(event) for event in run.events if event.name in EFFECTS)


def _describe_effect(event: Happening) -> str:
    detail = text_in(event.payload, "external_id") or text_in(event.payload, "why")
    return bounded(f"effect {event.subject} {EFFECTS[event.name]}{': ' if detail else ''}{detail}", SHORT)


def describe_error(event: Happening) -> str:
    """The error of an event in one line, in the form of `ErrorContext.summary`."""
    code, category = text_in(event.payload, "code"), text_in(event.payload, "category")
    head = category if code.lower() == category.lower() else f"{code} {category}".strip()
    message = text_in(event.payload, "message").strip().splitlines()
    return bounded(f"{head}: {message[0]}" if message else head, SHORT)


def text_in(payload: Mapping[str, Any], name: str) -> str:
    value = payload.get(name)
    return "" if value is None else str(value)


def _spans(run: TaskRunSeen, end: float) -> Iterable[Span]:
    """The attempts and waits of a task run. The state after an attempt is its outcome."""
    rejections = [event.at for event in run.events if event.name == "attempt.refused"]
    for state, after in zip_longest(run.states, run.states[1:]):
        # A crash is reported later than it happened: at the end of the pass.
        until = end if after is None or after.type == "CRASHED" else min(after.at, end)
        until = max(until, state.at)
        if state.name == "AwaitingRetry":
            yield Span("wait", state.at, until)
        elif state.type == "RUNNING" and any(state.at <= at <= until for at in rejections):
            yield Span("rejected", state.at, until)
        elif state.type == "RUNNING":
            look = "running" if after is None else outcome_of(after.type, after.name)
            # Another attempt or the wait for it follows a failure.
            is_followed = after is not None and look in ("running", "pending")
            yield Span("failed" if is_followed else look, state.at, until)
