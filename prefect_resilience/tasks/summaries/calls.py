"""The calls of a flow run as one list: first those that did not end, then those that went wrong. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prefect_resilience.errors.taxonomy import bounded
from prefect_resilience.tasks.summaries.story import LATE, PassSeen, Story, is_cut_off
from prefect_resilience.telemetry.model import (
    ENDED_BADLY,
    REPLACED,
    Happening,
    Outcome,
    StateSeen,
    TaskRunSeen,
    outcome_of,
)

ERRORS_SHOWN = 4
SHORT = 160
NOT_ENDED, WELL = 0, 7
RANKS = {"failed": 1, "in doubt": 2, "pending": 3, "replaced": 4, "replayed": 5}
"""The order of outcomes in the list. A call that was retried and then succeeded comes after them."""


@dataclass(frozen=True, slots=True)
class Span:
    """A time in which a call was tried, or waited for its next attempt; `tip` describes it."""

    look: Outcome | str
    start: float
    end: float
    tip: str


@dataclass(frozen=True, slots=True)
class CallRow:
    """One call: a task run, or an effect outside of one. `waited` is in seconds, `what` in words."""

    name: str
    number: int
    rank: int
    ended: str
    attempts: int = 0
    rejected: int = 0
    waited: float = 0.0
    what: str = ""
    spans: tuple[Span, ...] = ()

    @property
    def began(self) -> float:
        return self.spans[0].start if self.spans else float("inf")


def list_calls(story: Story) -> list[CallRow]:
    """The calls of all passes that are known one by one. A later pass comes first."""
    found = [call for part in story.passes for call in _calls_of(part)]
    return sorted(found, key=lambda call: (call.rank, -call.number, call.began))


def _calls_of(part: PassSeen) -> Iterable[CallRow]:
    by_run: dict[str, list[Happening]] = {}
    for one in sorted(part.seen.happenings, key=lambda one: one.at):
        by_run.setdefault(str(one.payload.get("task_run_id") or ""), []).append(one)
    for run in part.seen.task_runs:
        yield _call(run, by_run.pop(run.id, []), part)
    for happenings in by_run.values():
        yield from _effects(happenings, part.run_pass.number)


def _call(run: TaskRunSeen, happenings: list[Happening], part: PassSeen) -> CallRow:
    number, last = part.run_pass.number, run.last
    ended = last.name if last else ""
    if is_cut_off(run) and part.run_pass.over:
        ended = f"did not end ({ended})"
    rejections = [one.at for one in happenings if one.name == "attempt.refused"]
    spans = tuple(_spans(run, part.ended, rejections))
    return CallRow(
        name=run.name,
        number=number,
        rank=_rank(run, happenings),
        ended=ended,
        attempts=run.attempts,
        rejected=run.rejected,
        waited=sum(span.end - span.start for span in spans if span.look == "wait"),
        what="; ".join(_describe(run, happenings)),
        spans=spans,
    )


def _rank(run: TaskRunSeen, happenings: Iterable[Happening]) -> int:
    if run.last is None or is_cut_off(run):
        return NOT_ENDED
    if any(one.name == "effect.in-doubt" for one in happenings):
        return RANKS["in doubt"]
    retried = WELL - 1 if run.remarkable or run.starts > 1 else WELL
    return RANKS.get(outcome_of(run.last.type, run.last.name), retried)


def _describe(run: TaskRunSeen, happenings: Iterable[Happening]) -> Iterable[str]:
    """What happened in a call: its errors, its rejections, the fallback, the effect."""
    told = [*happenings]
    errors = [describe_error(one) for one in told if one.name in ("retry.scheduled", "run.failed")]
    used = [one for one in told if one.name == "fallback.used"]
    errors += [describe_error(one) for one in used]
    if not errors:
        states = [one for one in run.states if one.name == "AwaitingRetry" or one.type in ENDED_BADLY]
        errors = [bounded(state.message, SHORT) for state in states if state.message]
    yield from _with_counts(errors)
    for one in used:
        yield f"fallback {text_in(one.payload, 'to')}{' (degraded)' if one.payload.get('degraded') else ''}"
    if not used and run.last is not None and run.last.name in REPLACED:
        yield run.last.name.lower()
    yield from (_effect(one) for one in told if one.name in EFFECTS)


def _with_counts(errors: Iterable[str]) -> Iterable[str]:
    """Equal errors become one entry with a count."""
    counts = Counter(errors)
    for text, count in [*counts.items()][:ERRORS_SHOWN]:
        yield f"{text} (x{count})" if count > 1 else text
    if len(counts) > ERRORS_SHOWN:
        yield f"and {len(counts) - ERRORS_SHOWN} others"


EFFECTS = {"effect.replayed": "replayed", "effect.in-doubt": "in doubt"}


def _effect(one: Happening) -> str:
    detail = text_in(one.payload, "external_id") or text_in(one.payload, "why")
    return bounded(f"effect {one.subject} {EFFECTS[one.name]}{': ' if detail else ''}{detail}", SHORT)


def _effects(happenings: Iterable[Happening], number: int) -> Iterable[CallRow]:
    """Effects of calls whose task run is not known, or that had none."""
    for one in happenings:
        if one.name in EFFECTS:
            rank = RANKS[EFFECTS[one.name]]
            yield CallRow(one.subject, number, rank, EFFECTS[one.name], what=_effect(one))


def describe_error(one: Happening) -> str:
    """The error of an event in one line, in the form of `ErrorContext.summary`."""
    code, category = text_in(one.payload, "code"), text_in(one.payload, "category")
    same = code.lower() == category.lower()
    head = category if same else " ".join(part for part in (code, category) if part)
    message = text_in(one.payload, "message").strip().splitlines()
    return bounded(f"{head}: {message[0]}" if message else head, SHORT)


def text_in(payload: Mapping[str, Any], name: str) -> str:
    value = payload.get(name)
    return "" if value is None else str(value)


def _spans(run: TaskRunSeen, end: float, rejections: Sequence[float]) -> Iterable[Span]:
    """The attempts and waits of a task run. The state after an attempt is its outcome. `rejections`: when a
    circuit or a limit rejected a call of it."""
    attempt = 0
    for place, state in enumerate(run.states):
        after = run.states[place + 1] if place + 1 < len(run.states) else None
        until = max(_until(after, end), state.at)
        took = f"{until - state.at:.1f} s"
        if state.type == "RUNNING" and any(state.at <= at <= until for at in rejections):
            yield Span("rejected", state.at, until, "rejected: not called")
        elif state.type == "RUNNING":
            attempt += 1
            look = _look(after)
            yield Span(look, state.at, until, f"attempt {attempt}: {took}, {after.name if after else look}")
        elif state.name == "AwaitingRetry":
            yield Span("wait", state.at, until, f"waiting {took}")


def _until(after: StateSeen | None, end: float) -> float:
    """The end of a span. A crash is reported later than it happened: at the end of the pass."""
    return end if after is None or after.type == "CRASHED" else min(after.at, end + LATE)


def _look(after: StateSeen | None) -> Outcome:
    """The outcome of an attempt, from the state after it."""
    if after is None:
        return "running"
    outcome = outcome_of(after.type, after.name)
    return "failed" if outcome in ("running", "pending") else outcome
