"""The passes of a flow run as a table: when each began and ended, and who started it. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from prefect_resilience.durable.batches.run_passes import Start
from prefect_resilience.errors.taxonomy import bounded
from prefect_resilience.tasks.summaries.story import PassSeen, Story

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
