"""The calls of a flow run as one list: first those that did not end, then those that went wrong. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from prefect_resilience.errors.taxonomy import bounded
from prefect_resilience.tasks.summaries.story import PassSeen, Story
from prefect_resilience.telemetry.model import (
    ENDED_BADLY,
    Happening,
    Outcome,
    TaskRunSeen,
    outcome_of,
)

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
